"""lm-eval's tasks: which there are, what they measure, and their data; each problem is one sentence."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from loopscale.core import files
from loopscale.core.errors import InputError, nearest, shown
from loopscale.core.files import check_size, is_file
from loopscale.evaluate import human_eval
from loopscale.evaluate.suites import NO_TRUST, Benchmark, Trust

OWN_TASKS = Path(__file__).parent / "local"

READERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}


@dataclass(frozen=True)
class Text:
    """Documents with a name for tables and a hash for keys."""

    name: str
    documents: tuple[str, ...]

    @property
    def digest(self) -> str:
        """A hash of all documents."""
        whole = hashlib.sha256()
        for document in self.documents:
            whole.update(hashlib.sha256(document.encode()).digest())
        return whole.hexdigest()[:16]


def read_text(source: str, column: str = "text") -> Text:
    """Return the documents of a text file, of a JSONL, CSV or Parquet file, or of a data set NAME[:CONFIG[:SPLIT]]."""
    path = Path(source)
    if is_file(source) and path.suffix not in READERS:
        documents = [files.read_text(path)]
    elif is_file(source):
        documents = _column(READERS[path.suffix], source, column, data_files=source)
    elif path.suffix or "\0" in source:
        raise InputError(f"{shown(source)}: no such file")
    else:
        documents = _from_hub(source, column)
    kept = tuple(document for document in documents if document.strip())
    if not kept:
        raise InputError(f"{source}: it holds no text")
    return Text(path.name, kept)


@dataclass(frozen=True)
class Windows:
    """A text in tokens, cut into windows. Documents stand one after the other, an end-of-text token between them."""

    parts: tuple[list[int], ...]
    tokens_per_byte: float

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield token windows (B, T), padded on the right, and how many tokens of each count."""
        for start in range(0, len(self.parts), size):
            chosen = self.parts[start : start + size]
            lengths = torch.tensor([len(part) for part in chosen])
            padded = [part + [0] * (int(lengths.max()) - len(part)) for part in chosen]
            yield torch.tensor(padded), lengths


def cut(text: Text, tokenizer: Any, context: int) -> Windows:
    """Return the text's windows of ``context`` tokens."""
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    ids: list[int] = []
    for document in text.documents:
        ids += [*tokenizer(document, add_special_tokens=False, verbose=False)["input_ids"], *end]
    ids = ids[: len(ids) - len(end)]  # the text does not say what follows its last document
    parts = tuple(ids[start : start + context] for start in range(0, len(ids), context))
    kept = tuple(part for part in parts if len(part) > 1)
    if not kept:
        raise InputError(f"{text.name}: it has {len(ids)} tokens; a loss needs two or more")
    return Windows(kept, len(ids) / sum(len(document.encode()) for document in text.documents))


def _from_hub(source: str, column: str) -> list[str]:
    name, _, rest = source.partition(":")
    config, _, split = rest.partition(":")
    return _column(name, source, column, name=config or None, split=split or "test")


