"""The commands that fit: what they print, write and refuse."""

import copy
import csv
import io
import json
import os
import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from test_commands import refused, run

from loopscale.choosing import next_runs, read_candidates
from loopscale.cli import main
from loopscale.core.sealed import _digest
from loopscale.fitting import Observations, fit
from loopscale.fitting.data.public import simulate_sweep
from loopscale.scaling import ScalingLaw, published


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Path:
    """The paper's sweep, simulated, in a file."""
    path = tmp_path_factory.mktemp("sweep") / "runs.csv"
    simulate_sweep(noise=0.002).to_csv(path)
    return path


@pytest.fixture(scope="module")
def dense(tmp_path_factory) -> Path:
    """A small dense sweep without loops, under other names and in other units."""
    law, random = published("chinchilla-epoch-2024"), np.random.default_rng(0)
    lines = ["params_B,seen,final_loss"]
    for N in (0.1, 0.3, 1.0, 3.0):
        for D in (2e9, 1e10, 4e10, 1.5e11):
            c = law.coefficients
            loss = c["A"] * (N * 1e9) ** c["alpha"] + c["B"] * D ** c["beta"] + c["c"]
            lines.append(f"{N},{D},{loss + 0.001 * random.standard_normal()}")
    path = tmp_path_factory.mktemp("dense") / "dense.csv"
    path.write_text("\n".join(lines))
    return path


def test_fit_writes_a_law_that_plan_takes_with_its_doubt(capsys, sweep, tmp_path):
    law, report = tmp_path / "law.json", tmp_path / "fit.html"
    saved = ("--out", str(law), "--report", str(report), "--name", "ours")
    text = run(capsys, "fit", str(sweep), "--resamples", "20", *saved)
    assert "joint MoE law, sparsity-conditional recurrence" in text
    assert "expected (3 backtests" in text
    assert f"Saved {law}, {report}." in text
    fitted = ScalingLaw.load(law)
    assert fitted.name == "ours"
    assert fitted.resamples.shape == (20, 14)
    assert fitted.coefficients["kappa1"] == pytest.approx(published().coefficients["kappa1"], rel=0.05)
    argv = ("plan", "--flops", "5e21", "--memory", "1GB", "--bits", "4", "--law", str(law), "--json")
    plan = json.loads(run(capsys, *argv))
    assert (plan["choice"]["rung"], plan["choice"]["experts"]) == ("1.0B", 2)
    assert plan["agreement"] > 0.5
    page = report.read_text()
    assert page.count("<svg") == 8
    assert "http" not in page.replace("http-equiv", "")


def test_fit_reports_in_markdown_with_pictures_beside_it(capsys, sweep, tmp_path):
    run(capsys, "fit", str(sweep), "--resamples", "5", "--report", str(tmp_path / "fit.md"))
    assert {each.name for each in tmp_path.iterdir()} == {"fit.md", *(f"fit-{k}.png" for k in range(1, 9))}
    assert "](fit-8.png)" in (tmp_path / "fit.md").read_text()


def test_fit_prints_json_for_programs(capsys, sweep):
    found = json.loads(run(capsys, "fit", str(sweep), "--resample", "none", "--json"))
    assert found["coefficients"]["theta"] == pytest.approx(0.33, abs=0.05)
    assert found["intervals"] is None
    assert found["degenerate"] == []
    assert found["agreeing"] == found["starts"]


def test_a_dense_sweep_under_other_names_gets_the_law_it_can_carry(capsys, dense):
    names = ("--columns", "N=params_B", "--columns", "D=seen", "--columns", "loss=final_loss", "--units", "N=1B")
    found = json.loads(
        run(capsys, "fit", str(dense), *names, "--counts", "with-embeddings", "--resamples", "10", "--json")
    )
    assert (found["law"]["outer"], found["law"]["mapping"]) == ("chinchilla", "none")
    assert found["coefficients"]["c"] == pytest.approx(1.8172, abs=0.1)
    low, high = found["intervals"]["alpha"]
    assert low < -0.3478 < high or abs(found["coefficients"]["alpha"] + 0.3478) < 0.02


def test_a_coefficient_can_be_held_or_bounded(capsys, sweep):
    argv = ("fit", str(sweep), "--resample", "none", "--fix", "c=1.3555", "--bound", "theta=0.1:0.2", "--json")
    found = json.loads(run(capsys, *argv))
    assert found["coefficients"]["c"] == 1.3555
    assert found["at_bound"] == ["theta"]


def test_compare_prints_the_papers_table_and_its_rows(capsys, sweep):
    argv = ("compare", str(sweep), "--hold-out", "R=8", "--folds", "0", "--resamples", "50")
    text = run(capsys, *argv)
    assert "sparsity-conditional (14)" in text
    rows = list(csv.DictReader(io.StringIO(run(capsys, *argv, "--csv"))))
    rmse = {row["mapping"]: float(row["rmse"]) for row in rows}
    assert rmse["linear"] > rmse["power"] > rmse["bounded"] > rmse["sparsity-conditional"]


