"""Scores of few items come with intervals that say so."""

import pytest

from loopscale.evaluate.results import interval, printed, wide, wilson_interval
from loopscale.evaluate.rows import Row
from loopscale.evaluate.store import Score
from loopscale.evaluate.suites import OVERALL, Benchmark, Suite


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


def test_the_interval_of_a_mean_is_that_of_independent_items():
    names = ("one", "two")
    suite = Suite("small", tuple(Benchmark(name, name, category="Reasoning") for name in names))
    scores = {"one": Score(50.0, 5.0), "two": Score(80.0, 4.0)}
    errors = (25 / 100 + 16 / 100) ** 0.5
    means = {name: Score(65.0, (25 + 16) ** 0.5 / 2) for name in ("Reasoning", OVERALL)}
    row = Row("tiny", 1, 1.0, scores={**scores, **means}, metrics=dict.fromkeys(names, "acc,none"),
              samples=dict.fromkeys(names, 100))  # fmt: skip
    low, high = interval(suite, row, OVERALL)
    assert (low, high) == pytest.approx((65 - 1.96 * 10 * errors / 2, 65 + 1.96 * 10 * errors / 2), abs=0.8)
    assert interval(suite, row, "Reasoning") == (low, high)
    none_right = Row("tiny", 1, 1.0, scores={**dict.fromkeys(names, Score(0.0, 0.0)), OVERALL: Score(0.0, 0.0)},
                     metrics=row.metrics, samples=dict.fromkeys(names, 10))  # fmt: skip
    assert interval(suite, none_right, OVERALL)[1] > 15
    assert wide(suite, [row]).columns["Overall_low"] == [low]


def test_a_score_without_items_or_error_has_no_interval():
    suite = Suite("small", (Benchmark("one", "one"),))
    assert interval(suite, Row("paper", 1, 1.0, scores={"one": Score(50.0)}), "one") is None
    assert interval(suite, Row("paper", 1, 1.0), "one") is None
