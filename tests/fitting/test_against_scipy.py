"""The fitter against scipy: the objective written again by hand, and minimised by other solvers."""

from dataclasses import replace

import numpy as np
import pytest
from plain import fit
from scipy.optimize import least_squares, minimize

from loopscale.fitting import Fit
from loopscale.fitting.data.public import simulate_sweep

FORMS = [("chinchilla", "bounded"), ("chinchilla", "power"), ("joint-moe", "sparsity-conditional")]


def fitted(outer: str, mapping: str) -> Fit:
    experts = (1,) if outer == "chinchilla" else (1, 2, 4, 8, 16)
    return fit(simulate_sweep(experts=experts, seed=3), outer=outer, mapping=mapping)


def residuals(found: Fit, values: np.ndarray) -> np.ndarray:
    law = replace(found.law, coefficients=dict(zip(found.law.names, values.tolist(), strict=True)))
    return np.log(law(found.observations.points)) - np.log(found.observations.loss)


def huber_sum(residual: np.ndarray, delta: float) -> float:
    far = np.abs(residual)
    return float(np.where(far <= delta, 0.5 * far**2, delta * (far - 0.5 * delta)).sum())


@pytest.mark.parametrize(("outer", "mapping"), FORMS)
def test_the_objective_is_the_sum_of_huber_terms_on_ln_loss(outer, mapping):
    found = fitted(outer, mapping)
    values = np.array(list(found.law.coefficients.values()))
    assert found.objective == pytest.approx(huber_sum(residuals(found, values), found.delta), rel=1e-12)


@pytest.mark.parametrize(("outer", "mapping"), FORMS)
def test_no_solver_of_scipys_ends_lower_from_our_optimum(outer, mapping):
    found = fitted(outer, mapping)
    start = np.array(list(found.law.coefficients.values()))
    bounds = np.array([(term.lower, term.upper) for term in found.law.terms])
    scale = np.abs(start)

    def objective(z: np.ndarray) -> float:
        return huber_sum(residuals(found, np.clip(z * scale, *bounds.T)), found.delta) / found.objective

    for method in ("Nelder-Mead", "Powell"):
        there = minimize(objective, start / scale, method=method, options={"maxfev": 1500})
        assert there.fun >= 1 - 2e-6


def test_least_squares_agrees_with_scipys_on_every_coefficient():
    data = simulate_sweep(experts=(1,), seed=5)
    ours = fit(data, outer="chinchilla", mapping="bounded", delta=1e3)
    start = np.array(list(ours.law.coefficients.values())) * 1.05
    there = least_squares(
        lambda x: residuals(ours, x), start, x_scale=np.abs(start), xtol=1e-14, ftol=1e-14, gtol=1e-14
    )
    np.testing.assert_allclose(list(ours.law.coefficients.values()), there.x, rtol=2e-4)
    assert ours.objective <= there.cost * (1 + 1e-9)