def test_next_chooses_runs_within_the_budget(capsys, sweep, tmp_path):
    plan = tmp_path / "plan.json"
    run(capsys, "plan", "--flops", "5e21", "--memory", "3GB", "--bits", "4", "--out", str(plan))
    argv = ("next", str(sweep), "--budget", "1e22", "--for", str(plan), "--most", "5", "--resamples", "4")
    design = json.loads(run(capsys, *argv, "--json"))
    assert len(design["runs"]) == 5
    assert design["runs"][-1]["cumulative_flops"] <= 1e22
    assert design["after"] < design["before"]
    assert "expected error" in run(capsys, *argv)
    cheap = json.loads(run(capsys, "next", str(sweep), "--budget", "1e20", "--for", str(plan), "--json"))
    assert len(cheap["runs"]) >= 1
    assert cheap["runs"][-1]["cumulative_flops"] <= 1e20


@pytest.mark.skipif(
    not os.environ.get("LOOPSCALE_DATA"), reason="LOOPSCALE_DATA names no folder with the public sweeps"
)
def test_public_sweeps_are_fitted_by_name(capsys):
    found = json.loads(run(capsys, "fit", "epoch-chinchilla", "--resample", "none", "--json"))
    assert found["objective"] == pytest.approx(1.018274e-3, rel=1e-5)


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (("fit", "nowhere.csv"), "nowhere.csv"),
        (("fit", "{sweep}", "--fix", "kapa1=3"), "did you mean 'kappa1'"),
        (("fit", "{sweep}", "--fix", "kappa1"), "NAME=VALUE"),
        (("fit", "{sweep}", "--fix", "c=x"), "not a finite number"),
        (("fit", "{sweep}", "--bound", "c=1"), "LOW:HIGH"),
        (("fit", "{sweep}", "--delta", "-1"), "above zero"),
        (("fit", "{sweep}", "--columns", "D=colour"), "colour"),
        (("fit", "{sweep}", "--report", "fit.txt"), ".html or .md"),
        (("compare", "{sweep}", "--hold-out", "Q=3"), "R=16, E=16"),
        (("compare", "{sweep}", "--hold-out", "R=77"), "selects no row"),
        (("next", "{sweep}", "--budget", "1e20", "--for", "nowhere.json"), "no such file"),
        (("next", "{sweep}", "--budget", "1e20"), "--for"),
    ],
)
def test_bad_requests_to_fit_get_one_clear_sentence(capsys, sweep, argv, sentence):
    assert sentence in refused(capsys, *(each.format(sweep=sweep) for each in argv))


def test_a_law_file_is_no_plan(capsys, sweep, tmp_path):
    published().save(tmp_path / "law.json")
    said = refused(capsys, "next", str(sweep), "--budget", "1e22", "--for", str(tmp_path / "law.json"))
    assert "a 'plan' file is needed here" in said


BROKEN_FILES = {
    "empty.csv": ("", "empty"),
    "header.csv": ("N_act,D,loss\n", "row"),
    "text.csv": ("N_act,D,loss\n1e9,1e10,2.5\n1e9,many,2.5\n", "many"),
    "negative.csv": ("N_act,D,loss\n1e9,1e10,-2.5\n1e9,2e10,2.5\n", "-2.5"),
    "nan.csv": ("N_act,D,loss\n1e9,1e10,nan\n1e9,2e10,2.5\n", "nan"),
    "short.csv": ("N_act,D,loss\n1e9,1e10,2.5\n2e9,1e10,2.4\n", "hold B and beta with --fix"),
    "columns.csv": ("a,b,c\n1,2,3\n", "loss"),
    "binary.csv": (bytes(range(256)).decode("latin-1"), "binary.csv"),
}


@pytest.mark.parametrize("name", BROKEN_FILES)
def test_broken_sweeps_are_named_with_what_they_lack(capsys, tmp_path, name):
    content, sentence = BROKEN_FILES[name]
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    said = refused(capsys, "fit", str(tmp_path / name), "--resample", "none")
    assert sentence in said


def test_random_bytes_as_a_sweep_bring_no_traceback(capsys, tmp_path):
    random = np.random.default_rng(0)
    for case in range(60):
        rows = [",".join(random.choice(["1e9", "x", "", "nan", "-1", "3e10", '"', "2.5"], size=3)) for _ in range(4)]
        text = "N_act,D,loss\n" + "\n".join(rows)
        path = tmp_path / f"{case}.csv"
        path.write_bytes(random.bytes(80) if case % 3 == 0 else text.encode())
        refused(capsys, "fit", str(path), "--resample", "none")


