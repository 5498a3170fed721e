"""Runs of Weights & Biases: a project by its API, and charts and histories that were downloaded as CSV."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from inspect import signature
from typing import Any

from loopscale.core.errors import InputError, MissingExtraError, shown
from loopscale.fitting.data.columns import SUMMARIES, SYNONYMS, normal_name

PREFIX = "wandb:"
"""What an address of a project starts with: ``wandb:entity/project``."""
_SERIES = re.compile(r"(?P<run>.+) - (?P<metric>.+?)(?P<end>__MIN|__MAX)?")
_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)\s?([MB])(?![A-Za-z])")
_HISTORY = {"_step", "_timestamp"}

Columns = dict[str, list[Any]]
Path = tuple[str, ...]


def is_project(data: object) -> bool:
    """Tell whether ``data`` is the address of a project."""
    return isinstance(data, str) and data.startswith(PREFIX)


def project_records(address: str) -> list[dict[str, Any]]:
    """Return one record for each run of a project: its name, state, settings and last values."""
    try:
        import wandb
    except ImportError:
        raise MissingExtraError(
            "reading a W&B project needs the package 'wandb', which is not installed: pip install wandb, or download "
            "the runs table as CSV"
        ) from None
    try:
        query = wandb.Api().runs
        # By default newer versions send a second request for the settings and values of each run.
        whole: dict[str, Any] = {"lazy": False} if "lazy" in signature(query).parameters else {}
        runs = list(query(address.removeprefix(PREFIX), **whole))
    except Exception as error:  # no network, no login, no such project: each its own class
        raise InputError(f"cannot be read: {shown(str(error), 200)}", where=address) from None
    if not runs:
        raise InputError("the project has no runs", where=address)
    times = Counter(run.name for run in runs)
    # Without `_json_dict`, a summary opens the files and tables that it names.
    last = [getattr(run.summary, "_json_dict", run.summary) for run in runs]
    cells = [dict(_cells(run.config)) | dict(_cells(values)) for run, values in zip(runs, last, strict=True)]
    names = _names({path for row in cells for path in row})
    return [
        {
            "run": run.name if times[run.name] == 1 else f"{run.name} ({run.id})",
            "state": run.state,
            **{names[path]: cell for path, cell in row.items()},
        }
        for run, row in zip(runs, cells, strict=True)
    ]


def _cells(values: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yield settings or last values with their names, outermost first; ``_step`` and such are W&B's own."""
    for name, value in values.items():
        if name.startswith("_"):
            continue
        if isinstance(value, Mapping):
            yield from _cells(value, (*path, name))
        elif isinstance(value, int | float | str):
            yield (*path, name), value


def _names(paths: Collection[Path]) -> dict[Path, str]:
    """Return the column of each name: its last part, or all parts where two would share a column.

    The value of a metric under ``min`` or ``last``, as its summary is defined, keeps the name of the metric too.
    """
    times = Counter(path[-1] for path in paths)
    own = {path: len(path) == 1 or (times[path[-1]] == 1 and path[-1] not in SUMMARIES) for path in paths}
    return {path: path[-1] if own[path] else ".".join(path) for path in paths}


def is_chart(header: Sequence[str]) -> bool:
    """Tell whether a CSV is a chart that was downloaded: a column for each run."""
    return any(name.endswith(("__MIN", "__MAX")) and " - " in name for name in header)


def chart_records(columns: Columns, source: str) -> list[dict[str, Any]]:
    """Return one record for each run of a chart: its last value, and its size if its name tells.

    A chart has no settings, so that it can only be used where tokens are along its axis and sizes are in the names.
    """
    axis, *others = columns
    series = [(name, match) for name in others if (match := _SERIES.fullmatch(name)) and not match["end"]]
    sizes = [set(_SIZE.findall(match["run"])) for _, match in series]
    if normal_name(axis) not in SYNONYMS["tokens"] or not series or any(len(size) != 1 for size in sizes):
        raise InputError(
            "a W&B chart export: it has losses by step, but neither sizes nor tokens of the runs",
            where=source, remedy="export the runs table instead (project, Runs, download as CSV)",
        )  # fmt: skip
    records = []
    for (name, match), size in zip(series, sizes, strict=True):
        cells = [(x, y) for x, y in zip(columns[axis], columns[name], strict=True) if str(y).strip()]
        if cells:
            number, unit = size.pop()
            records.append(
                {"run": match["run"], "params": f"{number}{unit}", axis: cells[-1][0], match["metric"]: cells[-1][1]}
            )
    return records


def is_history(names: Sequence[str]) -> bool:
    """Tell whether a table is the history of runs: a row for each step, with W&B's own columns."""
    return set(names) >= _HISTORY


def last_rows(columns: Columns) -> tuple[Columns, list[int]]:
    """Return the last row of each run of a history that has a loss, and which rows they are.

    A row holds what was logged at that step: a cell that is empty takes the last value of its run.
    """
    run = next((name for name in columns if normal_name(name) in SYNONYMS["run"]), None)
    losses = [name for name in columns if normal_name(name) in SYNONYMS["loss"]]
    preferred = next((known for known in SYNONYMS["loss"] if known in map(normal_name, losses)), "")
    evaluated = [name for name in losses if normal_name(name) == preferred]
    seen: dict[str, dict[str, Any]] = {}
    last: dict[str, tuple[int, dict[str, Any]]] = {}
    for k, row in enumerate(_rows(columns)):
        key = "" if run is None else str(row[run])
        known = seen.setdefault(key, {})
        known.update({name: cell for name, cell in row.items() if _filled(cell)})
        if not evaluated or any(_filled(row[name]) for name in evaluated):
            last[key] = k, dict(known)
    chosen = list(last.values())
    return {name: [row.get(name) for _, row in chosen] for name in columns}, [k for k, _ in chosen]


def _rows(columns: Columns) -> Iterator[dict[str, Any]]:
    for cells in zip(*columns.values(), strict=True):
        yield dict(zip(columns, cells, strict=True))


def _filled(cell: Any) -> bool:
    return cell is not None and str(cell).strip().lower() not in ("", "nan")
