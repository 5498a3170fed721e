"""The learning-rate range test."""

import json
from pathlib import Path

from click.testing import CliRunner
from training import corpus, small

from loopscale.cli.verbs import cli
from loopscale.core.text import curve
from loopscale.train.rate_test import find_rate


def test_the_suggestion_is_below_the_rate_that_diverges(tmp_path: Path) -> None:
    config = small(corpus(tmp_path / "text"), optimizer={"learning_rate": 0.03})
    result = find_rate(config, steps=60)
    assert result.ended, "rates up to 3 raise the loss of a small model"
    lowest = result.rates[result.losses.index(min(result.losses))]
    assert result.rates[0] < result.suggested < lowest
    assert result.losses[-1] > min(result.losses)
    assert find_rate(config, steps=60) == result, "a function of the settings"


def test_the_command_prints_a_rate_to_use(tmp_path: Path) -> None:
    changes = ("--set", "model.width=16", "--set", "model.layers=3", "--set", "data.context=32", "--set", "run.batch=2")
    done = CliRunner().invoke(cli, ["train", "--find-rate", *changes])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("learning_rate = ")
    assert max(map(len, done.output.splitlines())) <= 100
    found = json.loads(CliRunner().invoke(cli, ["train", "--find-rate", *changes, "--json"]).stdout)
    assert f"{found['suggested']:.2g}" in done.output


def test_a_curve_falls_as_its_values_do() -> None:
    lines = curve([4.0, 3.0, 2.0, 1.0, float("nan")], height=2).splitlines()
    assert lines == ["  4 █▅  █", "  1 ███▁█"] or len(lines) == 2
    assert curve([float("nan")]) == ""
    assert len(curve(list(range(1000)), height=3).splitlines()[-1]) <= 80
