"""The paper's figures and tables: what the captions claim is what is drawn, and what is simulated says so."""

import csv

import numpy as np
import pytest

from loopscale.cli import main
from loopscale.figures.capacity import dense_rows
from loopscale.figures.drawing import PAPER_FIGURES, paper_figure
from loopscale.figures.gallery import GALLERY
from loopscale.figures.results import paper_psi, paper_results
from loopscale.figures.sources import Sources
from loopscale.figures.tables import TABLES, laws_table
from loopscale.fitting import simulate_sweep
from loopscale.scaling import PAPER, published

LAW = published()


@pytest.fixture(scope="module")
def sources():
    return Sources(LAW, results=paper_results(), psi=paper_psi())


def end_of(panel, mapping):
    """Return the curve's loss where the held-out row lies, and that row's loss."""
    rows = list(panel.table.records())
    held = next(row for row in rows if row["kind"] == "held out")
    curve = [row for row in rows if row["mapping"] == mapping]
    at = np.interp(held["recurrence"], [row["recurrence"] for row in curve], [row["loss"] for row in curve])
    return at, held["loss"]


def test_fitted_to_dense_rows_up_to_R_8_only_the_bounded_mapping_meets_the_plateau_at_16(sources):
    panel = GALLERY["loss-by-mapping"](sources).panels[0]
    assert {row["experts"] for row in panel.table.records()} == {1}
    misses = {name: end_of(panel, name)[0] - end_of(panel, name)[1] for name in ("linear", "power", "bounded")}
    assert abs(misses["bounded"]) < 2.5 * LAW.rmse  # one simulated loss, with that noise
    assert misses["power"] < -0.01
    assert misses["linear"] < -0.1


def test_the_dense_panel_is_fitted_to_the_dense_rows_alone(sources):
    assert set(sources.mappings_at(1)) == {"linear", "power", "bounded"}
    assert sources.mappings_at(8) is sources.mappings
    assert set(dense_rows(sources.sweep).points.experts) == {1}
    assert "to the dense rows alone" in GALLERY["loss-by-mapping"](sources).caption


def test_with_more_experts_the_loss_is_lower_and_looping_gains_more(sources):
    rows = [row for row in GALLERY["loss-by-experts"](sources).panels[0].table.records() if row["kind"] == "law"]
    by_E = {E: [row["loss"] for row in rows if row["experts"] == E] for E in (1, 2, 4, 8, 16)}
    gains = [by_E[E][0] - by_E[E][-1] for E in by_E]
    assert all(np.diff([losses[0] for losses in by_E.values()]) < 0)
    assert all(np.diff(gains) > 0)


@pytest.mark.parametrize("name", ["loss-by-experts", "loss-by-mapping", "bounded-gain", "residuals"])
def test_a_picture_of_simulated_losses_says_so_and_one_of_given_losses_does_not(sources, name):
    assert "simulated" in GALLERY[name](sources).caption
    data = simulate_sweep(LAW, tokens=(1e11, 3e11, 5e11), recurrences=(1, 2, 4, 8))
    given = Sources(LAW, observations=data)
    data_said = GALLERY[name](given).caption.replace(data.source, "")
    assert "simulated" not in data_said


def test_points_of_a_simulated_sweep_are_called_simulated_in_the_legend(sources):
    axes = GALLERY["loss-by-mapping"](sources).figure().axes[1]
    entries = [text.get_text() for text in axes.get_legend().get_texts()]
    assert "simulated" in entries
    assert "observed" not in entries


@pytest.mark.parametrize("name", ["residuals", "observed", "intervals", "loss-compute"])
def test_without_its_caption_a_picture_of_simulated_losses_still_says_so(sources, name):
    assert "simulated" in GALLERY[name](sources).figure().axes[0].get_title(loc="left")


def test_every_figure_of_the_paper_has_its_parts(sources):
    parts = {
        number: [axes.get_title(loc="left")[:3] for axes in paper_figure(number, sources).figure().axes]
        for number in PAPER_FIGURES
    }
    letters = {number: set("".join(titles)) & set("abcd") for number, titles in parts.items()}
    assert {number: "".join(sorted(found)) for number, found in letters.items()} == {
        "figure-1": "abc", "figure-2": "ab", "figure-3": "ab", "figure-4": "abcd", "figure-5": "abc",
        "figure-6": "abc", "figure-7": "ab",  # the published scores have one compute, so two panels
    }  # fmt: skip


def test_the_tables_are_written_as_latex_html_and_csv(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["figures", "--only", "schematic", "--format", "svg", "--tables", "--out", str(tmp_path)])
    assert not stop.value.code
    assert f"Wrote {len(TABLES)} tables" in capsys.readouterr().out
    for name in TABLES:
        assert "\\toprule" in (tmp_path / f"{name}.tex").read_text(encoding="utf-8")
        assert "<table>" in (tmp_path / f"{name}.html").read_text(encoding="utf-8")
        with (tmp_path / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            assert list(csv.DictReader(file))


def test_the_ladder_psi_and_scores_of_the_tables_are_the_papers(sources):
    ladder = {row["N_act"]: row for row in TABLES["ladder"](sources).table.records()}
    printed = PAPER["ladder"]["rungs"]
    assert [float(ladder[name]["N_total, E=8"]) for name in printed] == pytest.approx(
        [row["total"][3] for row in printed.values()], abs=0.101
    )
    psi = list(TABLES["psi"](sources).table.records())
    assert psi[3]["R=8"] == "1.7035 ± 0.0861"
    scores = list(TABLES["scores"](sources).table.records())
    assert scores[5]["Overall"] == "46.9 (+10.3)"
    assert [row["compute"] for row in scores] == ["1.0×", "0.4×", "0.8×", "1.1×", "1.5×", "1.8×"]


def test_table_1_has_the_papers_axes_and_optimality():
    rows = {row["law"]: row for row in laws_table().records()}
    axes = ("N", "D", "R", "E", "compute", "memory")
    expected = {
        "chinchilla-2022": "yes yes no no yes no",
        "routed-s-base-2022": "yes no no yes no no",
        "joint-moe-2025": "yes yes no yes yes yes",
        "Parcae (2026)": "yes yes yes no yes no",
        "iso-depth-2026": "yes yes yes no yes no",
        "Sparse Layers (2026)": "yes no no no yes no",
        "SMELT (2026)": "yes yes no yes yes no",
        "looped-moe-2026": "yes yes yes yes yes yes",
    }
    assert {name: " ".join(rows[name][axis] for axis in axes) for name in expected} == expected
    assert rows["looped-moe-2026"]["refitted here"] == "no"
    assert rows["iso-depth-2026"]["recurrence mapping"] == "power; unbounded"
