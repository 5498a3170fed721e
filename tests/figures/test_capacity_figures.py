"""Gain, multiplier and asymptote as drawn, against the paper's formulas written out here."""

import numpy as np
import pytest
from artists import band, line, shaded

from loopscale.architecture import rung
from loopscale.figures import (
    asymptote,
    draw_asymptote,
    draw_gain_by_mapping,
    draw_gain_by_sparsity,
    draw_multiplier,
    gain_by_mapping,
    gain_by_sparsity,
    multiplier_by_sparsity,
)
from loopscale.fitting import fit, simulate_sweep
from loopscale.scaling import published

LAW = published()
C = LAW.coefficients


def bounded(R, m):
    height, stretch = C["kappa1"] * m ** -C["theta"], C["kappa2"] * m ** -C["theta"]
    return height * (1 - np.exp(-(R - 1) / stretch))


@pytest.fixture(scope="module")
def fitted():
    data = simulate_sweep(recurrences=(1, 2, 4, 8), tokens=(1e11, 3e11, 5e11))
    return fit(data, outer="joint-moe", mapping="sparsity-conditional", resamples=20).law


@pytest.mark.parametrize("E", [1, 4, 16])
def test_the_gain_drawn_for_each_E_is_the_papers_formula(E):
    axes = draw_gain_by_sparsity(gain_by_sparsity(LAW))
    R, gain = line(axes, f"E = {E}").T
    model = rung("1.0B", E)
    assert R[0] == 1
    assert R[-1] == 16
    np.testing.assert_allclose(gain, bounded(R, model.active / model.total), rtol=1e-12)


def test_what_lies_beyond_the_fitted_recurrences_is_shaded_and_nothing_else():
    axes = draw_gain_by_sparsity(gain_by_sparsity(LAW))
    ((low, high),) = shaded(axes)
    assert 8 <= low < 8.3
    assert high >= 16


def test_each_mapping_is_drawn_with_its_own_law():
    laws = {"mine": LAW, "iso-depth": published("iso-depth-2026")}
    axes = draw_gain_by_mapping(gain_by_mapping(laws, rung("1.0B", 8)))
    R, power = line(axes, "iso-depth").T
    np.testing.assert_allclose(power, R**0.459 - 1, rtol=1e-12)
    model = rung("1.0B", 8)
    np.testing.assert_allclose(line(axes, "mine")[:, 1], bounded(R, model.active / model.total), rtol=1e-12)
    assert "E = 8" in axes.get_title(loc="left")


def test_the_multiplier_and_its_limit_follow_the_gain():
    axes = draw_multiplier(multiplier_by_sparsity(LAW))
    model = rung("1.0B", 8)
    R, multiplier = line(axes, "E = 8").T
    ratio, m = model.loop / model.active, model.active / model.total
    np.testing.assert_allclose(multiplier, 1 + ratio * bounded(R, m), rtol=1e-12)
    limits = [each.get_ydata()[0] for each in axes.lines if each.get_gid() == "limit"]
    assert limits[3] == pytest.approx(1 + ratio * C["kappa1"] * m ** -C["theta"])


def test_the_asymptote_rises_with_experts_and_is_shaded_past_those_of_the_sweep():
    axes = draw_asymptote(asymptote(LAW))
    E, limit = line(axes, "0.6B").T
    models = [rung("0.6B", each) for each in E]
    expected = [1 + C["kappa1"] * (x.active / x.total) ** -C["theta"] * x.loop / x.active for x in models]
    np.testing.assert_allclose(limit, expected, rtol=1e-12)
    ((low, _),) = shaded(axes)
    assert 16 < low < 32


def test_a_law_with_resamples_has_bands_that_hold_90_percent_of_them(fitted):
    table = gain_by_sparsity(fitted, experts=(8,))
    axes = draw_gain_by_sparsity(table)
    model = rung("1.0B", 8)
    drawn = np.array([each.gain(model.points(1e11, [4.0])) for each in fitted.resampled_laws()])
    low, high = np.percentile(drawn, [5, 95])
    at = next(row for row in table.records() if row["recurrence"] == 4.0)
    assert (at["gain_low"], at["gain_high"]) == pytest.approx((low, high))
    outline = band(axes)
    heights = outline[np.isclose(outline[:, 0], 4.0), 1]
    assert (heights.min(), heights.max()) == pytest.approx((low, high))
