"""What goes into a paper: loss over compute, figures in the paper's type and width, the law in LaTeX, a fit card."""

import re

import numpy as np
import pytest
from matplotlib.text import Text

from loopscale.figures.fitting import draw_loss_over_compute, loss_over_compute
from loopscale.figures.gallery import GALLERY
from loopscale.figures.pictures import Panel, Picture
from loopscale.figures.reports import fit_report
from loopscale.figures.reports.fit import fit_card
from loopscale.figures.sources import Sources
from loopscale.figures.style import COLUMN, PAGE, STYLES, typeset
from loopscale.fitting import Observations, fit, simulate_sweep
from loopscale.scaling import PUBLISHED, published
from loopscale.scaling.optimum import compute_optimal


def dense_rows() -> dict[str, list[object]]:
    sizes, random = (7e7, 1.6e8, 4.1e8, 1.3e9), np.random.default_rng(0)
    rows = [(f"m{N:.0e}-{r}", N, r * N) for N in sizes for r in (10, 20, 40, 80)]
    loss = [(1.7 + 480 / N**0.34 + 2100 / D**0.37) * np.exp(0.002 * random.standard_normal()) for _, N, D in rows]
    return {"run": [r[0] for r in rows], "params": [r[1] for r in rows], "tokens": [r[2] for r in rows], "loss": loss}


@pytest.fixture(scope="module")
def dense():
    return fit(Observations.of(dense_rows(), keep="loss < 5", name="dense"), resamples=20, seed=7)


def parts(table, kind):
    return [row for row in table.records() if row["kind"] == kind]


def test_the_curve_over_compute_is_the_laws_optimum_and_the_star_lies_ten_times_out(dense):
    table = loss_over_compute(dense.law, dense.observations)
    C = dense.observations.points.train_flops
    for row in parts(table, "law")[::10]:
        assert row["loss"] == pytest.approx(compute_optimal(dense.law, row["flops"]).loss, rel=1e-4)
        assert row["loss_low"] < row["loss"] < row["loss_high"]
    (star,) = parts(table, "predicted")
    assert star["flops"] == pytest.approx(10 * C.max())
    assert star["extrapolated"]
    assert len(parts(table, "run")) == len(dense.observations)
    (nearer,) = parts(loss_over_compute(dense.law, dense.observations, 3 * C.max()), "predicted")
    assert nearer["flops"] == pytest.approx(3 * C.max())


def test_the_curve_of_a_looped_moe_is_the_best_of_the_experts_and_passes_in_the_data():
    sweep = simulate_sweep(tokens=(1e11, 5e11))
    law = published()
    table = loss_over_compute(law, sweep)
    curve = parts(table, "law")
    assert {row["recurrence"] for row in parts(table, "run")} == set(sweep.points.recurrence)
    assert {row["experts"] for row in curve} <= set(sweep.points.experts)
    C = sweep.points.train_flops
    at = {row["flops"]: row["loss"] for row in curve}
    budgets = np.array(sorted(at))
    below = np.interp(np.log(C), np.log(budgets), [at[c] for c in budgets])
    assert (sweep.loss > below - 4 * 0.0037).all()
    assert sum("R=" in text.get_text() for text in draw_loss_over_compute(loss_over_compute(law, sweep)).texts) == 0


@pytest.mark.parametrize(("style", "width"), [("paper", COLUMN), ("paper", PAGE), ("slide", 10.0)])
def test_a_style_has_its_width_and_no_caption(style, width, dense, tmp_path):
    from dataclasses import replace

    from PIL import Image

    sources = Sources(dense.law, dense.observations)
    look = replace(STYLES[style], width=width)
    GALLERY["residuals"](sources).save(tmp_path, ("png", "pdf"), "Law: dense.", look)
    with Image.open(tmp_path / "residuals.png") as image:
        assert image.width / 200 == pytest.approx(width, rel=0.01)


def test_symbols_are_typeset_as_mathematics(dense):
    figure = Picture(
        "x", "", (Panel(loss_over_compute(dense.law, dense.observations), draw_loss_over_compute),)
    ).figure()
    figure.axes[0].set_title("N_eff / N_act and R*")
    typeset(figure, STYLES["paper"])
    said = {text.get_text() for text in figure.findobj(Text)}
    assert r"$N_\mathrm{eff}$ / $N_\mathrm{act}$ and $R^*$" in said
    figure.draw_without_rendering()


def test_a_dense_law_draws_nothing_about_recurrence(dense):
    picture = GALLERY["isoflop-size"](Sources(dense.law, dense.observations))
    assert {row["recurrence"] for panel in picture.panels for row in panel.table.records()} == {1}


@pytest.mark.parametrize("law", PUBLISHED.values(), ids=lambda law: law.name)
def test_every_published_law_has_balanced_latex(law):
    text = law.latex()
    assert text.count("{") == text.count("}")
    assert text.count(r"\begin{") == text.count(r"\end{") == 2
    assert "Ê" not in text
    assert not re.search(r"\de[+-]?\d", text)
    assert text.count(r"\\") >= len(law.terms) + 1


def test_a_dense_law_in_latex_is_the_equation_of_papers(dense):
    c = dense.law.coefficients
    text = dense.law.latex()
    assert rf"\frac{{{c['A']:.4g}}}{{N^{{{-c['alpha']:.4g}}}}}" in text
    assert re.search(r"\$\\alpha\$ & \$0\.3\d+\$ & \$\[0\.\d+, 0\.\d+\]\$", text)
    assert "R" not in text.split("tabular")[0].split("align")[1]


def test_the_fit_card_says_how_to_repeat_the_fit(dense):
    card = fit_card(dense)
    assert card["columns"] == "N_act = params, D = tokens, loss = loss, run = run"
    assert card["rows chosen by"] == "loss < 5"
    assert card["data sha256"] == dense.observations.digest
    assert (card["seed"], card["parameter counts"]) == ("7", "without embeddings (assumed)")


def test_reports_tell_no_folder_of_this_machine(dense, tmp_path, monkeypatch):
    from loopscale.core.tables import Table

    Table(dense_rows()).save(tmp_path / "runs.csv")
    monkeypatch.setattr("sys.argv", ["loopscale", "fit", str(tmp_path / "runs.csv"), "--report", "fit.html"])
    page = fit_report(fit(tmp_path / "runs.csv", resamples=5)).html()
    assert str(tmp_path) not in page
    assert "loopscale fit runs.csv --report fit.html" in page
