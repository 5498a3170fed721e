"""A finished run, for those who use its model: nothing here loads torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loopscale.files import read_json, versioned

SUMMARY, SCHEMA = "training summary", 1


def read_summary(run: Path) -> dict[str, Any] | None:
    """Return the summary in a run's folder, or None where there is none."""
    path = run / "summary.json"
    if not path.is_file():
        return None
    data = read_json(path)
    versioned(data, str(path), SUMMARY, SCHEMA).take("tokens", int)  # what everyone here asks it for
    assert isinstance(data, dict)
    return data


def model_of(folder: str | Path) -> Path:
    """Return the folder of the model: a run's folder stands for the model that the run left in it."""
    where, left = Path(folder), Path(folder) / "model"
    return left if (left / "config.json").is_file() and not (where / "config.json").is_file() else where


def run_of(model: Path) -> Path | None:
    """Return the folder of the run that left this model there, or None."""
    run = model.absolute().parent
    return run if model.name == "model" and (run / "run.json").is_file() else None
