"""Cells into checked numbers; what is wrong is named by file, row and column."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loopscale.arrays import BoolArray, FloatArray
from loopscale.errors import InputError, shown
from loopscale.fit.columns import SYMBOLS

_SUFFIXED = re.compile(r"([0-9.eE+-]+)\s*([kKmMbBgGtT])")
_SCALE = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_FINISHED = {"1", "true", "yes", "y", "finished", "done", "complete", "completed", "success", "succeeded", "final"}
_WANTED = {
    "active": "above zero", "tokens": "above zero", "flops": "above zero", "loss": "above zero", "total": "above zero",
    "top_k": "1 or more", "recurrence": "1 or more", "experts": "1 or more", "loop": "zero or more",
    "once": "zero or more", "step": "zero or more",
}  # fmt: skip


def numbers(cells: Sequence[Any], field: str, column: str, source: str) -> tuple[FloatArray, bool]:
    """Return a column as numbers (NaN where a cell is empty) and whether cells wrote their unit, as in ``0.3B``."""
    values, suffixed = np.empty(len(cells)), False
    for k, cell in enumerate(cells):
        number = _number(cell)
        if number is None:
            raise InputError(f"{where(source, k, field, column)} is {shown(cell)}; it should be a number")
        values[k], unit = number
        suffixed |= unit
    return values, suffixed


def checked(values: FloatArray, field: str, column: str, source: str, empty: bool = False) -> FloatArray:
    """Return the values if each is what the field wants; an empty cell passes only where ``empty`` allows it."""
    wanted = _WANTED[field]
    least = 1.0 if wanted.startswith("1") else 0.0
    good = np.isfinite(values) & ((values >= least) if wanted.endswith("or more") else (values > 0))
    good |= np.isnan(values) & empty
    if not good.all():
        k = int(np.argmin(good))
        found = "empty or not a number" if np.isnan(values[k]) else f"{values[k]:g}"
        raise InputError(f"{where(source, k, field, column)} is {found}; it should be finite and {wanted}")
    return values


def finished_flags(cells: Sequence[Any]) -> BoolArray:
    """Read yes and no, true and false, and the words that trackers use for a run's state."""
    return np.array([str(cell).strip().lower() in _FINISHED or cell is True for cell in cells])


def texts(cells: Sequence[Any]) -> NDArray[np.str_]:
    """Return a column as text; a whole number loses the ``.0`` that a frame gave it."""
    return np.array([f"{cell:g}" if isinstance(cell, float) and cell.is_integer() else str(cell) for cell in cells])


def where(source: str, k: int, field: str, column: str) -> str:
    """Return how a message names a cell; rows count from 1, without the header."""
    symbol = SYMBOLS[field]
    return f"{source}: row {k + 1}, column {shown(column)}" + ("" if column == symbol else f" ({symbol})")


def _number(cell: Any) -> tuple[float, bool] | None:
    """Return a cell's number and whether it wrote its unit, or None where it is not a number."""
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return math.nan, False
    try:
        return float(cell.replace(",", "") if isinstance(cell, str) else cell), False
    except (TypeError, ValueError):
        match = _SUFFIXED.fullmatch(str(cell).strip())
    try:
        return None if match is None else (float(match[1]) * _SCALE[match[2].lower()], True)
    except ValueError:
        return None
