"""The planner's figures as drawn: every number against the law and the paper's rule, recomputed here."""

import numpy as np
import pytest
from artists import cells, line, lines, points, scatter, shaded

from loopscale.architecture import continuous, continuous_space, ladder_space, rung
from loopscale.figures import (
    GALLERY,
    Sources,
    draw_best_experts,
    draw_best_loss,
    draw_best_recurrence,
    draw_experts_map,
    draw_isoflop_over_recurrence,
    draw_isoflop_over_size,
    draw_joint_optimum,
    draw_recurrence_map,
)
from loopscale.planning import Budget, plan
from loopscale.planning.profiles import (
    experts_map,
    isoflop_over_recurrence,
    isoflop_over_size,
    joint_optimum,
    recurrence_map,
)
from loopscale.scaling import published

LAW = published()
EPS = 0.0037


def matched_loss(model, R, flops):
    return float(LAW(model.points(flops / (6 * model.unrolled(R)), R)))


def best_passes(model, flops):
    """R* by the paper's rule, one loss after another."""
    loss = [matched_loss(model, R, flops) for R in range(1, 11)]
    admissible = [R for R in range(1, 11) if R == 1 or loss[R - 2] - loss[R - 1] >= EPS]
    return min(admissible, key=lambda R: loss[R - 1])


def test_isoflop_curves_over_size_and_their_minima_are_the_laws():
    widths = np.geomspace(640, 2304, 41)
    axes = draw_isoflop_over_size(isoflop_over_size(LAW, (5e20, 1e21), (8,), (1, 2, 4), widths))
    model = continuous(widths, 8)
    thin, thick = lines(axes, "R = 2")
    for drawn, flops in ((thin, 5e20), (thick, 1e21)):
        expected = LAW(model.points(flops / (6 * model.unrolled(2)), 2))
        np.testing.assert_allclose(drawn[:, 0], model.active / 1e9)
        np.testing.assert_allclose(drawn[:, 1], expected)
    minima = np.concatenate([each.get_offsets() for each in axes.collections])
    assert min(thick[:, 1]) in minima[:, 1]
    assert len(minima) == 6


def test_sizes_whose_tokens_or_parameters_lie_outside_the_sweep_are_shaded():
    axes = draw_isoflop_over_size(isoflop_over_size(LAW, (1e21,), (1,), (1,), np.geomspace(500, 2300, 400)))
    (_, low), (high, _) = shaded(axes)
    assert low == pytest.approx(1e21 / 6 / 5e11 / 1e9, rel=0.01)  # smaller models see more than 500B tokens
    assert high == pytest.approx(0.755, rel=0.01)


def test_stars_mark_the_recurrence_that_the_rule_gives():
    table = isoflop_over_recurrence(LAW, [5e21], ladder_space(["0.3B", "1.0B"], [1, 8]))
    axes = draw_isoflop_over_recurrence(table)
    for name, E in (("0.3B", 1), ("0.3B", 8), ("1.0B", 1), ("1.0B", 8)):
        model = rung(name, E)
        R, loss = line(axes, f"{name}, E = {E}").T
        np.testing.assert_allclose(loss, [matched_loss(model, int(each), 5e21) for each in R])
        star = best_passes(model, 5e21)
        assert (star, pytest.approx(matched_loss(model, star, 5e21))) in [tuple(each) for each in points(axes, "best")]


def test_best_recurrence_steps_where_the_rule_says():
    flops = np.geomspace(1e20, 1e23, 31)
    axes = draw_best_recurrence(recurrence_map(LAW, flops, ladder_space(["0.3B"], [1, 8])))
    for E in (1, 8):
        drawn = line(axes, f"0.3B, E = {E}")
        np.testing.assert_allclose(drawn[:, 0], flops)
        assert np.round(drawn[:, 1]).tolist() == [best_passes(rung("0.3B", E), each) for each in flops]
        assert np.ptp(drawn[:, 1] - np.round(drawn[:, 1])) < 1e-9


