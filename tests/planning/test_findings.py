"""The paper's findings, as properties of the design space under its published coefficients.

Where one does not hold everywhere, the test says where; docs/journal.md tells more.
"""

import numpy as np
import pytest

from loopscale.architecture import RUNG_EXPERTS, RUNGS, continuous_space, ladder_space, rung
from loopscale.planning import Budget, evaluate
from loopscale.planning.profiles import experts_map, joint_optimum, recurrence_map
from loopscale.scaling import published

LAW = published()
FLOPS = np.geomspace(1e19, 1e25, 601)
MEMORY = np.geomspace(0.17e9, 60e9, 600)


@pytest.mark.parametrize("name", RUNGS)
def test_loopings_gain_is_bounded_and_the_bound_rises_with_experts(name):
    bounds = []
    for E in RUNG_EXPERTS:
        model = rung(name, experts=E)
        points = model.points(3e11, np.array([1, 2, 5, 10, 100, 1e6]))
        multiplier = LAW.multiplier(points)
        bounds.append(float(LAW.largest_multiplier(points)))
        assert np.all(np.diff(multiplier) >= 0)
        assert np.all(multiplier <= bounds[-1] * (1 + 1e-12))
    assert np.all(np.diff(bounds) > 0)


def test_more_compute_never_lowers_the_best_recurrence_at_a_fixed_rung_and_experts():
    table = recurrence_map(LAW, FLOPS, ladder_space())
    best = np.array(table.columns["best_recurrence"]).reshape(len(FLOPS), len(RUNGS), len(RUNG_EXPERTS))
    assert np.all(np.diff(best, axis=0) >= 0)
    assert best.max() > best.min()


def test_more_experts_lower_the_loss_of_every_rung_and_recurrence_at_every_compute():
    grid = evaluate(LAW, ladder_space(), Budget(flops=1.0), flops=np.geomspace(1e17, 1e27, 500))
    assert np.all(np.diff(grid.loss_ZFSKP[0], axis=2) < 0)


def test_more_experts_lower_the_isoflop_frontier_over_all_sizes():
    grid = evaluate(LAW, continuous_space(widths=np.geomspace(256, 4096, 40)), Budget(flops=1.0), flops=FLOPS[::20])
    frontier = grid.loss_ZFSKP[0].min(axis=(1, 3))
    assert np.all(np.diff(frontier, axis=1) < 0)


@pytest.mark.parametrize("name", RUNGS)
def test_more_memory_never_lowers_the_best_expert_count_of_a_rung(name):
    table = experts_map(LAW, MEMORY, Budget(flops=5e21, bits=4), ladder_space([name]))
    best = np.array(table.columns["best_experts"], float).reshape(len(MEMORY), -1)
    best = np.nan_to_num(best, nan=0.0)
    assert np.all(np.diff(best, axis=0) >= 0)
    assert best.max() == 32


def test_more_memory_does_lower_the_best_expert_count_when_the_size_is_free():
    """The finding does not hold across sizes: a little more memory can buy a wider model with fewer experts."""
    table = joint_optimum(LAW, MEMORY, Budget(flops=5e21, bits=4))
    designs = list(dict.fromkeys(zip(table.columns["rung"], table.columns["experts"], strict=True)))
    assert ("1.0B", 2) in designs
    assert designs.index(("2.4B", 1)) == designs.index(("1.0B", 2)) + 1
    loss = np.array(table.columns["loss"], float)
    assert np.all(np.diff(loss) <= 0)


@pytest.mark.parametrize(
    ("name", "less", "more"), [("0.3B", 5e20, 3e21), ("1.0B", 1e22, 4.6e22), ("2.4B", 1e22, 1.8e23)]
)
def test_sparsity_lowers_the_best_recurrence_before_it_raises_it(name, less, more):
    """The paper's trend turns round at small compute, where a dense model already wants a pass more than E = 8."""
    table = recurrence_map(LAW, [less, more], ladder_space([name], (1, 8)))
    dense_small, sparse_small, dense_large, sparse_large = table.columns["best_recurrence"]
    assert sparse_small < dense_small
    assert sparse_large > dense_large
