"""Scores of few items come with intervals that say so."""

import pytest

from loopscale.evaluate.results import Row, printed, wilson_interval
from loopscale.evaluate.store import Score
from loopscale.evaluate.suites import Benchmark, Suite


@pytest.mark.parametrize(
    ("right", "count", "interval"),
    [(0, 10, (0.0, 0.278)), (10, 10, (0.722, 1.0)), (5, 10, (0.237, 0.763)), (50, 100, (0.404, 0.596))],
)
def test_wilson_intervals_are_those_of_the_tables(right, count, interval):
    assert wilson_interval(right / count, count) == pytest.approx(interval, abs=1e-3)


def test_no_right_answer_of_ten_is_not_certainty():
    suite = Suite("small", (Benchmark("completion", "completion"),))
    row = Row("tiny", 1, 1.0, scores={"completion": Score(0.0, 0.0)}, metrics={"completion": "acc,none"},
              samples={"completion": 10})  # fmt: skip
    assert printed(suite, [row]).columns["completion"] == ["0.0 [0, 28]"]
