"""The runs that ``loopscale next`` chose, from its ``--csv`` or ``--json``."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loopscale.errors import InputError, shown
from loopscale.files import read_json
from loopscale.sweep.cells import Points, add_cells, read_axes

_NEEDED = ("model", "experts", "recurrence", "tokens")


def read_chosen(path: Path, defaults: Mapping[str, tuple[Any, ...]], into: Points) -> None:
    """Add the runs of a file: each row's ``model`` is a size's name or a rung."""
    rows = _json(path) if path.suffix == ".json" else _csv(path)
    if not rows:
        raise InputError(f"{path}: it holds no run")
    for number, row in enumerate(rows, start=1):
        where = f"{path}: run {number}"
        lacking = [name for name in _NEEDED if row.get(name) in (None, "")]
        if lacking:
            raise InputError(f"{where}: there is no {lacking[0]!r}; give what `loopscale next --csv` or --json prints")
        axes = {"size": row["model"], "tokens": _number(row["tokens"], "tokens", where)}
        axes |= {name: int(_number(row[name], name, where)) for name in ("experts", "recurrence")}
        add_cells(read_axes(axes, where, {**defaults, "tokens": ()}), into)


def _json(path: Path) -> list[dict[str, Any]]:
    data = read_json(path)
    runs = data.get("runs") if isinstance(data, dict) and data.get("kind") == "design" else None
    if not isinstance(runs, list) or not all(isinstance(each, dict) for each in runs):
        raise InputError(f"{path}: this is not a choice of runs; make one with `loopscale next … --json > {path.name}`")
    return runs


def _csv(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read: {error}") from None


def _number(value: object, name: str, where: str) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = float("nan")
    if not 1 <= number < 1e18 or (name != "tokens" and number != int(number)):
        raise InputError(f"{where}: {name} is {shown(value)}; a sweep trains whole numbers from 1 up")
    return number
