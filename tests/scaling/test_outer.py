"""The outer laws: exact gradients, changes of unit, and published per-E reductions."""

from dataclasses import fields, replace

import numpy as np
import pytest

from loopscale.architecture import rung
from loopscale.scaling import (
    OUTER_LAWS,
    RAW,
    Inputs,
    Points,
    ScalingLaw,
    effective_experts,
    mapping,
    outer_law,
    published,
)

CASES = {
    "chinchilla": {"A": 0.8, "alpha": -0.2, "B": 3.4, "beta": -0.7, "c": 1.3},
    "joint-moe": dict(published().at_one_pass().coefficients),
    "kaplan": {"N_c": 6.4e4, "alpha_N": 0.076, "D_c": 1.8e4, "alpha_D": 0.103},
    "interaction": {"A": 0.8, "alpha": -0.2, "B": 3.4, "beta": -0.7, "c": 1.3, "mu": 0.1, "eta": -0.02},
    "routed": {"a": -0.082, "b": -0.108, "c": 0.009, "d": 1.104, "E_start": 1.85, "E_max": 314.0},
}
REPEATED = {
    "chinchilla+repetition": CASES["chinchilla"] | {"R_D": 9.0},
    "chinchilla+excess": CASES["chinchilla"] | {"R_D": 9.0, "R_N": 3.0, "N_U": 0.05},
    "joint-moe+repetition": CASES["joint-moe"] | {"R_D": 9.0},
    "joint-moe+overfit": CASES["joint-moe"] | {"O": 0.02, "nu": 0.7},
    "chinchilla+overfit": CASES["chinchilla"] | {"O": 0.02, "nu": 0.7},
    "joint-moe+stored-overfit": CASES["joint-moe"] | {"R_D": 9.0, "O": 0.02, "nu": 0.7},
    "chinchilla+stored-overfit": CASES["chinchilla"] | {"R_D": 9.0, "O": 0.02, "nu": 0.7},
}
CASES |= REPEATED
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
    by_D = law.loss(c, N, D + 1e-30j, E).imag / 1e-30
    np.testing.assert_allclose(law.token_slope(c, N, D, E), by_D, rtol=1e-10, atol=1e-15)


U = np.array([3.0, 2.0, 40.0, 100.0])


@pytest.mark.parametrize("name", REPEATED)
def test_gradients_on_repeated_data_equal_the_complex_step(name):
    law, c, x = outer_law(name), CASES[name], Inputs(N, D, E, 1.0, 1.0, 0.0, U)
    loss, by, by_N = law.gradient_at(c, N, x)
    np.testing.assert_allclose(loss, law.loss_at(c, N, x), rtol=1e-15)
    for each, value in c.items():
        step = law.loss_at({**c, each: value + 1e-30j}, N, x).imag / 1e-30
        np.testing.assert_allclose(by[each], step, rtol=1e-11, atol=1e-15)
    np.testing.assert_allclose(by_N, law.loss_at(c, N + 1e-30j, x).imag / 1e-30, rtol=1e-11)


@pytest.mark.parametrize("name", REPEATED)
def test_repetition_changes_nothing_while_every_token_is_new(name):
    law, c = outer_law(name), CASES[name] | {"N_U": 1e9}
    fresh = law.loss_at(c, N, Inputs(N, D, E, 1.0, 1.0, 0.0, D))
    np.testing.assert_allclose(fresh, law.inner.loss(c, N, D, E), rtol=1e-15)


@pytest.mark.parametrize("name", REPEATED)
def test_a_change_of_units_changes_no_loss_on_repeated_data(name):
    law, c = outer_law(name), CASES[name]
    again, scaled = law.rescaled(c, 1e-3, 1e-6), Inputs(N * 1e3, D * 1e6, E, 1.0, 1.0, 0.0, U * 1e6)
    expected = law.loss_at(c, N, Inputs(N, D, E, 1.0, 1.0, 0.0, U))
    np.testing.assert_allclose(law.loss_at(again, N * 1e3, scaled), expected, rtol=1e-12)


