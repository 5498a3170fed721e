"""Check what loopscale wrote, from end to end: checksums, schema, provenance and values that are not finite.

``verify`` takes a file (law, fit, plan, results, table of runs) or a folder (run, sweep, token store, model,
results). It yields one ``Check`` for each thing checked, and for each thing that could not be checked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from loopscale.core.errors import InputError, LoopscaleError, StorageError, check_extra, shown
from loopscale.core.files import CHECKSUM, SEAL, check_seal, kind_of, read_json


class Outcome(Enum):
    """What a check showed."""

    GOOD = "ok"
    BAD = "damaged"
    UNKNOWN = "not checked"


@dataclass(frozen=True)
class Check:
    """One thing that was checked, or could not be."""

    what: str
    outcome: Outcome
    detail: str = ""


def verify(path: str | Path) -> Iterator[Check]:
    """Yield the checks of a file or folder, by its content."""
    where = Path(path)
    try:
        exists = where.exists()
    except (OSError, ValueError):  # too long for a path, or with a zero byte
        exists = False
    if not exists:
        raise InputError("no such file or folder", where=shown(str(path)))
    if where.is_file():
        if where.suffix == ".json":
            yield _json(where, _load)
        else:
            yield _table(where)
            yield Check(where.name, Outcome.UNKNOWN, "tables have no checksum: a changed digit cannot be found")
        return
    kinds = [check for name, check in FOLDERS.items() if any(where.glob(name))]
    if not kinds:
        names = ", ".join(FOLDERS)
        raise InputError(
            f"not a run, sweep, token store, model or results of loopscale: none of {names} is there", where=str(path)
        )
    for check in kinds:
        yield from check(where)


def verified(path: str | Path) -> tuple[str, ...]:
    """Return each check of ``verify`` as a sentence; damage is raised."""
    sentences = []
    for check in verify(path):
        if check.outcome is Outcome.BAD:
            raise StorageError(f"{path}: {check.what}: {check.detail}")
        sentences.append(f"{check.what}: {check.outcome.value}, {check.detail}")
    return tuple(sentences)


def _checked(what: str, action: Callable[[], str]) -> Check:
    """Run one check, which returns what it covered, or raises an error of ours where something is damaged."""
    try:
        return Check(what, Outcome.GOOD, action())
    except LoopscaleError as error:
        return Check(what, Outcome.BAD, str(error))


def _json(path: Path, read: Callable[[Path], Any]) -> Check:
    """Check a JSON file of ours: its checksum, its schema, and that its numbers are finite."""

    def check() -> str:
        read_json(path)
        raw = json.loads(path.read_text(encoding="utf-8"))
        read(path)
        _refuse_nonfinite(raw, path)
        return "checksum, schema and values" if isinstance(raw, dict) and CHECKSUM in raw else ""

    result = _checked(path.name, check)
    if result.outcome is Outcome.GOOD and not result.detail:
        reason = "schema and values are right; it has no checksum, so a changed digit cannot be found"
        return Check(path.name, Outcome.UNKNOWN, reason)
    return result


def _load(path: Path) -> Any:
    """Read a file of any kind that a command writes."""
    from loopscale.saved import load

    kind = kind_of(read_json(path), str(path))
    return READERS[kind](path) if kind in READERS else load(path)


def _groups(path: Path) -> None:
    from loopscale.core.schemas import parse
    from loopscale.scaling import ScalingLaw
    from loopscale.scaling.schema import GroupedLawFile

    for name in parse(GroupedLawFile, read_json(path), str(path)).laws:
        ScalingLaw.load(path, name)


def _sealed(path: Path) -> None:
    from loopscale.core.sealed import unseal

    unseal(path, kind_of(read_json(path), str(path)), "--register")


def _golden(path: Path) -> None:
    from loopscale.model.conformance import read_golden

    read_golden(path)


READERS: dict[str, Callable[[Path], None]] = {
    "grouped-law": _groups, "registered-forecast": _sealed, "registered-prediction": _sealed, "conformance": _golden,
}  # fmt: skip
"""How files are read that ``loopscale.load`` does not open."""


def _refuse_nonfinite(value: Any, path: Path) -> None:
    """Refuse NaN and infinities, which strict JSON does not allow but Python reads."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            _refuse_nonfinite(item, path)
    elif isinstance(value, float) and not math.isfinite(value):
        raise InputError("it holds a number that is not finite", where=str(path))


def _table(path: Path) -> Check:
    from loopscale.fitting import Observations

    def check() -> str:
        observations = Observations.of(path, strict=True)
        return f"{len(observations)} losses of {len(observations.runs)} runs, all finite"

    return _checked(path.name, check)


def _run(folder: Path) -> Iterator[Check]:
    check_extra("train", "checking a run")
    from loopscale.train.run_dir import read_summary, stored_config

    yield _json(folder / "run.json", lambda _: stored_config(folder))
    if (folder / "summary.json").is_file():
        yield _json(folder / "summary.json", lambda _: _check_summary(read_summary(folder), folder))
    else:
        yield Check("summary.json", Outcome.UNKNOWN, "the run is not finished")
    if (folder / "metrics.jsonl").is_file():
        yield _checked("metrics.jsonl", lambda: _metrics(folder / "metrics.jsonl"))
    yield from _run_tokens(folder)
    yield from _checkpoints(folder)
    if (folder / "model").is_dir():
        yield from _model(folder / "model")


