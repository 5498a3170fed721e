"""Rows of a sweep from a table: units applied, rows chosen, incomplete and repeated ones left out, the rest checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loopscale.core.arrays import BoolArray, FloatArray, IntArray
from loopscale.core.errors import InputError, nearest, shown
from loopscale.core.quantities import counted
from loopscale.fitting.data.cells import (
    WANTED,
    acceptable,
    cells_of,
    crashed_flags,
    decimal_commas,
    finished_flags,
    numbers,
    texts,
    without_decimal_commas,
)
from loopscale.fitting.data.columns import (
    BITS_PER_BYTE,
    COUNTS,
    EXIT_CODES,
    LOOSE_RUNS,
    NON_EMBEDDING,
    SYMBOLS,
    Column,
    MissingColumnError,
    field_of,
    find_columns,
    normal_name,
)
from loopscale.fitting.data.keep import matching_rows
from loopscale.fitting.data.readers import RawTable
from loopscale.fitting.data.suspicions import suspicions
from loopscale.fitting.data.units import UNIT_NAMES, detect_units, size_unit
from loopscale.scaling import Points, costs

PLAUSIBLE = {"active": (100.0, 1e14), "tokens": (100.0, 1e16), "unique_tokens": (100.0, 1e16)}
"""Parameters and tokens that a training run may have."""
LARGEST_MODEL = 3e11
"""Parameters of a model that somebody may have trained a sweep of."""
MIXED_UNITS = 5.0
"""Powers of ten by which a row may differ from the median of its column."""
CHECKPOINTS = 10
"""Rows for each model from which they count as checkpoints of one run where no column names runs."""
LISTED = 6
"""Places of skipped rows that a note lists."""


@dataclass(frozen=True, eq=False)
class Rows:
    """What a table holds, in raw counts."""

    points: Points
    loss: FloatArray
    run: NDArray[np.str_]
    finished: BoolArray | None
    notes: tuple[str, ...]
    weight: FloatArray | None
    loss_unit: str
    non_embedding: bool
    """Whether the header says that embeddings are left out."""
    extra: dict[str, NDArray[Any]]
    """All columns of the table by their own names."""
    numbers: IntArray
    """The line of the file, or the row of the frame, that each row comes from."""
    number_unit: str
    skipped: tuple[str, ...] = ()
    """What was left out, in a few words each."""
    columns_used: Mapping[str, str] = field(default_factory=dict)
    """The column of each quantity by its symbol."""
    warnings: tuple[tuple[str, str], ...] = ()
    """What looks wrong: a sentence, and what to do about it."""
    named_runs: bool = False


def read_rows(
    table: RawTable,
    columns: Mapping[str, str],
    units: Mapping[str, float],
    keep: str | None = None,
    strict: bool = False,
) -> Rows:
    """Return the rows of a table, or say what is wrong with it, and where.

    ``keep`` chooses rows before any cell is judged. Rows without a loss, a size or tokens are left out and counted in
    a note; ``strict`` refuses them.
    """
    reader = _Reader(table, find_columns(table.columns, columns, table.source), notes=list(table.notes))
    reader.check_columns()
    reader.read_numbers()
    reader.scale(_stated(units, table.source))
    reader.derive()
    if keep is not None:
        reader.keep(keep)
    if not strict:
        reader.leave_out_incomplete()
    points, loss = reader.points(), reader.values["loss"]
    if not strict and (crashed := reader.crashed()).any():
        reader.choose(~crashed)
        points, loss = points.rows(~crashed), loss[~crashed]
    distinct = reader.distinct(points, loss)
    reader.choose(distinct)
    points, loss = points.rows(distinct), loss[distinct]
    run = reader.runs(points)
    reader.check_plausible(points)
    warnings = suspicions(reader.table, reader.columns, points, loss, run if reader.named_runs else None)
    size = reader.columns.get("active")
    return Rows(
        points, loss, run, reader.finished(),
        weight=reader.weight(),
        notes=tuple(reader.notes),
        loss_unit="bits per byte" if normal_name(reader.columns["loss"].name) in BITS_PER_BYTE else "nats",
        non_embedding=size is not None and normal_name(size.name) in NON_EMBEDDING,
        extra=reader.extra,
        numbers=reader.table.numbers,
        number_unit=reader.table.unit,
        skipped=tuple(reader.skipped),
        columns_used=reader.columns_used(),
        warnings=(*reader.warnings, *warnings),
        named_runs=reader.named_runs,
    )  # fmt: skip


def models(points: Points) -> IntArray:
    """Return a number for the model of each row: rows that agree on everything but tokens share it."""
    given = (points.active, points.recurrence, points.experts, points.loop, points.total)
    table = np.stack([values for values in given if values is not None], axis=1)
    return np.asarray(np.unique(table, axis=0, return_inverse=True)[1].reshape(-1), dtype=np.int64)


@dataclass(eq=False)
class _Reader:
    """A table on its way to rows. Every step works on the rows that the steps before it left."""

    table: RawTable
    columns: dict[str, Column]
    values: dict[str, FloatArray] = field(default_factory=dict)
    """Numbers by field, NaN where a cell is empty or not a number; raw counts once they are scaled."""
    unreadable: dict[str, BoolArray] = field(default_factory=dict)
    """Which cells of a field are not numbers."""
    derived: dict[str, FloatArray] = field(default_factory=dict)
    """What :class:`Points` needs, by name, from one or more columns each."""
    extra: dict[str, NDArray[Any]] = field(default_factory=dict)
    suffixed: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    warnings: list[tuple[str, str]] = field(default_factory=list)
    detected: dict[str, float] = field(default_factory=dict)
    """Units that nothing states, by field."""
    named_runs: bool = False

    def check_columns(self) -> None:
        """Refuse a table without a loss, a size or tokens, or without rows."""
        for name, instead in (("loss", set[str]()), ("active", {"once", "loop"}), ("tokens", {"flops"})):
            if name not in self.columns and not (instead and instead <= set(self.columns)):
                raise MissingColumnError(name, self.table.columns, self.table.source)
        if not len(self.table):
            raise InputError("there are no rows below the header", where=self.table.source)

    def read_numbers(self) -> None:
        """Turn every numeric column into numbers, and every column into what expressions use."""
        if decimal_commas(self.table.columns, self.columns["loss"].name):
            self.table = self.table.with_columns(without_decimal_commas(self.table.columns))
            self.notes.append("commas read as decimal points")
        for name, column in self.columns.items():
            if name in ("run", "finished"):
                continue
            self.values[name], self.unreadable[name], with_unit = numbers(self.table.columns[column.name])
            self.suffixed |= {name} if with_unit else set()
        for name, cells in self.table.columns.items():
            self.extra[name] = cells_of(cells)
            self.extra.setdefault(normal_name(name), self.extra[name])

    def choose(self, rows: BoolArray | IntArray) -> None:
        """Continue with some of the rows."""
        self.table = self.table.rows(rows)
        self.values = {name: values[rows] for name, values in self.values.items()}
        self.unreadable = {name: flags[rows] for name, flags in self.unreadable.items()}
        self.derived = {name: values[rows] for name, values in self.derived.items()}
        self.extra = {name: cells[rows] for name, cells in self.extra.items()}

    def scale(self, stated: Mapping[str, float]) -> None:
        """Bring all counts to raw numbers, and say which units were detected."""
        known = {name: self._known_unit(name, stated) for name in COUNTS if name in self.values}
        self.detected = detected = self._detected(known)
        for name, unit in known.items():
            self.values[name] = self.values[name] * (detected[name] if unit is None else unit)
        for unit in sorted({unit for unit in detected.values() if unit != 1.0}):
            spans = [
                f"{SYMBOLS[name]} ({_span(self.values[name] / unit)})" for name in detected if detected[name] == unit
            ]
            self.notes.append(f"read as {UNIT_NAMES[unit]}: {', '.join(spans)}; state units to overrule")
        if "flops" in stated:
            self.values["flops"] = self.values["flops"] * stated["flops"]
        self._doubt_units(known)

    def derive(self) -> None:
        """Compute sizes, experts, recurrence and tokens of every row; an empty cell leaves NaN."""
        values, count = self.values, len(self.table)
        if "active" in self.columns:
            active = values["active"]
        else:
            self.notes.append("N_act = N_once + N_loop")
            active = values["once"] + values["loop"]
        E, R = self._experts(), values.get("recurrence", np.ones(count))
        for name in ("experts", "recurrence"):
            if name not in self.columns:
                assumed = "dense (E = 1)" if name == "experts" else "no looping (R = 1)"
                self.notes.append(f"no column for {SYMBOLS[name]}: assuming {assumed}")
        self.derived = {"active": active, "experts": E, "recurrence": R}
        # A row can do without a loop at R = 1, and without a total where nothing is routed.
        for name, otherwise in (("loop", np.where(R == 1, 0.0, np.nan)), ("total", np.where(E == 1, active, np.nan))):
            if name in values:
                self.derived[name] = np.where(self._empty(name), otherwise, values[name])
        if "total" not in values and (E > 1).any():
            self.notes.append("no N_total: mappings that depend on m = N_act / N_total cannot be fitted")
        self.derived["tokens"] = tokens = self._tokens()
        if "unique_tokens" in values:
            self.derived["unique_tokens"] = np.where(self._empty("unique_tokens"), tokens, values["unique_tokens"])

    def keep(self, expression: str) -> None:
        """Continue with the rows for which the expression holds."""
        at, count = self.derived, len(self.table)
        symbols = {"N": at["active"], "D": at["tokens"], "E": at["experts"], "R": at["recurrence"],
                   "U": at.get("unique_tokens", at["tokens"]), "loss": self.values["loss"]}  # fmt: skip
        if "loop" in at or np.all(at["recurrence"] == 1):
            symbols["C"] = costs.train_flops(self._unrolled(), at["tokens"])
        named = {"run": self.extra[self.columns["run"].name]} if "run" in self.columns else {}
        mask = matching_rows(expression, {**self.extra, **named, **symbols})
        self.notes.append(f"{int(mask.sum())} of {count} rows kept by {expression}")
        self.choose(mask)

    def leave_out_incomplete(self) -> None:
        """Leave out rows whose loss, size or tokens are empty, and say which."""
        needed = {
            "loss": ("loss",),
            "size": ("active",) if "active" in self.columns else ("once", "loop"),
            "tokens": ("tokens",) if "tokens" in self.columns else ("flops",),
        }
        complete, reasons, skipped = np.ones(len(self.table), dtype=bool), [], 0
        for what, names in needed.items():
            empty = complete & np.any([self._empty(name) for name in names], axis=0)
            if empty.any():
                complete &= ~empty
                skipped += int(empty.sum())
                reasons.append(f"no {what}, {self._places(empty)}")
                self.skipped.append(f"{int(empty.sum())} without {what} skipped")
        if not complete.any():
            raise InputError(f"no row is complete: {'; '.join(reasons)}", where=self.table.source)
        if skipped:
            self.notes.append(f"{counted(skipped, 'row')} skipped: {'; '.join(reasons)}")
            self.choose(complete)

    def points(self) -> Points:
        """Return the models and their tokens once every cell is what its field wants."""
        at = self.derived
        self._check("loss")
        for name in ("active",) if "active" in self.columns else ("once", "loop"):
            self._check(name)
        if "top_k" in self.columns and "experts" in self.columns and not self._states_ratio():
            self._check("top_k")
        for name in ("experts", "recurrence", "loop", "total"):
            if name in self.columns:
                self._check(name, at[name])
        self._compare("loop", above=True)
        self._compare("total", above=False)
        self._check("tokens" if "tokens" in self.columns else "flops")
        if "unique_tokens" in self.columns:
            self._check("unique_tokens", at["unique_tokens"])
        for name in self.columns:
            self._check_readable(name)
        return Points(
            at["active"], at["tokens"], at["recurrence"], at["experts"],
            at.get("loop"), at.get("total"), at.get("unique_tokens"),
        )  # fmt: skip

    def crashed(self) -> BoolArray:
        """Tell which rows are of runs that a tracker calls crashed, failed or killed: their last loss is no result."""
        none = np.zeros(len(self.table), dtype=bool)
        if "finished" not in self.columns:
            return none
        crashed = crashed_flags(self.table.columns[self.columns["finished"].name])
        if crashed.all():
            return none
        if crashed.any():
            self.notes.append(f"{counted(int(crashed.sum()), 'row')} skipped: crashed, {self._places(crashed)}")
            self.skipped.append(f"{int(crashed.sum())} crashed skipped")
        return crashed

    def distinct(self, points: Points, loss: FloatArray) -> IntArray:
        """Return the rows without exact repeats of another, and say how many repeats there were."""
        named = texts(self.table.columns[self.columns["run"].name]) if "run" in self.columns else [""] * len(loss)
        keys = zip(named, models(points).tolist(), points.tokens.tolist(), points.unique.tolist(), loss.tolist(),
                   strict=True)  # fmt: skip
        first: dict[Any, int] = {}
        for k, key in enumerate(keys):
            first.setdefault(key, k)
        if repeats := len(loss) - len(first):
            self.notes.append(f"{counted(repeats, 'duplicate row')} ignored")
            self.skipped.append(f"{counted(repeats, 'duplicate')} ignored")
        return np.array(list(first.values()), dtype=np.int64)

    def runs(self, points: Points) -> NDArray[np.str_]:
        """Return the run of each row: as named; else checkpoints of one model are a run, and other rows one each."""
        model = models(points)
        if "run" in self.columns:
            column = self.columns["run"].name
            names = texts(self.table.columns[column])
            if normal_name(column) not in LOOSE_RUNS or _names_runs(names, model, points.tokens):
                if len(set(zip(names.tolist(), model.tolist(), strict=True))) > len(np.unique(names)):
                    self.notes.append("some runs hold rows of different models; each counts as one run")
                self.named_runs = True
                return names
            self.notes.append(f"`{column}` has duplicates, so it was not used as the run id")
            del self.columns["run"]
        rows_each = np.bincount(model)
        if len(rows_each) < len(model) and ("step" in self.columns or np.median(rows_each) >= CHECKPOINTS):
            self.notes.append(
                f"no run column: the rows of one model count as checkpoints of one run ({len(rows_each)} runs)"
            )
            return np.array([f"run {k + 1}" for k in model])
        if len(rows_each) < len(model):
            self.notes.append("no run column: every row counts as a separate run")
        return np.array([f"run {k + 1}" for k in range(len(model))])

    def finished(self) -> BoolArray | None:
        """Tell which rows are final losses, where a column says so."""
        if "finished" not in self.columns:
            return None
        column = self.columns["finished"].name
        flags = finished_flags(self.table.columns[column], exit_codes=normal_name(column) in EXIT_CODES)
        if not flags.all():
            self.notes.append(f"{int((~flags).sum())} of {len(flags)} rows are not final losses of their run")
        return flags

    def weight(self) -> FloatArray | None:
        """Return how much each row counts: as stated, or by the stated noise of its loss; 1 on average."""
        if "weight" in self.columns:
            self._check("weight")
            values = self.values["weight"]
        elif "noise" in self.columns:
            self._check("noise")
            values = self.values["noise"] ** -2.0
            self.notes.append(f"rows are weighted by {self.columns['noise'].name}")
        else:
            return None
        return np.asarray(values / values.mean())

    def check_plausible(self, points: Points) -> None:
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
            if name == "tokens" and "tokens" not in self.columns:
                raise self._cell_error(
                    k, "flops", f"gives D = {values[k]:.3g} tokens, which is not plausible",
                    "state its unit with `units`, like flops=1e18 for EFLOP",
                )  # fmt: skip
            if name not in self.columns:
                continue
            raise self._cell_error(
                k, name, f"is {values[k]:g} {what}, which is not plausible beside the median {typical:g}",
                "write every row in one unit, or state the unit of the column with `units`",
            )  # fmt: skip

    def columns_used(self) -> dict[str, str]:
        """Return the column of each quantity, with the unit that was detected."""
        used = {}
        for name, column in self.columns.items():
            unit = self.detected.get(name, 1.0)
            used[SYMBOLS[name]] = column.name + ("" if unit == 1 else f" ({UNIT_NAMES[unit]})")
        return used

    def _doubt_units(self, known: Mapping[str, float | None]) -> None:
        """Warn where another reading of the units is as likely, or where sizes and tokens seem to differ in kind."""
        if "active" not in known or "tokens" not in known:
            return
        active = _positive(self.values["active"])
        if known["active"] is None and known["tokens"] is None:
            unit = self.detected["active"], self.detected["tokens"]
            if unit == (1e6, 1e9) and float(np.median(active)) * 1e3 < LARGEST_MODEL:
                self.warnings.append(
                    ("N read as millions and D as billions; billions and trillions are as likely",
                     "state them: --units N=1M --units D=1B, or --units N=1B --units D=1T")
                )  # fmt: skip

    def _experts(self) -> FloatArray:
        """Return E; a column of routed experts beside one of k is divided by it."""
        if "experts" not in self.columns:
            return np.ones(len(self.table))
        routed = self.values["experts"]
        if "top_k" not in self.columns or self._states_ratio():
            return routed
        self.notes.append(f"E = {self.columns['experts'].name} / {self.columns['top_k'].name}")
        with np.errstate(all="ignore"):
            return np.where(np.isin(routed, (0, 1)), 1.0, routed / self.values["top_k"])

    def _states_ratio(self) -> bool:
        """Tell whether the column of experts is E itself, not the number of routed experts."""
        return self.columns["experts"].name.strip() in ("E", "e")

    def _tokens(self) -> FloatArray:
        if "tokens" in self.columns:
            return self.values["tokens"]
        self.notes.append("D = FLOPs / (6 N_unroll)")
        with np.errstate(all="ignore"):
            return np.asarray(costs.tokens_for(self.values["flops"], self._unrolled()))

    def _unrolled(self) -> FloatArray:
        at = self.derived
        return np.asarray(costs.unrolled(at["active"], at.get("loop", 0.0), at["recurrence"]))

    def _empty(self, name: str) -> BoolArray:
        return np.asarray(np.isnan(self.values[name]) & ~self.unreadable[name])

    def _places(self, mask: BoolArray) -> str:
        """Return where the rows stand: ``lines 22 and 30``."""
        listed = [str(number) for number in self.table.numbers[mask]]
        if len(listed) == 1:
            return f"{self.table.unit} {listed[0]}"
        head, more = listed[:LISTED], len(listed) - LISTED
        last = f"{more} more" if more > 0 else head.pop()
        return f"{self.table.unit}s {', '.join(head)} and {last}"

    def _check(self, name: str, values: FloatArray | None = None) -> None:
        """Refuse the first cell of a field that is not what the field wants."""
        self._check_readable(name)
        values = self.values[name] if values is None else values
        good = acceptable(values, name)
        if not good.all():
            k = int(np.argmin(good))
            found = "empty or not a number" if np.isnan(values[k]) else f"{values[k]:g}"
            raise self._cell_error(k, name, f"is {found}", f"it should be finite and {WANTED[name]}")

    def _check_readable(self, name: str) -> None:
        unreadable = self.unreadable.get(name)
        if unreadable is not None and unreadable.any():
            k = int(np.argmax(unreadable))
            cell = self.table.columns[self.columns[name].name][k]
            raise self._cell_error(k, name, f"is {shown(cell)}", "it should be a number")

    def _compare(self, name: str, above: bool) -> None:
        """Refuse a loop larger than the model, or a total smaller than it."""
        if name not in self.columns:
            return
        values, active = self.derived[name], self.derived["active"]
        wrong = values > active * (1 + 1e-9) if above else values < active * (1 - 1e-9)
        if wrong.any():
            k = int(np.argmax(wrong))
            raise self._cell_error(
                k, name, f"is {values[k]:g}, {'above' if above else 'below'} N_act = {active[k]:g}",
                "the loop is a part of it" if above else "the total contains it",
            )  # fmt: skip

    def _cell_error(self, k: int, name: str, problem: str, remedy: str) -> InputError:
        column, symbol = self.columns[name].name, SYMBOLS[name]
        called = f"column {shown(column)}" + ("" if column == symbol else f" ({symbol})")
        return InputError(f"{self.table.place(k)}, {called} {problem}", where=self.table.source, remedy=remedy)

    def _known_unit(self, name: str, stated: Mapping[str, float]) -> float | None:
        if name in stated:
            return stated[name]
        return 1.0 if name in self.suffixed else self.columns[name].unit

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
        whole = ((size, unit_N), ("tokens", unit_D), ("unique_tokens", unit_D))
        return sizes | {name: unit for name, unit in whole if name in unknown}


def _names_runs(names: NDArray[np.str_], model: IntArray, tokens: FloatArray) -> bool:
    """Tell whether each name stands for one model, seen at most once at each token count."""
    pairs = set(zip(names.tolist(), model.tolist(), strict=True))
    rows = set(zip(names.tolist(), tokens.tolist(), strict=True))
    return len(pairs) == len(set(names.tolist())) and len(rows) == len(names)


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
        if known not in (*COUNTS, "flops"):
            raise InputError(
                f"{shown(name)} has no unit{nearest(name, COUNTS)}",
                where=source, field="units", remedy=f"units are for {', '.join(COUNTS)}, flops",
            )  # fmt: skip
        if not (np.isfinite(unit) and unit > 0):
            raise InputError(
                f"{known} is {unit}", where=source, field="units", remedy="it should be above zero, as 1e9 for billions"
            )
        stated[known] = float(unit)
    return stated
