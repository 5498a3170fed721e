"""Registered predictions: written with a date and a hash before a run is trained, and checked against its loss."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loopscale.core.errors import InputError
from loopscale.core.files import finite, read_json, write_json
from loopscale.planning.predictions import Prediction
from loopscale.planning.text import interval_text

KIND = "registered-prediction"


def register(prediction: Prediction, path: str | Path) -> None:
    """Write a prediction with its date and a hash, before the run is trained; an existing file is not replaced."""
    if Path(path).exists():
        raise InputError(f"{path}: it exists already; a registered prediction is not replaced, name another file")
    content = {
        "kind": KIND,
        "schema": 1,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "prediction": prediction.to_dict(),
    }
    write_json(path, {**content, "sha256": _digest(content)})


def check(path: str | Path, loss: float) -> str:
    """Compare a registered prediction with the loss that came out; a file that was changed since is refused."""
    data = read_json(path)
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise InputError(f"{path}: this is not a registered prediction; write one with `loopscale predict --register`")
    content = {name: value for name, value in data.items() if name != "sha256"}
    if data.get("sha256") != _digest(content):
        raise InputError(f"{path}: its content does not match its hash; the file was changed after it was written")
    stored = content["prediction"]
    interval = stored.get("interval")
    error = f"predicted {stored['loss']:.4f}, measured {loss:.4f} ({loss / stored['loss'] - 1:+.2%})"
    if interval is None:
        return f"Registered {content['date']}: {error}; no interval was registered."
    inside = "inside" if interval["low"] <= loss <= interval["high"] else "outside"
    return f"Registered {content['date']}: {error}; {inside} the {interval_text(interval)}."


def _digest(content: dict[str, Any]) -> str:
    text = json.dumps(finite(content), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
