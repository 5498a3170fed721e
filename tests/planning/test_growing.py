"""A plan may recommend passes that grow during training, and its training file runs them as written."""

from __future__ import annotations

import tomllib

import pytest
from click.testing import CliRunner

import loopscale as ls
from loopscale.cli.plan import plan_command
from loopscale.core.errors import InputError
from loopscale.planning import Plan
from loopscale.scaling import Points, find_law
from loopscale.scaling.growth import PassSchedule, scheduled_flops, scheduled_loss

LOOPS = {"law": "qlabs-loops-2026", "extrapolate": True}


@pytest.fixture(scope="module")
def grown() -> Plan:
    return ls.plan(flops=3e18, grow=True, **LOOPS)


def test_a_schedule_has_the_compute_of_the_plan_and_the_loss_of_the_delay_law(grown: Plan) -> None:
    growth, choice = grown.growth, grown.choice
    assert growth is not None
    schedule = PassSchedule(growth.schedule)
    points = Points(choice.active, growth.tokens, loop=choice.loop)
    assert float(scheduled_flops(points, schedule)) == pytest.approx(3e18)
    assert growth.train_flops == pytest.approx(3e18)
    assert float(scheduled_loss(find_law("qlabs-loops-2026"), points, schedule)) == pytest.approx(growth.loss)
    assert growth.saved == pytest.approx(choice.loss - growth.loss)
    assert growth.saved >= grown.eps


def test_only_growth_from_two_to_four_passes_in_dense_models_counts_as_measured(grown: Plan) -> None:
    assert grown.growth is not None
    assert grown.growth.measured == ([p for _, p in grown.growth.schedule] == [2, 4])


def test_a_plan_without_growth_is_what_it_was(grown: Plan) -> None:
    plain = ls.plan(flops=3e18, **LOOPS)
    assert plain.growth is None
    assert plain.choice == grown.choice
    assert "recurrence" not in plain.train_config()["schedule"]


def test_a_plan_with_growth_loads_equal_to_what_was_saved(grown: Plan) -> None:
    assert Plan.from_dict(grown.to_dict()) == grown


def test_the_training_file_has_the_schedule_its_last_passes_and_its_tokens(grown: Plan) -> None:
    assert grown.growth is not None
    sections = tomllib.loads(grown.train_file())
    assert sections["schedule"]["recurrence"] == [list(stage) for stage in grown.growth.schedule]
    assert sections["model"]["recurrence"] == grown.growth.schedule[-1][1]
    assert sections["run"]["tokens"] == round(grown.growth.tokens)


def test_the_trainer_reads_the_schedule_as_written(grown: Plan) -> None:
    pytest.importorskip("torch")
    from loopscale.train.config import TrainConfig
    from loopscale.train.schedule import scheduled_recurrence

    assert grown.growth is not None
    config = TrainConfig.from_dict(grown.train_config())
    (_, first), (start, last) = grown.growth.schedule
    steps = config.steps
    passes = [scheduled_recurrence(config.schedule, step, steps) for step in (0, steps - 1)]
    assert passes == [first, last]
    assert scheduled_recurrence(config.schedule, round(start * steps), steps) == last


def test_the_last_passes_keep_the_limits() -> None:
    free = ls.plan(flops=3e18, rule="loss", grow=True, **LOOPS)
    assert free.growth is not None
    limit = free.choice.inference_flops * 1.2
    bound = ls.plan(flops=3e18, rule="loss", grow=True, inference_flops=limit, **LOOPS)
    trained = bound.trained
    unrolled = trained.active + (trained.recurrence - 1) * trained.loop
    assert 2 * unrolled <= limit * (1 + 1e-9)


def test_growth_is_refused_where_the_law_has_no_passes_or_the_compute_is_open() -> None:
    with pytest.raises(InputError, match="no term for passes"):
        ls.plan(flops=1e21, law="chinchilla-2022", rule="loss", extrapolate=True, grow=True)
    with pytest.raises(InputError, match="leaves the compute open"):
        ls.plan(tokens=1e9, grow=True, **LOOPS)


def test_the_command_says_what_growth_is_worth() -> None:
    runner = CliRunner()
    line = ["--flops", "3e18", "--law", "qlabs-loops-2026", "--extrapolate", "--grow"]
    assert "passes on average" in runner.invoke(plan_command, line).output
    short = runner.invoke(plan_command, [*line, "--eps", "0.5"])
    assert "no schedule of passes saves more than 0.5" in " ".join(short.output.split())
