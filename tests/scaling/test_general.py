"""The general recurrence mapping: its limits are the other mappings, and its derivatives hold at each of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopscale.scaling import exponent, mapping

R = np.array([1.0, 2.0, 3.0, 5.0, 8.0, 16.0, 100.0])
GENERAL, CONDITIONAL = mapping("general"), mapping("general-conditional")
TAILS = (0.0, 1e-12, 1e-6, 1e-3, 0.2, 1 / 3, 0.4999, 0.5, 0.5001, 0.75, 0.99)

kappas = st.floats(0.05, 5.0)
tails = st.floats(0.0, 1.0)


def gain(tail, kappa1=0.37, kappa2=1.4, form=GENERAL, m=1.0, theta=0.33):
    return form.gain({"kappa1": kappa1, "kappa2": kappa2, "tail": tail, "theta": theta}, R, m)


@given(kappas, kappas)
def test_tail_0_is_the_bounded_mapping(kappa1, kappa2):
    bounded = mapping("bounded").gain({"kappa1": kappa1, "kappa2": kappa2}, R, 1.0)
    np.testing.assert_allclose(gain(0.0, kappa1, kappa2), bounded, rtol=1e-14, atol=0)


@given(kappas, kappas, st.floats(0.0, 1.0), st.floats(0.02, 1.0))
def test_tail_0_is_the_sparsity_conditional_mapping_whatever_m(kappa1, kappa2, theta, m):
    c = {"kappa1": kappa1, "kappa2": kappa2, "theta": theta}
    expected = mapping("sparsity-conditional").gain(c, R, m)
    np.testing.assert_allclose(gain(0.0, kappa1, kappa2, CONDITIONAL, m, theta), expected, rtol=1e-13, atol=0)


@given(kappas, kappas)
def test_the_other_limits_are_a_hyperbola_a_logarithm_and_a_line(kappa1, kappa2):
    x = (R - 1) / kappa2
    np.testing.assert_allclose(gain(1 / 3, kappa1, kappa2), kappa1 * x / (1 + x / 2), rtol=1e-12)
    np.testing.assert_allclose(gain(1 / 2, kappa1, kappa2), kappa1 * np.log1p(x), rtol=1e-12)
    np.testing.assert_allclose(gain(1.0, kappa1, kappa2), kappa1 * x, rtol=1e-9)


@given(st.floats(0.05, 0.95))
def test_the_power_law_is_inside(phi):
    tail = 1 / (2 - phi)
    p = tail / (1 - tail)
    power = mapping("power").gain({"phi": phi}, R, 1.0)
    np.testing.assert_allclose(gain(tail, kappa1=phi * p, kappa2=p), power, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("form", [GENERAL, CONDITIONAL])
@pytest.mark.parametrize("m", [1.0, 0.1])
def test_derivatives_equal_the_complex_step_at_every_limit(form, tail, m):
    c = {"kappa1": 0.37, "kappa2": 1.4, "theta": 0.33, "tail": tail}
    shared, exact = form.gain_and_gradient(c, R, m)
    np.testing.assert_allclose(shared, form.gain(c, R, m), rtol=1e-14)
    for name, slope in exact.items():
        nudged = form.gain({**c, name: c[name] + 1e-30j}, R, m).imag / 1e-30
        np.testing.assert_allclose(slope, nudged, rtol=1e-10, atol=1e-14)


@given(kappas, kappas, tails)
def test_the_gain_rises_and_each_pass_adds_less_than_the_one_before(kappa1, kappa2, tail):
    c = {"kappa1": kappa1, "kappa2": kappa2, "tail": tail}
    gains = GENERAL.gain(c, np.arange(1.0, 60.0), 1.0)
    steps = np.diff(gains)
    assert gains[0] == 0
    assert np.all(steps >= -1e-12 * gains[-1])
    assert np.all(np.diff(steps) <= 1e-12 * gains[-1])


@given(kappas, st.floats(0.0, 0.45), st.floats(0.46, 0.999))
def test_it_has_a_bound_where_the_exponent_is_below_zero(kappa1, bounded, other):
    c = {"kappa1": kappa1, "kappa2": 1.4, "theta": 0.3}
    limit = GENERAL.asymptote({**c, "tail": bounded}, 1.0)
    assert GENERAL.gain({**c, "tail": bounded}, 1e30, 1.0) == pytest.approx(limit, rel=1e-3)
    assert exponent(bounded) < 0
    assert np.isinf(CONDITIONAL.asymptote({**c, "tail": other}, 0.1)) == (other >= 0.5)


def test_the_exponent_is_minus_infinity_at_the_exponential_bound():
    np.testing.assert_allclose(exponent([0.0, 1 / 3, 0.5, 1.0]), [-np.inf, -1.0, 0.0, 1.0], atol=1e-12)


def test_dense_models_have_the_dense_mapping():
    c = {"kappa1": 0.37, "kappa2": 1.4, "theta": 0.33, "tail": 0.3}
    form, values = CONDITIONAL.dense(c)
    np.testing.assert_allclose(form.gain(values, R, 1.0), CONDITIONAL.gain(c, R, 1.0))
