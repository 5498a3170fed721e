"""Does a change help? Known speedups are found again, trends too, and the wall clock follows the throughput."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from loopscale.cli.gate import gate_command
from loopscale.core.errors import InputError
from loopscale.fitting import Observations
from loopscale.fitting.variants import gate
from loopscale.scaling import Counting, Points, find_law

LAW = find_law("chinchilla-epoch-2024")


def sweep(speedup: float, per_decade: float = 1.0, *, seed: int = 0, name: str = "runs", speed: float = 1.0,
          ratios: tuple[float, ...] = (10.0, 20.0, 40.0), noise: float = 0.002) -> Observations:  # fmt: skip
    """Simulate runs whose loss is that of the law at ``speedup`` times their compute, growing by decade above 1e19."""
    sizes = np.geomspace(5e7, 8e8, 6)
    N = np.repeat(sizes, len(ratios))
    ratio = np.tile(ratios, len(sizes))
    D = N * ratio
    flops = 6 * N * D
    s = speedup * per_decade ** (np.log10(flops) - 19)
    loss = LAW(Points(N * np.sqrt(s), D * np.sqrt(s)))
    loss = loss * np.exp(noise * np.random.default_rng(seed).standard_normal(len(N)))
    ones = np.ones(len(N))
    return Observations(
        Points(N, D, ones, ones, 0 * ones, N), loss, np.array([f"{name}-{i}" for i in range(len(N))]), name,
        Counting.WITHOUT_EMBEDDINGS, name=name, extra={"tokens_per_second": speed * 1e12 / N},
    )  # fmt: skip


@pytest.fixture(scope="module")
def baseline() -> Observations:
    return sweep(1.0, seed=1, name="base")


@pytest.mark.parametrize("speedup", [0.7, 1.3, 2.0])
def test_a_known_speedup_is_found_again(baseline: Observations, speedup: float) -> None:
    found = gate(sweep(speedup), baseline).compute
    assert found.speedup == pytest.approx(speedup, rel=0.12)
    assert found.low < speedup < found.high
    assert found.helps is (speedup > 1)
    assert found.direction == "undecided"


def test_no_change_is_not_called_a_help(baseline: Observations) -> None:
    undecided = [gate(sweep(1.0, seed=seed), baseline, resamples=60).compute.helps is None for seed in range(2, 8)]
    assert sum(undecided) >= 4


def test_a_gain_that_grows_or_fades_is_told(baseline: Observations) -> None:
    grows, fades = (gate(sweep(1.3, factor), baseline).compute for factor in (1.4, 0.7))
    assert (grows.direction, fades.direction) == ("grows", "fades")
    assert grows.per_decade == pytest.approx(1.4, rel=0.15)
    assert fades.per_decade == pytest.approx(0.7, rel=0.15)


def test_the_wall_clock_takes_the_throughput_into_account(baseline: Observations) -> None:
    even, slow = (gate(sweep(1.3, speed=speed), baseline) for speed in (1.0, 0.5))
    assert even.time is not None
    assert slow.time is not None
    assert even.time.speedup == pytest.approx(even.compute.speedup, rel=0.02)
    assert slow.time.speedup == pytest.approx(even.time.speedup / 2, rel=0.02)
    assert gate(replace(sweep(1.3), extra={}), baseline).time is None


def test_a_law_serves_as_the_baseline(tmp_path: Path, baseline: Observations) -> None:
    from loopscale.fitting import fit

    fitted = fit(baseline, resamples=40)
    fitted.law.save(tmp_path / "law.json")
    by_file, by_fit = (gate(sweep(1.5), against).compute for against in (str(tmp_path / "law.json"), fitted))
    assert by_file.speedup == pytest.approx(by_fit.speedup)
    assert by_file.low < 1.5 < by_file.high


def test_few_baseline_runs_along_one_line_give_a_curve_within_their_range() -> None:
    line = sweep(1.0, ratios=(20.0,), name="base", seed=1)
    found = gate(sweep(1.4, ratios=(20.0,)), line)
    assert found.compute.speedup == pytest.approx(1.4, rel=0.15)
    far = sweep(1.0, ratios=(20.0,))
    larger = replace(far, points=Points(*(far.points.active * 30, far.points.tokens * 30), np.ones(6), np.ones(6)))
    with pytest.raises(InputError, match="reaches within 30x"):
        gate(replace(larger, loss=far.loss * 0.5), line)


def test_the_command_prints_the_answer_first_and_json(tmp_path: Path, baseline: Observations) -> None:
    new, old = tmp_path / "new.csv", tmp_path / "old.csv"
    sweep(1.5).to_csv(new)
    baseline.to_csv(old)
    shown = CliRunner().invoke(gate_command, [str(new), "--against", str(old)]).output
    assert shown.startswith("It helps: new is worth 1.")
    assert len(shown.splitlines()) <= 22
    assert max(map(len, shown.splitlines())) <= 80
    read = json.loads(CliRunner().invoke(gate_command, [str(new), "--against", str(old), "--json"]).output)
    assert read["compute"]["helps"] is True
    assert len(read["runs"]) == 18
    same = CliRunner().invoke(gate_command, [str(new), "--against", str(new)])
    assert same.exit_code == 2
    assert "--against-keep" in same.output