def test_backtest_prints_its_numbers_and_a_figure(capsys, dense, tmp_path):
    names = ("--columns", "N=params_B", "--columns", "D=seen", "--columns", "loss=final_loss", "--units", "N=1B")
    argv = ("backtest", str(dense), *names, "--resamples", "10")
    numbers = json.loads(run(capsys, *argv, "--json"))
    assert set(numbers) == {
        "train_rows", "held_out", "level", "coverage", "mean_abs_relative_error", "median_width", "interval_score",
    }  # fmt: skip
    text = run(capsys, *argv, "--keep", "N>=1e8", "--figure", str(tmp_path / "backtest.png"))
    assert "predictive intervals cover" in text
    assert (tmp_path / "backtest.png").stat().st_size > 1000


def test_a_dense_sweep_compares_outer_laws(capsys, dense):
    names = ("--columns", "N=params_B", "--columns", "D=seen", "--columns", "loss=final_loss", "--units", "N=1B")
    rows = list(csv.DictReader(io.StringIO(run(capsys, "compare", str(dense), *names, "--folds", "2", "--csv"))))
    assert {row["mapping"] for row in rows} >= {"chinchilla", "kaplan"}
    assert all(float(row["relative_error"]) < 0.1 for row in rows)
    assert all(row["coverage"] for row in rows)


def test_next_on_a_dense_sweep_keeps_to_its_axes_and_ratios(capsys, dense, tmp_path):
    names = ("--columns", "N=params_B", "--columns", "D=seen", "--columns", "loss=final_loss", "--units", "N=1B")
    plan = tmp_path / "plan.json"
    run(capsys, "plan", "--flops", "1e21", "--law", "chinchilla-epoch-2024", "--out", str(plan), "--extrapolate")
    argv = ("next", str(dense), *names, "--budget", "1e21", "--for", str(plan), "--goal", "predictions", "--json")
    chosen = json.loads(run(capsys, *argv))
    assert chosen["unspent"] == pytest.approx(1e21 - chosen["flops"])
    for row in chosen["runs"]:
        assert (row["experts"], row["recurrence"]) == (1, 1)
        assert 2e9 / 3e9 * 0.99 <= row["tokens"] / row["active"] <= 1.5e11 / 1e8 * 1.01
    chosen = json.loads(run(capsys, *argv, "--rung", "0.3B,0.6B", "--min-ratio", "10", "--max-ratio", "40"))
    assert all(9.9 < row["tokens"] / row["active"] < 40.1 for row in chosen["runs"])
    table = tmp_path / "candidates.csv"
    table.write_text("model,N,D,cost\nsmall,2e8,4e9,5e18\nlarge,5e9,1e11,3e21\n")
    # The large one costs more than the budget. The small one lies so far from the target that the error of the law's
    # form weighs more than what it adds: it is worth training only where the form is known to be right.
    only = (*argv[:-1], "--candidates", str(table))
    assert run(capsys, *only).startswith("No candidate within the budget lowers the expected error, 0.0013 nats.")
    trusted = next_runs(
        fit(Observations.of(dense, columns={"N": "params_B", "D": "seen", "loss": "final_loss"}, units={"N": 1e9})),
        1e21, plan, candidates=read_candidates(table), growth=0.0,
    )  # fmt: skip
    assert [one.model for one in trusted.runs] == ["small"]


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (("--fix", "alpha=0.34"), "--fix: alpha is 0.34; exponents are negative here"),
        (("--columns", "loss=final_los"), "did you mean 'final_loss'"),
        (("--keep", "Q>3"), "there is no column 'Q'"),
        (("--tie", "alpha=betta"), "did you mean 'beta'"),
        ((), "--columns tokens=NAME"),
    ],
)
def test_errors_speak_of_options(capsys, dense, argv, sentence):
    names = ("--columns", "N=params_B", "--columns", "D=seen", "--columns", "loss=final_loss") if argv else ()
    assert sentence in refused(capsys, "fit", str(dense), *names, *argv)


def test_a_prediction_is_registered_once_and_checked(capsys, tmp_path):
    path = tmp_path / "prediction.json"
    argv = ("predict", "--rung", "1.0B", "--experts", "8", "--tokens", "500B", "--register", str(path))
    run(capsys, *argv)
    loss = json.loads(path.read_text())["prediction"]["loss"]
    checked = run(capsys, "predict", "--check", str(path), "--loss", str(1.01 * loss))
    assert "(+1.00%): outside the interval" in checked
    assert max(map(len, checked.splitlines())) <= 80
    assert "exists already" in refused(capsys, *argv)
    assert "--check needs --loss" in refused(capsys, "predict", "--check", str(path))
    path.write_text(path.read_text().replace(f'"loss": {loss}', '"loss": 1.0'))
    message = refused(capsys, "predict", "--check", str(path), "--loss", "2")
    assert "the checksum differs" in message
    assert message.count(str(path)) == 1
    data = json.loads(path.read_text())
    del data["checksum"]
    path.write_text(json.dumps(data))
    assert "does not match its hash" in refused(capsys, "predict", "--check", str(path), "--loss", "2")


