"""Folders of runs: Hugging Face trainers and TensorBoard event files, one row for each run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loopscale.core.errors import InputError, MissingExtraError, shown
from loopscale.core.files import read_json

STATE = "trainer_state.json"
EVENTS = "events.out.tfevents"
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")


def is_run_folder(path: str | Path) -> bool:
    """Tell whether ``path`` is a trainer's state, or a folder with states or event files somewhere inside."""
    try:
        target = Path(path)
        if target.name == STATE:
            return target.is_file()
        return target.is_dir() and bool(_states(target) or _event_folders(target))
    except (OSError, ValueError):  # too long for a path, or with a zero byte
        return False


def run_records(path: str | Path) -> list[dict[str, Any]]:
    """Return one record for each run: its name, size, tokens and last losses, as far as its files state them."""
    target = Path(path)
    if target.name == STATE:
        return [_trainer_record(target, target.parent.name or "run")]
    if states := _states(target):
        return [_trainer_record(state, name) for name, state in states.items()]
    return [_event_record(folder, str(folder.relative_to(target))) for folder in _event_folders(target)]


def _states(folder: Path) -> dict[str, Path]:
    """Return the last state of each run: checkpoints of one run are in folders called checkpoint-STEP."""
    last: dict[str, tuple[int, Path]] = {}
    for state in sorted(folder.rglob(STATE)):
        match = _CHECKPOINT.fullmatch(state.parent.name)
        run = state.parent.parent if match else state.parent
        step = int(match[1]) if match else 10**18  # the run's own folder holds its final state
        name = run.name if run == folder else str(run.relative_to(folder))
        if step >= last.get(name, (-1, state))[0]:
            last[name] = step, state
    return {name: state for name, (_, state) in last.items()}


def _trainer_record(path: Path, name: str) -> dict[str, Any]:
    """Read a state of Hugging Face's Trainer, and the size of the model from config.json beside or above it."""
    state = read_json(path)
    if not isinstance(state, Mapping) or not isinstance(state.get("log_history"), list):
        raise InputError("not a state of a Hugging Face Trainer: it has no list `log_history`", where=str(path))
    record: dict[str, Any] = {"run": name}
    for entry in (entry for entry in state["log_history"] if isinstance(entry, Mapping)):
        record |= {field: entry[field] for field in ("eval_loss", "train_loss", "num_input_tokens_seen")
                   if isinstance(entry.get(field), int | float)}  # fmt: skip
        if isinstance(entry.get("loss"), int | float):
            record["train_loss"] = entry["loss"]
    for field, column in (("num_input_tokens_seen", "num_input_tokens_seen"), ("total_flos", "flops")):
        if isinstance(state.get(field), int | float) and state[field] > 0:
            record[column] = state[field]
    config = next((folder / "config.json" for folder in (path.parent, path.parent.parent)
                   if (folder / "config.json").is_file()), None)  # fmt: skip
    if config is not None:
        from loopscale.architecture import read_config  # which few tables need

        model = read_config(str(config))
        record |= {"N_act (raw)": float(model.active), "N_total (raw)": float(model.total), "E": model.experts}
    return record


def _event_folders(folder: Path) -> list[Path]:
    return sorted({events.parent for events in folder.rglob(f"{EVENTS}*")})


def read_events(folder: Path) -> Any:
    """Return the events of a TensorBoard folder, loaded."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        raise MissingExtraError(
            "reading TensorBoard files needs the package 'tensorboard', which is not installed: pip install tensorboard"
        ) from None
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def _event_record(folder: Path, name: str) -> dict[str, Any]:
    """Return the last value of every scalar of a TensorBoard run, and of its hyper-parameters as JSON, if any."""
    events = read_events(folder)
    record: dict[str, Any] = {"run": folder.name if name == "." else name}
    for tag in events.Tags()["scalars"]:
        record[tag] = events.Scalars(tag)[-1].value
    parameters = folder / "config.json"
    if parameters.is_file():
        try:
            values = json.loads(parameters.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"not JSON: {shown(str(error))}", where=str(parameters)) from None
        record |= {key: value for key, value in values.items() if isinstance(value, int | float | str)}
    return record
