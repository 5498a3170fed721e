"""Schedules of passes: compute by the token average, gain with a delay."""

import numpy as np
import pytest

from loopscale.core.errors import InputError
from loopscale.scaling import BILLIONS, Counting, Points, ScalingLaw, mapping, outer_law
from loopscale.scaling.growth import DELAY, PassSchedule, best_growth, scheduled_flops, scheduled_gain, scheduled_loss

LAW = ScalingLaw(
    outer_law("chinchilla"), mapping("bounded"),
    {"A": 0.35, "alpha": -0.264, "B": 0.416, "beta": -0.49, "c": 2.28, "kappa1": 1.97, "kappa2": 1.88},
    BILLIONS, Counting.WITHOUT_EMBEDDINGS, name="dense",
)  # fmt: skip
MODEL = Points(2e8, 4e9, loop=8e7)


def test_a_schedule_of_one_stage_is_a_fixed_number_of_passes():
    fixed = Points(2e8, 4e9, 3, loop=8e7)
    assert scheduled_loss(LAW, MODEL, PassSchedule([[0, 3]])) == pytest.approx(LAW(fixed), rel=1e-14)
    assert scheduled_flops(MODEL, PassSchedule([[0, 3]])) == pytest.approx(fixed.train_flops)


def test_compute_is_that_of_the_token_averaged_passes():
    schedule = PassSchedule([[0, 1], [0.65, 3]])
    assert schedule.mean == pytest.approx(0.65 * 1 + 0.35 * 3)
    assert scheduled_flops(MODEL, schedule) == pytest.approx(6 * (2e8 + 0.7 * 8e7) * 4e9)


def test_the_gain_moves_from_the_first_passes_to_the_last_with_the_delay():
    low, high = (LAW.gain(Points(2e8, 4e9, R, loop=8e7)) for R in (2, 4))
    for share in (0.01, DELAY, 0.6):
        gain = scheduled_gain(LAW, MODEL, PassSchedule([[0, 2], [1 - share, 4]]))
        assert gain == pytest.approx(low + (high - low) * -np.expm1(-share / DELAY), rel=1e-12)


def test_the_credits_of_the_stages_add_up_to_one_and_two_equal_stages_are_one():
    schedule = PassSchedule([[0, 1], [0.3, 2], [0.7, 4]])
    assert sum(schedule.credit()) == pytest.approx(1.0)
    split = scheduled_gain(LAW, MODEL, PassSchedule([[0, 1], [0.5, 4], [0.8, 4]]))
    assert split == pytest.approx(scheduled_gain(LAW, MODEL, PassSchedule([[0, 1], [0.5, 4]])), rel=1e-12)


def test_growing_late_beats_the_best_fixed_number_of_passes_at_equal_compute():
    choice = best_growth(LAW, 2e8, 8e7, 4e18)
    assert choice.loss < choice.fixed_loss
    assert len(choice.schedule.stages) == 2
    tokens = 4e18 / (6 * (2e8 + (choice.schedule.mean - 1) * 8e7))
    assert choice.tokens == pytest.approx(tokens)


@pytest.mark.parametrize(
    ("stages", "says"),
    [
        ([[0.1, 2]], "the first starts at 0"),
        ([[0, 2], [1.0, 4]], "before 1"),
        ([[0, 2], [0.5, 3], [0.4, 4]], "later"),
        ([[0, 0.5]], "1 or more"),
        ([], "the first starts at 0"),
    ],
)
def test_stages_out_of_order_are_refused(stages, says):
    with pytest.raises(InputError, match=says):
        PassSchedule(stages)
