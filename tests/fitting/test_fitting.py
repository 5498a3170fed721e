"""Fits of simulated sweeps: recovery, options, and the paper's recipe beside the default."""

from dataclasses import replace

import numpy as np
import pytest
from plain import fit

from loopscale.core.errors import InputError
from loopscale.fitting import Recipe, simulate_sweep
from loopscale.fitting.solve import estimated_delta
from loopscale.planning import Budget, plan
from loopscale.scaling import BILLIONS, FittedRange, published

SWEEP = simulate_sweep()


@pytest.fixture(scope="module")
def fitted():
    return fit(SWEEP)


def test_the_papers_sweep_gives_its_law_back(fitted):
    """At every point of the sweep; the best possible estimate has a standard error of 0.0009 at its worst corner."""
    error = np.abs(fitted.law(SWEEP.points) - published()(SWEEP.points))
    assert np.sqrt(np.mean(error**2)) < 0.001
    assert np.mean(error < 0.001) > 0.95
    assert error.max() < 0.003


@pytest.mark.parametrize(("memory", "design"), [(1e9, ("1.0B", 2, 2)), (3e9, ("1.0B", 8, 2)), (10e9, ("1.6B", 16, 1))])
def test_a_fitted_law_plans_the_papers_three_joint_optima(fitted, memory, design):
    choice = plan(Budget(flops=5e21, memory=memory, bits=4), law=fitted.law).choice
    assert (choice.rung, choice.experts, choice.recurrence) == design


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_recovery_does_not_hang_on_the_draw(seed):
    sweep = simulate_sweep(seed=seed)
    law = fit(sweep).law
    assert np.sqrt(np.mean((law(sweep.points) - published()(sweep.points)) ** 2)) < 0.001
    chosen = [plan(Budget(flops=5e21, memory=memory, bits=4), law=law).choice for memory in (1e9, 3e9, 10e9)]
    assert [(c.rung, c.experts, c.recurrence) for c in chosen] == [("1.0B", 2, 2), ("1.0B", 8, 2), ("1.6B", 16, 1)]


def test_a_fit_says_what_it_did(fitted):
    assert (fitted.starts, fitted.agreeing) == (8, 8)
    assert fitted.free == published().names
    assert (fitted.degenerate, fitted.recipe, fitted.delta) == ((), Recipe.DEFAULT, 1e-3)
    assert fitted.law.units == BILLIONS
    assert fitted.law.rmse == pytest.approx(0.0037, abs=0.0002)
    assert fitted.law.fitted_range == FittedRange((173_045_760, 755_056_640), (1e11, 5e11), (1, 16), (1, 8))
    assert fitted.law.source == f"fitted to {SWEEP.source}"
    near = np.minimum(np.abs(fitted.residuals), 1e-3)
    assert fitted.objective == pytest.approx(np.sum(near * (np.abs(fitted.residuals) - near / 2)), rel=1e-12)


def test_the_same_fit_twice_is_the_same(fitted):
    again = fit(SWEEP)
    assert dict(again.law.coefficients) == dict(fitted.law.coefficients)
    assert fit(SWEEP, seed=5).objective == pytest.approx(fitted.objective, rel=1e-9)


@pytest.mark.parametrize(
    "mapping",
    [
        "power",
        "sparsity-conditional",
        *(pytest.param(m, marks=pytest.mark.slow) for m in ("linear", "bounded", "two-exponents")),
    ],
)
def test_the_default_never_ends_above_the_papers_recipe(mapping):
    sweep = simulate_sweep(tokens=(1e11, 2e11, 3.5e11, 5e11))
    ours, paper = fit(sweep, mapping=mapping), fit(sweep, mapping=mapping, recipe="paper")
    assert ours.objective <= paper.objective * (1 + 1e-9)
    assert paper.objective < 1.05 * ours.objective  # the recipe is given its due, too
    assert paper.recipe is Recipe.PAPER


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_nor_on_the_whole_sweep_in_several_draws(seed):
    sweep = simulate_sweep(seed=seed, run_noise=0.002 * (seed > 0))
    assert fit(sweep).objective <= fit(sweep, recipe="paper").objective * (1 + 1e-9)


def test_fixed_coefficients_stay_and_cost_something(fitted):
    held = fit(SWEEP, fixed={"theta": 0.0})
    assert held.law.coefficients["theta"] == 0.0
    assert "theta" not in held.free
    assert held.objective > 1.5 * fitted.objective
    assert held.objective == pytest.approx(fit(SWEEP, mapping="bounded").objective, rel=1e-6)


def test_bounds_are_kept_and_their_coefficients_reported(fitted):
    narrow = fit(SWEEP, bounds={"kappa1": (0.1, 0.3)})
    assert narrow.law.coefficients["kappa1"] == pytest.approx(0.3)
    assert narrow.at_bound == ("kappa1",)
    assert narrow.objective > fitted.objective
    assert narrow.degenerate == ()


def test_a_warm_start_ends_at_the_same_optimum(fitted):
    warm = fit(SWEEP, warm=published().coefficients, starts=1)
    assert warm.objective == pytest.approx(fitted.objective, rel=1e-9)
    assert warm.starts == 1


def test_delta_is_estimated_from_the_residuals_when_asked():
    estimated = fit(SWEEP, delta=None)
    assert estimated.delta == pytest.approx(1.345 * np.std(estimated.residuals), rel=0.1)
    assert estimated_delta(np.zeros(5)) > 0


def test_a_large_delta_is_least_squares(fitted):
    squares = fit(SWEEP, delta=1e3)
    assert squares.objective == pytest.approx(0.5 * np.sum(squares.residuals**2), rel=1e-12)
    assert np.sum(squares.residuals**2) < np.sum(fitted.residuals**2)


def test_outliers_hardly_move_a_huber_fit():
    loss = SWEEP.loss.copy()
    loss[::100] *= 1.2
    spoiled = replace(SWEEP, loss=loss)
    truth = published()(SWEEP.points)
    robust, squares = (fit(spoiled, delta=delta).law(SWEEP.points) for delta in (1e-3, 1e3))
    assert np.abs(robust - truth).max() < 0.004
    assert np.abs(squares - truth).max() > 0.006


def test_rows_in_any_order_give_the_same_fit(fitted):
    shuffled = SWEEP.where(np.random.default_rng(0).permutation(len(SWEEP)))
    assert fit(shuffled).objective == pytest.approx(fitted.objective, rel=1e-9)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"outer": "chincilla"}, "did you mean 'chinchilla'"),
        ({"mapping": "bound"}, "did you mean 'bounded'"),
        ({"recipe": "papers"}, "did you mean 'paper'"),
        ({"delta": 0.0}, "`delta` is 0.0"),
        ({"starts": 0}, "`starts` is 0"),
    ],
)
def test_unknown_options_are_named(options, said):
    with pytest.raises(InputError, match=said):
        fit(SWEEP, **options)
