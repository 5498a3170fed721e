"""Figures of data and fits: points are the observations, lines the fitted laws, bands their resamples."""

import numpy as np
import pytest
from artists import band, line, points

from loopscale.core.errors import InputError
from loopscale.figures import (
    draw_intervals,
    draw_loss_over_recurrence,
    draw_observed,
    draw_residuals,
    fit_mappings,
    intervals,
    loss_over_recurrence,
    residuals,
)
from loopscale.fitting import fit, simulate_sweep
from loopscale.fitting.covariance import coefficient_intervals
from loopscale.scaling import published


@pytest.fixture(scope="module")
def sweep():
    return simulate_sweep(recurrences=(1, 2, 4, 8, 16), tokens=(1e11, 3e11, 5e11))


@pytest.fixture(scope="module")
def mappings(sweep):
    return fit_mappings(sweep, "R=16", resamples=10)


def test_every_mapping_is_fitted_without_the_rows_held_out(sweep, mappings):
    assert list(mappings) == ["linear", "power", "bounded", "sparsity-conditional"]
    kept = sweep.where(sweep.points.recurrence < 16)
    for name, found in mappings.items():
        assert found.observations.points.recurrence.max() == 8
        again = fit(kept, outer="joint-moe", mapping=name, resamples=0).law
        assert dict(found.law.coefficients) == pytest.approx(dict(again.coefficients))


def test_points_are_the_observations_and_the_held_out_ones_are_hollow(sweep, mappings):
    laws = {name: each.law for name, each in mappings.items()}
    axes = draw_loss_over_recurrence(loss_over_recurrence(sweep, laws, [8], "R=16"))
    p = sweep.points
    here = (p.active == p.active.min()) & (p.tokens == 5e11) & (p.experts == 8)
    seen = points(axes, "observed")
    np.testing.assert_allclose(seen[:, 0], [1, 2, 4, 8])
    np.testing.assert_allclose(seen[:, 1], sweep.loss[here & (p.recurrence < 16)])
    np.testing.assert_allclose(points(axes, "held out"), [[16, sweep.loss[here & (p.recurrence == 16)][0]]])


def test_lines_are_the_fitted_laws_and_bands_their_resamples(sweep, mappings):
    law = mappings["bounded"].law
    table = loss_over_recurrence(sweep, {"bounded": law}, [8])
    axes = draw_loss_over_recurrence(table)
    R, loss = line(axes, "bounded").T
    row = int(np.flatnonzero((sweep.points.experts == 8) & (sweep.points.active == sweep.points.active.min()))[0])
    one = sweep.where(np.array([row])).points
    at = type(one)(one.active, 5e11, R, 8, one.loop, one.total)
    np.testing.assert_allclose(loss, law(at))
    low, high = np.percentile(law.resampled(at), [5, 95], axis=0)
    outline = band(axes)
    assert outline[:, 1].min() == pytest.approx(low.min())
    assert outline[:, 1].max() == pytest.approx(high.max())


def test_residuals_are_predicted_minus_observed_log_loss(sweep):
    found = fit(sweep, outer="joint-moe", mapping="sparsity-conditional", resamples=0)
    table = residuals(found.law, sweep)
    drawn = np.asarray(draw_residuals(table, axis="experts").collections[0].get_offsets())
    np.testing.assert_allclose(drawn[:, 0], sweep.points.experts)
    np.testing.assert_allclose(drawn[:, 1], found.residuals)
    both = np.asarray(draw_observed(table).collections[0].get_offsets())
    np.testing.assert_allclose(both, np.stack([sweep.loss, found.law(sweep.points)], axis=1))


def test_intervals_are_those_of_the_fit_relative_to_the_estimate(sweep):
    found = fit(sweep, outer="joint-moe", mapping="sparsity-conditional", resamples=20)
    table = intervals(found.law, published())
    expected = coefficient_intervals(found)
    for row in table.records():
        assert (row["low"], row["high"]) == pytest.approx(expected[row["coefficient"]])
        assert row["truth"] == published().coefficients[row["coefficient"]]
    axes = draw_intervals(table)
    bars = axes.collections[0].get_segments()
    kappa1 = [label.get_text() for label in axes.get_yticklabels()].index("kappa1")
    estimate = found.law.coefficients["kappa1"]
    low, high = expected["kappa1"]
    assert bars[kappa1][:, 0] == pytest.approx([100 * (low / estimate - 1), 100 * (high / estimate - 1)])


def test_a_law_without_resamples_has_no_intervals_to_draw():
    with pytest.raises(InputError, match="no resampled laws"):
        intervals(published())
