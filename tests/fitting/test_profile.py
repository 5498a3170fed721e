"""The profile likelihood of one coefficient."""

import numpy as np
import pytest
from plain import fit

from loopscale.core.errors import InputError
from loopscale.fitting import likelihood_profile, simulate_sweep
from loopscale.fitting.covariance import coefficient_intervals

SWEEP = simulate_sweep(noise=0.0026, run_noise=0.0026)


@pytest.fixture(scope="module")
def fitted():
    return fit(SWEEP)


@pytest.mark.parametrize("name", ["kappa1", "kappa2", "theta"])
def test_the_profile_and_the_resamples_tell_the_same_story(fitted, name):
    low, high = coefficient_intervals(fitted.resample(100))[name]
    seen = likelihood_profile(fitted, name)
    assert seen.high - seen.low == pytest.approx(high - low, rel=0.4)
    assert seen.low < fitted.law.coefficients[name] < seen.high
    assert seen.open == (False, False)
    assert seen.runs == 90


def test_the_statistic_is_zero_at_the_estimate_and_rises_away_from_it(fitted):
    seen = likelihood_profile(fitted, "theta")
    best = int(np.argmin(seen.statistic))
    assert seen.statistic[best] == 0
    assert seen.values[best] == pytest.approx(fitted.law.coefficients["theta"])
    assert (np.diff(seen.statistic[best:]) > 0).all()
    assert (np.diff(seen.statistic[: best + 1]) < 0).all()
    assert (seen.objective >= fitted.objective * (1 - 1e-9)).all()
    assert list(seen.table().columns) == ["value", "objective", "statistic"]


def test_an_end_that_the_data_leave_open_is_called_open(fitted):
    assert likelihood_profile(fitted, "E_max").open == (False, True)


def test_a_higher_level_gives_a_wider_interval(fitted):
    narrow, wide = likelihood_profile(fitted, "kappa1", level=0.5), likelihood_profile(fitted, "kappa1", level=0.95)
    assert wide.low < narrow.low < narrow.high < wide.high


def test_points_along_a_run_do_not_count_as_independent():
    """Doubling every row adds no information, and must not narrow the interval by the root of two."""
    twice = SWEEP.where(np.repeat(np.arange(len(SWEEP)), 2))
    once, doubled = (likelihood_profile(fit(each), "kappa1") for each in (SWEEP, twice))
    assert doubled.high - doubled.low == pytest.approx(once.high - once.low, rel=0.05)


def test_only_varied_coefficients_have_a_profile(fitted):
    with pytest.raises(InputError, match=r"'kapa1' was not varied \(did you mean 'kappa1'\?\)"):
        likelihood_profile(fitted, "kapa1")
    with pytest.raises(InputError, match="between 0 and 1"):
        likelihood_profile(fitted, "kappa1", level=1.5)
