"""From a table's columns to checked rows: fields by name, units stated or detected, runs told apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from loopscale.arrays import BoolArray, FloatArray
from loopscale.errors import InputError, nearest, shown
from loopscale.fit.columns import SYMBOLS, Column, field_of, find_columns, missing
from loopscale.fit.rows import checked, finished_flags, numbers, texts, where
from loopscale.fit.sources import Columns
from loopscale.fit.units import NAMES, detect_units, size_unit
from loopscale.laws import Points

SIZES = ("active", "loop", "total", "once")
COUNTS = (*SIZES, "tokens")


@dataclass(frozen=True, eq=False)
class Rows:
    """What a table holds, in raw counts."""

    points: Points
    loss: FloatArray
    run: NDArray[np.str_]
    finished: BoolArray | None
    notes: tuple[str, ...]


def read_rows(table: Columns, chosen: Mapping[str, str], units: Mapping[str, float], source: str) -> Rows:
    """Return the rows of a table, or say what is wrong with it, and where."""
    reader = _Reader(table, find_columns(table, chosen, source), source)
    reader.read_numbers()
    reader.scale(_stated(units, source))
    loss = reader.take("loss")
    points = reader.points()
    run = reader.runs(points)
    finished = reader.finished(run)
    reader.note_repeats(points, loss, run)
    return Rows(points, loss, run, finished, tuple(reader.notes))


@dataclass(eq=False)
class _Reader:
    table: Columns
    columns: dict[str, Column]
    source: str
    values: dict[str, FloatArray] = field(default_factory=dict)
    suffixed: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def read_numbers(self) -> None:
        """Turn every numeric column into numbers."""
        for name, column in self.columns.items():
            if name in ("run", "finished"):
                continue
            cells = self.table[column.name]
            if not cells:
                raise InputError(f"{self.source}: there are no rows below the header")
            self.values[name], with_unit = numbers(cells, name, column.name, self.source)
            self.suffixed |= {name} if with_unit else set()

    def scale(self, stated: Mapping[str, float]) -> None:
        """Bring all counts to raw numbers, and say which units were detected."""
        known = {name: self._known_unit(name, stated) for name in COUNTS if name in self.values}
        detected = self._detected(known)
        for name, unit in known.items():
            self.values[name] = self.values[name] * (detected[name] if unit is None else unit)
        for unit in sorted({unit for unit in detected.values() if unit != 1.0}):
            spans = [
                f"{SYMBOLS[name]} ({_span(self.values[name] / unit)})" for name in detected if detected[name] == unit
            ]
            self.notes.append(f"read as {NAMES[unit]}: {', '.join(spans)}; state units to overrule")

    def take(self, name: str, empty: bool = False) -> FloatArray:
        """Return a field that must be there, checked."""
        if name not in self.columns:
            raise missing(name, self.table, self.source)
        return checked(self.values[name], name, self.columns[name].name, self.source, empty)

    def points(self) -> Points:
        """Return the models and their tokens."""
        active = self._active()
        experts, R = self._experts(len(active)), self._or_one("recurrence", len(active))
        loop = self._filled("loop", np.where(R == 1, 0.0, np.nan))
        total = self._filled("total", np.where(experts == 1, active, np.nan))
        self._compare("loop", loop, active, above=True)
        self._compare("total", total, active, above=False)
        if total is None and (experts > 1).any():
            self.notes.append("no N_total: mappings that depend on m = N_act / N_total cannot be fitted")
        return Points(active, self._tokens(active, R, loop), R, experts, loop, total)

    def runs(self, points: Points) -> NDArray[np.str_]:
        """Return the run of each row: as named, or all rows that agree on everything but D."""
        if "run" in self.columns:
            return texts(self.table[self.columns["run"].name])
        given = (points.active, points.recurrence, points.experts, points.loop, points.total)
        table = np.stack([each for each in given if each is not None], axis=1)
        _, which = np.unique(table, axis=0, return_inverse=True)
        count = int(which.max()) + 1
        if count < len(which):
            self.notes.append(f"no run column: rows that differ only in D and loss are one run ({count} runs)")
        return np.array([f"run {k + 1}" for k in which.reshape(-1)])

    def finished(self, run: NDArray[np.str_]) -> BoolArray | None:
        """Tell which rows are final losses: by a status, or as the last step of their run."""
        if "finished" in self.columns:
            flags = finished_flags(self.table[self.columns["finished"].name])
        elif "step" in self.columns:
            step = self.take("step")
            last = {name: step[run == name].max() for name in np.unique(run)}
            flags = np.array([at == last[name] for at, name in zip(step, run, strict=True)])
        else:
            return None
        if not flags.all():
            self.notes.append(f"{int((~flags).sum())} of {len(flags)} rows are not final losses of their run")
        return flags

    def note_repeats(self, points: Points, loss: FloatArray, run: NDArray[np.str_]) -> None:
        """Say how many rows repeat another, and which runs hold several models."""
        model = np.stack([points.active, points.recurrence, points.experts], axis=1)
        rows = np.column_stack([model, points.tokens, loss])
        repeats = len(rows) - len({(name, *row) for name, row in zip(run.tolist(), rows.tolist(), strict=True)})
        if repeats:
            self.notes.append(f"{repeats} rows repeat another row exactly; they count twice")
        models = {(name, *row) for name, row in zip(run.tolist(), model.tolist(), strict=True)}
        if len(models) > len(np.unique(run)):
            self.notes.append("some runs hold rows of different models; they are taken as one run each")

    def _active(self) -> FloatArray:
        if "active" not in self.columns and "once" in self.columns and "loop" in self.columns:
            self.notes.append("N_act = N_once + N_loop")
            return self.take("once") + self.take("loop")
        return self.take("active")

    def _experts(self, count: int) -> FloatArray:
        """Return E; a column of routed experts beside one of k is divided by it."""
        if "experts" not in self.columns:
            return self._or_one("experts", count)
        column = self.columns["experts"].name
        if "top_k" not in self.columns or column.strip() in ("E", "e"):
            return self.take("experts")
        routed, k = self.values["experts"], self.take("top_k")
        self.notes.append(f"E = {column} / {self.columns['top_k'].name}")
        return checked(np.where(np.isin(routed, (0, 1)), 1.0, routed / k), "experts", column, self.source)

    def _or_one(self, name: str, count: int) -> FloatArray:
        if name in self.columns:
            return self.take(name)
        self.notes.append(f"no column for {SYMBOLS[name]}: taken as 1")
        return np.ones(count)

    def _filled(self, name: str, otherwise: FloatArray) -> FloatArray | None:
        """Return an optional field; a cell may be empty where the row can do without it."""
        if name not in self.columns:
            return None
        values = self.take(name, empty=True)
        return checked(np.where(np.isnan(values), otherwise, values), name, self.columns[name].name, self.source)

    def _tokens(self, active: FloatArray, R: FloatArray, loop: FloatArray | None) -> FloatArray:
        if "tokens" in self.columns or "flops" not in self.columns:
            return self.take("tokens")
        self.notes.append("D = FLOPs / (6 N_unroll)")
        return self.take("flops") / (6 * (active + (R - 1) * (0.0 if loop is None else loop)))

    def _compare(self, name: str, values: FloatArray | None, active: FloatArray, above: bool) -> None:
        """Refuse a loop larger than the model, or a total smaller than it."""
        if values is None:
            return
        wrong = values > active * (1 + 1e-9) if above else values < active * (1 - 1e-9)
        if wrong.any():
            k = int(np.argmax(wrong))
            says = "above" if above else "below"
            raise InputError(
                f"{where(self.source, k, name, self.columns[name].name)} is {values[k]:g}, "
                f"{says} N_act = {active[k]:g}; " + ("the loop is a part of it" if above else "the total contains it")
            )

    def _known_unit(self, name: str, stated: Mapping[str, float]) -> float | None:
        if name in stated:
            return stated[name]
        column = self.columns[name]
        return 1.0 if name in self.suffixed else column.unit

    def _detected(self, known: Mapping[str, float | None]) -> dict[str, float]:
        """Return the likeliest unit of each count that states none."""
        size = next((name for name in ("active", "once") if name in known), None)
        unknown = [name for name, unit in known.items() if unit is None]
        if size is None or not unknown:
            return dict.fromkeys(unknown, 1.0)
        active = _positive(self.values[size])
        tokens = _positive(self.values["tokens"]) if "tokens" in known else 20 * active
        unit_N, unit_D = detect_units(active, tokens, known[size], known.get("tokens", 1.0))
        sizes = {name: size_unit(_positive(self.values[name]), active * unit_N, unit_N) for name in unknown}
        return sizes | {name: unit for name, unit in ((size, unit_N), ("tokens", unit_D)) if name in unknown}


def _positive(values: FloatArray) -> FloatArray:
    good = values[np.isfinite(values) & (values > 0)]
    return good if len(good) else np.ones(1)


def _span(values: FloatArray) -> str:
    good = _positive(values)
    return f"{good.min():g} to {good.max():g}"


def _stated(units: Mapping[str, float], source: str) -> dict[str, float]:
    stated = {}
    for name, unit in units.items():
        known = field_of(name)
        if known not in COUNTS:
            raise InputError(
                f"{source}: units names {shown(name)}{nearest(name, COUNTS)}; units are for {', '.join(COUNTS)}"
            )
        if not (np.isfinite(unit) and unit > 0):
            raise InputError(f"{source}: units for {known} is {unit}; it should be above zero, as 1e9 for billions")
        stated[known] = float(unit)
    return stated
