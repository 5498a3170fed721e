"""SWEEP.toml: the sweep's name and folder, its cells, and the training run that each of them is."""

from __future__ import annotations

import copy
import csv
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from loopscale.architecture import RUNGS, rung_name
from loopscale.errors import InputError, nearest, shown
from loopscale.files import Fields, read_json, read_toml
from loopscale.quantities import format_count, parse_count
from loopscale.train.config import TrainConfig

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


GridPoints = dict[Cell, set[float]]
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


def add_cells(axes: Axes, into: GridPoints) -> None:
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
    if isinstance(value, str):
        return parse_count(value, where)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < 1e18:
        raise InputError(f'{where} holds {shown(value)}; it should be a count of tokens like "20M"')
    return float(value)


_READERS: dict[str, Callable[[object, str], Any]] = {
    "size": _read_size,
    "experts": _whole(1),
    "recurrence": _whole(1),
    "seed": _whole(0),
    "tokens": _tokens,
}


_NEEDED = ("model", "experts", "recurrence", "tokens")


def read_chosen(path: Path, defaults: Mapping[str, tuple[Any, ...]], into: GridPoints) -> None:
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


BASE = "base"
"""The size that is what [base.model] says, where no sizes are named."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Run:
    """One trunk and its points: what a worker does in one go."""

    cell: Cell
    config: TrainConfig
    """Its tokens are those of the longest point."""
    points: dict[int, float]
    """Tokens as trained, in whole steps, and as asked for; shortest first."""

    @property
    def key(self) -> str:
        """The run's name."""
        return self.cell.key


@dataclass(frozen=True)
class Sweep:
    """A sweep as its file says."""

    path: Path
    name: str
    folder: str
    """Where results go, seen from the file's own folder: both can be moved together."""
    keep_models: bool
    """Keep the cooled model of every point in Hugging Face form."""
    runs: tuple[Run, ...]
    labels: tuple[tuple[When, str], ...]

    @property
    def root(self) -> Path:
        """The folder of the file; every path in it is seen from here."""
        return self.path.resolve().parent

    @property
    def results(self) -> Path:
        """The folder of the results."""
        return self.root / self.folder

    @property
    def observations(self) -> int:
        """How many points there are in all."""
        return sum(len(run.points) for run in self.runs)

    def label(self, run: Run, asked: float) -> str:
        """Return the last label that holds for a point, or nothing."""
        found = [label for when, label in self.labels if when.holds(run.cell, asked)]
        return found[-1] if found else ""


def read_sweep(path: str | Path) -> Sweep:
    """Read a sweep's file; what it cannot mean is said before anything is done."""
    where = str(path)
    data = Fields(read_toml(path), where)
    head = data.object("sweep")
    name = _name(head.take("name", str), f"{where}: [sweep]: field 'name'")
    folder = _inside(head.take("folder", str, name), f"{where}: [sweep]")
    keep_models, chosen = head.take("keep_models", bool, False), head.optional("chosen", str)
    head.done()
    base = data.take("base", dict, {})
    TrainConfig.from_dict(base, f"{where}: [base]")
    sizes = _sizes(data.take("sizes", dict, {}), where)
    grids = data.tables("grid")
    listed, overrides = data.take("runs", list, []), data.take("overrides", list, [])
    labels = data.take("labels", list, [])
    data.done()
    points: GridPoints = {}
    defaults = _defaults(base, sizes)
    tables = [(f"{where}: [grid]", grid) for grid in grids]
    tables += [(f"{where}: [[runs]] {place}", each) for place, each in enumerate(listed, start=1)]
    for place, table in tables:
        add_cells(read_axes(table, place, defaults), points)
    if chosen is not None:
        read_chosen(Path(path).resolve().parent / chosen, defaults, points)
    if not points:
        raise InputError(f"{where}: there is no run in it; give a [grid], [[runs]] or the 'chosen' of `loopscale next`")
    changes = _overrides(overrides, where)
    runs = tuple(_run(cell, asked, base, sizes, changes, where) for cell, asked in points.items())
    return Sweep(Path(path), name, folder, keep_models, runs, _labels(labels, where))


def _name(text: str, where: str) -> str:
    if not _NAME.fullmatch(text):
        raise InputError(f"{where} is {shown(text)}; use letters, digits, dots, dashes and underscores")
    return text


def _inside(folder: str, where: str) -> str:
    if Path(folder).is_absolute() or ".." in Path(folder).parts or not folder.strip():
        raise InputError(f"{where}: field 'folder' is {shown(folder)}; name a folder beside the file, like 'results'")
    return folder


