"""Cells of a table as numbers and text: what people and trackers write, and what each field accepts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loopscale.core.arrays import BoolArray, FloatArray
from loopscale.scaling.points import Wanted

WANTED = {
    **dict.fromkeys(("active", "tokens", "flops", "loss", "total", "unique_tokens", "weight", "noise"),
                    Wanted.ABOVE_ZERO),
    **dict.fromkeys(("top_k", "recurrence", "experts"), Wanted.ONE_OR_MORE),
    **dict.fromkeys(("loop", "once", "step"), Wanted.NOT_NEGATIVE),
}  # fmt: skip
"""What the number in each field should be."""
_SUFFIXED = re.compile(r"([0-9.eE+-]+)\s*([kKmMbBgGtT])")
_SCALE = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_FINISHED = {"1", "true", "yes", "y", "finished", "done", "complete", "completed", "success", "succeeded", "final"}
_CRASHED = {"crashed", "failed", "killed", "error", "preempted", "diverged", "oom"}
_COMMA = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?\s*[kKmMbBgGtT]?")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d*)?\s*[kKmMbBgGtT]?")


def number_of(cell: Any) -> tuple[float, bool] | None:
    """Return a cell's number and whether it wrote its unit, as in ``0.3B``; None if it is not a number.

    An empty cell, and one that says how a run ended, such as ``diverged``, is NaN, and so is the text ``Infinity``,
    which W&B stores for a loss that overflowed.
    """
    if cell is None or (isinstance(cell, str) and cell.strip().lower() in {"", "infinity", "-infinity", *_CRASHED}):
        return math.nan, False
    try:
        return float(cell.replace(",", "") if isinstance(cell, str) else cell), False
    except OverflowError:  # a whole number that no float can hold
        return None
    except (TypeError, ValueError):
        match = _SUFFIXED.fullmatch(str(cell).strip())
    try:
        return None if match is None else (float(match[1]) * _SCALE[match[2].lower()], True)
    except ValueError:
        return None


def numbers(cells: Sequence[Any]) -> tuple[FloatArray, BoolArray, bool]:
    """Return a column as numbers, which cells are not numbers (NaN there too), and whether cells wrote their unit."""
    values, unreadable, suffixed = np.empty(len(cells)), np.zeros(len(cells), dtype=bool), False
    for k, cell in enumerate(cells):
        number = number_of(cell)
        unreadable[k] = number is None
        values[k], with_unit = (math.nan, False) if number is None else number
        suffixed |= with_unit
    return values, unreadable, suffixed


def decimal_commas(columns: Mapping[str, Sequence[Any]], loss: str) -> bool:
    """Tell whether a table writes decimals with a comma: in its loss, or anywhere no thousands can be meant.

    A loss is never in the thousands, so that a comma in it is a decimal one: ``2,345``.
    """
    for name, cells in columns.items():
        for cell in (cell.strip() for cell in cells if isinstance(cell, str) and "," in cell):
            if _COMMA.fullmatch(cell) and (name == loss or not _THOUSANDS.fullmatch(cell)):
                return True
    return False


def without_decimal_commas(columns: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Return the columns with decimal points; points between thousands, as in ``1.300.000``, are dropped."""
    return {name: [_with_point(cell) for cell in cells] for name, cells in columns.items()}


def _with_point(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    text = cell.strip()
    if re.fullmatch(r"[+-]?\d{1,3}(?:\.\d{3}){2,}(?:,\d+)?", text) or re.fullmatch(r"[+-]?\d{1,3}\.\d{3},\d+", text):
        return text.replace(".", "").replace(",", ".")
    return text.replace(",", ".") if _COMMA.fullmatch(text) else cell


def finished_flags(cells: Sequence[Any], exit_codes: bool = False) -> BoolArray:
    """Read yes and no, true and false, and the words that trackers use for a run's state; 0 is a good exit code."""
    words = [str(cell).strip().lower() for cell in cells]
    if exit_codes and "0" in words and all(word.lstrip("-").isdigit() for word in words):
        return np.array([word == "0" for word in words], dtype=bool)
    return np.array([word in _FINISHED for word in words], dtype=bool)


def crashed_flags(cells: Sequence[Any]) -> BoolArray:
    """Tell which runs a tracker calls crashed, failed or killed."""
    return np.array([str(cell).strip().lower() in _CRASHED for cell in cells], dtype=bool)


def texts(cells: Sequence[Any]) -> NDArray[np.str_]:
    """Return a column as text; a whole number loses the ``.0`` that a frame gave it."""
    return np.array(
        [f"{cell:g}" if isinstance(cell, float) and cell.is_integer() else str(cell) for cell in cells], dtype=np.str_
    )


def cells_of(column: Sequence[Any]) -> NDArray[Any]:
    """Return a column for expressions: numbers where every cell is one or empty, else text."""
    values, unreadable, _ = numbers(column)
    return texts(column) if unreadable.any() else values
