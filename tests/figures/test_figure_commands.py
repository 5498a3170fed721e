"""``loopscale figures`` and ``loopscale report`` as people call them."""

import csv
import json
import re
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from loopscale.cli import main
from loopscale.core.errors import InputError
from loopscale.figures import GALLERY, Sources
from loopscale.figures.results import paper_results
from loopscale.fitting import simulate_sweep
from loopscale.planning import Budget
from loopscale.planning.profiles import joint_optimum
from loopscale.planning.text import share_text
from loopscale.scaling import PUBLISHED, published

NEEDS_FILES = {"training", "test-time"}


def run(capsys, *argv):
    with pytest.raises(SystemExit) as stop:
        main(argv)
    out = capsys.readouterr()
    assert stop.value.code == 0, out.err
    return out.out


def refused(capsys, *argv):
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 2
    return capsys.readouterr().err


def read(path):
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("sweep") / "runs.csv"
    simulate_sweep(recurrences=(1, 2, 4, 8), tokens=(1e11, 3e11, 5e11)).to_csv(path)
    return path


@pytest.mark.slow
def test_the_papers_law_alone_gives_the_whole_set_with_its_numbers(capsys, tmp_path):
    text = run(capsys, "figures", "--out", str(tmp_path / "new" / "figures"), "--format", "png")
    folder = tmp_path / "new" / "figures"
    assert {each.stem for each in folder.glob("*.png")} == set(GALLERY) - NEEDS_FILES
    for name in NEEDS_FILES:
        assert f"not drawn: {name}: give --{name if name == 'test-time' else 'metrics'}" in text
    for picture in folder.glob("*.png"):
        assert list(folder.glob(f"{picture.stem}*.csv")), picture


def test_the_saved_table_is_what_the_planner_says(capsys, tmp_path):
    run(capsys, "figures", "--only", "joint-optimum", "--format", "svg", "--out", str(tmp_path))
    rows = read(tmp_path / "joint-optimum.csv")
    memory = np.array([float(row["memory"]) for row in rows])
    again = joint_optimum(published(), memory, Budget(flops=5e21, bits=4))
    assert [float(row["loss"]) for row in rows] == again.columns["loss"]
    assert [row["rung"] for row in rows] == again.columns["rung"]
    drawn = (tmp_path / "joint-optimum.svg").read_text()
    assert drawn.startswith("<?xml")
    said = " ".join(re.findall(r"<!-- (.*?) -->", drawn))  # matplotlib draws texts as paths and names them
    assert "at 5e21 FLOPs. Law: looped-moe-2026." in said


@pytest.mark.parametrize("name", ["best-recurrence", "best-experts"])
def test_whole_numbers_are_drawn_where_they_are_by_the_command(capsys, tmp_path, name):
    run(capsys, "figures", "--only", name, "--format", "svg", "--out", str(tmp_path))
    panels = (tmp_path / f"{name}.svg").read_text().split('<g id="axes_')[1:]
    for panel in panels[::2] if name == "best-recurrence" else panels:  # each second panel shows the loss
        ticks = [float(y) for y in re.findall(r'<g id="ytick_\d+">.*?<use [^>]*?y="([\d.]+)"', panel, re.DOTALL)]
        paths = re.findall(r'<g id="line2d_\d+">\s*<path d="([^"]+)"', panel)
        curves = [[float(y) for y in re.findall(r"[ML] [\d.]+ ([\d.]+)", path)] for path in paths]
        heights = {y for curve in curves if len(curve) > 5 for y in curve}  # not the keys of the legend
        assert 1 < len(heights) <= len(ticks)
        assert max(min(abs(y - tick) for tick in ticks) for y in heights) < 0.1


def test_the_same_input_gives_the_same_files(capsys, tmp_path):
    for name in ("a", "b"):
        run(capsys, "figures", "--only", "asymptote", "--out", str(tmp_path / name))
    for kind in ("png", "svg", "pdf", "csv"):
        first, second = ((tmp_path / name / f"asymptote.{kind}").read_bytes() for name in ("a", "b"))
        assert first == second, kind


def test_a_fitted_law_and_its_sweep_give_bands_and_residuals_of_the_real_rows(capsys, tmp_path, sweep):
    law = tmp_path / "law.json"
    run(capsys, "fit", str(sweep), "--resamples", "10", "--out", str(law))
    only = "residuals,intervals,loss-by-mapping,isoflop-recurrence,best-recurrence,joint-optimum"
    argv = (
        "figures",
        "--law",
        str(law),
        "--data",
        str(sweep),
        "--only",
        only,
        "--format",
        "png",
        "--out",
        str(tmp_path),
    )
    text = run(capsys, *argv)
    assert "not drawn" not in text
    assert len(read(tmp_path / "residuals.csv")) == len(read(sweep))
    held = [row for row in read(tmp_path / "loss-by-mapping-e8.csv") if row["kind"] == "held out"]
    assert [float(row["recurrence"]) for row in held] == [8.0]
    for name in ("isoflop-recurrence", "joint-optimum"):
        assert {"loss_low", "loss_high"} <= set(read(tmp_path / f"{name}.csv")[0])
    assert {"best_recurrence_low", "best_recurrence_high"} <= set(read(tmp_path / "best-recurrence-e8.csv")[0])


