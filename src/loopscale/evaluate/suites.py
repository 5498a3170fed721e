"""Suites: which tasks, with which shots and metrics, and the means over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from loopscale.core.errors import InputError, nearest, shown
from loopscale.core.files import read_toml
from loopscale.core.schemas import File, Record, parse
from loopscale.evaluate import bigbench, human_eval

DATA = Path(__file__).parent / "data"
SCHEMA = 1
OVERALL = "Overall"


@dataclass(frozen=True)
class TaskTrust:
    """What a folder of tasks may do."""

    code: bool = False
    """Run its own Python code."""
    remote: bool = False
    """Fetch data from the addresses that it names."""


NO_TRUST = TaskTrust()


@dataclass(frozen=True)
class Benchmark:
    """One task as a table's column."""

    label: str
    task: str
    """lm-eval's name of a task or a group of tasks."""
    shots: int | None = None
    """Examples in the prompt; None leaves it to the task."""
    metric: str | None = None
    """Metric and filter as lm-eval writes them, like ``exact_match,flexible-extract``; None: its main one."""
    category: str = ""
    scored: bool = True
    """Whether it counts in the overall mean."""
    folder: Path | None = None
    """Where the task's YAML is; None for lm-eval's own tasks."""


class BenchmarkRecord(Record):
    """One task as a column of the results table."""

    task: str
    """lm-eval's name of a task or a group of tasks."""
    label: str | None = None
    """The column's title; by default the task's name."""
    shots: int | None = Field(default=None, ge=0)
    """Examples in the prompt; by default what the task states."""
    metric: str | None = None
    """Metric and filter as lm-eval writes them, like ``exact_match,flexible-extract``; by default the main one."""
    category: str = ""
    scored: bool = True
    """Whether it counts in the overall mean."""


class SuiteFile(File):
    """Benchmarks in the order of the table."""

    KIND, VERSION = "suite", 1

    name: str
    folder: str | None = None
    """Where the tasks' YAML files are, beside this file; absent for lm-eval's own tasks."""
    benchmark: list[BenchmarkRecord]


@dataclass(frozen=True)
class Suite:
    """Benchmarks in the order of the table."""

    name: str
    benchmarks: tuple[Benchmark, ...]

    def categories(self) -> dict[str, list[Benchmark]]:
        """Return the scored benchmarks of each category that has several."""
        named: dict[str, list[Benchmark]] = {}
        for benchmark in self.benchmarks:
            if benchmark.scored and benchmark.category:
                named.setdefault(benchmark.category, []).append(benchmark)
        return {name: members for name, members in named.items() if len(members) > 1}

    def means(self, scores: Mapping[str, float]) -> dict[str, float]:
        """Return the mean of each category and of all, where every score (by label) is known."""
        groups = {**self.categories(), OVERALL: [benchmark for benchmark in self.benchmarks if benchmark.scored]}
        labels = {name: [benchmark.label for benchmark in members] for name, members in groups.items()}
        return {
            name: sum(scores[label] for label in members) / len(members)
            for name, members in labels.items()
            if members and all(label in scores for label in members)
        }


def builtin_suites() -> tuple[str, ...]:
    """Return the names of the built-in suites."""
    return tuple(sorted(path.stem for path in DATA.glob("*.toml")))


def load_suite(name: str | Path) -> Suite:
    """Return a suite that comes along, by name, or one from a TOML file."""
    path = DATA / f"{name}.toml" if str(name) in builtin_suites() else Path(name)
    if not path.exists():
        raise InputError(f"no such file{nearest(str(path), builtin_suites())}", where=str(path))
    suite = parse(SuiteFile, read_toml(path), str(path))
    home = None if suite.folder is None else _task_folder(path, suite.folder)
    benchmarks = [
        Benchmark(one.label or one.task, one.task, one.shots, one.metric, one.category, one.scored, home)
        for one in suite.benchmark
    ]
    if not benchmarks:
        raise InputError(
            "the suite has no benchmarks", where=str(path), remedy="add [[benchmark]] tables with a label and a task"
        )
    return Suite(suite.name, tuple(benchmarks))


def select(text: str, folder_tasks: Callable[[Path], list[str]]) -> Suite:
    """Return the suite that ``--tasks`` names: suites, task names and folders of task YAML, joined by commas.

    ``folder_tasks`` lists the tasks that a folder defines; only lm-eval can tell.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise InputError(f"tasks: {shown(text)} names none; write paper, local, task names or a folder of task YAML")
    named = [benchmark for word in words for benchmark in _named(word, folder_tasks)]
    once = {(benchmark.task, benchmark.folder): benchmark for benchmark in named}
    return Suite(words[0] if len(words) == 1 else "selection", tuple(once.values()))


def _named(word: str, folder_tasks: Callable[[Path], list[str]]) -> list[Benchmark]:
    path = Path(word)
    suite, _, task = word.partition(":")
    if suite == bigbench.NAME and not path.exists():
        names = (bigbench.known(task),) if task else tuple(bigbench.TASKS)
        folder = bigbench.task_folder(names)
        return [
            Benchmark(name, f"{bigbench.NAME}_{name}", bigbench.SHOTS, bigbench.METRIC, "BBH", folder=folder)
            for name in names
        ]
    if word == human_eval.NAME and not path.exists():
        return [Benchmark(word, human_eval.TASK, 0, human_eval.METRIC, "Code", folder=human_eval.task_folder())]
    if word in builtin_suites() or path.suffix == ".toml":
        return list(load_suite(word).benchmarks)
    if not path.is_dir():
        return [Benchmark(word, word)]
    tasks = folder_tasks(path)
    if not tasks:
        raise InputError("no task found there", where=word, remedy="it should hold .yaml files as lm-eval reads them")
    return [Benchmark(name, name, folder=path.resolve()) for name in tasks]


def _task_folder(path: Path, folder: str) -> Path:
    """Return the folder that a suite's tasks live in: ours beside the data, others beside their file."""
    home = (path.parent.parent if path.parent == DATA else path.parent) / folder
    if not home.is_dir():
        raise InputError(
            f"field 'folder' is {shown(folder)}, and there is no such folder beside the file", where=str(path)
        )
    return home.resolve()
