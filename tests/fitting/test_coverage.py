"""Nominal 90% intervals must contain the truth about 90% of the time."""

import json

import pytest

from coverage_trials import COEFFICIENTS, Interval, Setting, coverage_table, run_coverage
from loopscale.core.errors import InputError

QUICK = Setting(count=5, schemes=("runs",))


def shares(intervals):
    return {(row["what"], row["scheme"]): row["coverage"] for row in coverage_table(intervals).records()}


def test_the_table_counts_what_is_covered():
    made = [
        Interval(0, "runs", "theta", 0.3, 0.2, 0.4),
        Interval(1, "runs", "theta", 0.3, 0.35, 0.4),
        Interval(0, "runs", "0.3B E=1", 2.0, 1.9, 2.1),
        Interval(0, "runs", "0.6B E=1", 2.0, 1.9, 1.95),
        Interval(0, "paper", "0.6B E=1", 2.0, 1.9, 1.95),
    ]
    found = shares(made)
    assert found["theta", "runs"] == 0.5
    assert found["predictions", "runs"] == 0.5
    assert found["0.3B E=1", "runs"] == 1.0
    assert found["predictions", "paper"] == 0.0


def test_finished_trials_are_kept_and_not_run_again(tmp_path):
    kept = tmp_path / "trials.jsonl"
    first = run_coverage([0], QUICK, workers=1, kept=kept)
    assert len(kept.read_text().splitlines()) == 1
    row = json.loads(kept.read_text())
    row["intervals"][0]["truth"] = 123.0  # would not come back if the trial were run again
    kept.write_text(json.dumps(row) + "\n")
    again = run_coverage([0], QUICK, workers=1, kept=kept)
    assert again[0].truth == 123.0
    assert again[1:] == first[1:]
    assert len(kept.read_text().splitlines()) == 1


def test_trials_of_another_setting_are_not_mistaken_for_these(tmp_path):
    kept = tmp_path / "trials.jsonl"
    run_coverage([0], QUICK, workers=1, kept=kept)
    run_coverage([0], Setting(count=6, schemes=("runs",)), workers=1, kept=kept)
    assert len(kept.read_text().splitlines()) == 2


def test_a_spoiled_file_of_trials_is_named(tmp_path):
    kept = tmp_path / "trials.jsonl"
    kept.write_text("not a trial\n")
    with pytest.raises(InputError, match=r"trials\.jsonl: line 1 is not a trial"):
        run_coverage([0], QUICK, workers=1, kept=kept)


@pytest.mark.slow
def test_intervals_of_the_default_cover_and_those_of_the_papers_scheme_do_not():
    # 200 sweeps, not the 100 that would do: a share then has a standard error of 0.02 and not 0.03.
    found = shares(run_coverage(range(200), Setting(schemes=("runs", "paper")), workers=2))
    for what in ("predictions", *COEFFICIENTS):
        assert 0.85 <= found[what, "runs"] <= 0.95
        assert found[what, "paper"] < 0.6
