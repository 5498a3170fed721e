"""SWEEP.toml: the sweep's name and folder, its cells, and the training run of each cell."""

from __future__ import annotations

import copy
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from loopscale.architecture import RUNGS, rung_name
from loopscale.core.errors import InputError, nearest, shown
from loopscale.core.files import read_toml
from loopscale.core.records import built, record_of
from loopscale.core.schemas import Count, Record, parse
from loopscale.sweep.cells import AXES, Cell, GridPoints, When, add_cells, flat_fields, read_axes, read_next_runs
from loopscale.sweep.store import ONE, Resources
from loopscale.train.config import TrainConfig
from loopscale.train.schedule import shared_steps

RATE = "optimizer.learning_rate"
SHIPPED = Path(__file__).parent / "configs"
"""Included sweeps; every sweep command takes their names in place of a file."""


class SweepRecord(Record):
    """The sweep's name, where its results go, and what it keeps."""

    name: str
    folder: str | None = None
    """Where results go, beside the file; by default the sweep's name."""
    keep_models: bool = False
    """Keep the model of every point in Hugging Face form."""
    objects: str | None = None
    """A folder or fsspec URL, like ``s3://bucket/sweep``, that every finished point is copied to."""
    next_runs: str | None = None
    """A file that ``loopscale next`` wrote, whose runs are added."""


class OverrideRecord(Record):
    """Training fields that some cells set."""

    when: dict[str, Any] = Field(default_factory=dict)
    """Values of axes that a cell must have: size, experts, recurrence, seed."""
    set: dict[str, Any]
    """Fields like ``"optimizer.learning_rate"`` and their values."""


class LabelRecord(Record):
    """A label in the export for some points."""

    when: dict[str, Any] = Field(default_factory=dict)
    label: str


class TuneRecord(Record):
    """A search for learning rates on short runs, before the sweep; all its runs then have the rates of the law found.

    By default every (size, E, R) of the grid is searched; the lists leave some out.
    """

    rates: list[Annotated[float, Field(gt=0)]] = Field(min_length=3)
    """Rates to start from. Where the best of a cell is at an edge, the next one beyond it is tried."""
    tokens: list[Count] = Field(min_length=1)
    """Lengths of the short runs. With two or more the law has a term for D."""
    size: list[str] = Field(default_factory=list)
    experts: list[int] = Field(default_factory=list)
    recurrence: list[int] = Field(default_factory=list)
    seed: int = Field(default=0, ge=0)
    most: int = Field(default=7, ge=3)
    """Rates of a cell at most."""


class SweepFile(Record):
    """A sweep: a grid of runs and the training settings that they share."""

    sweep: SweepRecord
    grid: dict[str, Any] | list[dict[str, Any]] = Field(default_factory=list)
    """Axes with a value or a list of values: size, experts, recurrence, seed, tokens, or a training field."""
    runs: list[dict[str, Any]] = Field(default_factory=list)
    """Single runs, with fields as in a grid."""
    sizes: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Fields of [model] by the size's name."""
    base: dict[str, Any] = Field(default_factory=dict)
    """Sections of a training file that all runs share."""
    overrides: list[OverrideRecord] = Field(default_factory=list)
    labels: list[LabelRecord] = Field(default_factory=list)
    resources: dict[str, Any] = Field(default_factory=dict)
    """gpus and nodes of every run, and tables of them for single sizes."""
    tune: TuneRecord | None = None


BASE = "base"
"""The size of [base.model], where no sizes are named."""
_NEEDS = record_of(Resources, {"int": Annotated[int, Field(ge=1)]})
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Run:
    """One trunk and its points: what a worker claims at once."""

    cell: Cell
    config: TrainConfig
    """Its tokens are those of the longest point."""
    points: dict[int, float]
    """Tokens as trained, in whole steps, and as the file says; shortest first."""
    resources: Resources = ONE
    """Processes and nodes that it needs."""

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
    """Where results go, relative to the file's own folder: both can be moved together."""
    keep_models: bool
    """Keep the model of every point in Hugging Face form."""
    runs: tuple[Run, ...]
    labels: tuple[tuple[When, str], ...]
    tune: TuneRecord | None = None
    objects: str | None = None
    """A folder or URL that finished points are copied to."""

    @property
    def root(self) -> Path:
        """The folder that paths in the file are relative to: the file's own, or the current one for a shipped file."""
        return Path.cwd() if self.path.resolve().parent == SHIPPED else self.path.resolve().parent

    @property
    def results(self) -> Path:
        """The folder of the results."""
        return self.root / self.folder

    @property
    def observations(self) -> int:
        """How many points there are in all."""
        return sum(len(run.points) for run in self.runs)

    def label(self, run: Run, tokens: float) -> str:
        """Return the last label that holds for a point, or nothing."""
        matching = [label for when, label in self.labels if when.holds(run.cell, tokens)]
        return matching[-1] if matching else ""


