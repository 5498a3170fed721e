"""The final loss of a run in training: found from its log, with an interval that narrows, whatever the log's form."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from loopscale.cli.forecast import forecast_command
from loopscale.core.errors import InputError
from loopscale.fitting.data.run_logs import RunLog, read_log
from loopscale.fitting.running import final_loss
from loopscale.scaling.annealing import RateSchedule, annealed_loss, rate_factor

STEPS = 2000
SCHEDULES = [
    RateSchedule(STEPS, "wsd", 50, 0.2),
    RateSchedule(STEPS, "cosine", 50),
    RateSchedule(STEPS, "linear", 50),
    RateSchedule(STEPS, "constant", 50),
]


def log_of(schedule: RateSchedule, seed: int = 0, fall: float = 0.2, noise: float = 0.01) -> tuple[RunLog, float]:
    """Simulate the log of a run, a row every ten steps, and its true final loss."""
    rate = schedule.factors()
    share = np.cumsum(rate) / rate.sum()
    truth = annealed_loss([2.3, np.log(0.3), np.log(0.45), np.log(fall)], share, rate)
    step = np.arange(10, schedule.steps + 1, 10)
    loss = truth[step - 1] + noise * np.random.default_rng(seed).standard_normal(len(step))
    return RunLog(step.astype(float), loss, None, "loss", "simulated", schedule), float(truth[-1])


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: schedule.kind)
def test_the_end_is_found_and_the_interval_narrows_as_the_log_grows(schedule: RateSchedule) -> None:
    log, truth = log_of(schedule)
    found = [final_loss(log.until(share * STEPS)) for share in (0.3, 0.6, 0.95)]
    for forecast in found:
        assert forecast.low < truth < forecast.high
    assert found[-1].final == pytest.approx(truth, abs=0.02)
    widths = [forecast.high - forecast.low for forecast in found]
    assert widths[2] < 0.7 * widths[0]


def test_before_a_cooldown_its_gain_is_expected_and_wide() -> None:
    schedule = RateSchedule(STEPS, "wsd", 50, 0.2)
    log, truth = log_of(schedule)
    early = final_loss(log.until(0.7 * STEPS))
    assert early.final < early.loss_now - 0.05  # the decay of the rate is counted on, unseen
    late = final_loss(log.until(0.93 * STEPS))
    assert abs(late.final - truth) < 0.03
    assert late.high - late.low < 0.5 * (early.high - early.low)


def test_ninety_percent_intervals_cover_most_ends() -> None:
    inside = []
    for seed in range(12):
        for schedule in SCHEDULES[:2]:
            log, truth = log_of(schedule, seed, fall=[0.08, 0.2, 0.35][seed % 3])
            found = final_loss(log.until(0.5 * STEPS))
            inside.append(found.low < truth < found.high)
    assert np.mean(inside) >= 0.85


def test_intervals_cover_the_ends_of_the_runs_that_ship() -> None:
    """24 tiny runs of several schedules; docs/running.md has the whole table."""
    path = Path(__file__).parents[2] / "experiments" / "running" / "logs.jsonl"
    inside, errors = [], []
    for line in path.read_text(encoding="utf-8").splitlines():
        content = json.loads(line)
        step, loss = np.array(content["validation_loss"])
        log = RunLog(step, loss, None, "validation_loss", content["run"], RateSchedule(**content["schedule"]))
        for share in (0.5, 0.8):
            found = final_loss(log.until(share * content["schedule"]["steps"]))
            inside.append(found.low < loss[-1] < found.high)
            errors.append(found.final / loss[-1] - 1)
    assert len(inside) == 48
    assert 0.8 <= np.mean(inside) <= 0.97
    assert np.sqrt(np.mean(np.square(errors))) < 0.04


def test_a_law_pulls_an_uncertain_forecast_and_not_when_it_contradicts_the_log() -> None:
    log, truth = log_of(SCHEDULES[0])
    part = log.until(0.4 * STEPS)
    alone, helped = final_loss(part), final_loss(part, law_loss=truth, law_deviation=0.01)
    assert abs(helped.final - truth) <= abs(alone.final - truth)
    assert helped.high - helped.low < alone.high - alone.low
    wrong = final_loss(part, law_loss=9.0, law_deviation=0.01)
    assert wrong.final == pytest.approx(alone.final, abs=0.5)
    assert wrong.law_weight < 0.1


def test_the_rate_of_a_schedule_is_the_trainers() -> None:
    assert rate_factor("wsd", 99, 100, cooldown=0.2) == pytest.approx(1 / 20)
    assert rate_factor("linear", 0, 100) == 1.0
    assert rate_factor("cosine", 50, 100, final=0.1) == pytest.approx(0.1 + 0.9 * 0.5)
    assert rate_factor("constant", 3, 100, warmup_steps=9) == pytest.approx(0.4)


@pytest.fixture
def rows() -> list[dict[str, float]]:
    log, _ = log_of(SCHEDULES[1])
    part = log.until(0.6 * STEPS)
    return [{"step": int(s), "loss": float(y)} for s, y in zip(part.step, part.loss, strict=True)]


def test_logs_of_several_forms_give_the_same_forecast(rows: list[dict[str, float]], tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 12')
    config = {"schedule": {"kind": "cosine", "warmup_steps": 50}, "data": {"context": 8},
              "run": {"tokens": STEPS * 16, "batch": 2}}  # fmt: skip
    (folder / "run.json").write_text(json.dumps({"config": config}))
    with (tmp_path / "wandb.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["_step", "train/loss", "lr"])
        writer.writerows([[row["step"], row["loss"], 0.001] for row in rows])
    own = final_loss(folder)
    table = final_loss(tmp_path / "wandb.csv", RateSchedule(STEPS, "cosine", 50))
    assert own.steps == STEPS
    assert own.final == pytest.approx(table.final, abs=1e-6)


def test_the_log_of_a_branch_begins_with_its_trunk(rows: list[dict[str, float]], tmp_path: Path) -> None:
    branch = tmp_path / "run" / "D32000"
    branch.mkdir(parents=True)
    cut = len(rows) // 2
    trunk = [*rows[:cut], {"step": rows[cut]["step"], "loss": 9.0}]  # the trunk went on without the cooldown
    for folder, part in ((branch.parent, trunk), (branch, rows[cut:])):
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    np.testing.assert_array_equal(read_log(branch).loss, [row["loss"] for row in rows])
    assert len(read_log(branch.parent).loss) == cut + 1
    (branch / "metrics.jsonl").write_text("")  # as where the schedule has no cooldown
    config = {"schedule": {"kind": "constant"}, "data": {"context": 8}, "run": {"tokens": 1600, "batch": 2}}
    (branch / "run.json").write_text(json.dumps({"config": config}))
    assert read_log(branch).step.max() == 100


def test_a_validation_loss_is_preferred_where_it_has_enough_rows(rows: list[dict[str, float]], tmp_path: Path) -> None:
    for count, column in ((3, "loss"), (20, "val_loss")):
        lines = [row | ({"val_loss": row["loss"] + 1} if i < count else {}) for i, row in enumerate(rows)]
        path = tmp_path / f"{count}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert read_log(path).column == column
    assert read_log(path, "loss").column == "loss"


def test_a_tensorboard_folder_is_read(rows: list[dict[str, float]], tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    torch_tensorboard = pytest.importorskip("torch.utils.tensorboard")
    writer = torch_tensorboard.SummaryWriter(str(tmp_path))
    for row in rows:
        writer.add_scalar("loss", row["loss"], row["step"])
    writer.close()
    log = read_log(tmp_path)
    np.testing.assert_allclose(log.loss, [row["loss"] for row in rows], rtol=1e-5)


def test_a_log_that_cannot_be_forecast_says_why(rows: list[dict[str, float]], tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InputError, match="how long the run is"):
        final_loss(path)
    with pytest.raises(InputError, match="too few to forecast"):
        final_loss(read_log(path).until(60), RateSchedule(STEPS))
    with pytest.raises(InputError, match="beyond the 100 of the run"):
        final_loss(path, RateSchedule(100))
    with pytest.raises(InputError, match="no column 'los'"):
        read_log(path, "los")


def test_the_command_forecasts_a_running_log(rows: list[dict[str, float]], tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    line = [str(path), "--running", "--steps", str(STEPS), "--schedule", "cosine"]
    shown = CliRunner().invoke(forecast_command, line).output
    assert shown.startswith("Final loss 2.")
    read = json.loads(CliRunner().invoke(forecast_command, [*line, "--json"]).output)
    assert read["low"] < read["final"] < read["high"]
