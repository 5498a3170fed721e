"""lm-eval's tasks: which there are, what they measure, and their data; each problem is one sentence."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tqdm import tqdm

from loopscale.core.errors import InputError, nearest, shown
from loopscale.evaluate.suites import NO_TRUST, Benchmark, TaskTrust
from loopscale.evaluate.task_checks import check_tasks, sandbox_templates

LOCAL_READERS = ("json", "csv", "parquet", "arrow", "text")
"""What ``dataset_path`` says when the data are files and not on the hub."""


def harness_version() -> str:
    """Return lm-eval's version without importing it."""
    try:
        return version("lm_eval")
    except PackageNotFoundError:
        raise InputError("lm-eval is not installed; pip install 'loopscale[eval]'") from None


@dataclass(frozen=True)
class Described:
    """What a task's configuration says, before any data."""

    name: str
    shots: int | None
    metrics: tuple[str, ...]
    """With filters, like ``exact_match,flexible-extract``; empty when only its code knows."""
    data: str


class Tasks:
    """The tasks that some benchmarks need. lm-eval's own 14,000 are indexed only if one of them is asked for."""

    def __init__(self, benchmarks: tuple[Benchmark, ...], trust: TaskTrust = NO_TRUST) -> None:
        folders = sorted({benchmark.folder for benchmark in benchmarks if benchmark.folder is not None})
        for folder in folders:
            check_tasks(folder, trust)
        stock = any(benchmark.folder is None for benchmark in benchmarks)
        self._manager = _manager(folders, stock)
        self._loaded: dict[str, Any] = {}
        for benchmark in benchmarks:
            self._check(benchmark)

    def leaves(self, name: str) -> list[Described]:
        """Return the tasks of a name: the task itself, or the members of a group."""
        return list(_leaves(self._manager.task_index, name))

    def load(self, benchmark: Benchmark) -> Any:
        """Return the loaded task or group, its data fetched if need be, with the benchmark's shots set."""
        if benchmark.task not in self._loaded:
            with quiet(), _data_errors(benchmark.task, self.leaves(benchmark.task)):
                self._loaded[benchmark.task] = self._manager.load([benchmark.task])
        loaded = self._loaded[benchmark.task]
        for task in loaded["tasks"].values():
            own = task.get_config("num_fewshot")
            task.set_config("num_fewshot", benchmark.shots if benchmark.shots is not None else own or 0)
        return loaded

    def _check(self, benchmark: Benchmark) -> None:
        """Refuse a task that lm-eval does not know, or a metric that the task does not have."""
        index = self._manager.task_index
        if benchmark.task not in index:
            near = (name for name in index if abs(len(name) - len(benchmark.task)) <= 3)  # all would take seconds
            raise InputError(
                f"task {shown(benchmark.task)} is not known to lm-eval {harness_version()}"
                f"{nearest(benchmark.task, near)}; give a task's name, paper, local, or a folder of task YAML"
            )
        entry = index[benchmark.task]
        if entry.kind.name == "TAG" or (entry.kind.name == "GROUP" and not entry.cfg.get("aggregate_metric_list")):
            members = sorted({leaf.name for leaf in self.leaves(benchmark.task)})
            names = ",".join(members[:4]) + (",…" if len(members) > 4 else "")
            raise InputError(f"{benchmark.task!r} is {len(members)} tasks without one result; name them: {names}")
        for leaf in self.leaves(benchmark.task) if benchmark.metric else ():
            if leaf.metrics and benchmark.metric not in leaf.metrics:
                raise InputError(
                    f"task {leaf.name!r} has no metric {shown(benchmark.metric)}"
                    f"{nearest(str(benchmark.metric), leaf.metrics)}; it has {' and '.join(leaf.metrics)}"
                )


def folder_tasks(folder: Path, trust: TaskTrust = NO_TRUST) -> list[str]:
    """Return the names of the tasks that a folder's YAML files define."""
    check_tasks(folder, trust)
    names: list[str] = _manager([folder.resolve()], stock=False).all_subtasks
    return names


class NullStream:
    """A stream that discards what is written to it."""

    def write(self, text: str) -> None:
        """Discard text."""

    def flush(self) -> None:
        """Do nothing."""


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the reports and bars of lm-eval and its libraries out of a command's output."""
    loggers = [logging.getLogger(name) for name in ("lm_eval", "datasets", "huggingface_hub", "transformers")]
    levels = [logger.level for logger in loggers]
    start = tqdm.__init__

    def hidden(bar: Any, *args: Any, **options: Any) -> None:
        start(bar, *args, **{**options, "file": NullStream()})  # vLLM divides by the time that a disabled bar lacks

    tqdm.__init__ = hidden  # lm-eval asks for its bars one by one, and no setting turns them off
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        tqdm.__init__ = start
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _manager(folders: list[Path], stock: bool) -> Any:
    harness_version()
    return _stock_manager() if stock and not folders else _new_manager(folders, stock)


@lru_cache(maxsize=1)
def _stock_manager() -> Any:
    """Return the manager of lm-eval's own tasks; reading their thousands of files takes seconds."""
    return _new_manager([], stock=True)


def _new_manager(folders: list[Path], stock: bool) -> Any:
    from lm_eval.tasks import TaskManager

    sandbox_templates()
    with quiet():
        return TaskManager(include_path=list(folders), include_defaults=stock)


def _leaves(index: Any, name: str) -> Iterator[Described]:
    entry = index.get(name)
    if entry is None:
        return
    if entry.kind.name == "TAG":
        for member in sorted(entry.tags):
            yield from _leaves(index, member)
    elif entry.kind.name == "GROUP":
        for member in entry.cfg.get("task") or ():
            yield from _leaves(index, member if isinstance(member, str) else member.get("task") or member["group"])
    else:
        yield _described(entry)


def _described(entry: Any) -> Described:
    config = entry.cfg or {}
    filters = [step["name"] for step in config.get("filter_list") or ()] or ["none"]
    metrics = [metric.get("metric") for metric in config.get("metric_list") or ()]
    named = tuple(f"{metric},{name}" for metric in metrics if isinstance(metric, str) for name in filters)
    path, part = config.get("dataset_path"), config.get("dataset_name")
    return Described(entry.name, config.get("num_fewshot"), named, ":".join(str(word) for word in (path, part) if word))


@contextmanager
def _data_errors(task: str, leaves: list[Described]) -> Iterator[None]:
    """Turn the many ways in which data can be out of reach into one sentence that says what to do."""
    try:
        yield
    except (OSError, ValueError, KeyError, ImportError, AttributeError, TypeError) as error:
        data = leaves[0].data if leaves else ""
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if data.partition(":")[0] in (*LOCAL_READERS, "") or not isinstance(error, OSError):
            raise InputError(
                f"task {task!r} cannot be loaded: {reason}; lm-eval looks for data_files where the command runs"
            ) from error
        raise InputError(
            f"task {task!r} needs the data set {data!r}, and the Hugging Face hub is out of reach; where it is not, "
            f"run HF_HOME=folder loopscale eval --tasks {task} --download, bring the folder here, and set "
            "HF_HOME=folder and HF_HUB_OFFLINE=1"
        ) from error
