"""A degenerate fit is called degenerate; a sound one is not."""

from dataclasses import replace

import numpy as np
import pytest
from plain import fit

from loopscale.core.errors import InputError
from loopscale.fitting import simulate_sweep, unidentified
from loopscale.scaling import published


def reasons(sweep, **options):
    """Return all reasons as one text."""
    return " | ".join(fit(sweep, **options).degenerate)


@pytest.mark.parametrize("seed", range(4))
def test_a_sound_sweep_is_not_called_degenerate(seed):
    assert reasons(simulate_sweep(seed=seed, run_noise=0.003)) == ""


def test_no_irreducible_loss_is_called_degenerate():
    """Losses that keep falling as a slow power of D, as checkpoints in mid-schedule do."""
    sweep = simulate_sweep(experts=(1,), recurrences=(1,))
    tokens, N = sweep.points.tokens / 1e9, sweep.points.active / 1e9
    loss = 0.5 * N**-0.2 + 2.4 * tokens**-0.06 - 0.3
    said = reasons(replace(sweep, loss=loss), outer="chinchilla", mapping="none")
    assert "c ended on its bound 0" in said


def test_two_recurrences_cannot_tell_height_from_speed():
    sweep = simulate_sweep(recurrences=(1, 2))
    assert "kappa2 is not identifiable" in reasons(sweep, mapping="sparsity-conditional")
    simpler = fit(sweep, resamples=0)
    assert not simpler.degenerate
    assert simpler.mapping.name != "sparsity-conditional"
    assert sum(rung.chosen for rung in simpler.ladder) == 1
    assert min(simpler.ladder, key=lambda rung: rung.error).chosen


def test_how_experts_set_in_may_be_open_where_no_prediction_depends_on_it():
    """Two expert counts leave E_start and E_max open; every loss at these counts is determined all the same."""
    fitted = fit(simulate_sweep(experts=(1, 2)), outer="joint-moe", resamples=0)
    assert "E_start" not in " ".join(fitted.degenerate)


def test_a_limit_far_beyond_the_data_is_open_but_not_a_reason():
    linear = fit(simulate_sweep(), mapping="linear")
    assert "E_max" in unidentified(linear)
    assert linear.degenerate == ()


def test_losses_that_do_not_depend_on_size_are_called_degenerate():
    sweep = simulate_sweep(experts=(1,), recurrences=(1,))
    tokens = sweep.points.tokens / 1e9
    noise = 1e-3 * np.random.default_rng(0).standard_normal(len(sweep))
    said = reasons(replace(sweep, loss=1.8 + 3 * tokens**-0.5 + noise), outer="chinchilla", mapping="none")
    assert said


def test_rows_at_several_tokens_do_not_suit_a_law_without_them():
    sweep = simulate_sweep(recurrences=(1,))
    assert "no token term" in reasons(sweep, outer="routed", mapping="none")
    last = sweep.where(sweep.points.tokens == 5e11)
    assert "no token term" not in reasons(last, outer="routed", mapping="none")


def test_bounds_of_the_users_own_are_not_a_reason():
    sweep = simulate_sweep()
    narrow = fit(sweep, bounds={"c": (1.0, 1.2), "alpha": (-0.3, 0.0)})
    assert "c" in narrow.at_bound
    assert narrow.degenerate == ()


def test_looping_that_is_worth_nothing_leaves_its_speed_open():
    fitted = fit(simulate_sweep(published().at_one_pass()))
    assert "kappa2" in unidentified(fitted)


def test_few_runs_of_several_expert_counts_get_a_smaller_law():
    """Sixteen runs cannot carry eleven coefficients: a law of fewer predicts held-out runs better."""
    sweep = simulate_sweep(recurrences=(1,))
    few = sweep.where(np.sort(np.random.default_rng(0).choice(len(sweep), 16, replace=False)))
    fitted = fit(few, resamples=0)
    assert not fitted.degenerate
    assert len(fitted.free) < 11
    assert len(fitted.ladder) > 2


@pytest.mark.slow
def test_clean_looped_moe_sweeps_of_108_rows_are_sound():
    grid = {"experts": (1, 4, 16), "recurrences": (1, 2, 4), "tokens": (1e11, 2e11, 3.5e11, 5e11)}
    sweeps = [simulate_sweep(**grid, seed=seed) for seed in range(14)]
    assert {len(sweep) for sweep in sweeps} == {108}
    assert sum(bool(fit(sweep, resamples=0).degenerate) for sweep in sweeps) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("rows", [16, 24, 40, 60])
def test_small_moe_sweeps_get_a_law_that_predicts_larger_models(rows):
    """1.6B parameters on 1.5T tokens: twice the size and three times the tokens of the sweep."""
    larger = simulate_sweep(rungs=("1.6B",), experts=(1, 4, 16), recurrences=(1,), tokens=(1.5e12,), noise=0)
    errors = []
    for seed in range(5):
        sweep = simulate_sweep(recurrences=(1,), tokens=(1e11, 2e11, 3.5e11, 5e11), seed=seed)
        picked = np.sort(np.random.default_rng(seed).choice(len(sweep), rows, replace=False))
        fitted = fit(sweep.where(picked), resamples=0)
        assert not fitted.degenerate
        errors.append(np.sqrt(np.mean((fitted.law(larger.points) / larger.loss - 1) ** 2)))
    assert np.median(errors) < 0.02  # .009 to .002 in docs/public-sweeps.md


def test_one_expert_count_gives_a_law_for_that_count():
    sweep = simulate_sweep(experts=(8,), recurrences=(1,))
    fitted = fit(sweep, resamples=10)
    assert fitted.outer.name == "chinchilla"
    assert float(fitted.predict(1e9, 2e11).points.experts) == 8
    with pytest.raises(InputError, match="no term for E"):
        fitted.predict(1e9, 2e11, E=1)
