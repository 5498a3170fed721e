"""Two axes: cells of equal steps and of equal FLOPs, paired by seed, resumed, and claims only where seeds agree."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from loopscale.core.errors import InputError
from loopscale.figures.lab import draw_two_axes
from loopscale.lab import two_axes
from loopscale.lab.tables import Mean, Row
from loopscale.lab.two_axes import CELLS, EQUAL_FLOPS, TABLE, difference, recipe_of, run, summary


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give both tasks a few steps of a narrow model."""
    tiny = {
        "reasoning": replace(two_axes.TASKS["reasoning"], difficulty=4, width=16, steps=3, batch=8),
        "knowledge": replace(two_axes.TASKS["knowledge"], difficulty=40, width=16, steps=3, batch=8),
    }
    monkeypatch.setattr(two_axes, "TASKS", tiny)


def row(cell: str, seed: int, accuracy: float) -> Row:
    values = dict.fromkeys(TABLE.columns, 1)
    return {**values, "task": "reasoning", "cell": cell, "seed": seed, "accuracy": accuracy, "chance": 0.1}


def test_every_cell_is_trained_once_and_never_again(tmp_path: Path, small: None) -> None:
    seen: list[tuple[str, int]] = []
    rows = run(tmp_path, [0], tell=lambda *told: seen.append(told[:2]) if told[2] is None else None)
    assert len(rows) == len(seen) == 10
    stored = TABLE.read(tmp_path / two_axes.RESULTS)
    assert [row["accuracy"] for row in stored] == [row["accuracy"] for row in rows]
    assert run(tmp_path, [0], tell=lambda *told: seen.append(told[:2])) == stored
    assert len(seen) == 10
    assert not list((tmp_path / "runs").iterdir())


def test_the_control_and_the_longer_cells_have_the_compute_of_the_loop() -> None:
    for subject in two_axes.TASKS:
        flops = {}
        for cell in (*CELLS, *EQUAL_FLOPS):
            recipe = recipe_of(subject, cell, 0)
            layers = recipe.layers * recipe.recurrence
            flops[cell.name] = layers * recipe.steps
        assert flops["loop"] == flops["layers"] == flops["plain-longer"] == flops["both"] == flops["experts-longer"]
        assert flops["plain"] == flops["experts"]


def test_differences_are_taken_seed_by_seed() -> None:
    rows = [row("plain", seed, 0.2 + 0.1 * seed) for seed in range(3)]
    rows += [row("loop", seed, 0.5 + 0.1 * seed) for seed in range(3)] + [row("loop", 9, 0.0)]
    change = difference(rows, "reasoning", "loop", "plain")
    assert change is not None
    assert change.value == pytest.approx(0.3)
    assert change.seeds == 3
    assert change.clear


def test_one_seed_shows_nothing() -> None:
    result = summary([row("plain", 0, 0.2), row("loop", 0, 0.9)])
    assert not result["differences"][0]["clear"]
    assert result["cells"][0]["interval"] is None


def test_an_interval_is_students() -> None:
    mean = Mean.of([1.0, 2.0, 3.0])
    assert mean.low is not None
    assert mean.low == pytest.approx(2 - 4.302653 / 3**0.5)
    assert not Mean.of([-1.0, 1.0]).clear


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("task,cell\nreasoning,plain\n")
    with pytest.raises(InputError, match="it lacks the columns"):
        TABLE.read(tmp_path / "a.csv")


def test_the_shipped_runs_have_every_cell_of_the_first_seed() -> None:
    rows = two_axes.shipped_rows()
    for subject in two_axes.TASKS:
        for cell in CELLS:
            assert 0 in two_axes.accuracy(rows, subject, cell.name)


def test_the_figure_has_a_bar_for_every_cell() -> None:
    result = summary([row("plain", seed, 0.2) for seed in range(3)] + [row("loop", 0, 0.9)])
    result["cells"] += [{**cell, "task": "knowledge"} for cell in result["cells"]]
    left, right = draw_two_axes(result).axes
    assert [bar.get_height() for bar in left.patches] == pytest.approx([0.2, 0.9])
    assert len(right.patches) == 2