def test_the_recurrence_map_holds_the_rules_choice_in_every_cell():
    flops, widths = np.geomspace(1e20, 1e23, 7), np.array([768.0, 1280.0, 1792.0])
    axes = draw_recurrence_map(recurrence_map(LAW, flops, continuous_space((8,), widths=widths)))
    expected = [[best_passes(rung(name, 8), each) for each in flops] for name in ("0.3B", "1.0B", "2.4B")]
    assert (cells(axes) + 1).tolist() == expected
    assert "hatched: extrapolated" in axes.get_title(loc="left")


def test_best_experts_against_memory_are_those_of_a_plan_at_that_memory():
    memory = np.geomspace(1e9, 60e9, 15)
    space = ladder_space(recurrences=(4,))
    table = experts_map(LAW, memory, Budget(flops=5e21, bits=16), space)
    axes = draw_best_experts(table)
    drawn = line(axes, "E*")
    np.testing.assert_allclose(drawn[:, 0], memory / 1e9)
    for (_, E), size in zip(drawn, memory, strict=True):
        assert plan(Budget(flops=5e21, bits=16, memory=size), space, LAW, eps=None).choice.experts == E


def test_the_experts_map_leaves_blank_what_does_not_fit():
    table = experts_map(LAW, [1e8, 3e9, 3e10], Budget(flops=5e21, bits=4), ladder_space(recurrences=(1, 4)))
    axes = draw_experts_map(table)
    shown = cells(axes)
    assert shown.mask.tolist() == [[True, False, False], [True, False, False]]
    levels = sorted({E for E in table.columns["best_experts"] if E == E})
    assert [levels[int(each)] for each in shown[1, 1:]] == [
        row["best_experts"] for row in table.records() if row["recurrence"] == 4 and row["memory"] > 1e9
    ]


def test_the_joint_optimum_is_drawn_where_the_paper_has_it():
    table = joint_optimum(LAW, np.array([1e9, 3e9, 1e10]), Budget(flops=5e21, bits=4))
    axes = draw_joint_optimum(table)
    np.testing.assert_allclose(line(axes, "best loss")[:, 0], [1, 3, 10])
    np.testing.assert_allclose(line(axes, "best loss")[:, 1], [2.1008, 1.9757, 1.8875], atol=5e-5)
    np.testing.assert_allclose(scatter(axes, "R = 2")[:, 0], [1, 3])
    np.testing.assert_allclose(scatter(axes, "R = 1")[:, 0], [10])
    named = [each.get_text() for each in axes.texts if each.get_gid() == "design"]
    assert named == ["1 GB: 1.0B, E = 2, R = 2", "3 GB: 1.0B, E = 8, R = 2", "10 GB: 1.6B, E = 16, R = 1"]
    np.testing.assert_allclose(points(axes, "marked")[:, 0], [1, 3, 10])


def test_at_a_fixed_size_more_memory_never_lowers_the_best_experts():
    picture = GALLERY["best-experts"](Sources(LAW))
    for panel in picture.panels[::2]:
        axes = panel.draw(panel.table)
        for size in ("0.3B", "0.6B", "1.0B", "1.6B", "2.4B"):
            assert np.all(np.diff(line(axes, size)[:, 1]) >= 0)
            assert np.ptp(line(axes, size)[:, 1]) > 0


@pytest.mark.parametrize("name", ["recurrence-map", "experts-map"])
def test_a_colour_means_the_same_in_both_maps(name):
    figure = GALLERY[name](Sources(LAW)).figure()
    scales = [each.get_clim() for axes in figure.axes for each in axes.collections if hasattr(each, "get_clim")]
    assert len({scale for scale in scales if scale[0] == -0.5}) == 1


def test_the_loss_at_the_best_recurrence_is_marked_where_it_rises():
    flops = np.geomspace(1e20, 1e23, 61)
    axes = draw_best_loss(recurrence_map(LAW, flops, ladder_space(["0.3B"], [8])))
    model = rung("0.3B", 8)
    best = [best_passes(model, each) for each in flops]
    np.testing.assert_allclose(
        line(axes, "0.3B")[:, 1], [matched_loss(model, *each) for each in zip(best, flops, strict=True)]
    )
    rises = flops[1:][np.diff(best) > 0]
    np.testing.assert_allclose(points(axes, "rises")[:, 0], rises)
