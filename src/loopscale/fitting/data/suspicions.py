"""Tables that can be read but look misread: swapped columns, losses in other units, epochs taken for experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from loopscale.core.arrays import FloatArray
from loopscale.fitting.data.cells import numbers
from loopscale.fitting.data.columns import BITS_PER_BYTE, TRAINING, Column, normal_name
from loopscale.fitting.data.readers import RawTable
from loopscale.scaling import Points

FEWEST_TOKENS = 1.0
"""Tokens per parameter, the median of a sweep, below which columns or units are most likely wrong."""
LOSSES = (1.2, 12.0)
"""Losses in nats per token that a language model may have: a guess among 160,000 tokens costs 12."""
EPOCHS = ("epochs", "epoch", "num_epochs", "n_epochs", "num_train_epochs")
CHECKPOINTS = 4
"""Rows of one model, evenly spaced in tokens, from which they look like checkpoints of one run."""

Suspicion = tuple[str, str]
"""What looks wrong, and what to do about it."""


def suspicions(
    table: RawTable, columns: Mapping[str, Column], points: Points, loss: FloatArray, run: NDArray[np.str_] | None
) -> tuple[Suspicion, ...]:
    """Return what looks misread in a table whose cells are all in order; ``run`` where the table names runs."""
    return (
        *_ratio(columns, points), *_loss(columns, loss), *_experts(columns, points, run),
        *_epochs(table, columns), *_checkpoints(columns, points, run),
    )  # fmt: skip


def _ratio(columns: Mapping[str, Column], points: Points) -> Iterator[Suspicion]:
    ratio = float(np.median(points.tokens / points.active))
    if ratio < FEWEST_TOKENS:
        swapped = (
            f'swapped columns: --columns "N={columns["tokens"].name}" --columns "D={columns["active"].name}"; '
            if {"active", "tokens"} <= set(columns)
            else ""
        )
        yield f"{ratio:.2g} tokens per parameter: columns or units look wrong", f"{swapped}units: --units D=1B"


def _loss(columns: Mapping[str, Column], loss: FloatArray) -> Iterator[Suspicion]:
    name, (low, high), typical = columns["loss"].name, LOSSES, float(np.median(loss))
    if normal_name(name) in TRAINING:
        yield f"`{name}` is a training loss", "a validation loss is the better measure; choose it with --columns loss="
    if normal_name(name) in BITS_PER_BYTE:
        return
    if typical > high:
        yield (
            f"a loss of {typical:.3g} in `{name}` is high for nats per token",
            "a perplexity must be turned into its logarithm",
        )
    elif typical < low:
        yield (
            f"a loss of {typical:.3g} in `{name}` is low for nats per token",
            "call the column bpb if it is in bits per byte; bits per token are 0.693 nats each",
        )


def _experts(columns: Mapping[str, Column], points: Points, run: NDArray[np.str_] | None) -> Iterator[Suspicion]:
    if "experts" not in columns:
        return
    E, name = points.experts, columns["experts"].name
    within_runs = run is not None and any(np.ptp(E[run == one]) > 0 for one in np.unique(run))
    if within_runs or {1.0, 2.0, 3.0} <= set(E.tolist()):
        yield f"`{name}` was read as experts, but looks like an epoch", f"rename or remove `{name}` if it is one"
    sparse = E > 1
    if points.total is not None and sparse.any() and np.allclose(points.total[sparse], points.active[sparse]):
        yield (
            "N_total equals N_act where E > 1: one of the two columns is not what its name says",
            "N_act counts what a token uses, N_total everything that is stored",
        )


def _epochs(table: RawTable, columns: Mapping[str, Column]) -> Iterator[Suspicion]:
    if "unique_tokens" in columns:
        return
    used = {column.name for column in columns.values()}
    for name in (name for name in table.columns if name not in used and normal_name(name) in EPOCHS):
        values, _, _ = numbers(table.columns[name])
        if np.nanmax(values, initial=0.0) > 1:
            yield (
                f"`{name}` is not used: every token counts as new",
                "repeated data need a column unique_tokens, D divided by the epochs",
            )


def _checkpoints(columns: Mapping[str, Column], points: Points, run: NDArray[np.str_] | None) -> Iterator[Suspicion]:
    """Suspect rows of one model at evenly spaced tokens, which sweeps of separate runs seldom have."""
    if run is not None or "step" in columns or "finished" in columns:
        return
    models = np.stack([points.active, points.experts, points.recurrence], axis=1)
    groups, which = np.unique(models, axis=0, return_inverse=True)
    even = 0
    for k in range(len(groups)):
        tokens = np.sort(points.tokens[which.reshape(-1) == k])
        steps = np.diff(tokens)
        even += len(tokens) >= CHECKPOINTS and bool(np.ptp(steps) <= 0.01 * steps.max())
    if even > len(groups) / 2:
        yield (
            "rows of one model at evenly spaced tokens look like checkpoints; each counts as a separate run",
            "a column `run` says which rows belong together",
        )