def test_the_first_repetitions_are_worth_nearly_as_much_as_new_data():
    """Muennighoff et al. find up to four epochs almost as good as new data, and little after about sixteen."""
    law = ScalingLaw(
        outer_law("chinchilla+repetition"), mapping("none"),
        {"A": 521.0, "alpha": -0.353, "B": 1488.0, "beta": -0.353, "c": 1.87, "R_D": 15.4}, RAW, "with-embeddings",
    )  # fmt: skip
    epochs = np.array([1.0, 4.0, 16.0, 64.0, 1000.0])
    loss = law(Points(1e9, 1e10 * epochs, unique_tokens=1e10))
    fresh = law(Points(1e9, 1e10 * epochs))
    assert loss[0] == fresh[0]
    assert loss[1] - fresh[1] < 0.05 * (fresh[0] - fresh[1])
    assert loss[3] - loss[4] < 0.1 * (loss[0] - loss[3])
    assert np.all(np.diff(loss) < 0)


def test_the_published_law_of_repeated_data_is_its_authors_formula():
    law = published("data-constrained-2023")
    A, B, c, alpha = np.exp(6.255414), np.exp(7.3049974), np.exp(0.6254804), 0.3526596
    U, D, N = 1e9, 4e10, 2e9
    G = (A / B) ** (1 / (2 * alpha))
    U_N = min(G * (U * G), N)
    N_eff = U_N + U_N * 5.309743 * (1 - np.exp(-(N / U_N - 1) / 5.309743))
    D_eff = U + U * 15.387756 * (1 - np.exp(-(D / U - 1) / 15.387756))
    expected = c + A / N_eff**alpha + B / D_eff**alpha
    assert law(Points(N, D, unique_tokens=U)) == pytest.approx(expected, rel=1e-6)


def test_overfitting_raises_the_loss_of_large_models_on_few_tokens_only():
    law, c = outer_law("chinchilla+overfit"), CASES["chinchilla+overfit"]
    epochs = np.array([1.0, 4.0, 64.0, 500.0])
    small, large = (law.loss_at(c, N, Inputs(N, 0.1 * epochs, 1.0, 1.0, 1.0, 0.0, 0.1)) for N in (0.01, 3.0))
    assert np.all(np.diff(small) < 0)
    assert large[3] > large[1] > 0
    assert large[0] == law.inner.loss(c, 3.0, 0.1, 1.0)


def test_repetition_joins_the_looped_law_and_survives_its_file(tmp_path):
    base = published()
    law = replace(base, outer=outer_law("joint-moe+repetition"), coefficients={**base.coefficients, "R_D": 15.4})
    model = rung("0.3B", experts=8)
    points = replace_points(model.points(np.array([1e11, 4e11]), 3), unique_tokens=1e11)
    loss = law(points)
    assert loss[0] == pytest.approx(float(base(model.points(1e11, 3))))
    assert base(model.points(4e11, 3)) < loss[1] < loss[0]
    law.save(tmp_path / "law.json")
    assert ScalingLaw.load(tmp_path / "law.json") == law
    value, gradient = law.value_and_gradient(points)
    step = 1e-6
    moved = replace(law, coefficients={**law.coefficients, "kappa1": law.coefficients["kappa1"] + step})
    np.testing.assert_allclose(gradient[..., law.names.index("kappa1")], (moved(points) - value) / step, rtol=1e-4)


def replace_points(points, **values):
    return Points(**{f.name: getattr(points, f.name) for f in fields(points)} | values)


def test_kaplans_law_gives_the_losses_of_its_limits():
    law, c = outer_law("kaplan"), CASES["kaplan"]
    assert law.loss(c, 1.0, 1e12, 1.0) == pytest.approx(6.4e4**0.076, rel=1e-3)
    assert law.loss(c, 1e12, 1.0, 1.0) == pytest.approx(1.8e4**0.103, rel=1e-3)


def test_without_interaction_size_and_data_add_up():
    c = CASES["interaction"] | {"mu": 0.0, "eta": 0.0}
    np.testing.assert_allclose(
        outer_law("interaction").loss(c, N, D, E), outer_law("chinchilla").loss(c, N, D, E), rtol=1e-14
    )


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
