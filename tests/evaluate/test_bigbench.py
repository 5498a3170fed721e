"""The suite bigbench is made from BIG-bench's files, with the paper's shots and metric; none of its data are here."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from loopscale.core.errors import InputError
from loopscale.evaluate import bigbench
from loopscale.evaluate.suites import select

ITEMS = [
    {"input": f"Is {number} even?", "target_scores": {"yes": int(number % 2 == 0), "no": int(number % 2)}}
    for number in range(8)
]
UNDECIDED = {"input": "Is it warm?", "target_scores": {"yes": 1, "no": 1}}
TASK = {"name": "navigate", "task_prefix": "Answer yes or no.", "examples": [UNDECIDED, *ITEMS]}
"""A task of our own in BIG-bench's form."""


@pytest.fixture
def unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bigbench-1.0.0" / "bigbench" / "benchmark_tasks" / "navigate"
    folder.mkdir(parents=True)
    (folder / "task.json").write_text(json.dumps(TASK))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LOOPSCALE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(bigbench.SOURCE, str(tmp_path / "bigbench-1.0.0"))
    return tmp_path


def rows(folder: Path, split: str) -> list[dict]:
    return [json.loads(line) for line in (folder / f"navigate.{split}.jsonl").read_text().splitlines()]


def test_a_task_has_the_papers_shots_and_metric_and_items_with_one_right_choice(unpacked: Path) -> None:
    suite = select("bigbench:navigate", lambda _: [])
    (task,) = suite.benchmarks
    assert (task.label, task.task, task.shots, task.metric) == ("navigate", "bigbench_navigate", 3, "acc_norm,none")
    assert task.folder is not None
    train, test = rows(task.folder, "train"), rows(task.folder, "test")
    assert [row["text"] for row in train] == ["Is 0 even?", "Is 1 even?", "Is 2 even?"]
    assert len(test) == 5
    assert all(row["choices"][row["answer"]] == ("no" if int(row["text"][3]) % 2 else "yes") for row in train + test)


def test_the_archive_gives_the_same_task_as_the_folder(unpacked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = bigbench.task_folder(("navigate",))
    from_folder = (folder / "navigate.test.jsonl").read_text()
    archive = unpacked / "bigbench-1.0.0.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        content = json.dumps(TASK).encode()
        entry = tarfile.TarInfo("bigbench-1.0.0/bigbench/benchmark_tasks/navigate/task.json")
        entry.size = len(content)
        file.addfile(entry, io.BytesIO(content))
    (folder / "navigate.yaml").unlink()
    monkeypatch.setenv(bigbench.SOURCE, str(archive))
    assert (bigbench.task_folder(("navigate",)) / "navigate.test.jsonl").read_text() == from_folder


def test_lm_eval_reads_the_task_with_three_examples_before_the_question(unpacked: Path) -> None:
    tasks = pytest.importorskip("lm_eval.tasks")
    manager = tasks.TaskManager(include_path=str(bigbench.task_folder(("navigate",))), include_defaults=False)
    task = tasks.get_task_dict(["bigbench_navigate"], manager)["bigbench_navigate"]
    task.set_config("num_fewshot", 3)
    prompt = task.fewshot_context(next(iter(task.test_docs())), 3)
    text = prompt if isinstance(prompt, str) else str(prompt)
    assert text.startswith("Answer yes or no.")
    assert text.count("Q: ") == 4
    assert text.rstrip().endswith("Q: Is 3 even?\nA:")


def test_what_is_not_here_is_said(unpacked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="BIG-bench makes it by code"):
        select("bigbench:web_of_lies", lambda _: [])
    with pytest.raises(InputError, match="did you mean 'navigate'"):
        select("bigbench:navigat", lambda _: [])
    with pytest.raises(InputError, match=r"no benchmark_tasks/snarks/task.json in it"):
        bigbench.task_folder(("snarks",))
    monkeypatch.delenv(bigbench.SOURCE)
    with pytest.raises(InputError, match="358 MB"):
        bigbench.task_folder(("snarks",))


def test_with_what_is_left_out_it_is_the_list_of_lm_evals_leaderboard() -> None:
    assert len(bigbench.TASKS) + len(bigbench.LEFT_OUT) == 24
