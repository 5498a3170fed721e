"""One number or claim of the paper beside ours; its status follows from its numbers and is never written down."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

EXACT, ROUNDING, AGREES, DISAGREES = "exact", "rounding", "agrees", "disagrees"
CIRCULAR, NEEDS_DATA = "circular", "needs the authors' data"
MEANINGS = {
    EXACT: "the same number",
    ROUNDING: "the same once rounded as the paper rounds",
    AGREES: "in 90% of simulations, or holds in every case",
    DISAGREES: "not so; the note says how far",
    CIRCULAR: "simulated from this very number; cannot fail",
    NEEDS_DATA: "needs unpublished runs or checkpoints",
}


@dataclass(frozen=True)
class Line:
    """One number or claim. Which fields are set says what the criterion is; ``status`` applies it."""

    where: str
    what: str
    paper: float | str
    ours: float | str | None = None
    note: str = ""
    digits: int | None = None
    """Decimals that the paper rounds to."""
    tolerance: float | None = None
    """How far rounding can move ours: a mean of rounded scores, for example."""
    low: float | str | None = None
    high: float | str | None = None
    """The 90% range of the same number over simulated sweeps."""
    holds: int | None = None
    cases: int | None = None
    """In how many of the cases a claim holds."""
    circular: bool = False

    @property
    def criterion(self) -> str:
        """What the status rests on, in words."""
        if self.circular:
            return "none: the simulation was drawn from this number"
        if self.cases is not None:
            return "the claim holds in every case"
        if self.low is not None:
            return "the printed number lies in the 90% range of simulated sweeps"
        if self.ours is None:
            return "none: not recomputable"
        if self.tolerance is not None:
            return f"equal within {self.tolerance:g}, which rounding explains"
        return "equal" if self.digits is None else f"equal at {self.digits} decimals"

    @property
    def status(self) -> str:
        """The word that the criterion gives."""
        if self.circular:
            return CIRCULAR
        if self.cases is not None:
            return AGREES if self.holds == self.cases else DISAGREES
        if self.low is not None:
            assert self.high is not None
            return AGREES if self.low <= self.paper <= self.high else DISAGREES  # type: ignore[operator]
        if self.ours is None:
            return NEEDS_DATA
        if self.ours == self.paper:
            return EXACT
        return ROUNDING if self._rounds() else DISAGREES

    def _rounds(self) -> bool:
        if not isinstance(self.paper, int | float) or not isinstance(self.ours, int | float):
            return False
        if self.tolerance is not None:
            return abs(self.ours - self.paper) <= self.tolerance
        return self.digits is not None and round(self.ours, self.digits) == round(self.paper, self.digits)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with status and criterion."""
        return {**asdict(self), "status": self.status, "criterion": self.criterion}


def number(where: str, what: str, printed: float, ours: float, digits: int | None = None, note: str = "") -> Line:
    """Return a line for a number that the paper rounds to ``digits`` decimals; the note is kept where they differ."""
    rounded = ours if ours == printed else float(f"{ours:.6g}")
    line = Line(where, what, printed, rounded, digits=digits)
    return line if line.status != DISAGREES else Line(where, what, printed, rounded, note, digits=digits)


def claim(where: str, what: str, said: str, holds: int, cases: int, note: str = "") -> Line:
    """Return a line for a claim that was checked in a number of cases."""
    return Line(where, what, said, f"{holds} of {cases} cases", note, holds=holds, cases=cases)
