"""The downstream experiment: a mixture of three parts, matched budgets, paired seeds, every run a row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from loopscale.cli.verbs import cli
from loopscale.core.errors import InputError
from loopscale.figures.lab import draw_downstream
from loopscale.lab import downstream
from loopscale.lab.downstream import BUDGET, CELLS, PASSES, TABLE, WIDTHS, BudgetedModel, run
from loopscale.lab.law import asked_of, held_out_errors, task_law
from loopscale.lab.questions import summary
from loopscale.lab.tables import Row
from loopscale.train.data.batches import IGNORED
from loopscale.train.data.mixture import PARTS, Mixture
from loopscale.train.data.puzzles import S3
from loopscale.train.data.tasks import held_out


def drawn(count: int, split: str = "train") -> tuple[np.ndarray, np.ndarray, np.ndarray, Mixture]:
    task = Mixture(100, seed=3)
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
    task = Mixture(100, seed=3)
    every = task.facts(np.arange(100))
    answers = task.solve(every)[:, 2:]
    names = task.entities
    assert len(np.unique(names)) == 100
    assert (answers - task.first["facts"] == task.values[names]).all()
    assert (task.values != Mixture(100, seed=4).values).any()
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
def small(monkeypatch: pytest.MonkeyPatch) -> list[BudgetedModel]:
    """Give the experiment a few entities and problems."""
    monkeypatch.setattr(downstream, "ENTITIES", 12)
    monkeypatch.setattr(downstream, "PROBLEMS", 16)
    return [
        BudgetedModel(16, budget=2),
        BudgetedModel(16, experts=2, recurrence=2, budget=4),
        BudgetedModel(16, layers=2, budget=4),
    ]


def test_every_cell_is_trained_once_and_a_stopped_experiment_resumes(
    tmp_path: Path, small: list[BudgetedModel]
) -> None:
    first = run(tmp_path, [0], small[:2])
    seen: list[tuple[str, int]] = []
    rows = run(tmp_path, [0], small, tell=lambda about, seed, row: seen.append((about, seed)) if row else None)
    assert seen == [(small[2].about, 0)]
    assert [row["words_loss"] for row in rows[:2]] == pytest.approx([row["words_loss"] for row in first], rel=1e-5)
    assert TABLE.read(tmp_path / downstream.RESULTS)[2]["layers"] == 2
    assert all(0 <= row["facts"] <= 1 and row["text_loss"] > 0 for row in rows)


def test_a_run_that_fails_is_a_row_with_its_reason(
    tmp_path: Path, small: list[BudgetedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    from loopscale.train.trainer import Trainer

    def broken(self: Trainer) -> None:
        raise InputError("the loss is not finite, at step 1")

    monkeypatch.setattr(Trainer, "train", broken)
    rows = run(tmp_path, [0], small[:1])
    assert rows[0]["status"] == "the loss is not finite; at step 1"
    assert TABLE.read(tmp_path / downstream.RESULTS)[0]["status"] == rows[0]["status"]


def made_up(seeds: int, *, gain: float = 1.0) -> list[Row]:
    """Return runs whose accuracy and loss follow from their cell: R raises words, E facts."""
    rng = np.random.default_rng(0)
    rows = []
    for seed in range(seeds):
        for cell in CELLS:
            active = 13 * cell.width**2 * cell.layers
            effective = active * (1 + gain * (1 - np.exp(1 - cell.recurrence)))
            tokens = cell.steps * 320
            loss = (0.2 + 30 * effective**-0.5 + 60 * tokens**-0.4) * np.exp(0.02 * rng.normal())
            values = {
                name: getattr(cell, name) for name in ("width", "experts", "recurrence", "layers", "budget", "steps")
            }
            rows.append(
                {**values, "status": "done", "seed": seed, "weights": active, "active": active, "tokens": tokens}
                | {"total": active * cell.experts, "training_flops": 6.0 * active * tokens, "real_training_flops": 1.0}
                | {"words": 0.3 + 0.1 * cell.recurrence + 0.01 * seed, "facts": 0.2 + 0.1 * cell.experts - 0.01 * seed}
                | {"words_loss": loss, "facts_loss": loss}
            )
    return rows


def test_differences_are_paired_by_seed_and_failed_runs_are_left_out() -> None:
    rows = made_up(4)
    rows[0] = {**rows[0], "status": "the loss is not finite", "words": None}
    result = summary(rows)
    assert result["failed"] == 1
    answers = {(one["measure"], one["about"], one["width"]): one for one in result["differences"]}
    gain = answers["reasoning", "R = 6, equal FLOPs", WIDTHS[0]]
    assert gain["value"] == pytest.approx(0.5 / (1 - 1 / 6))
    assert gain["clear"]
    assert gain["seeds"] == 4
    assert answers["reasoning", "R = 6, equal steps", WIDTHS[0]]["seeds"] == 3
    assert answers["reasoning", "E = 8, equal steps", WIDTHS[1]]["value"] == pytest.approx(0)
    assert answers["overall", "R and E beyond their sum, equal FLOPs", WIDTHS[0]]["value"] == pytest.approx(0)


def test_a_measure_that_no_cell_has_learnt_is_named() -> None:
    rows = [{**row, "words": 0.3} for row in made_up(3)]
    assert summary(rows)["learnt"] == {"reasoning": False, "knowledge": True}


def test_a_pass_replaces_weights_only_within_the_widths_that_were_trained() -> None:
    reasoning = {(32, 1): 0.4, (48, 1): 0.6, (32, 3): 0.5, (32, 6): 0.7}
    rows = [
        {**row, "words": reasoning.get((row["width"], row["recurrence"]), 0.3) + 0.001 * row["seed"]}
        for row in made_up(4)
    ]
    inside, above = summary(rows)["replaced"]
    assert inside["factor"] == pytest.approx(48 / 32)  # half of the way in log weights, which grow as the width squared
    assert inside["interval"] == pytest.approx([48 / 32, 48 / 32])
    assert (above["factor"], above["outside"]) == (None, "above")


def test_a_law_that_is_not_identified_answers_nothing() -> None:
    rows = [{**row, "facts_loss": 1.0 + 1e-3 * row["seed"]} for row in made_up(3)]
    law = task_law(rows, "facts")
    assert law.degenerate
    answer = asked_of(law)
    assert answer["undecided"]
    assert "theta" not in answer
    assert set(held_out_errors(rows, "words")) == {"none", "linear", "power", "bounded"}


def test_the_law_is_fitted_to_a_part_and_refused_with_too_few_seeds() -> None:
    law = task_law(made_up(3), "words")
    answers = asked_of(law)
    assert answers["rmse"] < answers["deviation"]
    if not law.degenerate:
        low, high = answers["theta"]["interval"]
        assert low <= answers["theta"]["value"] <= high or low == pytest.approx(high)
    assert len(law.observations) == 3 * len(CELLS)
    with pytest.raises(InputError, match="needs 3 seeds of every cell, and there are 2"):
        task_law(made_up(2), "words")


def test_the_figure_has_panels_over_recurrence_and_over_experts() -> None:
    figure = draw_downstream(summary(made_up(3)))
    assert [axes.get_title(loc="left") or axes.get_title() for axes in figure.axes] == 2 * [
        "overall", "reasoning", "knowledge"
    ]  # fmt: skip


def test_the_shipped_runs_are_cells_of_the_protocol() -> None:
    rows = downstream.shipped_rows()
    for row in rows:
        assert sum(cell.is_of(row) for cell in CELLS) == 1
    assert len(
        {(row["seed"], *(row[name] for name in ("width", "experts", "recurrence", "layers", "budget"))) for row in rows}
    ) == len(rows)
    result = CliRunner().invoke(cli, ["lab", "downstream", "--shipped"])
    assert result.exit_code == 0, result.output
    assert f"{len(rows)} of 130 runs" in result.output