def shipped_sweeps() -> tuple[str, ...]:
    """Return the names of the sweeps that come with loopscale."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.toml")))


def sweep_path(name: str | Path) -> Path:
    """Return the file of a sweep: a path, or the name of one that comes with loopscale."""
    if str(name) in shipped_sweeps():
        return SHIPPED / f"{name}.toml"
    if not Path(name).suffix and not Path(name).exists():
        raise InputError(
            f"{name}: no such file, and no sweep that comes with loopscale{nearest(str(name), shipped_sweeps())}; "
            f"those are {', '.join(shipped_sweeps())}"
        )
    return Path(name)


def read_sweep(path: str | Path) -> Sweep:
    """Read a sweep's file, or an included sweep by name; refuse what it cannot mean before anything is done."""
    path = sweep_path(path)
    return parse_sweep(path, read_toml(path), str(path))


def parse_sweep(path: Path, content: object, where: str) -> Sweep:
    """Return the sweep that the content of the file ``path`` means; errors start with ``where``."""
    data = parse(SweepFile, content, where)
    name = _name(data.sweep.name, f"{where}: [sweep]: field 'name'")
    folder = data.sweep.folder or name
    if Path(folder).is_absolute() or ".." in Path(folder).parts or not folder.strip():
        raise InputError(
            f"{where}: [sweep]: field 'folder' is {shown(folder)}; name a folder beside the file, like 'results'"
        )
    TrainConfig.from_dict(data.base, f"{where}: [base]")
    sizes = _sizes(data.sizes, where)
    points: GridPoints = {}
    defaults = _defaults(data.base, sizes)
    grids = data.grid if isinstance(data.grid, list) else [data.grid]
    tables = [(f"{where}: [grid]", grid) for grid in grids]
    tables += [(f"{where}: [[runs]] {number}", run) for number, run in enumerate(data.runs, start=1)]
    for title, table in tables:
        add_cells(read_axes(table, title, defaults), points)
    if data.sweep.next_runs is not None:
        read_next_runs(path.resolve().parent / data.sweep.next_runs, defaults, points)
    if not points:
        raise InputError(f"{where}: it has no run; give a [grid], [[runs]] or the 'next_runs' of `loopscale next`")
    overrides, resources = _overrides(data.overrides, where), _resources(data.resources, where)
    labels = tuple(
        (When.read(label.when, f"{where}: [[labels]] {number}", AXES), label.label)
        for number, label in enumerate(data.labels, start=1)
    )
    build = _Builder(data.base, sizes, overrides, resources, where)
    runs = tuple(build.run(cell, tokens) for cell, tokens in points.items())
    named: dict[str, tuple[str, ...]] = {f"[resources.{size}]": (size,) for size in resources if size}
    named |= {f"[[overrides]] {number}": when.sizes for number, (when, _) in enumerate(overrides, start=1)}
    named |= {f"[[labels]] {number}": when.sizes for number, (when, _) in enumerate(labels, start=1)}
    named |= {"[tune]": tuple(data.tune.size) if data.tune is not None else ()}
    _check_sizes(named, dict.fromkeys([*(cell.size for cell in points), *sizes, *RUNGS]), where)
    sweep = Sweep(path, name, folder, data.sweep.keep_models, runs, labels, data.tune, data.sweep.objects)
    return sweep if sweep.tune is None else _tuned(sweep)


def _tuned(sweep: Sweep) -> Sweep:
    from loopscale.sweep.tune import with_tuned_rates

    if any(field == RATE for run in sweep.runs for field, _ in run.cell.settings):
        raise InputError(
            f"{sweep.path}: the learning rate is an axis of the grid and searched by [tune]; choose one of them"
        )
    return with_tuned_rates(sweep)


def _name(text: str, where: str) -> str:
    if not _NAME.fullmatch(text):
        raise InputError(f"{where} is {shown(text)}; use letters, digits, dots, dashes and underscores")
    return text


def _sizes(data: dict[str, Any], where: str) -> dict[str, dict[str, Any]]:
    for name, fields in data.items():
        _name(name, f"{where}: [sizes]: a size's name")
        if not isinstance(fields, dict):
            raise InputError(f"{where}: [sizes]: {name} is {shown(fields)}; it should be a table of model fields")
        for field in ("experts", "recurrence"):
            if field in fields:
                raise InputError(
                    f"{where}: [sizes.{name}]: {field!r} is an axis of the grid, not part of a size; give it there"
                )
    return data


