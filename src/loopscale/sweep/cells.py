"""The cells of a sweep: which values its tables give to size, experts, recurrence, tokens and seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from loopscale.errors import InputError, nearest, shown
from loopscale.quantities import format_count, parse_count

AXES = ("size", "experts", "recurrence", "seed", "tokens")


@dataclass(frozen=True, order=True)
class Cell:
    """One trunk: what a run is trained for; its points along D come beside it."""

    size: str
    experts: int
    recurrence: int
    seed: int

    @property
    def key(self) -> str:
        """The run's name, which is also its folder's."""
        return f"{self.size}-E{self.experts}-R{self.recurrence}-s{self.seed}"

    def __str__(self) -> str:
        return f"size {self.size}, E = {self.experts}, R = {self.recurrence}, seed {self.seed}"


Points = dict[Cell, set[float]]
"""The tokens wanted of each cell."""
Axes = dict[str, tuple[Any, ...]]


def read_axes(data: object, where: str, defaults: Mapping[str, tuple[Any, ...]]) -> Axes:
    """Read a table whose every axis is a value or a list of values; what it leaves out is as in ``defaults``."""
    if not isinstance(data, dict):
        raise InputError(f"{where}: found {shown(data)} where a table was expected")
    for name in data:
        if name not in AXES:
            raise InputError(f"{where}: unknown field {shown(name)}{nearest(name, AXES)}; axes are {', '.join(AXES)}")
    found = {name: _values(data[name], name, where) if name in data else defaults.get(name, ()) for name in AXES}
    for name, values in found.items():
        if not values:
            raise InputError(f"{where}: field {name!r} is missing or empty; give a value or a list of them")
    return found


def add_cells(axes: Axes, into: Points) -> None:
    """Add every combination of some axes."""
    for size, experts, recurrence, seed in product(*(axes[name] for name in AXES[:-1])):
        into.setdefault(Cell(size, experts, recurrence, seed), set()).update(axes["tokens"])


@dataclass(frozen=True)
class When:
    """A condition on cells: the values that each named axis may have."""

    axes: Mapping[str, tuple[Any, ...]]

    @classmethod
    def read(cls, data: object, where: str, known: tuple[str, ...]) -> When:
        """Read the table ``when``."""
        if not isinstance(data, dict):
            raise InputError(f"{where}: field 'when' is {shown(data)}; it should be like {{ experts = 1 }}")
        for name in data:
            if name not in known:
                raise InputError(
                    f"{where}: 'when' names {shown(name)}{nearest(name, known)}; it may name {', '.join(known)}"
                )
        return cls({name: _values(value, name, where) for name, value in data.items()})

    def holds(self, cell: Cell, tokens: float | None = None) -> bool:
        """Tell whether a cell, and a point of it, is meant."""
        given = {**vars(cell), "tokens": tokens}
        return all(given[name] in values for name, values in self.axes.items())

    def __str__(self) -> str:
        words = [f"{name} {' or '.join(map(_word, values))}" for name, values in self.axes.items()]
        return ", ".join(words) or "every run"


def _word(value: Any) -> str:
    return format_count(value) if isinstance(value, float) else str(value)


def _values(given: object, name: str, where: str) -> tuple[Any, ...]:
    """Return a value or a list of them as a tuple of the axis's kind; each once."""
    listed = given if isinstance(given, list) else [given]
    return tuple(dict.fromkeys(_READERS[name](value, f"{where}: field {name!r}") for value in listed))


def _size(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where} holds {shown(value)}; it should be the name of a size, or of a rung like 0.3B")
    return value


def _whole(least: int) -> Callable[[object, str], int]:
    def read(value: object, where: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise InputError(f"{where} holds {shown(value)}; it should be a whole number from {least} up")
        return value

    return read


def _tokens(value: object, where: str) -> float:
    if isinstance(value, str):
        return parse_count(value, where)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < 1e18:
        raise InputError(f'{where} holds {shown(value)}; it should be a count of tokens like "20M"')
    return float(value)


_READERS: dict[str, Callable[[object, str], Any]] = {
    "size": _size,
    "experts": _whole(1),
    "recurrence": _whole(1),
    "seed": _whole(0),
    "tokens": _tokens,
}
