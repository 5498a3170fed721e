"""The downstream experiment: a mixture of three parts, matched budgets, paired seeds, every run a row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loopscale.lab import downstream
from loopscale.lab.downstream import BUDGET, CELLS, PASSES, TABLE, WIDTHS, Cell, run
from loopscale.train.data.batches import IGNORED
from loopscale.train.data.mixture import PARTS, Downstream
from loopscale.train.data.puzzles import S3
from loopscale.train.data.tasks import held_out


def drawn(count: int, split: str = "train") -> tuple[np.ndarray, np.ndarray, np.ndarray, Downstream]:
    task = Downstream(100, seed=3)
    ids, answers = task.problems(np.random.default_rng(0), count, split)  # type: ignore[arg-type]
    return ids, answers, task.part_of(ids), task


def test_rows_of_all_parts_come_in_their_shares() -> None:
    _, _, part, _ = drawn(64)
    assert np.bincount(part).tolist() == [32, 24, 8]


def test_words_are_answered_as_the_word_problem_and_splits_never_share_one() -> None:
    for split in ("train", "validation"):
        ids, answers, part, task = drawn(400, split)
        words = ids[part == 0]
        assert (answers[part == 0] == S3(task.LENGTH).solve(words)).all()
        assert (held_out(words) == (split == "validation")).all()


def test_facts_are_the_same_in_both_splits_and_those_of_the_seed() -> None:
    task = Downstream(100, seed=3)
    every = task.facts(np.arange(100))
    answers = task.solve(every)[:, 2:]
    names = task.entities
    assert len(np.unique(names)) == 100
    assert (answers - task.first["facts"] == task.values[names]).all()
    assert (task.values != Downstream(100, seed=4).values).any()
    assert (task.solve(every)[:, :2] == IGNORED).all()


def test_text_asks_for_the_next_character_and_held_out_text_is_another_part() -> None:
    ids, answers, part, task = drawn(64)
    text = part == PARTS.index("text")
    assert (answers[text, :-1] == ids[text, 1:]).all()
    assert (answers[text, -1] == IGNORED).all()
    assert task.words[ids[text][0, 0]].startswith("text:")


def test_cells_of_a_budget_have_equal_passes_and_the_small_budget_the_steps_of_the_large() -> None:
    large = [cell for cell in CELLS if cell.budget == BUDGET]
    assert {cell.steps * cell.recurrence * cell.layers for cell in large} == {BUDGET}
    for width in WIDTHS:
        steps = {
            cell.steps
            for cell in CELLS
            if cell.width == width
            and cell.layers == cell.experts == 1
            and cell.budget * PASSES[-1] == BUDGET * cell.recurrence
        }
        assert steps == {BUDGET // PASSES[-1]}
    assert len(CELLS) * 5 >= 120


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """Give the experiment a few entities and problems."""
    monkeypatch.setattr(downstream, "ENTITIES", 12)
    monkeypatch.setattr(downstream, "PROBLEMS", 16)
    return [Cell(16, budget=2), Cell(16, experts=2, recurrence=2, budget=4), Cell(16, layers=2, budget=4)]


def test_every_cell_is_trained_once_and_a_stopped_experiment_resumes(tmp_path: Path, small: list[Cell]) -> None:
    first = run(tmp_path, [0], small[:2])
    seen: list[tuple[str, int]] = []
    rows = run(tmp_path, [0], small, tell=lambda about, seed, row: seen.append((about, seed)) if row else None)
    assert seen == [(small[2].about, 0)]
    assert [row["words_loss"] for row in rows[:2]] == pytest.approx([row["words_loss"] for row in first], rel=1e-5)
    assert TABLE.read(tmp_path / downstream.RESULTS)[2]["layers"] == 2
    assert all(0 <= row["facts"] <= 1 and row["text_loss"] > 0 for row in rows)


def test_a_run_that_fails_is_a_row_with_its_reason(
    tmp_path: Path, small: list[Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    from loopscale.core.errors import InputError
    from loopscale.train.trainer import Trainer

    def broken(self: Trainer) -> None:
        raise InputError("the loss is not finite, at step 1")

    monkeypatch.setattr(Trainer, "train", broken)
    rows = run(tmp_path, [0], small[:1])
    assert rows[0]["status"] == "the loss is not finite; at step 1"
    assert TABLE.read(tmp_path / downstream.RESULTS)[0]["status"] == rows[0]["status"]