def _defaults(base: dict[str, Any], sizes: dict[str, dict[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """Return the values of axes that a table leaves out: those of [base], and every size."""
    model, run = base.get("model", {}), base.get("run", {})
    config = TrainConfig.from_dict({"run": run})
    return {
        "size": tuple(sizes) or (BASE,),
        "experts": (model.get("experts", 1),),
        "recurrence": (model.get("recurrence", 1),),
        "seed": (config.run.seed,),
        "tokens": (config.run.tokens,) if "tokens" in run else (),
    }


def _resources(data: dict[str, Any], where: str) -> dict[str, Resources]:
    """Return what the runs of each size need; the key "" is for every size without its own table."""
    tables = {name: value for name, value in data.items() if isinstance(value, dict)}
    common = {name: value for name, value in data.items() if name not in tables}
    needs = {"": parse(_NEEDS, common, f"{where}: [resources]")}
    for size, table in tables.items():
        needs[size] = parse(_NEEDS, {**common, **table}, f"{where}: [resources.{size}]")
    return {size: built(need) for size, need in needs.items()}


def _overrides(listed: list[OverrideRecord], where: str) -> list[tuple[When, dict[str, Any]]]:
    changes = []
    for number, override in enumerate(listed, start=1):
        title = f"{where}: [[overrides]] {number}"
        # One trunk serves many D, so a setting cannot depend on D.
        changes.append((When.read(override.when, title, AXES[:-1]), flat_fields(override.set, f"{title}: 'set'")))
    return changes


def _check_sizes(named: Mapping[str, Iterable[str]], known: Collection[str], where: str) -> None:
    """Refuse a part of the file that names a size which the sweep does not have."""
    for title, sizes in named.items():
        for size in sizes:
            if size not in known:
                raise InputError(
                    f"{where}: {title} names the size {shown(size)}, which the sweep does not have"
                    f"{nearest(size, known)}; known are {', '.join(known)}"
                )


@dataclass(frozen=True)
class _Builder:
    """Makes the training run of a cell."""

    base: dict[str, Any]
    sizes: dict[str, dict[str, Any]]
    overrides: list[tuple[When, dict[str, Any]]]
    resources: dict[str, Resources]
    where: str

    def run(self, cell: Cell, tokens: set[float]) -> Run:
        """Return the run of a cell."""
        data: dict[str, Any] = copy.deepcopy(self.base)
        data["schedule"] = {"kind": "wsd", **data.get("schedule", {})}
        model = {**data.get("model", {}), **self._size(cell.size)}
        data["model"] = {**model, "experts": cell.experts, "recurrence": cell.recurrence}
        data["run"] = {**data.get("run", {}), "seed": cell.seed, "tokens": max(tokens)}
        changes = [pair for when, listed in self.overrides if when.holds(cell) for pair in listed.items()]
        for name, value in [*changes, *cell.settings]:
            section, _, field = name.partition(".")
            data.setdefault(section, {})[field] = value
        where = f"{self.where}: {cell}"
        config = TrainConfig.from_dict(data, where)
        if any(callback.is_code for callback in config.callbacks):
            raise InputError("[[callbacks]] names code from outside loopscale, which a sweep never runs", where=where)
        need = self.resources.get(cell.size, self.resources[""])
        if config.run.batch % need.processes:
            raise InputError(
                f"{where}: {need.processes} processes ([resources]) cannot share a batch of {config.run.batch} "
                f"equally; give a batch that is a multiple of {need.processes}"
            )
        return Run(cell, config, _points(config, tokens, where), need)

    def _size(self, name: str) -> dict[str, Any]:
        if name in self.sizes:
            return self.sizes[name]
        if name == BASE:
            return {}
        try:
            return {"rung": rung_name(name)}
        except InputError:
            known = [*self.sizes, *RUNGS]
            raise InputError(
                f"{self.where}: size {shown(name)} is neither a [sizes.NAME] nor a rung{nearest(name, known)}; "
                f"known are {', '.join(known)}"
            ) from None


def extended(path: Path, next_runs: Path) -> tuple[str, int, Sweep]:
    """Return the text of a sweep's file with the runs of ``loopscale next`` added, their number, and the new sweep.

    What cannot be trained is refused by the name of the file that recommends it.
    """
    sweep = read_sweep(path)
    points: GridPoints = {}
    read_next_runs(next_runs, {"seed": (min(run.cell.seed for run in sweep.runs),)}, points)
    known = {(run.cell, tokens) for run in sweep.runs for tokens in run.points.values()}
    added = [(cell, tokens) for cell, lengths in points.items() for tokens in sorted(lengths)]
    added = [point for point in added if point not in known]
    tables = [
        f'\n[[runs]]  # from {next_runs.name}\nsize = "{cell.size}"\nexperts = {cell.experts}\n'
        f"recurrence = {cell.recurrence}\nseed = {cell.seed}\ntokens = {tokens!r}\n"
        for cell, tokens in added
    ]
    text = path.read_text(encoding="utf-8").rstrip("\n") + "\n" + "".join(tables)
    return text, len(added), parse_sweep(path, tomllib.loads(text), str(next_runs))


def executed_steps(config: TrainConfig, points: Iterable[int]) -> int:
    """Return the steps that a trunk and its branches take in all."""
    ends = [tokens // config.step_tokens for tokens in points]
    starts = [shared_steps(config.schedule, end) for end in ends]
    return max(starts) + sum(end - start for end, start in zip(ends, starts, strict=True))


def _points(config: TrainConfig, tokens: set[float], where: str) -> dict[int, float]:
    points: dict[int, float] = {}
    for wanted in sorted(tokens):
        one = config.changed(run={"tokens": wanted})
        trained = one.steps * one.step_tokens
        if trained in points:
            raise InputError(
                f"{where}: {points[trained]:g} and {wanted:g} tokens are both {one.steps} steps of {one.step_tokens}; "
                "drop one of them"
            )
        points[trained] = wanted
    return points
