"""A table on its way to rows: numbers, what follows from them, and the rows that are left."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loopscale.core.arrays import BoolArray, FloatArray, IntArray
from loopscale.core.errors import InputError, shown
from loopscale.core.quantities import counted
from loopscale.fitting.data.cell_checks import check, check_readable, compare
from loopscale.fitting.data.cells import cells_of, decimal_commas, numbers, without_decimal_commas
from loopscale.fitting.data.columns import SYMBOLS, Column, normal_name
from loopscale.fitting.data.keep import chosen_rows, row_symbols
from loopscale.fitting.data.readers import RawTable
from loopscale.fitting.data.units import UNIT_NAMES
from loopscale.scaling import Points, costs

LISTED = 6
"""Places of skipped rows that a note lists."""


@dataclass(eq=False)
class TableReader:
    """A table on its way to rows. Every step works on the rows that the steps before it left."""

    table: RawTable
    columns: dict[str, Column]
    values: dict[str, FloatArray] = field(default_factory=dict)
    """Numbers by field, NaN where a cell is empty or not a number; raw counts once they are scaled."""
    unreadable: dict[str, BoolArray] = field(default_factory=dict)
    """Which cells of a field are not numbers."""
    derived: dict[str, FloatArray] = field(default_factory=dict)
    """What ``Points`` needs, by name, from one or more columns each."""
    extra: dict[str, NDArray[Any]] = field(default_factory=dict)
    suffixed: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    warnings: list[tuple[str, str]] = field(default_factory=list)
    detected: dict[str, float] = field(default_factory=dict)
    """Units that nothing states, by field."""
    named_runs: bool = False

    def read_numbers(self) -> None:
        """Turn every numeric column into numbers, and every column into what expressions use."""
        if decimal_commas(self.table.columns, self.columns["loss"].name):
            self.table = replace(self.table, columns=without_decimal_commas(self.table.columns))
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
        run = {"run": self.extra[self.columns["run"].name]} if "run" in self.columns else {}
        symbols = row_symbols(self.derived, self.values["loss"])
        mask, note = chosen_rows(expression, {**self.extra, **run, **symbols})
        self.notes.append(note)
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
                reasons.append(f"no {what}, {self.places(empty)}")
                self.skipped.append(f"{int(empty.sum())} without {what} skipped")
        if not complete.any():
            raise InputError(f"no row is complete: {'; '.join(reasons)}", where=self.table.source)
        if skipped:
            self.notes.append(f"{counted(skipped, 'row')} skipped: {'; '.join(reasons)}")
            self.choose(complete)

    def points(self) -> Points:
        """Return the models and their tokens once every cell is what its field wants."""
        at = self.derived
        check(self, "loss")
        for name in ("active",) if "active" in self.columns else ("once", "loop"):
            check(self, name)
        if "top_k" in self.columns and "experts" in self.columns and not self._states_ratio():
            check(self, "top_k")
        for name in ("experts", "recurrence", "loop", "total"):
            if name in self.columns:
                check(self, name, at[name])
        compare(self, "loop", above=True)
        compare(self, "total", above=False)
        check(self, "tokens" if "tokens" in self.columns else "flops")
        if "unique_tokens" in self.columns:
            check(self, "unique_tokens", at["unique_tokens"])
        for name in self.columns:
            check_readable(self, name)
        return Points(
            at["active"], at["tokens"], at["recurrence"], at["experts"],
            at.get("loop"), at.get("total"), at.get("unique_tokens"),
        )  # fmt: skip

    def columns_used(self) -> dict[str, str]:
        """Return the column of each quantity, with the unit that was detected."""
        used = {}
        for name, column in self.columns.items():
            unit = self.detected.get(name, 1.0)
            used[SYMBOLS[name]] = column.name + ("" if unit == 1 else f" ({UNIT_NAMES[unit]})")
        return used

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
        at = self.derived
        unrolled = costs.unrolled(at["active"], at.get("loop", 0.0), at["recurrence"])
        with np.errstate(all="ignore"):
            return np.asarray(costs.tokens_for(self.values["flops"], unrolled))

    def _empty(self, name: str) -> BoolArray:
        return np.asarray(np.isnan(self.values[name]) & ~self.unreadable[name])

    def places(self, mask: BoolArray) -> str:
        """Return where the rows stand: ``lines 22 and 30``."""
        listed = [str(number) for number in self.table.numbers[mask]]
        if len(listed) == 1:
            return f"{self.table.unit} {listed[0]}"
        head, more = listed[:LISTED], len(listed) - LISTED
        last = f"{more} more" if more > 0 else head.pop()
        return f"{self.table.unit}s {', '.join(head)} and {last}"

    def cell_error(self, k: int, name: str, problem: str, remedy: str) -> InputError:
        column, symbol = self.columns[name].name, SYMBOLS[name]
        called = f"column {shown(column)}" + ("" if column == symbol else f" ({symbol})")
        return InputError(f"{self.table.place(k)}, {called} {problem}", where=self.table.source, remedy=remedy)
