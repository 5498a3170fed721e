"""Tasks have exact answers, splits that never meet, and a difficulty that counts what it says."""

from __future__ import annotations

import numpy as np
import pytest

from loopscale.core.errors import InputError
from loopscale.train.data.batches import IGNORED
from loopscale.train.data.labels import fixed_problems
from loopscale.train.data.puzzles import S3, TASKS, Facts, task_called
from loopscale.train.data.tasks import Rows, Task, held_out


def drawn(task: Task, count: int = 64) -> tuple[Rows, Rows]:
    return task.problems(np.random.default_rng(7), count)


def read(task: Task, ids: Rows) -> list[str]:
    return [task.words[token] for token in ids]


def answers(task: Task, ids: Rows) -> list[str]:
    """Solve a problem from its words, by other means than the task's."""
    words = read(task, ids)
    if task.name in ("z2", "s3", "s5"):
        place, out = {point: point for point in sorted(words[0])}, []
        for word in words:
            place = {point: word[int(now) - 1] for point, now in place.items()}
            out.append("".join(place[point] for point in sorted(place)))
        return out
    if task.name == "hops":
        mark = words.index("?")
        pointers, node, out = dict(zip(words[:mark:2], words[1:mark:2], strict=True)), words[mark + 1], []
        for _ in words[mark + 1 :]:
            node = pointers[node]
            out.append(node)
        return out
    if task.name == "addition":
        first, _, second = "".join(words[: words.index("=")]).partition("+")
        return list(str(int(first) + int(second)).zfill(len(first) + 1))[::-1]
    if task.name == "tree":
        stack: list[str] = []
        out = []
        for word in words:
            if word in "+-*":
                right, left = stack.pop(), stack.pop()
                stack.append(str(eval(f"({left} {word} {right}) % 7")))
                out.append(stack[-1])
            else:
                stack.append(word)
        return out
    if task.name == "reach":
        mark = words.index("?")
        edges, reached = list(zip(words[:mark:2], words[1:mark:2], strict=True)), {words[mark + 1]}
        for _ in edges:
            reached |= {head for tail, head in edges if tail in reached}
        return ["yes" if node in reached else "no" for node in words[mark + 2 :]]
    mark = words.index("?")
    values = dict(zip(words[:mark:2], words[1:mark:2], strict=True))
    return [values[key] for key in words[mark + 1 :]]


@pytest.mark.parametrize("name", [name for name in TASKS if name not in ("facts", "mixture")])
def test_answers_are_those_of_an_independent_solver(name: str) -> None:
    task = task_called(name)
    for ids, labels in zip(*drawn(task), strict=True):
        assert read(task, labels[task.asked]) == answers(task, ids)
        assert (np.flatnonzero(labels != IGNORED) == task.asked).all()


@pytest.mark.parametrize("name", TASKS)
def test_a_checker_takes_the_answers_and_refuses_others(name: str) -> None:
    task = task_called(name)
    ids, labels = drawn(task)
    assert task.check(ids, labels).all()
    wrong = np.where(labels == IGNORED, labels, (labels + 1) % len(task.words))
    assert not task.check(ids, wrong).any()


@pytest.mark.parametrize("name", [name for name in TASKS if name not in ("facts", "mixture")])
def test_training_and_validation_never_share_a_problem(name: str) -> None:
    task = task_called(name)
    training, _ = drawn(task, 2000)
    validation, _ = fixed_problems(task, 500, "validation")
    assert not held_out(training).any()
    assert held_out(validation).all()


def test_the_longer_split_is_longer_and_has_the_same_vocabulary() -> None:
    for name in TASKS:
        task = task_called(name)
        if task.longer is None:
            with pytest.raises(InputError, match="no longer problems"):
                fixed_problems(task, 4, "longer")
            continue
        ids, _ = fixed_problems(task, 4, "longer")
        assert task.longer.difficulty > task.difficulty
        assert task.longer.words == task.words
        assert ids.shape[1] == task.longer.length > task.length


def test_chance_is_what_the_best_constant_answer_scores() -> None:
    assert task_called("s3").chance == 1 / 6
    assert task_called("z2").chance == 1 / 2
    assert task_called("facts").chance == 1 / 256
    task = task_called("hops")
    ids, labels = drawn(task, 4000)
    constant = np.full_like(labels, np.bincount(labels[:, -1]).argmax())
    assert task.check(ids, constant).mean() == pytest.approx(task.chance, abs=0.02)


def test_facts_are_those_of_their_seed_and_are_all_different() -> None:
    facts, others = Facts(1000, 0), Facts(1000, 1)
    assert len(np.unique(facts.keys)) == 1000
    assert facts.bits == 8000
    every = facts.facts(np.arange(1000))
    assert (facts.solve(every) == Facts(1000, 0).solve(every)).all()
    assert (facts.keys != others.keys).any()


def test_a_sample_reads_as_a_problem_above_its_answers() -> None:
    task = task_called("addition", 2)
    shown = task.show(np.array([4, 7, 10, 3, 5, 11, 12, 12]))
    assert shown == "reads   4 7 + 3 5 = next next\nanswers · · · · · 2 8    0"


def test_words_go_through_the_tokenizer_and_back() -> None:
    for name in TASKS:
        task = task_called(name)
        ids, _ = drawn(task, 1)
        tokenizer = task.tokenizer()
        assert tokenizer(" ".join(read(task, ids[0])))["input_ids"] == ids[0].tolist()
        assert tokenizer.eos_token_id == task.end


@pytest.mark.parametrize(
    ("name", "difficulty", "problem"),
    [("hop", None, "did you mean 'hops'"), ("hops", 8, "hops, from 1 to 7"), ("s3", 0, "from 1 to 512")],
)
def test_a_task_that_does_not_exist_is_refused(name: str, difficulty: int | None, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        task_called(name, difficulty)


def test_a_task_with_too_few_problems_for_two_splits_is_refused() -> None:
    class One(S3):
        def draw(self, rng: np.random.Generator, count: int) -> Rows:
            return np.zeros((count, 3), np.int64)

    assert held_out(np.zeros((1, 3), np.int64)).all()
    with pytest.raises(InputError, match="too few different problems for a train split"):
        drawn(One(3))
