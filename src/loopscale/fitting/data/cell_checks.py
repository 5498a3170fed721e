"""What is refused in a table: missing columns, cells that a field cannot hold, rows that cannot be in one unit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError, shown
from loopscale.fitting.data.cells import WANTED
from loopscale.fitting.data.columns import MissingColumnError
from loopscale.scaling import Points

if TYPE_CHECKING:
    from loopscale.fitting.data.reader import TableReader

PLAUSIBLE = {"active": (100.0, 1e14), "tokens": (100.0, 1e16), "unique_tokens": (100.0, 1e16)}
"""Parameters and tokens that a training run may have."""
MIXED_UNITS = 5.0
"""Powers of ten by which a row may differ from the median of its column."""


def check_columns(reader: TableReader) -> None:
    """Refuse a table without a loss, a size or tokens, or without rows."""
    for name, instead in (("loss", set[str]()), ("active", {"once", "loop"}), ("tokens", {"flops"})):
        if name not in reader.columns and not (instead and instead <= set(reader.columns)):
            raise MissingColumnError(name, reader.table.columns, reader.table.source)
    if not len(reader.table):
        raise InputError("there are no rows below the header", where=reader.table.source)


def check(reader: TableReader, name: str, values: FloatArray | None = None) -> None:
    """Refuse the first cell of a field that is not what the field wants."""
    check_readable(reader, name)
    values = reader.values[name] if values is None else values
    good = WANTED[name].holds(values)
    if not good.all():
        k = int(np.argmin(good))
        content = "empty or not a number" if np.isnan(values[k]) else f"{values[k]:g}"
        raise reader.cell_error(k, name, f"is {content}", f"it should be finite and {WANTED[name].value}")


def check_readable(reader: TableReader, name: str) -> None:
    unreadable = reader.unreadable.get(name)
    if unreadable is not None and unreadable.any():
        k = int(np.argmax(unreadable))
        cell = reader.table.columns[reader.columns[name].name][k]
        raise reader.cell_error(k, name, f"is {shown(cell)}", "it should be a number")


def compare(reader: TableReader, name: str, above: bool) -> None:
    """Refuse a loop larger than the model, or a total smaller than it."""
    if name not in reader.columns:
        return
    values, active = reader.derived[name], reader.derived["active"]
    wrong = values > active * (1 + 1e-9) if above else values < active * (1 - 1e-9)
    if wrong.any():
        k = int(np.argmax(wrong))
        raise reader.cell_error(
            k, name, f"is {values[k]:g}, {'above' if above else 'below'} N_act = {active[k]:g}",
            "the loop is a part of it" if above else "the total contains it",
        )  # fmt: skip


def check_plausible(reader: TableReader, points: Points) -> None:
    """Refuse rows that cannot be in the same unit as the others."""
    counts = {"active": points.active, "tokens": points.tokens}
    counts |= {} if points.unique_tokens is None else {"unique_tokens": points.unique_tokens}
    for name, values in counts.items():
        typical, (low, high) = float(np.median(values)), PLAUSIBLE[name]
        far = np.abs(np.log10(values / typical)) > MIXED_UNITS
        if not (wrong := far | (values < low) | (values > high)).any():
            continue
        k = int(np.argmax(wrong))
        what = "parameters" if name == "active" else "tokens"
        if name == "tokens" and "tokens" not in reader.columns:
            raise reader.cell_error(
                k, "flops", f"gives D = {values[k]:.3g} tokens, which is not plausible",
                "state its unit with `units`, like flops=1e18 for EFLOP",
            )  # fmt: skip
        if name not in reader.columns:
            continue
        raise reader.cell_error(
            k, name, f"is {values[k]:g} {what}, which is not plausible beside the median {typical:g}",
            "write every row in one unit, or state the unit of the column with `units`",
        )  # fmt: skip
