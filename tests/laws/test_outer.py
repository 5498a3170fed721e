"""The outer laws: exact gradients, changes of unit, and published per-E reductions."""

import numpy as np
import pytest

from loopscale.laws import OUTER_LAWS, effective_experts, outer_law, published

CASES = {
    "chinchilla": {"A": 0.8, "alpha": -0.2, "B": 3.4, "beta": -0.7, "c": 1.3},
    "joint-moe": dict(published().at_one_pass().coefficients),
    "routed": {"a": -0.082, "b": -0.108, "c": 0.009, "d": 1.104, "E_start": 1.85, "E_max": 314.0},
}
N, D, E = np.array([0.05, 0.3, 1.0, 7.0]), np.array([3.0, 100.0, 500.0, 2000.0]), np.array([1.0, 2.0, 8.0, 64.0])


@pytest.mark.parametrize("name", OUTER_LAWS)
def test_gradients_equal_the_complex_step(name):
    law, c = outer_law(name), CASES[name]
    loss, by, by_N = law.gradient(c, N, D, E)
    np.testing.assert_allclose(loss, law.loss(c, N, D, E), rtol=1e-15)
    assert set(by) == {each.name for each in law.coefficients} == set(c)
    for each, value in c.items():
        step = law.loss({**c, each: value + 1e-30j}, N, D, E).imag / 1e-30
        np.testing.assert_allclose(by[each], step, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(by_N, law.loss(c, N + 1e-30j, D, E).imag / 1e-30, rtol=1e-12)


@pytest.mark.parametrize("name", OUTER_LAWS)
def test_a_change_of_units_changes_no_loss(name):
    law, c = outer_law(name), CASES[name]
    again = law.rescaled(c, 1e-3, 1e-6)
    np.testing.assert_allclose(law.loss(again, N * 1e3, D * 1e6, E), law.loss(c, N, D, E), rtol=1e-12)


def test_effective_experts_rise_from_start_to_max():
    E_hat = effective_experts(np.array([1.0, 2.0, 8.0, 1e3, 1e9]), 1.3174, 57.1201)
    assert E_hat[0] == pytest.approx(1.3174)
    assert E_hat[-1] == pytest.approx(57.1201, rel=1e-6)
    assert np.all(np.diff(E_hat) > 0)


@pytest.mark.parametrize(
    ("experts", "A", "alpha", "B", "beta"),
    [
        (1, 30.364, -0.1817, 53.984, -0.1965),
        (2, 27.798, -0.178, 66.840, -0.2065),
        (4, 24.846, -0.1731, 87.702, -0.2192),
        (8, 21.833, -0.1676, 119.913, -0.2338),
        (16, 19.016, -0.1617, 167.507, -0.2494),
        (32, 16.542, -0.1557, 234.673, -0.2652),
    ],
)
def test_the_joint_moe_law_reduces_to_the_per_expert_laws_its_authors_print(experts, A, alpha, B, beta):
    c = published("joint-moe-2025").coefficients
    x = np.log(effective_experts(experts, c["E_start"], c["E_max"]))
    found = (
        c["A"] * np.exp(c["delta"] * x),
        c["alpha"] + c["gamma"] * x,
        c["B"] * np.exp(c["omega"] * x),
        c["beta"] + c["zeta"] * x,
    )
    assert found == pytest.approx((A, alpha, B, beta), rel=3e-3)


def test_the_routed_law_is_clarks_formula():
    c = CASES["routed"]
    E_hat = effective_experts(64.0, c["E_start"], c["E_max"])
    log_loss = c["a"] * 8 + c["b"] * np.log10(E_hat) + c["c"] * 8 * np.log10(E_hat) + c["d"]
    assert outer_law("routed").loss(c, 1e8, 1.0, 64.0) == pytest.approx(10**log_loss, rel=1e-12)
