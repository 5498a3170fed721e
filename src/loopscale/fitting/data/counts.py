"""Counts of a table in raw numbers: units that are stated, written in cells or headers, or detected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError, nearest, shown
from loopscale.fitting.data.columns import COUNTS, SYMBOLS, field_of
from loopscale.fitting.data.units import UNIT_NAMES, detect_units, size_unit

if TYPE_CHECKING:
    from loopscale.fitting.data.reader import TableReader

LARGEST_MODEL = 3e11
"""Parameters of the largest models of which a sweep is plausible."""


def scale(reader: TableReader, stated: Mapping[str, float]) -> None:
    """Bring all counts to raw numbers, and say which units were detected."""
    known = {name: _known_unit(reader, name, stated) for name in COUNTS if name in reader.values}
    reader.detected = detected = _detect(reader, known)
    for name, unit in known.items():
        reader.values[name] = reader.values[name] * (detected[name] if unit is None else unit)
    for unit in sorted({unit for unit in detected.values() if unit != 1.0}):
        spans = [
            f"{SYMBOLS[name]} ({_span(reader.values[name] / unit)})" for name in detected if detected[name] == unit
        ]
        reader.notes.append(f"read as {UNIT_NAMES[unit]}: {', '.join(spans)}; state units to overrule")
    if "flops" in stated:
        reader.values["flops"] = reader.values["flops"] * stated["flops"]
    larger = 1e3 * float(np.median(_positive(reader.values["active"]))) if "active" in detected else np.inf
    if (detected.get("active"), detected.get("tokens")) == (1e6, 1e9) and larger < LARGEST_MODEL:
        reader.warnings.append(
            ("N read as millions and D as billions; billions and trillions are as likely",
             "state them: --units N=1M --units D=1B, or --units N=1B --units D=1T")
        )  # fmt: skip


def _known_unit(reader: TableReader, name: str, stated: Mapping[str, float]) -> float | None:
    if name in stated:
        return stated[name]
    return 1.0 if name in reader.suffixed else reader.columns[name].unit


def _detect(reader: TableReader, known: Mapping[str, float | None]) -> dict[str, float]:
    """Return the likeliest unit of each count that states none; a column of zeros has no unit."""
    size = next((name for name in ("active", "once") if name in known), None)
    unknown = [name for name, unit in known.items() if unit is None]
    if size is None or not unknown:
        return dict.fromkeys(unknown, 1.0)
    active = _positive(reader.values[size])
    tokens = _positive(reader.values["tokens"]) if "tokens" in known else 20 * active
    unit_N, unit_D = detect_units(active, tokens, known[size], known.get("tokens", 1.0))
    units = {size: unit_N, "tokens": unit_D, "unique_tokens": unit_D}
    for name in unknown:
        if name not in units:
            values = reader.values[name]
            zero = not np.any(values > 0)
            units[name] = 1.0 if zero else size_unit(_positive(values), active * unit_N, unit_N)
    return {name: units[name] for name in unknown}


def stated_units(units: Mapping[str, float], source: str) -> dict[str, float]:
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


def _positive(values: FloatArray) -> FloatArray:
    good = values[np.isfinite(values) & (values > 0)]
    return good if len(good) else np.ones(1)


def _span(values: FloatArray) -> str:
    good = _positive(values)
    return f"{good.min():g} to {good.max():g}"
