"""The demo's report answers whether looping pays at equal compute, with its uncertainty."""

import pytest

from loopscale.cli.demo import Looped, _equal_answer, _measured_pairs
from loopscale.fitting.data.public import load_micro


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.01, 0.03, "does not pay"), (-0.03, -0.01, "pays"), (-0.01, 0.01, "cannot be told from not looping")],
)
def test_the_verdict_follows_from_the_interval(low, high, verdict):
    one = Looped(1, 1, 1e11, 4e6, 1.7, 0.0, 0.0, 0.0)
    four = Looped(1, 4, 1e11, 1e6, 1.72, (low + high) / 2, low, high)
    assert four.verdict == verdict
    assert f"it {verdict} " in _equal_answer([one, four])
    assert f"{low:+.4f} to {high:+.4f}" in _equal_answer([one, four])


def test_measured_pairs_at_equal_compute_are_counted():
    assert "in 8 pairs of models" in _measured_pairs(load_micro())
