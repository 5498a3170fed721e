"""The numerical helpers that stand in for scipy agree with it."""

import numpy as np
import pytest
from scipy.special import stdtrit

from loopscale.core.numerics import geometric_bisection, student_quantile

LEVELS = (0.01, 0.5, 0.68, 0.9, 0.95, 0.99, 0.9999)


@pytest.mark.parametrize("degrees", [1, 1.5, 2, 3.7, 8, 40, 200, 5000])
def test_the_quantile_of_students_t_is_scipys(degrees):
    ours = [student_quantile(level, degrees) for level in LEVELS]
    np.testing.assert_allclose(ours, [stdtrit(degrees, (1 + level) / 2) for level in LEVELS], rtol=1e-8)


@pytest.mark.parametrize("degrees", [3, 200, 1e6])
def test_far_tails_keep_three_digits(degrees):
    assert student_quantile(1 - 1e-7, degrees) == pytest.approx(stdtrit(degrees, 1 - 0.5e-7), rel=1e-3)


def test_bisection_finds_each_element_for_itself():
    wanted = np.array([1e-3, 2.0, 5e4])
    np.testing.assert_allclose(geometric_bisection(lambda x: x**3 < wanted**3, 1e-6, 1e6), wanted, rtol=1e-14)
