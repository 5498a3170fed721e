"""Tables that can be read but look misread: swapped columns, losses in other units, epochs taken for experts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from loopscale.core.arrays import FloatArray
from loopscale.core.quantities import format_count
from loopscale.fitting.data.cells import numbers
from loopscale.fitting.data.columns import BITS_PER_BYTE, TRAINING, Column, normal_name
from loopscale.fitting.data.readers import RawTable
from loopscale.fitting.data.runs import models
from loopscale.scaling import Points, published

FEWEST_TOKENS = 1.0
"""Tokens per parameter, the median of a sweep, below which columns or units are most likely wrong."""
LOSSES = (1.2, 12.0)
"""Losses in nats per token that a language model may have: a guess among 160,000 tokens costs 12."""
EXPECTED = (0.6, 1.38)
"""Losses relative to Chinchilla's law at the same N and D, the median of a sweep; public ones have 0.74 to 1.28."""
HIGHEST = 8.0
"""What that law may expect at most, in nats: tiny models never do worse than a guess."""
WRITTEN_RATIO = 5000.0
"""Whole numbers up to this may be tokens per parameter."""
EPOCHS = ("epochs", "epoch", "num_epochs", "n_epochs", "num_train_epochs")
SMALL = 3e8
"""Tokens, the median of a sweep, below which counts may be in thousands."""
CHECKPOINTS = 4
"""Rows of one model, evenly spaced in tokens, from which they look like checkpoints of one run."""

Suspicion = tuple[str, str]
"""What looks wrong, and what to do about it."""


def suspicions(
    table: RawTable, columns: Mapping[str, Column], points: Points, loss: FloatArray, run: NDArray[np.str_] | None
) -> tuple[Suspicion, ...]:
    """Return what looks misread in a table whose cells are all in order; ``run`` where the table names runs."""
    return (
        *_ratio(columns, points), *_written_ratio(table, columns, points, loss), *_loss(columns, points, loss),
        *_experts(columns, points, run),
        *_epochs(table, columns), *_checkpoints(columns, points, run),
    )  # fmt: skip


def _ratio(columns: Mapping[str, Column], points: Points) -> Iterator[Suspicion]:
    if all(name in columns and columns[name].unit is not None for name in ("active", "tokens")):
        return  # the headers state the units, as those of a sweep's export do
    ratio = float(np.median(points.tokens / points.active))
    if ratio < FEWEST_TOKENS:
        swapped = (
            f'swapped columns: --columns "N={columns["tokens"].name}" --columns "D={columns["active"].name}"; '
            if {"active", "tokens"} <= set(columns)
            else ""
        )
        yield f"{ratio:.2g} tokens per parameter: columns or units look wrong", f"{swapped}units: --units D=1B"


def _chinchilla(active: FloatArray, tokens: FloatArray) -> FloatArray:
    """Return what Chinchilla's law, as Epoch AI fitted it, expects of dense models in nats per token."""
    return np.asarray(np.minimum(published("chinchilla-epoch-2024")(Points(active, tokens)), HIGHEST))


def _written_ratio(
    table: RawTable, columns: Mapping[str, Column], points: Points, loss: FloatArray
) -> Iterator[Suspicion]:
    """Suspect tokens per parameter in the column of tokens: whole numbers that explain the losses better so."""
    if "tokens" not in columns or columns["tokens"].unit is not None:
        return
    written, _, with_unit = numbers(table.columns[columns["tokens"].name])
    if with_unit or written.max() > WRITTEN_RATIO or not np.all(written == np.round(written)):
        return
    as_tokens, as_ratio = (
        float(np.std(np.log(loss / _chinchilla(points.active, tokens))))
        for tokens in (points.tokens, points.active * written)
    )
    if as_ratio < 0.5 * as_tokens:
        yield (
            f"`{columns['tokens'].name}` looks like tokens per parameter ({written.min():g} to {written.max():g})",
            "multiply it with the parameters; D counts tokens",
        )
        return
    raw_sizes = "active" in columns and np.allclose(numbers(table.columns[columns["active"].name])[0], points.active)
    if raw_sizes and np.allclose(points.tokens, 1e9 * written):
        yield (
            f"D read as billions ({written.min():g} to {written.max():g}) beside raw parameter counts",
            "state it: --units D=1B; tokens per parameter are not read",
        )


def _loss(columns: Mapping[str, Column], points: Points, loss: FloatArray) -> Iterator[Suspicion]:
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
    elif normal_name(name) not in TRAINING:
        yield from _unexpected(columns, points, loss)


def _unexpected(columns: Mapping[str, Column], points: Points, loss: FloatArray) -> Iterator[Suspicion]:
    """Suspect units where models are far better, or far worse, than any known ones of their size."""
    fresh = points.tokens <= 4 * points.unique
    if not fresh.any():
        return
    ratio = float(np.median((loss / _chinchilla(points.active, points.tokens))[fresh]))
    low, high = EXPECTED
    if ratio > high:
        yield (
            f"losses are {ratio:.2f} times what models of this size and these tokens reach in nats per token",
            "bits per token are 0.693 nats each; else check the units of N and D",
        )
    stated = any(columns[name].unit is not None for name in ("active", "tokens") if name in columns)
    if ratio < low and float(np.median(points.tokens)) < SMALL and not stated:
        yield (
            f"models of {format_count(float(np.median(points.active)))} parameters seldom reach a loss of "
            f"{float(np.median(loss)):.3g}",
            "if counts are in thousands: --units N=1k --units D=1k; a small vocabulary explains it too",
        )


def _experts(columns: Mapping[str, Column], points: Points, run: NDArray[np.str_] | None) -> Iterator[Suspicion]:
    if "experts" not in columns:
        return
    E, name = points.experts, columns["experts"].name
    within_runs = run is not None and any(np.ptp(E[run == one]) > 0 for one in np.unique(run))
    if within_runs or {1.0, 2.0, 3.0} <= set(E.tolist()) or _follows_tokens(points):
        yield f"`{name}` was read as experts, but looks like an epoch", f"rename or remove `{name}` if it is one"
    sparse = E > 1
    if points.total is not None and sparse.any() and np.allclose(points.total[sparse], points.active[sparse]):
        yield (
            "N_total equals N_act where E > 1: one of the two columns is not what its name says",
            "N_act counts what a token uses, N_total everything that is stored",
        )


def _follows_tokens(points: Points) -> bool:
    """Tell whether E is a multiple of D for each size, as epochs are; in a sweep of experts the two are crossed."""
    if points.total is not None:
        return False
    sizes = [points.active == size for size in np.unique(points.active)]
    varied = [rows for rows in sizes if np.ptp(points.experts[rows]) > 0]
    share = [points.tokens[rows] / points.experts[rows] for rows in varied]
    return bool(varied) and len(varied) == len(sizes) and all(np.ptp(part) <= 0.02 * part.max() for part in share)


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
    model = models(points)
    count, even = int(model.max()) + 1, 0
    for k in range(count):
        steps = np.diff(np.sort(points.tokens[model == k]))
        even += len(steps) + 1 >= CHECKPOINTS and bool(np.ptp(steps) <= 0.01 * steps.max())
    if even > count / 2:
        yield (
            "rows of one model at evenly spaced tokens look like checkpoints; each counts as a separate run",
            "a column `run` says which rows belong together",
        )
