"""Where a fitted law comes from: its data, how they were read, and what fitted them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Reading:
    """How a table of runs was read. Commands on a law read its data again with the same choices."""

    data: str = ""
    """The file or the name of the sweep, as the user wrote it; empty for a frame."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """The columns that the user chose, by field."""
    units: Mapping[str, float] = field(default_factory=dict)
    """The units that the user stated, by field."""
    counts: str | None = None
    """What the user said that parameter counts include."""
    keep: str | None = None
    """The expression that chose rows."""
    best_of: bool = False
    """Whether only the lowest loss of each model and token count was used."""
    balance: bool = False
    """Whether each compute budget counts alike, however many runs it has."""
    strict: bool = False
    """Whether incomplete rows were refused."""

    def options(self) -> dict[str, Any]:
        """Return the choices as arguments of ``Observations.of``."""
        return {name: value for name, value in asdict(self).items() if name != "data"}

    def narrowed(self, expression: str) -> Reading:
        """Return the choices with a further expression that rows must fulfil."""
        return replace(self, keep=expression if self.keep is None else f"({self.keep}) and ({expression})")

    def overruled(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the choices, overruled by those that ``options`` states; columns and units are merged."""
        stated = {name: value for name, value in options.items() if value}
        joined = {name: {**getattr(self, name), **stated.get(name, {})} for name in ("columns", "units")}
        return self.options() | stated | joined


@dataclass(frozen=True)
class Provenance:
    """The data that a law was fitted to, and what fitted them."""

    reading: Reading = field(default_factory=Reading)
    rows: int = 0
    """Losses that were fitted."""
    sha256: str = ""
    """Hash of the numbers read, independent of the file format."""
    columns_used: Mapping[str, str] = field(default_factory=dict)
    """The column that each quantity was read from, by its symbol, with the unit if it was detected."""
    seed: int = 0
    """Seed of starts and resamples."""
    version: str = ""
    """The version of loopscale."""