def _run_tokens(folder: Path) -> Iterator[Check]:
    """Check the tokens that a run was trained on, where they still are, and that they are those of its summary."""
    from loopscale.train.data.stores import stored_tokens
    from loopscale.train.run_dir import read_summary, stored_config

    try:
        config, summary = stored_config(folder), read_summary(folder)
        store = None if config is None else stored_tokens(config)
    except LoopscaleError as error:
        yield Check("tokens", Outcome.UNKNOWN, str(error))
        return
    if store is None:
        yield Check("tokens", Outcome.UNKNOWN, "what the run was trained on is not here")
        return

    def check() -> str:
        store.verify()
        if summary is not None and summary.get("data") not in (None, store.digest):
            raise InputError(f"{store.folder}: these are other tokens than the run was trained on")
        return "checksums of what the run was trained on"

    yield _checked("tokens", check)


def _check_summary(summary: dict[str, Any] | None, folder: Path) -> None:
    loss = (summary or {}).get("validation_loss")
    if isinstance(loss, bool) or not isinstance(loss, int | float) or not math.isfinite(loss):
        raise InputError(f"{folder / 'summary.json'}: validation_loss is {loss!r}; it should be a finite number")


def _metrics(path: Path) -> str:
    """Check that every line is an object whose steps rise; the last line may be incomplete after a kill."""
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            if number == len(lines):
                return "the last line is incomplete, as after a kill; a resumed run repairs it"
            raise InputError(f"{path}: line {number} is not JSON") from None
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise InputError(f"{path}: line {number} has no step")
    return f"{sum(1 for line in lines if line.strip())} rows; they have no checksum and are not used by fits"


def _checkpoints(folder: Path) -> Iterator[Check]:
    from loopscale.train import checkpoints

    folders = sorted(path for path in (folder / "checkpoints").glob("step-*") if path.is_dir())
    for path in folders:

        def check(path: Path = path) -> str:
            checkpoints.verify(path)
            return "checksums"

        yield _checked(f"checkpoints/{path.name}", check)
    if not folders:
        yield Check("checkpoints", Outcome.UNKNOWN, "there is none")


def _model(folder: Path) -> Iterator[Check]:
    files = _checked(f"{folder.name}: files", lambda: "checksums of all files" if check_seal(folder) else "")
    if files.outcome is Outcome.GOOD and not files.detail:
        files = Check(files.what, Outcome.UNKNOWN, f"it has no {SEAL}, so changed bytes cannot be found")
    yield files
    yield _checked(f"{folder.name}: weights", lambda: _finite_weights(folder))


def _finite_weights(folder: Path) -> str:
    """Read every tensor and refuse values that are not finite."""
    check_extra("train", "checking weights")
    from loopscale.model.loading import check_finite_files

    return f"{check_finite_files(folder)} tensors, all finite"


def _tokens(folder: Path) -> Iterator[Check]:
    check_extra("train", "checking tokens")
    from loopscale.train.data.token_store import TokenStore

    def check() -> str:
        store = TokenStore.open(folder)
        store.verify()
        return f"{sum(store.tokens.values()):,} tokens, checksums of every shard"

    yield _checked("tokens", check)


def _sweep(folder: Path) -> Iterator[Check]:
    check_extra("train", "checking a sweep")
    from loopscale.sweep.store import Store, run_folder

    def check() -> str:
        with Store(folder) as store:
            state = store.database().row("PRAGMA integrity_check")
            if state is None or state[0] != "ok":
                raise InputError(f"{folder}: the database is damaged: {state and state[0]}")
            rows = list(store.observations())
        _check_one_text(rows, folder)
        compared = sum(_observation(run_folder(folder, run), D, loss, facts) for run, D, loss, facts in rows)
        alone = len(rows) - compared
        unknown = f"; {alone} cannot be verified: their runs left no summary" if alone else ""
        return f"{len(rows)} observations; {compared} compared with the summaries of their runs{unknown}"

    yield _checked("sweep.sqlite", check)


def _check_one_text(rows: list[tuple[str, int, float, dict[str, Any]]], folder: Path) -> None:
    """Refuse runs of the same [data] settings that were trained on different data."""
    first: dict[str, tuple[str, Any]] = {}
    for run, _, _, facts in rows:
        config = facts.get("config")
        settings = json.dumps(config.get("data") if isinstance(config, dict) else None, sort_keys=True)
        other, digest = first.setdefault(settings, (run, facts.get("data")))
        if facts.get("data") != digest:
            raise InputError(f"{folder}: the runs {other} and {run} were trained on different data")


def _observation(run: Path, tokens: int, loss: float, facts: dict[str, Any]) -> bool:
    """Check one observation against itself and the summary that its run left; False where there is none."""
    if not math.isfinite(loss) or facts.get("validation_loss") != loss or facts.get("tokens") != tokens:
        raise InputError(f"{run}: the database's loss {loss!r} at {tokens} tokens contradicts its own facts")
    path = run / f"D{tokens}" / "summary.json"
    if not path.is_file():
        return False
    summary = read_json(path)
    for name, value in summary.items() if isinstance(summary, dict) else ():
        if name != "checksum" and (name not in facts or facts[name] != value):
            stored = repr(facts[name]) if name in facts else "missing"
            raise InputError(f"{path}: {name} is {value!r} here and {stored} in the database")
    return True


def _results(folder: Path) -> Iterator[Check]:
    for path in sorted(folder.glob("*/*.result.json")):
        yield _json(path, _load)


FOLDERS: dict[str, Callable[[Path], Iterator[Check]]] = {
    "run.json": _run,
    "sweep.sqlite": _sweep,
    "index.json": _tokens,
    "config.json": _model,
    "*/*.result.json": _results,
}
"""What checks a folder, by the file that shows what the folder is."""