FORGED = {
    "prediction": (None, [1], "x"),
    "prediction.loss": (None, "2.0", 0, -1, 10**400, True),
    "prediction.interval": ([1, 2], "x", {}),
    "prediction.interval.low": (None, "a", 9.0),
    "prediction.interval.high": (None, 0),
    "prediction.interval.level": ("most", 90),
    "prediction.interval.kind": (None, "odd"),
    "prediction.interval.basis": (None,),
    "date": (None, "yesterday", [1]),
    "schema": (None, 99, "1"),
}
"""Values that a registered prediction cannot have, by field."""


@pytest.mark.parametrize("field", FORGED)
def test_a_forged_prediction_with_a_right_hash_is_refused_in_a_sentence(field, capsys, tmp_path):
    path = tmp_path / "prediction.json"
    run(capsys, "predict", "--rung", "1.0B", "--experts", "8", "--tokens", "500B", "--register", str(path))
    written = json.loads(path.read_text())
    for value in (*FORGED[field], "removed"):
        content = {name: part for name, part in copy.deepcopy(written).items() if name not in ("checksum", "sha256")}
        *parents, last = field.split(".")
        inner = content
        for name in parents:
            inner = inner[name]
        inner.pop(last) if value == "removed" else inner.update({last: value})
        path.write_text(json.dumps(content | {"sha256": _digest(content)}))
        message = refused(capsys, "predict", "--check", str(path), "--loss", "2")
        assert message.count(str(path)) == 1
        assert last in message


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b"{}", bytes(range(256)), b"[" * 100_000, b'{"kind": 1}'])
def test_a_damaged_prediction_is_refused_in_a_sentence(content, capsys, tmp_path):
    path = tmp_path / "prediction.json"
    path.write_bytes(content)
    assert str(path) in refused(capsys, "predict", "--check", str(path), "--loss", "2")


def kinds_of_sweeps() -> dict[str, str]:
    """Return small tables of each kind of sweep by name: dense, MoE, looped and both."""
    sizes, ratios = (1e8, 2e8, 4e8, 8e8), (20, 60, 200)
    grids = {"dense": ([1], [1]), "moe": ([1, 4, 16], [1]), "looped": ([1], [1, 2, 4]), "looped-moe": ([1, 4], [1, 2])}
    random, tables = np.random.default_rng(0), {}
    for name, (experts, recurrences) in grids.items():
        lines = ["run,N_act,N_loop,N_total,E,R,tokens,loss"]
        for k, (N, ratio, E, R) in enumerate(product(sizes, ratios, experts, recurrences)):
            size = N * (1 + 0.5 * (1 - 1 / R)) * E**0.2
            loss = 1.7 + 480 / size**0.34 + 2100 / (ratio * N) ** 0.37 + 0.002 * random.standard_normal()
            lines.append(f"r{k},{N},{0.6 * N},{N * (1 + 0.5 * (E - 1))},{E},{R},{ratio * N},{loss}")
        tables[name] = "\n".join(lines)
    return tables


@pytest.mark.parametrize("kind", kinds_of_sweeps())
def test_every_kind_of_sweep_gets_its_report(capsys, tmp_path, kind):
    runs, report = tmp_path / f"{kind}.csv", tmp_path / "fit.html"
    runs.write_text(kinds_of_sweeps()[kind])
    text = run(
        capsys, "fit", str(runs), "--resamples", "5", "--out", str(tmp_path / "law.json"), "--report", str(report)
    )
    assert text.startswith(f"Fitted {len(kinds_of_sweeps()[kind].splitlines()) - 1} runs from {kind}.csv")
    html = report.read_text()
    assert ("loss against recurrence" in html) == ("looped" in kind)
    if "it predicts nothing" not in html:
        assert (re.search(r"active parameters with .*R = \d", html) is not None) == ("looped" in kind)
    assert run(capsys, "report", "fit", str(runs), "--out", str(tmp_path / "report.md")).startswith("Saved")


def test_the_summary_is_printed_before_the_report_is_drawn(capsys, sweep, tmp_path):
    folder = tmp_path / "fit.html"
    folder.mkdir()  # so that the report cannot be written
    with pytest.raises(SystemExit):
        main(["fit", str(sweep), "--resample", "none", "--report", str(folder)])
    assert "kappa1" in capsys.readouterr().out
