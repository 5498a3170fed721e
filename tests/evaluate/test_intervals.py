"""Scores of few items come with intervals that say so."""

import pytest

from loopscale.cli.eval_tables import Shown, show_results
from loopscale.core.numerics import wilson_interval
from loopscale.evaluate.results import interval, printed, wide
from loopscale.evaluate.rows import Row
from loopscale.evaluate.store import Score
from loopscale.evaluate.suites import OVERALL, Benchmark, Suite


@pytest.mark.parametrize(
    ("right", "count", "interval"),
    [(0, 10, (0.0, 0.278)), (10, 10, (0.722, 1.0)), (5, 10, (0.237, 0.763)), (50, 100, (0.404, 0.596))],
)
def test_wilson_intervals_are_those_of_the_tables(right, count, interval):
    assert wilson_interval(right / count, count) == pytest.approx(interval, abs=1e-3)


def test_an_interval_holds_its_share_and_narrows():
    low, high = wilson_interval(0.9, 100)
    assert low < 0.9 < high
    narrow = wilson_interval(0.9, 10_000)
    assert high - low > narrow[1] - narrow[0]
    assert wilson_interval(0.0, 50)[0] == 0.0


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


@pytest.mark.parametrize(("tasks", "passes"), [(4, 4), (16, 6)], ids=["local", "paper"])
def test_what_eval_prints_fits_a_screen_and_starts_with_the_best(tasks, passes, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    names = [f"task-{k}" for k in range(tasks)]
    suite = Suite("small", tuple(Benchmark(name, name, category=f"Kind {k % 3}") for k, name in enumerate(names)))
    rows = [
        Row("tiny", R, R, compute=1.0 * R, scores={name: Score(10.0 * R, 1.0) for name in [*names, "Kind 1", OVERALL]},
            metrics=dict.fromkeys(names, "acc,none"), samples=dict.fromkeys(names, 10), training_flops=1e12)
        for R in range(1, passes + 1)
    ]  # fmt: skip
    show_results(suite, rows, Shown(False, False, False, False), published=False, tidy_path=None)
    lines = capsys.readouterr().out.rstrip().splitlines()
    assert lines[0] == f"small: highest overall score {10.0 * passes:.1f}, tiny at R = {passes}"
    assert len(lines) <= 22
    assert max(map(len, lines)) <= 80
    assert ("task-0" in "\n".join(lines)) == (tasks == 4)
