"""Backtests: hidden runs are predicted, and the intervals of real sweeps cover them."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from backtests import cross_validation, extrapolation, sweeps
from loopscale.core.errors import InputError
from loopscale.fitting import Observations
from loopscale.fitting.backtest import backtest
from loopscale.scaling import Points
from warning_trials import simulated

real_data = pytest.mark.skipif(
    not (Path(os.environ.get("LOOPSCALE_DATA", "nowhere")) / "real").is_dir(),
    reason="LOOPSCALE_DATA names no folder with the real sweeps",
)


@pytest.fixture(scope="module")
def result():
    return backtest(simulated(60, 1), resamples=30)


def test_the_largest_decade_of_compute_is_hidden(result):
    shown, hidden = result.fit.observations.points.train_flops, result.hidden.points.train_flops
    assert shown.max() <= hidden.max() / 10 < hidden.min()
    assert result.score.train_rows + result.score.held_out == 60
    assert list(result.to_dict()) == [
        "train_rows", "held_out", "level", "coverage", "mean_abs_relative_error", "median_width", "interval_score"
    ]  # fmt: skip


def test_the_score_is_width_and_misses(result):
    low, high, loss = np.log(result.low), np.log(result.high), np.log(result.hidden.loss)
    miss = np.maximum(low - loss, 0) + np.maximum(loss - high, 0)
    assert result.score.interval_score == pytest.approx(np.mean(high - low + 20 * miss))
    assert result.score.coverage == np.mean(miss == 0)
    assert result.score.law_coverage <= result.score.coverage


def test_a_law_that_holds_is_predicted_well(result):
    assert result.score.mean_abs_relative_error < 0.02
    assert result.score.coverage > 0.8
    assert len(result.origins) >= 3
    assert len(result.table()) == result.score.held_out
    assert len(result.plot().axes) == 1


@pytest.mark.parametrize("axis", ["N", "D", "R", "E"])
def test_an_interval_widens_along_every_axis_even_within_the_compute_of_the_data(result, axis):
    law = result.fit.law
    span, compute = law.fitted_range, law.spread.frontier / 10
    widths = []
    for factor in (1.0, 3.0, 10.0, 100.0):
        N = span.size[1] * (factor if axis == "N" else 1 / 3)
        N = compute / 6 / (span.tokens[1] * factor) if axis == "D" else N
        R, E = (factor if axis == name else 1.0 for name in "RE")
        low, high = law.predictive_interval(Points(N, compute / 6 / N, R, E, loop=0.0, total=N))
        widths.append(float(np.log(high / low)))
    assert widths == sorted(widths)
    assert widths[-1] > 1.5 * widths[0]


def test_a_law_that_a_user_wrote_is_backtested_like_the_built_in_one(result):
    written = backtest(simulated(60, 1), resamples=30, outer="c + A/N**alpha + B/D**beta", rolling=False)
    assert written.score.held_out == result.score.held_out
    assert written.score.mean_abs_relative_error == pytest.approx(result.score.mean_abs_relative_error, rel=0.05)
    assert written.score.coverage == pytest.approx(result.score.coverage, abs=0.1)


def test_rows_can_be_hidden_by_a_slice():
    data = simulated(60, 1)
    assert backtest(data, hold_out="N>1B", rolling=False, resamples=10).hidden.points.active.min() > 1e9
    by_compute = backtest(data, hold_out="C>1e20", rolling=False, resamples=10)
    assert by_compute.hidden.points.train_flops.min() > 1e20


def test_a_diverged_run_among_the_hidden_ones_is_named_and_not_scored():
    data = simulated(60, 1)
    largest = int(np.argmax(data.points.train_flops))
    broken = replace(data, loss=np.where(np.arange(60) == largest, 3 * data.loss, data.loss))
    clean, result = backtest(data, resamples=30), backtest(broken, resamples=30)
    assert result.score.held_out == clean.score.held_out - 1
    assert result.score.mean_abs_relative_error == pytest.approx(clean.score.mean_abs_relative_error, rel=0.2)
    assert max(each.mean_abs_relative_error for each in result.origins) < 0.1
    name = str(data.run[largest])
    assert f"run '{name}' (row {largest + 1}) looks diverged" in str(result)
    assert "left out of the scores" in str(result)
    assert not clean.warnings
    with pytest.raises(InputError, match=r"every run in .* looks diverged"):
        backtest(broken, hold_out=f"C>{data.points.train_flops[largest] * 0.9999:.6g}", resamples=5)


def test_what_cannot_be_hidden_is_said():
    data = simulated(60, 1)
    with pytest.raises(InputError, match="all runs lie within 9 decades of compute"):
        backtest(data, decades=9)
    with pytest.raises(InputError, match="selects no row"):
        backtest(data, hold_out="C>1e30")


@real_data
def test_intervals_cover_larger_runs_of_real_sweeps():
    """The averages over all sweeps are in docs/forecasts.md; two sweeps keep this quick."""
    for name in ("marin-comma-isoflop", "misfitting-isoflop"):
        ours, reference = extrapolation(sweeps()[name])
        assert ours[0] >= 0.85
        assert ours[2] < reference[2]


@real_data
@pytest.mark.slow
def test_coverage_and_score_over_all_real_sweeps():
    scores = [extrapolation(data) for data in sweeps().values()]
    assert 0.85 <= np.mean([ours[0] for ours, _ in scores]) <= 0.96
    assert np.exp(np.mean([np.log(ours[2] / reference[2]) for ours, reference in scores])) <= 0.70


@real_data
@pytest.mark.slow
def test_random_folds_of_real_sweeps_are_covered():
    assert 0.86 <= np.mean([cross_validation(data) for data in sweeps().values()]) <= 0.94


@real_data
def test_five_points_with_tied_exponents_predict_the_two_large_runs():
    """The over-training law of mlfoundations/scaling; its published errors are .71% and .73%."""
    from plain import fit

    data = Observations.of("mlf-redpajama-c4val")
    N, ratio = data.points.active, data.points.tokens / data.points.active
    small = np.zeros(len(data), dtype=bool)
    for size, M in ((10.6e6, 20), (78.9e6, 20), (153.7e6, 20), (411.6e6, 20), (10.6e6, 320)):
        small |= np.isclose(N, size, rtol=0.01) & np.isclose(ratio, M, rtol=0.05)
    assert small.sum() == 5
    law = fit(data.where(small), tie={"alpha": "beta"}).law
    for size, M, published in ((1.4e9, 640, 0.0071), (6.9e9, 20, 0.0073)):
        row = data.where(np.isclose(N, size, rtol=0.05) & np.isclose(ratio, M, rtol=0.05))
        assert len(row) == 1
        assert abs(float(law(row.points)[0]) / row.loss[0] - 1) <= published + 0.0002
