"""Which results belong to a sweep, by the settings and the data that they were trained with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loopscale.sweep.provenance import foreign_results
from loopscale.sweep.spec import read_sweep
from sweeps import write_sweep


def result_of(run: Any, **changes: Any) -> tuple[str, int, dict[str, Any]]:
    config = run.config.changed(**changes).to_dict()
    return run.key, min(run.points), {"config": config, "data": "digest"}


def test_results_of_0_2_which_lack_newer_settings_stay_in_their_sweep(tmp_path: Path) -> None:
    sweep = read_sweep(write_sweep(tmp_path, "[grid]\nseed = [0, 1]\ntokens = [320]\n"))
    older = [result_of(run) for run in sweep.runs]
    for _, _, facts in older:
        config = facts["config"]
        config["model"]["placement"] = "edges"
        del config["model"]["init_from"], config["optimizer"]["name"], config["run"]["ema"]
        del config["data"]["task"], config["data"]["task_seed"], config["data"]["difficulty"], config["data"]["format"]
    assert foreign_results(sweep, older) == {}


def test_results_of_other_or_unreadable_settings_are_named(tmp_path: Path) -> None:
    sweep = read_sweep(write_sweep(tmp_path, "[grid]\nseed = [0, 1]\ntokens = [320]\n"))
    other, unreadable = result_of(sweep.runs[0], optimizer={"clip": 0.5}), result_of(sweep.runs[1])
    unreadable[2]["config"]["optimizer"]["momentum"] = 1
    reasons = list(foreign_results(sweep, [other, unreadable]).values())
    assert "was trained with [optimizer] clip = 0.5; the sweep's file says 1.0" in reasons[0]
    assert "settings that cannot be read" in reasons[1]
    assert "momentum" in reasons[1]
