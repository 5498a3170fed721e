"""The recurrence mappings: values, bounds, limits and exact gradients."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopscale.core.errors import InputError
from loopscale.scaling import MAPPINGS, mapping

COEFFICIENTS = {"phi": 0.46, "kappa1": 0.37, "kappa2": 1.4, "theta": 0.33, "theta1": 0.33, "theta2": 0.21, "tail": 0.4}
R = np.array([1.0, 2.0, 3.0, 5.0, 8.0, 16.0])

kappas = st.floats(0.05, 5.0)
thetas = st.floats(0.01, 1.0)
ratios = st.floats(0.02, 1.0)


@pytest.mark.parametrize("name", MAPPINGS)
def test_one_pass_gains_nothing(name):
    assert mapping(name).gain(COEFFICIENTS, 1.0, 0.2) == 0.0


@pytest.mark.parametrize("name", MAPPINGS)
@pytest.mark.parametrize("m", [1.0, 0.3, 0.04])
def test_gradients_equal_the_complex_step(name, m):
    form = mapping(name)
    gain, exact = form.gain_and_gradient(COEFFICIENTS, R, m)
    np.testing.assert_allclose(gain, form.gain(COEFFICIENTS, R, m), rtol=1e-13)
    assert set(exact) == {each.name for each in form.coefficients}
    for each in exact:
        nudged = {**COEFFICIENTS, each: COEFFICIENTS[each] + 1e-30j}
        np.testing.assert_allclose(exact[each], form.gain(nudged, R, m).imag / 1e-30, rtol=1e-12, atol=1e-15)


def box_cox(k1, k2, tail):
    """Write the general gain as its source does: kappa k ((1 + (R - 1) / k)^lambda - 1) / lambda."""
    exponent, k = 2 - 1 / tail, k2 * (1 - tail) / tail
    return k1 / k2 * k * ((1 + (R - 1) / k) ** exponent - 1) / exponent


def test_the_gains_are_the_papers_formulas():
    m = 0.25
    k1, k2, theta = COEFFICIENTS["kappa1"], COEFFICIENTS["kappa2"], COEFFICIENTS["theta"]
    expected = {
        "none": 0 * R,
        "linear": R - 1,
        "power": R**0.46 - 1,
        "bounded": k1 * (1 - np.exp(-(R - 1) / k2)),
        "sparsity-conditional": k1 * m**-theta * (1 - np.exp(-(R - 1) / (k2 * m**-theta))),
        "two-exponents": k1 * m**-0.33 * (1 - np.exp(-(R - 1) / (k2 * m**-0.21))),
        "general": box_cox(k1, k2, 0.4),
        "general-conditional": box_cox(k1 * m**-theta, k2 * m**-theta, 0.4),
    }
    assert set(expected) == set(MAPPINGS)
    for name, gain in expected.items():
        np.testing.assert_allclose(mapping(name).gain(COEFFICIENTS, R, m), gain, rtol=1e-13, atol=1e-15)


@given(kappas, kappas, thetas, ratios)
def test_the_bounded_gain_rises_towards_its_asymptote_and_never_past_it(k1, k2, theta, m):
    c = {"kappa1": k1, "kappa2": k2, "theta": theta}
    form = mapping("sparsity-conditional")
    gains = form.gain(c, np.arange(1.0, 200.0), m)
    bound = form.asymptote(c, m)
    assert np.all(np.diff(gains) >= 0)
    assert np.all(gains <= bound * (1 + 1e-12))
    assert form.gain(c, 1e9, m) == pytest.approx(bound, rel=1e-9)


@given(kappas, kappas, thetas, ratios, st.floats(0.1, 0.99))
def test_sparser_models_gain_more_at_every_recurrence(k1, k2, theta, m, shrink):
    c = {"kappa1": k1, "kappa2": k2, "theta": theta}
    form = mapping("sparsity-conditional")
    assert np.all(form.gain(c, R[1:], m * shrink) >= form.gain(c, R[1:], m))
    assert form.asymptote(c, m * shrink) > form.asymptote(c, m)


@given(kappas, kappas, st.floats(0.2, 1.0), st.integers(1, 20))
def test_the_gain_of_very_sparse_models_is_linear_in_recurrence(k1, k2, theta, passes):
    c = {"kappa1": k1, "kappa2": k2, "theta": theta}
    limit = k1 / k2 * (passes - 1)
    assert mapping("sparsity-conditional").gain(c, passes, 1e-40) == pytest.approx(limit, rel=1e-5)


@pytest.mark.parametrize(
    ("theta1", "theta2", "limit"),
    [(0.5, 0.2, np.inf), (0.2, 0.5, 0.0), (0.3, 0.3, 0.5 / 2.0 * 3), (0.4, 0.0, np.inf)],
)
def test_two_exponents_have_three_sparse_limits(theta1, theta2, limit):
    c = {"kappa1": 0.5, "kappa2": 2.0, "theta1": theta1, "theta2": theta2}
    form = mapping("two-exponents")
    assert form.gain(c, 1.0, 1e-40) == 0.0
    towards = form.gain(c, 4.0, np.array([1e-20, 1e-40]))
    if np.isfinite(limit):
        assert abs(towards[1] - limit) <= abs(towards[0] - limit) + 1e-12
        assert towards[1] == pytest.approx(limit, abs=1e-9)
    else:
        assert towards[1] > 10 * towards[0]


def test_no_sparsity_exponent_leaves_the_bounded_mapping_whatever_m():
    c = {"kappa1": 0.5, "kappa2": 2.0, "theta": 0.0}
    form = mapping("sparsity-conditional")
    np.testing.assert_allclose(form.gain(c, R, 0.01), mapping("bounded").gain(c, R, 1.0))


@pytest.mark.parametrize(("name", "limit"), [("none", 0.0), ("linear", np.inf), ("power", np.inf), ("bounded", 0.37)])
def test_asymptotes_of_the_mappings_without_sparsity(name, limit):
    assert mapping(name).asymptote(COEFFICIENTS, 0.1) == limit


def test_an_unknown_mapping_names_the_nearest():
    with pytest.raises(InputError, match="did you mean 'bounded'"):
        mapping("bounde")
