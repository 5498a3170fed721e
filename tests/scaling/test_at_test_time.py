"""Passes at test time: the loss is lowest near the trained passes and rises on both sides."""

import numpy as np
import pytest

from loopscale.core.errors import InputError
from loopscale.scaling.at_test_time import FIXED, RANDOM, at_test_time


def test_fixed_training_is_best_at_the_trained_passes():
    rise = FIXED.rise(np.arange(1, 13), 4)
    assert np.argmin(rise) == 3
    assert rise[3] == 0
    assert np.all(np.diff(rise[3:]) > 0)
    assert np.all(np.diff(rise[:4]) < 0)


def test_drawn_passes_keep_the_loss_nearly_flat_beyond_the_best():
    assert RANDOM.rise(5, 6) == pytest.approx(0, abs=1e-12)
    assert RANDOM.rise(12, 6) < 0.1 * FIXED.rise(12, 6)


def test_growing_counts_as_its_last_passes_and_other_words_are_refused():
    assert at_test_time("grown") is at_test_time("fixed") is FIXED
    with pytest.raises(InputError, match="fixed, grown, random"):
        at_test_time("often")
