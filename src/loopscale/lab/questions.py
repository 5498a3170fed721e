"""What the runs of the downstream experiment answer: differences between cells, seed by seed, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loopscale.lab.downstream import BUDGET, CELLS, DONE, EXPERTS, PASSES, WIDTHS, BudgetedModel
from loopscale.lab.scores import LEARNT_FROM
from loopscale.lab.tables import Mean, Row
from loopscale.train.data.mixture import Mixture

RESAMPLES = 1000
"""Draws of the seeds for the interval of a ratio."""
MEASURES = {"reasoning": ("words",), "knowledge": ("facts",), "overall": ("words", "facts")}
"""The parts that a measure is the mean of."""
FEW, MANY = PASSES[0], PASSES[-1]
SMALL = BUDGET // MANY
"""The budget at which R = 1 has the steps that R = 6 has at the larger one."""


def value(row: Row, measure: str) -> float:
    """Return a measure of a run: accuracy with chance subtracted and all right as one, on average over its parts."""
    chances = Mixture(1).chances
    return fmean((row[part] - chances[part]) / (1 - chances[part]) for part in MEASURES[measure])


def by_seed(rows: Sequence[Row], cell: BudgetedModel, measure: str) -> dict[int, float]:
    """Return a measure of a cell by seed; failed runs have none."""
    return {row["seed"]: value(row, measure) for row in rows if row["status"] == DONE and cell.is_of(row)}


@dataclass(frozen=True)
class Question:
    """A difference between two cells, or between two such differences."""

    measure: str
    about: str
    plus: tuple[dict[str, int], ...]
    minus: tuple[dict[str, int], ...]

    def answer(self, rows: Sequence[Row], width: int) -> Mean | None:
        """Return the mean difference over the seeds that all its cells have; None without one."""
        terms = [*((1, cell) for cell in self.plus), *((-1, cell) for cell in self.minus)]
        signed = [(sign, by_seed(rows, BudgetedModel(width, **cell), self.measure)) for sign, cell in terms]
        seeds = sorted(set.intersection(*(set(values) for _, values in signed)))
        if not seeds:
            return None
        return Mean.of([sum(sign * values[seed] for sign, values in signed) for seed in seeds])


def _cell(experts: int, recurrence: int, budget: int, layers: int = 1) -> dict[str, int]:
    return {"experts": experts, "recurrence": recurrence, "budget": budget, "layers": layers}


PLAIN_STEPS, PLAIN_FLOPS = _cell(1, FEW, SMALL), _cell(1, FEW, BUDGET)
SPARSE_STEPS, SPARSE_FLOPS = _cell(EXPERTS, FEW, SMALL), _cell(EXPERTS, FEW, BUDGET)
LOOP, BOTH, DEEP = _cell(1, MANY, BUDGET), _cell(EXPERTS, MANY, BUDGET), _cell(1, 1, BUDGET, MANY)
QUESTIONS = (
    *(
        Question(measure, about, (more,), (less,))
        for measure in ("reasoning", "knowledge")
        for about, more, less in (
            (f"R = {MANY}, equal steps", LOOP, PLAIN_STEPS),
            (f"R = {MANY}, equal FLOPs", LOOP, PLAIN_FLOPS),
            (f"E = {EXPERTS}, equal steps", SPARSE_STEPS, PLAIN_STEPS),
            (f"E = {EXPERTS}, {MANY}x the steps of both", SPARSE_FLOPS, PLAIN_FLOPS),
            (f"loop against {MANY} layers", LOOP, DEEP),
        )
    ),
    Question("overall", "R and E beyond their sum, equal steps", (BOTH, PLAIN_STEPS), (LOOP, SPARSE_STEPS)),
    Question("overall", "R and E beyond their sum, equal FLOPs", (BOTH, PLAIN_FLOPS), (LOOP, SPARSE_FLOPS)),
)


def replaced(rows: Sequence[Row], recurrence: int) -> dict[str, Any]:
    """Return how many times the weights a model of one pass needs for the reasoning of a loop of the smallest width.

    Both have the larger budget. Widths of one pass are interpolated in log weights, and seeds are resampled for the
    95% interval. Outside the widths that were trained there is no factor: ``outside`` says on which side.
    """
    few, many = (_cell(1, R, BUDGET) for R in (FEW, recurrence))
    unlooped = [by_seed(rows, BudgetedModel(width, **few), "reasoning") for width in WIDTHS]
    looped = by_seed(rows, BudgetedModel(WIDTHS[0], **many), "reasoning")
    seeds = sorted(set(looped).intersection(*unlooped))
    answer: dict[str, Any] = {"recurrence": recurrence, "seeds": len(seeds), "factor": None, "interval": None}
    if not seeds:
        return answer | {"outside": None}
    weights = [
        next(row["weights"] for row in rows if BudgetedModel(width, **few).is_of(row) and row["status"] == DONE)
        for width in WIDTHS
    ]
    values = np.array([[of_seed[seed] for seed in seeds] for of_seed in (*unlooped, looped)])
    answer["reasoning"] = values.mean(axis=1).tolist()
    resamples = np.random.default_rng(0).integers(len(seeds), size=(RESAMPLES, len(seeds)))
    factors = [_factor(values[:, sample].mean(axis=1), weights) for sample in (np.arange(len(seeds)), *resamples)]
    share = float(np.mean([one in ("below", "above") for one in factors[1:]]))
    if isinstance(factors[0], str):
        return answer | {"outside": factors[0], "outside_share": share}
    answer["factor"] = factors[0]
    if share == 0 and len(seeds) >= 3:
        answer["interval"] = np.percentile(np.array(factors[1:], dtype=float), [2.5, 97.5]).tolist()
    return answer | {"outside": None, "outside_share": share}


def _factor(values: NDArray[np.float64], weights: Sequence[int]) -> float | str:
    """Return the factor by interpolation, or on which side of the widths the loop lies."""
    small, large, looped = values
    if not small < large or looped > large:
        return "above"
    if looped < small:
        return "below"
    return float((weights[1] / weights[0]) ** ((looped - small) / (large - small)))


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the gate, the means of all cells, and the answers, as plain values."""
    cells = []
    for cell in CELLS:
        values = {measure: by_seed(rows, cell, measure) for measure in MEASURES}
        if values["overall"]:
            first = next(row for row in rows if cell.is_of(row) and row["status"] == DONE)
            cells.append(
                {name: getattr(cell, name) for name in ("width", "experts", "recurrence", "layers", "budget", "steps")}
                | {name: first[name] for name in ("weights", "training_flops", "real_training_flops")}
                | {measure: Mean.of(list(of_seed.values())).to_dict() for measure, of_seed in values.items()}
            )
    answers = []
    for question in QUESTIONS:
        for width in WIDTHS:
            answer = question.answer(rows, width)
            if answer is not None:
                asked = {"measure": question.measure, "about": question.about, "width": width}
                answers.append(asked | answer.to_dict() | {"clear": answer.clear})
    learnt = {
        measure: any(cell[measure]["value"] >= LEARNT_FROM for cell in cells) for measure in ("reasoning", "knowledge")
    }
    done = [row for row in rows if row["status"] == DONE]
    counts = {"runs": len(rows), "failed": len(rows) - len(done), "planned": 5 * len(CELLS)}
    factors = [replaced(rows, R) for R in PASSES if R > FEW]
    return {
        "kind": "downstream", "schema": 1, **counts, "learnt": learnt, "cells": cells, "differences": answers,
        "replaced": factors,
    }  # fmt: skip