def _column(reader: str, source: str, column: str, split: str = "train", **options: Any) -> list[str]:
    import datasets

    try:
        with quiet():
            found = datasets.load_dataset(reader, split=split, **options)
    except ConnectionError as error:
        raise InputError(
            f"{source}: no such file, and the Hugging Face hub is out of reach; where it is not, fetch it with "
            f"HF_HOME=folder hf download --repo-type dataset {reader}, bring the folder here, and set HF_HOME=folder "
            "and HF_HUB_OFFLINE=1"
        ) from error
    except (OSError, ValueError, RuntimeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(f"{source}: cannot be read: {reason}") from error
    if column not in found.column_names:
        raise InputError(f"{source}: no column {column!r}; it has {', '.join(found.column_names)}")
    return [str(text) for text in found[column]]


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

    def __init__(self, benchmarks: tuple[Benchmark, ...], trust: Trust = NO_TRUST) -> None:
        folders = sorted({benchmark.folder for benchmark in benchmarks if benchmark.folder is not None})
        for folder in folders:
            check_tasks(folder, trust)
        stock = any(benchmark.folder is None for benchmark in benchmarks)
        self._manager = _manager(folders, stock)
        self._loaded: dict[str, Any] = {}
        for benchmark in benchmarks:
            self._check(benchmark)

    def leaves(self, name: str) -> list[Described]:
        """Return the tasks that a name stands for, itself or the members of a group."""
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
            raise InputError(
                f"{benchmark.task!r} is {len(members)} tasks with no result of their own; name them: {names}"
            )
        for leaf in self.leaves(benchmark.task) if benchmark.metric else ():
            if leaf.metrics and benchmark.metric not in leaf.metrics:
                raise InputError(
                    f"task {leaf.name!r} has no metric {shown(benchmark.metric)}"
                    f"{nearest(str(benchmark.metric), leaf.metrics)}; it has {' and '.join(leaf.metrics)}"
                )


def folder_tasks(folder: Path, trust: Trust = NO_TRUST) -> list[str]:
    """Return the names of the tasks that a folder's YAML files define."""
    check_tasks(folder, trust)
    found: list[str] = _manager([folder.resolve()], stock=False).all_subtasks
    return found


def check_tasks(folder: Path, trust: Trust) -> None:
    """Refuse a folder of tasks that would run its own code or fetch data from an address, unless the user allows it.

    Code can come from ``!function``, from a metric that lm-eval does not have (the ``evaluate`` package then loads one
    from the hub or a folder), and from a YAML file that is included from elsewhere. Addresses are those of data files;
    a data set that is named is looked up on the hub.
    """
    if (trust.code and trust.remote) or folder.resolve().is_relative_to(OWN_TASKS):
        return
    if folder == human_eval.home():
        if trust.code:
            return
        raise InputError("human-eval runs the programs that the model writes; give --trust-task-code to allow it")
    import lm_eval.api.metrics  # fills the registry
    from lm_eval.api.registry import METRIC_REGISTRY

    stock = Path(lm_eval.__file__).parent
    waiting, seen = [file.resolve() for file in sorted(folder.rglob("*.y*ml"))], set[Path]()
    while waiting:
        file = waiting.pop()
        if file in seen or file.is_relative_to(stock):
            continue
        seen.add(file)
        content = _yaml(file)
        reason = "" if trust.code else _code_in(content, set(METRIC_REGISTRY))
        if reason:
            raise InputError(f"{file}: {reason}, which runs code; give --trust-task-code if you trust this folder")
        address = "" if trust.remote or not isinstance(content, dict) else _address_in(content)
        if address:
            raise InputError(f"{file}: its data are at {shown(address)}; give --allow-remote to fetch them")
        included = content.get("include") if isinstance(content, dict) else None
        names = included if isinstance(included, list) else [included]
        waiting += [(file.parent / name).resolve() for name in names if isinstance(name, str)]


def _yaml(file: Path) -> Any:
    """Read a YAML file without making any object of its tags; a tagged value becomes a ``Tagged``."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Reads tags as text."""

    Loader.add_multi_constructor("", lambda loader, tag, node: Tagged(tag))
    try:
        check_size(file, 2**24)
        return yaml.load(file.read_text(encoding="utf-8"), Loader=Loader)
    except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError, ValueError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(f"{file}: cannot be read as YAML: {reason[0]}") from None


class Tagged(str):
    """The tag of a YAML value, such as ``!function``."""


def _code_in(content: Any, metrics: set[str]) -> str:
    """Return what in a task's YAML would run code, or an empty string."""
    if isinstance(content, Tagged):
        return f"it has the tag {shown(str(content))}"
    if isinstance(content, list):
        return next(filter(None, (_code_in(item, metrics) for item in content)), "")
    if isinstance(content, dict):
        metric = content.get("metric")
        if content.get("hf_evaluate") or (isinstance(metric, str) and metric not in metrics):
            return f"it uses the metric {shown(metric)} of the package evaluate"
        return next(filter(None, (_code_in(item, metrics) for item in content.values())), "")
    return ""


def _address_in(content: dict[str, Any]) -> str:
    """Return an address in the fields of a task that say where its data are, or an empty string."""
    waiting = [value for name, value in content.items() if name.startswith("dataset_")]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str) and "://" in value:
            return value
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return ""


def _sandbox_templates() -> None:
    """Let lm-eval render prompts in Jinja's sandbox: a template of a task must not reach Python's internals."""
    from jinja2.sandbox import SandboxedEnvironment
    from lm_eval import utils

    if not isinstance(utils.env, SandboxedEnvironment):
        sandbox = SandboxedEnvironment(
            loader=utils.env.loader,
            undefined=utils.env.undefined,
            keep_trailing_newline=utils.env.keep_trailing_newline,
        )
        sandbox.filters.update(utils.env.filters)
        utils.env = sandbox


class Nowhere:
    """A stream that forgets."""

    def write(self, text: str) -> None:
        """Take text."""

    def flush(self) -> None:
        """Do nothing."""


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the reports and bars of lm-eval and its libraries out of a command's output."""
    loggers = [logging.getLogger(name) for name in ("lm_eval", "datasets", "huggingface_hub", "transformers")]
    levels = [logger.level for logger in loggers]
    start = tqdm.__init__

    def hidden(bar: Any, *args: Any, **options: Any) -> None:
        start(bar, *args, **{**options, "file": Nowhere()})  # vLLM divides by the time that a disabled bar lacks

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

    _sandbox_templates()
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
