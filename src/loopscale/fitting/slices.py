"""Slices of a sweep that are held out: the rows on one side of a value of R, E, N, D or C."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from loopscale.architecture import RUNGS, rung
from loopscale.core.arrays import BoolArray, FloatArray
from loopscale.core.errors import InputError, shown
from loopscale.core.quantities import count_of, format_count
from loopscale.fitting.data.observations import Observations
from loopscale.scaling import Counting

NEAR = 0.01
"""``N=`` and ``D=`` take what lies within 1%: people write three digits of a count."""

_AXES = {"R": "recurrence", "E": "experts", "N": "active", "D": "tokens", "C": "train_flops"}
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
}
_SLICE = re.compile(r"\s*([A-Za-z_]+)\s*(>=|<=|==|=|>|<)\s*(.+?)\s*")


@dataclass(frozen=True)
class Slice:
    """The rows of a sweep on one side of a value of R, E, N, D or C (training FLOPs).

    N is the active size as the data count it. Where that selects nothing and the runs are rungs of the ladder
    counted without embeddings, N is read as the rungs' names, which count them: ``N=1.0B`` finds the rung of that
    name, whose active size is 0.755B without embeddings.
    """

    axis: str
    """R, E, N, D or C."""
    comparison: str
    value: float
    text: str

    @classmethod
    def parse(cls, text: str) -> Slice:
        """Read ``R=16``, ``N>0.9B`` or ``D>400B``."""
        match = _SLICE.fullmatch(text)
        if match is None or match[1] not in _AXES:
            raise InputError(
                f"slice {shown(text)} is not understood", remedy="write it like R=16, E=16, N>0.9B, D>400B or C>1e21"
            )
        comparison = match[2].replace("==", "=")
        return cls(match[1], comparison, count_of(match[3], f"slice {shown(text)}"), "".join(text.split()))

    def rows(self, observations: Observations) -> tuple[BoolArray, str]:
        """Return the mask of the selected rows, and a note where the slice had to be interpreted.

        A slice of nothing or of everything is refused: neither can be held out.
        """
        values = np.asarray(getattr(observations.points, _AXES[self.axis]))
        mask, note = self._holds(values), ""
        if not mask.any() and self.axis == "N" and (named := _rung_sizes(observations)) is not None:
            mask = self._holds(named)
            note = f"{self.text}: N read with embeddings, as the ladder names its rungs; {self._present(observations)}"
        if not mask.any() or mask.all():
            selected = "every row" if mask.any() else "no row"
            raise InputError(f"slice {self.text!r} selects {selected}; {self._present(observations)}")
        return mask, note

    def held_out(self, observations: Observations) -> tuple[BoolArray, str]:
        """Return the rows to hold out, and the note: whole runs, but along D and C, where a run may have both sides."""
        mask, note = self.rows(observations)
        if self.axis in "DC":
            return mask, note
        return np.isin(observations.run, np.unique(observations.run[mask])), note

    def _holds(self, values: FloatArray) -> BoolArray:
        if self.comparison == "=" and self.axis in "NDC":
            return np.abs(values - self.value) <= NEAR * self.value
        return np.asarray(_COMPARISONS[self.comparison](values, self.value))

    def _present(self, observations: Observations) -> str:
        values = np.unique(getattr(observations.points, _AXES[self.axis]))
        write = format_count if self.axis in "NDC" else "{:g}".format
        listed = ", ".join(map(write, values)) if len(values) <= 12 else f"{write(values[0])} to {write(values[-1])}"
        counted = f" ({observations.counts.value.replace('-', ' ')})" if self.axis == "N" else ""
        return f"{self.axis} in the data{counted}: {listed}"


def suggest_slices(observations: Observations) -> tuple[str, ...]:
    """Return slices worth holding out: the far end of every axis on which the data keep two other values."""
    slices = []
    for axis, name in _AXES.items():
        if axis == "C":
            continue
        levels = np.unique(getattr(observations.points, name))
        if len(levels) < 3:
            continue
        between = format_count(float(np.sqrt(levels[-2] * levels[-1])))
        slices.append(f"{axis}={levels[-1]:g}" if axis in "RE" else f"{axis}>{between}")
    return tuple(slices)


def _rung_sizes(observations: Observations) -> FloatArray | None:
    """Return each row's size as its rung is named, or None unless every row is a rung without embeddings."""
    if observations.counts is not Counting.WITHOUT_EMBEDDINGS:
        return None
    sizes = np.full(len(observations), np.nan)
    for name in RUNGS:
        sizes[np.isclose(observations.points.active, float(rung(name).active), rtol=1e-3)] = count_of(name)
    return None if np.isnan(sizes).any() else sizes
