"""The paper's suite: its names, shots and metrics in the installed lm-eval, and its means in its own table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from loopscale.architecture import rung
from loopscale.core.errors import InputError
from loopscale.evaluate import builtin_suites, case_study, load_suite
from loopscale.evaluate.suites import select
from loopscale.evaluate.tasks import Tasks, folder_tasks

PAPER = {
    "leaderboard_bbh": (3, "acc_norm,none"),
    "gsm8k_cot": (8, "exact_match,flexible-extract"),
    "arc_challenge": (25, "acc_norm,none"),
    "arc_easy": (0, "acc_norm,none"),
    "openbookqa": (0, "acc_norm,none"),
    "hellaswag": (0, "acc_norm,none"),
    "piqa": (0, "acc_norm,none"),
    "social_iqa": (0, "acc,none"),
    "winogrande": (0, "acc,none"),
    "boolq": (0, "acc,none"),
    "drop": (3, "f1,none"),
    "mmlu": (5, "acc,none"),
    "nq_open": (5, "exact_match,remove_whitespace"),
    "triviaqa": (5, "exact_match,remove_whitespace"),
}


@pytest.fixture(scope="module")
def paper() -> Tasks:
    return Tasks(load_suite("paper").benchmarks)


def test_the_suite_has_the_papers_names_shots_and_metrics():
    assert {each.task: (each.shots, each.metric) for each in load_suite("paper").benchmarks} == PAPER


def test_all_14_tasks_resolve_in_the_installed_harness_with_those_shots_and_metrics(paper: Tasks):
    members = {name: paper.leaves(name) for name in PAPER}
    assert {name: len(found) for name, found in members.items() if len(found) > 1} == {
        "leaderboard_bbh": 24,
        "mmlu": 57,
    }
    for name, (shots, metric) in PAPER.items():
        for leaf in members[name]:
            assert metric in leaf.metrics, leaf
            assert leaf.shots in (None, shots), leaf


def test_a_metric_that_a_task_lacks_is_refused_with_those_it_has():
    local = load_suite("local").benchmarks[0]
    with pytest.raises(InputError, match=r"has no metric 'f1,none'.* has acc,none and acc_norm,none"):
        Tasks((replace(local, metric="f1,none"),))


def test_overall_of_the_papers_six_rows_follows_from_its_14_columns():
    suite = load_suite("paper")
    printed = [50.2, 36.6, 43.0, 46.0, 46.7, 46.9]
    assert [row.overall for row in case_study().rows] == printed
    for row, overall in zip(case_study().rows, printed, strict=True):
        assert list(row.scores) == [each.label for each in suite.benchmarks]
        assert suite.means(row.scores)["Overall"] == pytest.approx(overall, abs=0.1)


def test_reasoning_is_the_mean_of_bbh_and_gsm8k_and_there_are_five_categories():
    suite = load_suite("paper")
    sizes = {name: len(members) for name, members in suite.categories().items()}
    assert sizes == {"Reasoning": 2, "Science": 3, "Commonsense": 4, "Reading": 2, "Knowledge": 3}
    for row in case_study().rows:
        expected = (row.scores["BBH"] + row.scores["GSM8K"]) / 2
        assert suite.means(row.scores)["Reasoning"] == pytest.approx(expected)


def test_the_papers_relative_compute_is_that_of_its_rungs():
    base = rung("0.6B", experts=8).inference_flops_per_token(1)
    for row in case_study().rows[1:]:
        ours = rung("0.3B", experts=8).inference_flops_per_token(row.recurrence) / base
        assert ours == pytest.approx(row.compute, abs=0.05)


def test_a_mean_with_a_missing_score_is_not_made_up():
    assert "Overall" not in load_suite("paper").means({"BBH": 30.0, "GSM8K": 40.0})


def test_names_suites_and_folders_can_be_joined(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text("task: mine\ndataset_path: json\noutput_type: multiple_choice\n")
    suite = select(f"local,piqa,{tmp_path}", folder_tasks)
    assert [each.task for each in suite.benchmarks][-3:] == ["loopscale_passages", "piqa", "mine"]
    assert builtin_suites() == ("local", "paper")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('kind = "suite"\nschema = 2\n', "schema 2 is newer"),
        ('kind = "suite"\nschema = 1\nname = "x"\nbenchmark = []\n', "the suite has no benchmarks"),
        ('kind = "suite"\nschema = 1\nname = "x"\n[[benchmark]]\ntask = "a"\nshot = 3\n', "did you mean 'shots'"),
        ('kind = "suite"\nschema = 1\nname = "x"\n[[benchmark]]\ntask = "a"\nshots = -1\n', "should be 0 or more"),
        ("kind = ", "not TOML"),
    ],
)
def test_a_suite_file_says_what_is_wrong_with_it(tmp_path: Path, content: str, said: str):
    (tmp_path / "mine.toml").write_text(content)
    with pytest.raises(InputError, match=r"mine\.toml") as caught:
        load_suite(tmp_path / "mine.toml")
    assert said in str(caught.value)