def test_a_dense_sweep_without_recurrence_has_residuals_too(capsys, tmp_path):
    simulate_sweep(experts=(1,), recurrences=(1,), tokens=(1e11, 2e11, 3e11, 5e11)).to_csv(tmp_path / "dense.csv")
    law, data = str(tmp_path / "law.json"), str(tmp_path / "dense.csv")
    run(capsys, "fit", data, "--resample", "none", "--out", law)
    names = ("--only", "residuals,loss-by-mapping,multiplier,asymptote", "--format", "png")
    text = run(capsys, "figures", "--law", law, "--data", data, *names, "--out", str(tmp_path))
    assert "Drew 1 figure " in text
    assert "not drawn: loss-by-mapping" in text
    assert "every run has R = 1" in " ".join(text.split())
    assert "not drawn: multiplier, asymptote: law" in text
    reasons = text.partition("not drawn")[2].splitlines()
    assert max(len(line) for line in reasons) <= 80


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_law_gives_what_it_can_speak_of(name):
    sources, drawn = Sources(published(name)), 0
    for each in ("gain-by-sparsity", "asymptote", "isoflop-size", "best-recurrence", "experts-map", "joint-optimum"):
        with suppress(InputError):  # what a law cannot speak of is said, not drawn
            GALLERY[each](sources).figure()
            drawn += 1
    assert drawn == {"looped-moe-2026": 6, "iso-depth-2026": 3}.get(name, drawn)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("--only", "joint-optimun"), "did you mean"),
        (("--format", "gif"), "choose from png, svg, pdf"),
        (("--results", "{missing}"), "no such file"),
        (("--data", "{missing}"), "no such file"),
        (("--law", "nonsense"), "neither a published law"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(capsys, tmp_path, argv, expected):
    given = [each.format(missing=tmp_path / "missing.csv") for each in argv]
    message = refused(capsys, "figures", "--out", str(tmp_path / "out"), *given)
    assert expected in message
    assert not (tmp_path / "out").exists()


def sections(page: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", page)


def test_a_plan_report_says_what_was_asked_what_to_train_and_how_sure(capsys, tmp_path, sweep):
    law, plan, page = tmp_path / "law.json", tmp_path / "plan.json", tmp_path / "plan.html"
    run(capsys, "fit", str(sweep), "--resamples", "20", "--out", str(law))
    budget = ("--flops", "5e21", "--memory", "3GB", "--bits", "4", "--law", str(law))
    run(capsys, "plan", *budget, "--out", str(plan), "--report", str(tmp_path / "direct.html"))
    run(capsys, "report", "plan", str(plan), "--law", str(law), "--out", str(page))
    text, found = page.read_text(), json.loads(plan.read_text())
    assert sections(text) == ["Question", "Answer", "Confidence", "Nearest designs", "Provenance"]
    assert "training compute 5e21 FLOPs, memory 3 GB, bits per weight 4?" in text
    assert re.search(rf"{str(found['choice']['loss'])[:4]}\d*†? nats/token", text)
    assert f"of the best in {share_text(found['agreement'], found['resamples'])} refits" in text
    assert sections((tmp_path / "direct.html").read_text()) == sections(text)
    assert "file_sha256" in text


def test_reports_are_one_file_that_fetches_nothing(capsys, tmp_path, sweep):
    results = tmp_path / "results.csv"
    paper_results().save(results)
    for kind, file in (("sweep", sweep), ("fit", sweep), ("evaluation", results)):
        page = tmp_path / f"{kind}.html"
        run(capsys, "report", kind, str(file), "--out", str(page))
        text = page.read_text()
        assert sections(text)[:3] == ["Question", "Answer", "Fit card" if kind == "fit" else "Confidence"]
        assert sections(text)[-1] == "Provenance"
        assert not re.findall(r'(?:src|href)="(?!#)|url\((?!#)', text)
        assert "sha256" in text
    assert "+10.3 over R = 1" in (tmp_path / "evaluation.html").read_text()
    assert "60 runs with 180 losses" in (tmp_path / "sweep.html").read_text()


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (("plan", "{law}", "--out", "{out}.html"), "a 'plan' file is needed"),
        (("plan", "{cut}", "--out", "{out}.html"), "cut.json: field 'law' is missing"),
        (("sweep", "simulated", "--out", "{out}.txt"), ".html or .md"),
        (("evaluation", "{law}", "--out", "{out}.html"), "cannot be read"),
        (("sweep", "simulated", "--law", "looped-moe-2026", "--out", "{out}.html"), "--law goes with a plan"),
    ],
)
def test_a_report_that_cannot_be_made_is_refused_in_one_sentence(capsys, tmp_path, argv, expected):
    published().save(tmp_path / "law.json")
    (tmp_path / "cut.json").write_text('{"kind": "plan", "schema": 2, "choice": {}, "budget": {"flops": 1e21}}')
    names = {"law": tmp_path / "law.json", "cut": tmp_path / "cut.json", "out": tmp_path / "page"}
    message = refused(capsys, "report", *(each.format(**names) for each in argv))
    assert expected in message
    assert message.count("\n") == 1
    assert not list(tmp_path.glob("page*"))
