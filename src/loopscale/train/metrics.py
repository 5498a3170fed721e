"""Where the rows of metrics go: ``metrics.jsonl`` and trackers."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from loopscale.core.errors import InputError, MissingExtraError, StorageError, shown
from loopscale.core.files import flush_file, write_text


class Sink(Protocol):
    """A destination for rows of metrics."""

    def write(self, row: dict[str, Any]) -> None:
        """Store a row."""

    def sync(self) -> None:
        """Wait until the rows so far would survive a power cut, where loopscale writes them itself."""

    def close(self) -> None:
        """Flush and close."""


class JsonLines:
    """``metrics.jsonl``: one object a line. A run that resumes drops the rows after the step it resumes from."""

    def __init__(self, path: Path, step: int) -> None:
        earlier = []
        for number, line, row in _complete_lines(path) if path.is_file() else ():
            if row is None:
                warnings.warn(f"{path}: line {number} is damaged and was removed: {shown(line)}", stacklevel=3)
            elif row["step"] <= step:
                earlier.append(json.dumps(row) + "\n")
        write_text(path, "".join(earlier))
        self._path = path
        self._file = path.open("a", encoding="utf-8")

    def write(self, row: dict[str, Any]) -> None:
        """Append a row."""
        with self._naming_the_file():
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()

    def sync(self) -> None:
        """Bring all rows to the disk."""
        with self._naming_the_file():
            flush_file(self._file)

    @contextmanager
    def _naming_the_file(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"{self._path}: cannot be written: {error.strerror}; free some space and start again"
            ) from None

    def close(self) -> None:
        """Close the file."""
        flush_file(self._file)
        self._file.close()


def read_metrics(path: str | Path) -> list[dict[str, Any]]:
    """Return the rows of a ``metrics.jsonl``; a line that is not a row is refused by its number."""
    file = Path(path)
    if not file.is_file():
        raise InputError(f"{path}: no such file; give the metrics.jsonl of a run")
    rows = []
    for number, line, row in _complete_lines(file):
        if row is None:
            raise InputError(
                f"{path}: line {number} is not a row of metrics: {shown(line)}; remove the line, or resume the run, "
                "which does"
            )
        rows.append(row)
    return rows


def _complete_lines(path: Path) -> Iterator[tuple[int, bytes, dict[str, Any] | None]]:
    """Yield the lines that were written to their end: number, text, and the row, or None where it is not one."""
    content = path.read_bytes()
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        step = row.get("step") if isinstance(row, dict) else None
        yield number, line, row if isinstance(step, int) and not isinstance(step, bool) else None


class TensorBoard:
    """Scalars for TensorBoard, in ``<run>/tensorboard``."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        module = _tracker("torch.utils.tensorboard", "tensorboard")
        self._writer = module.SummaryWriter(str(folder / "tensorboard"))
        self._writer.add_text("config", json.dumps(config))

    def write(self, row: dict[str, Any]) -> None:
        """Log every number by its name."""
        for name, value in row.items():
            if isinstance(value, int | float) and name != "step":
                self._writer.add_scalar(name, value, row["step"])

    def sync(self) -> None:
        """Do nothing: TensorBoard writes in the background."""

    def close(self) -> None:
        """Flush."""
        self._writer.close()


class Wandb:
    """Weights & Biases, or trackio, which has the same interface."""

    def __init__(self, package: str, folder: Path, config: dict[str, Any]) -> None:
        self._module = _tracker(package, package)
        own = {"dir": str(folder), "resume": "allow", "id": folder.resolve().name} if package == "wandb" else {}
        self._run = self._module.init(project="loopscale", name=folder.resolve().name, config=config, **own)

    def write(self, row: dict[str, Any]) -> None:
        """Log a row at its step."""
        self._module.log({name: value for name, value in row.items() if name != "step"}, step=row["step"])

    def sync(self) -> None:
        """Do nothing: the tracker writes its own files."""

    def close(self) -> None:
        """Finish the run."""
        self._module.finish()


def open_sinks(folder: Path, step: int, track: tuple[str, ...], config: dict[str, Any]) -> list[Sink]:
    """Return where this run's rows go."""
    sinks: list[Sink] = [JsonLines(folder / "metrics.jsonl", step)]
    for name in track:
        sinks.append(TensorBoard(folder, config) if name == "tensorboard" else Wandb(name, folder, config))
    return sinks


def _tracker(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise MissingExtraError(
            f"[run]: field 'track' names {package!r}, which is not installed; pip install {package}"
        ) from None
