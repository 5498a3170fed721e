"""What two earlier attacks did not try: folders of another user, tables in other units, another number of threads."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest
from artefacts import RUN, make_text, run

import loopscale as ls
from loopscale.fitting import Observations
from loopscale.fitting.data.public import simulate_sweep

NOBODY = 65534


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can act as another user")
@pytest.mark.parametrize("argv", [
    ["plan", "--flops", "5e21", "--out", "plan.json"], ["plan", "--flops", "5e21", "--train", "run.toml"],
    ["fit", "runs.csv", "--resamples", "2", "--starts", "1", "--out", "law.json"],
    ["forecast", "runs.csv", "--flops", "1e21", "--register", "sealed.json"],
], ids=lambda argv: f"{argv[0]}{argv[-2]}")  # fmt: skip
def test_a_folder_that_belongs_to_somebody_else_is_one_sentence(tmp_path, monkeypatch, capsys, argv):
    simulate_sweep(recurrences=(1,), experts=(1,)).to_csv(tmp_path / "runs.csv")
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o755)
    assert run(*argv) == 0, capsys.readouterr().err  # also imports what nobody else may read
    Path(argv[-1]).unlink()
    capsys.readouterr()
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    os.seteuid(NOBODY)
    try:
        code = run(*argv)
    finally:
        monkeypatch.undo()
        os.seteuid(0)
    error = capsys.readouterr().err
    assert (code, error.count("\n")) == (2, 1), error
    assert argv[-1] in error
    assert {path.name for path in tmp_path.iterdir()} == {"runs.csv"}


def test_a_table_in_other_units_gives_the_same_law(tmp_path):
    sweep = simulate_sweep(recurrences=(1,), experts=(1,))
    sweep.to_csv(tmp_path / "runs.csv")
    head, *lines = (tmp_path / "runs.csv").read_text().splitlines()
    names = head.split(",")
    size, tokens = names.index("N_act (raw)"), names.index("D (raw)")
    scaled = [head]
    for line in lines:
        cells = line.split(",")
        cells[size], cells[tokens] = repr(float(cells[size]) / 1e6), repr(float(cells[tokens]) / 1e9)
        scaled.append(",".join(cells))
    (tmp_path / "scaled.csv").write_text("\n".join(scaled) + "\n")
    options = {"resamples": 2, "outer": "chinchilla", "mapping": "none"}
    first = ls.fit(Observations.of(tmp_path / "runs.csv"), **options)
    second = ls.fit(Observations.of(tmp_path / "scaled.csv", units={"N": "1M", "D": "1B"}), **options)
    points = first.observations.points
    assert second.law(points) == pytest.approx(first.law(points), rel=1e-6)


def test_a_run_resumes_with_another_number_of_threads(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    from loopscale.train.config import TrainConfig
    from loopscale.train.metrics import read_metrics
    from loopscale.train.trainer import Trainer

    monkeypatch.chdir(tmp_path)
    make_text(tmp_path)
    config, threads = TrainConfig.from_dict(tomllib.loads(RUN)), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        Trainer(config, tmp_path / "whole").train()
        Trainer(config, tmp_path / "parts").train(until=4)
        torch.set_num_threads(2)
        Trainer(config, tmp_path / "parts").train()
    finally:
        torch.set_num_threads(threads)
    logs = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("whole", "parts"))
    whole, parts = ([row["loss"] for row in log] for log in logs)
    assert parts == pytest.approx(whole, abs=1e-4)
