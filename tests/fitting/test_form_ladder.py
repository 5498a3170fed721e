"""The form that ``fit`` takes unless it is told: what the data determine, and what predicts held-out runs."""

import numpy as np
import pytest

from loopscale.architecture import ladder_space
from loopscale.fitting import Fit, fit
from loopscale.fitting.data.public import simulate_sweep
from loopscale.planning import plan
from loopscale.scaling import Points, ScalingLaw, mapping, outer_law, published

DENSE = published().at_one_expert()
POWER = ScalingLaw(
    DENSE.outer, mapping("power"), {**DENSE.at_one_pass().coefficients, "phi": 0.4}, DENSE.units, DENSE.counts
)


@pytest.mark.parametrize("seed", range(3))
def test_a_power_mapping_is_found_where_bounded_leaves_a_trend(seed):
    fitted = fit(simulate_sweep(POWER, experts=(1,), recurrences=(1, 2, 3, 4, 6, 8), seed=seed), resamples=0)
    assert fitted.mapping.name == "power"
    tried = {rung.form: rung for rung in fitted.ladder}
    assert {f"chinchilla, {name} recurrence" for name in ("bounded", "general", "power")} <= set(tried)
    assert tried["chinchilla, power recurrence"].aicc < tried["chinchilla, bounded recurrence"].aicc
    assert "held-out error" in str(fitted)
    assert "chosen" in fitted.summary(verbose=True)
    assert Fit.from_dict(fitted.to_dict()).ladder == fitted.ladder


@pytest.mark.parametrize("seed", range(3))
def test_a_bounded_mapping_stays_where_it_is_right(seed):
    assert fit(simulate_sweep(DENSE, experts=(1,), seed=seed), resamples=0).mapping.name == "bounded"


def test_a_first_sweep_of_twelve_runs_gets_a_law_that_plans():
    """Three sizes, one and four experts, one and two passes, three token counts each."""
    sweep = simulate_sweep(experts=(1, 4), recurrences=(1, 2), tokens=(1e11, 2e11, 4e11))
    assert (len(sweep), len(sweep.runs)) == (36, 12)
    fitted = fit(sweep, resamples=10)
    assert not fitted.degenerate
    assert len(fitted.free) < 14
    space = ladder_space(experts=[1, 4], recurrences=[1, 2])
    ours, truth = plan(flops=1e21, law=fitted.law, space=space), plan(flops=1e21, space=space)
    assert (ours.choice.label, ours.choice.loss) == (truth.choice.label, pytest.approx(truth.choice.loss, abs=0.03))


def test_an_interaction_is_shown_and_not_taken():
    sizes, tokens = (values.ravel() for values in np.meshgrid(np.geomspace(3e7, 1e9, 8), np.geomspace(1e9, 1e11, 8)))
    values = {"A": 0.4, "alpha": -0.35, "B": 1.0, "beta": -0.37, "c": 1.8, "mu": 0.2, "eta": 0.05}
    law = ScalingLaw(outer_law("interaction"), mapping("none"), values, DENSE.units, DENSE.counts)
    noise = np.exp(0.001 * np.random.default_rng(0).standard_normal(len(sizes)))
    fitted = fit({"N": sizes, "D": tokens, "loss": law(Points(sizes, tokens)) * noise}, resamples=0)
    shown = next(rung for rung in fitted.ladder if rung.form == "interaction")
    assert fitted.outer.name == "chinchilla"
    assert (shown.chosen, shown.eligible) == (False, False)
    assert shown.error < next(rung.error for rung in fitted.ladder if rung.chosen)
    assert "interaction" in str(fitted)