def _sizes(data: dict[str, Any], where: str) -> dict[str, dict[str, Any]]:
    for name, fields in data.items():
        _name(name, f"{where}: [sizes]: a size's name")
        if not isinstance(fields, dict):
            raise InputError(f"{where}: [sizes]: {name} is {shown(fields)}; it should be a table of model fields")
        for field in ("experts", "recurrence"):
            if field in fields:
                raise InputError(f"{where}: [sizes.{name}]: {field!r} is an axis of the grid, not part of a size")
    return data


def _defaults(base: dict[str, Any], sizes: dict[str, dict[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """Return what an axis is where a table leaves it out: as in the base, and every size."""
    model, run = base.get("model", {}), base.get("run", {})
    config = TrainConfig.from_dict({"run": run})
    return {
        "size": tuple(sizes) or (BASE,),
        "experts": (model.get("experts", 1),),
        "recurrence": (model.get("recurrence", 1),),
        "seed": (config.run.seed,),
        "tokens": (config.run.tokens,) if "tokens" in run else (),
    }


def _overrides(listed: list[Any], where: str) -> list[tuple[When, dict[str, Any]]]:
    found = []
    for place, each in enumerate(listed, start=1):
        fields = Fields(each, f"{where}: [[overrides]] {place}")
        # One trunk serves many D, so what is set cannot hang on D.
        when = When.read(fields.take("when", dict, {}), fields.where, AXES[:-1])
        found.append((when, _flat(fields.take("set", dict), fields.where)))
        fields.done()
    return found


def _flat(given: dict[str, Any], where: str) -> dict[str, Any]:
    """Return ``section.field`` to value, however the keys were quoted."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        inner = {f"{name}.{key}": each for key, each in value.items()} if isinstance(value, dict) else {name: value}
        found |= inner
    for name in found:
        if name.count(".") != 1:
            raise InputError(f"{where}: 'set' names {shown(name)}; write it like \"optimizer.learning_rate\"")
        if name in ("model.experts", "model.recurrence", "run.seed", "run.tokens"):
            raise InputError(f"{where}: 'set' names {name!r}, which is an axis of the grid; give it there")
    return found


def _labels(listed: list[Any], where: str) -> tuple[tuple[When, str], ...]:
    found = []
    for place, each in enumerate(listed, start=1):
        fields = Fields(each, f"{where}: [[labels]] {place}")
        when = When.read(fields.take("when", dict, {}), fields.where, AXES)
        found.append((when, fields.take("label", str)))
        fields.done()
    return tuple(found)


def _run(
    cell: Cell,
    asked: set[float],
    base: dict[str, Any],
    sizes: dict[str, dict[str, Any]],
    overrides: list[tuple[When, dict[str, Any]]],
    where: str,
) -> Run:
    """Return the training run of a cell."""
    data: dict[str, Any] = {"schedule": {"kind": "wsd"}, **copy.deepcopy(base)}
    data["schedule"] = {"kind": "wsd", **data["schedule"]}
    model = {**data.get("model", {}), **_size(cell.size, sizes, where)}
    data["model"] = {**model, "experts": cell.experts, "recurrence": cell.recurrence}
    data["run"] = {**data.get("run", {}), "seed": cell.seed, "tokens": max(asked)}
    for when, changes in overrides:
        for name, value in changes.items() if when.holds(cell) else ():
            section, _, field = name.partition(".")
            data.setdefault(section, {})[field] = value
    config = TrainConfig.from_dict(data, f"{where}: {cell}")
    return Run(cell, config, _points(config, asked, f"{where}: {cell}"))


def _size(name: str, sizes: dict[str, dict[str, Any]], where: str) -> dict[str, Any]:
    if name in sizes:
        return sizes[name]
    if name == BASE:
        return {}
    try:
        return {"rung": rung_name(name)}
    except InputError:
        known = [*sizes, *RUNGS]
        raise InputError(
            f"{where}: size {shown(name)} is neither a [sizes.NAME] nor a rung{nearest(name, known)}; "
            f"known are {', '.join(known)}"
        ) from None


def _points(config: TrainConfig, asked: set[float], where: str) -> dict[int, float]:
    found: dict[int, float] = {}
    for tokens in sorted(asked):
        one = config.changed(run={"tokens": tokens})
        trained = one.steps * one.step_tokens
        if trained in found:
            raise InputError(
                f"{where}: {found[trained]:g} and {tokens:g} tokens are both {one.steps} steps of {one.step_tokens}; "
                "drop one of them"
            )
        found[trained] = tokens
    return found
