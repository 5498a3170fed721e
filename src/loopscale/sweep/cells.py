"""The cells of a sweep: axes and their combinations, conditions on them, and runs that ``loopscale next`` chose."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from loopscale.core.errors import InputError, nearest, reason, shown
from loopscale.core.files import read_json
from loopscale.core.quantities import count_of, format_count, number_or_nan

AXES = ("size", "experts", "recurrence", "seed", "tokens")


@dataclass(frozen=True, order=True)
class Cell:
    """One trunk: everything that a run is trained for, but its points along D."""

    size: str
    experts: int
    recurrence: int
    seed: int
    settings: tuple[tuple[str, Any], ...] = ()
    """Training fields that are axes of the grid, like ``("optimizer.learning_rate", 0.001)``."""

    @property
    def model(self) -> tuple[str, int, int]:
        """What tells models apart: size, E and R."""
        return self.size, self.experts, self.recurrence

    @property
    def key(self) -> str:
        """The run's name, which is also its folder's."""
        own = "".join(f"-{name.partition('.')[2]}={_text(value)}" for name, value in self.settings)
        return f"{self.size}-E{self.experts}-R{self.recurrence}-s{self.seed}{own}"

    def __str__(self) -> str:
        own = "".join(f", {name} = {value}" for name, value in self.settings)
        return f"size {self.size}, E = {self.experts}, R = {self.recurrence}, seed {self.seed}{own}"


def _text(value: Any) -> str:
    return re.sub(r"[^A-Za-z0-9._+-]", "_", f"{value:g}" if isinstance(value, float) else str(value))


GridPoints = dict[Cell, set[float]]
"""The tokens to train each cell for."""
Axes = dict[str, tuple[Any, ...]]


def read_axes(data: object, where: str, defaults: Mapping[str, tuple[Any, ...]]) -> Axes:
    """Read a table whose every axis is a value or a list of values; absent axes have their ``defaults``."""
    if not isinstance(data, dict):
        raise InputError(f"{where}: found {shown(data)} where a table was expected; write axes and their values")
    fields = flat_fields({name: value for name, value in data.items() if name not in AXES}, where, AXES)
    axes = {name: _values(data[name], name, where) if name in data else defaults.get(name, ()) for name in AXES}
    axes |= {name: tuple(value if isinstance(value, list) else [value]) for name, value in fields.items()}
    for name, values in axes.items():
        if not values:
            raise InputError(f"{where}: field {name!r} is missing or empty; give a value or a list of them")
    return axes


def add_cells(axes: Axes, into: GridPoints) -> None:
    """Add every combination of some axes."""
    fields = [name for name in axes if name not in AXES]
    for size, experts, recurrence, seed, *values in product(*(axes[name] for name in (*AXES[:-1], *fields))):
        settings = tuple(zip(fields, values, strict=True))
        into.setdefault(Cell(size, experts, recurrence, seed, settings), set()).update(axes["tokens"])


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
        """Tell whether the condition holds for a cell, or for one of its points."""
        values = {**vars(cell), "tokens": tokens}
        return all(values[name] in allowed for name, allowed in self.axes.items())

    @property
    def sizes(self) -> tuple[str, ...]:
        """The sizes that it names."""
        return self.axes.get("size", ())

    def __str__(self) -> str:
        parts = []
        for name, values in self.axes.items():
            texts = [format_count(value) if isinstance(value, float) else str(value) for value in values]
            parts.append(f"{name} {' or '.join(texts)}")
        return ", ".join(parts) or "every run"


def _values(data: object, name: str, where: str) -> tuple[Any, ...]:
    """Return a value or a list of values as a tuple of the axis's type, without duplicates."""
    listed = data if isinstance(data, list) else [data]
    return tuple(dict.fromkeys(_READERS[name](value, f"{where}: field {name!r}") for value in listed))


def _read_size(value: object, where: str) -> str:
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
    count = count_of(value, where)
    if not 1 <= count < 1e18:
        raise InputError(f'{where} holds {shown(value)}; it should be a count of tokens like "20M"')
    return count


_READERS: dict[str, Callable[[object, str], Any]] = {
    "size": _read_size,
    "experts": _whole(1),
    "recurrence": _whole(1),
    "seed": _whole(0),
    "tokens": _tokens,
}


_NEEDED = ("model", "experts", "recurrence", "tokens")


def read_next_runs(path: Path, defaults: Mapping[str, tuple[Any, ...]], into: GridPoints) -> None:
    """Add the runs that ``loopscale next`` wrote: each row's ``model`` is a size's name or a rung."""
    rows = _json(path) if path.suffix == ".json" else _csv(path)
    if not rows:
        raise InputError(f"{path}: it holds no run; write it with `loopscale next`")
    for number, row in enumerate(rows, start=1):
        where = f"{path}: run {number}"
        missing = [name for name in _NEEDED if row.get(name) in (None, "")]
        if missing:
            raise InputError(f"{where}: there is no {missing[0]!r}; give what `loopscale next --csv` or --json prints")
        axes = {"size": row["model"], "tokens": _number(row["tokens"], "tokens", where)}
        axes |= {name: int(_number(row[name], name, where)) for name in ("experts", "recurrence")}
        add_cells(read_axes(axes, where, {**defaults, "tokens": ()}), into)


def _json(path: Path) -> list[dict[str, Any]]:
    data = read_json(path)
    runs = data.get("runs") if isinstance(data, dict) and data.get("kind") == "next-runs" else None
    if not isinstance(runs, list) or not all(isinstance(row, dict) for row in runs):
        raise InputError(f"{path}: this is not a choice of runs; make one with `loopscale next … --json > {path.name}`")
    return runs


def _csv(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; write it with `loopscale next --csv`") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read: {reason(error)}") from None


def _number(value: object, name: str, where: str) -> float:
    number = number_or_nan(value)
    if not 1 <= number < 1e18 or (name != "tokens" and number != int(number)):
        raise InputError(f"{where}: {name} is {shown(value)}; a sweep trains whole numbers from 1 up")
    return number


def flat_fields(data: dict[str, Any], where: str, axes: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return ``section.field`` to value, however the keys were quoted."""
    flat: dict[str, Any] = {}
    for name, value in data.items():
        flat |= {f"{name}.{key}": inner for key, inner in value.items()} if isinstance(value, dict) else {name: value}
    for name in flat:
        if name.count(".") != 1 and axes:
            raise InputError(
                f"{where}: unknown field {shown(name)}{nearest(name, axes)}; axes are {', '.join(axes)} and fields of "
                'a training file, like "optimizer.learning_rate"'
            )
        if name.count(".") != 1:
            raise InputError(f'{where} names {shown(name)}; write it like "optimizer.learning_rate"')
        if name in ("model.experts", "model.recurrence", "run.seed", "run.tokens"):
            raise InputError(f"{where} names {name!r}, which is an axis of the grid; give it there")
    return flat
