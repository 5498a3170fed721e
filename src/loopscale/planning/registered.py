"""Registered predictions: written with a date and a hash before a run is trained, and checked against its loss."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field, model_validator

from loopscale.core.schemas import Record, parse
from loopscale.core.sealed import seal, unseal
from loopscale.core.text import fact
from loopscale.planning.intervals import interval_text
from loopscale.planning.predictions import Prediction

KIND = "registered-prediction"


class IntervalRecord(Record):
    """An interval of a loss."""

    low: float = Field(gt=0)
    high: float = Field(gt=0)
    level: float = Field(gt=0, lt=1)
    kind: Literal["predictive", "law"]
    basis: str

    @model_validator(mode="after")
    def _ordered(self) -> IntervalRecord:
        if self.low > self.high:
            raise ValueError(f"low is {self.low:g}, above high, {self.high:g}")
        return self


class RegisteredRecord(Record):
    """What is scored of a registered prediction; its other fields are for people."""

    model_config = ConfigDict(extra="ignore")

    loss: float = Field(gt=0)
    interval: IntervalRecord | None


def register(prediction: Prediction, path: str | Path) -> None:
    """Write a prediction with its date and a hash, before the run is trained; an existing file is not replaced."""
    seal(path, KIND, {"prediction": prediction.to_dict()})


def check(path: str | Path, loss: float) -> str:
    """Compare a registered prediction with the loss that came out; a file that was changed since is refused."""
    content = unseal(path, KIND, "loopscale predict --register")
    stored = parse(RegisteredRecord, content.get("prediction"), f"{path}: prediction")
    interval = stored.interval
    answer = f"Measured {loss:.4f}, predicted {stored.loss:.4f} ({loss / stored.loss - 1:+.2%})"
    if interval is None:
        lines = [f"{answer}; no interval was registered.", ""]
    else:
        inside = "inside" if interval.low <= loss <= interval.high else "outside"
        lines = [f"{answer}: {inside} the interval.", "", *fact("interval", interval_text(interval.model_dump()))]
    return "\n".join([*lines, *fact("sealed", content["date"])])
