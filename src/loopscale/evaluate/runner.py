"""Evaluate a checkpoint: every task at every recurrence, each finished pair kept at once."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from loopscale.core.errors import InputError
from loopscale.evaluate.store import EvaluatedModel, Key, Result, ResultStore, Score, contents_hash
from loopscale.evaluate.suites import Benchmark, select
from loopscale.evaluate.tasks import Tasks, folder_tasks, harness_version, quiet

if TYPE_CHECKING:
    from loopscale.train.config import TrainConfig
    from loopscale.train.data.token_store import TokenStore

SEED = 1234
"""lm-eval's own seed of few-shot examples, numpy and torch."""
BOOTSTRAPS = 1000
"""For metrics that are not plain means; a mean's standard error is exact."""


class EvalProgress(Protocol):
    """Receives the progress of an evaluation."""

    def now(self, what: str, done: int = 0) -> None:
        """Receive the current task and how many of its requests are finished."""

    def finished(self, results: int = 1) -> None:
        """Receive the number of new results."""


@dataclass(frozen=True)
class EarlyExit:
    """When tokens leave the loop: ``loopscale.model.Exit`` without importing torch."""

    criterion: str
    threshold: float


@dataclass(frozen=True)
class EvalSettings:
    """How to evaluate. Everything but the batch size is part of a result's key."""

    backend: str
    dtype: str
    batch: int
    context: int | None = None
    limit: int | None = None
    exit: EarlyExit | None = None
    kv: str | None = None
    """A smaller KV cache for the loss on a text: "passes:1" sets the model's ``kept_passes``, "window:64" its
    ``kept_window``."""

    @property
    def at_one_recurrence(self) -> bool:
        """Whether these settings are evaluated at the largest recurrence only."""
        return self.exit is not None or self.kv is not None

    def plain(self) -> dict[str, Any]:
        """Return all but the batch size as plain values."""
        # Results that were stored before caches could be chosen are found as those of the whole cache.
        left_out = ("batch",) if self.kv is not None else ("batch", "kv")
        return {key: value for key, value in asdict(self).items() if key not in left_out}

    def of(self, benchmark: Benchmark) -> dict[str, Any]:
        """Return everything that the result of a benchmark depends on, as plain values."""
        definition = None
        if benchmark.folder is not None:  # an edited task is another task
            files = (file for file in benchmark.folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
            definition = contents_hash(sorted(files))[:16]
        own = {"shots": benchmark.shots, "definition": definition}
        return {**self.plain(), **own, "lm_eval": harness_version(), "seed": SEED}


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint to evaluate."""

    path: str
    tokenizer: str | None
    model: EvaluatedModel
    as_trained: bool = False
    """Evaluate it at the recurrence that it was trained with, unless others are named."""


@dataclass(frozen=True)
class Pair:
    """One (task, recurrence) of one checkpoint."""

    benchmark: Benchmark
    key: Key


def plan_pairs(
    model: EvaluatedModel, benchmarks: Sequence[Benchmark], recurrences: Sequence[int], settings: EvalSettings
) -> list[Pair]:
    """Return what is to be evaluated, recurrence by recurrence: vLLM makes an engine for each."""
    own = {benchmark: settings.of(benchmark) for benchmark in benchmarks}
    return [
        Pair(benchmark, Key(model.checkpoint, benchmark.task, recurrence, own[benchmark]))
        for recurrence in recurrences
        for benchmark in benchmarks
    ]


def evaluate(
    checkpoint: Checkpoint,
    pairs: Sequence[Pair],
    settings: EvalSettings,
    store: ResultStore,
    tasks: Callable[[], Tasks],
    progress: EvalProgress,
) -> list[Result]:
    """Return the results of all pairs; those that the store lacks are measured and kept there one by one."""
    pending = [pair for pair in pairs if store.find(pair.key) is None]
    progress.finished(len(pairs) - len(pending))
    if pending:
        _measure(checkpoint, pending, settings, store, tasks(), progress)
    results = [store.find(pair.key) for pair in pairs]
    return [result for result in results if result is not None]


def _measure(
    checkpoint: Checkpoint,
    pending: Sequence[Pair],
    settings: EvalSettings,
    store: ResultStore,
    tasks: Tasks,
    progress: EvalProgress,
) -> None:
    """Fetch all data first, load the model once, and evaluate the pairs one by one."""
    from loopscale.evaluate import lm

    for pair in pending:
        progress.now(f"data of {pair.benchmark.label}")
        tasks.load(pair.benchmark)
    make = {"hf": lm.hugging_face, "vllm": lm.vllm_engine}[settings.backend]
    with quiet():
        at = make(checkpoint.path, checkpoint.tokenizer, settings.dtype, settings.batch, settings.context)
        store.add_model(checkpoint.model)
        engine, current = None, 0
        for pair in pending:
            if pair.key.recurrence != current:
                del engine  # it holds its memory until it is collected
                gc.collect()
                engine, current = at(pair.key.recurrence), pair.key.recurrence
            store.add(_run(engine, tasks.load(pair.benchmark), pair, settings, progress.now))
            progress.finished()


def while_training(config: TrainConfig) -> Callable[[Any, TokenStore], dict[str, float]]:
    """Return what a trainer calls with its model and tokens for the scores of ``[run] eval_tasks``, by label.

    All data are fetched now, so that a task that cannot run stops a run before its first step.
    """
    run = config.run
    suite = select(run.eval_tasks or "", folder_tasks)
    tasks = Tasks(suite.benchmarks)
    for benchmark in suite.benchmarks:
        tasks.load(benchmark)
    settings = EvalSettings("hf", "float32", run.batch, limit=run.eval_limit)

    def scores(model: Any, store: TokenStore) -> dict[str, float]:
        from loopscale.evaluate.lm import LoopedLM

        model.eval()
        with quiet():
            lm = LoopedLM(model, tokenizer=store.tokenizer(), batch_size=run.batch, max_length=config.data.context)
            by_label = {}
            for benchmark in suite.benchmarks:
                pair = Pair(benchmark, Key("in training", benchmark.task, config.model.recurrence, {}))
                result = _run(lm, tasks.load(benchmark), pair, settings)
                by_label[benchmark.label] = result.scores[benchmark.metric or next(iter(result.scores))].value
        return by_label

    return scores


def _run(
    lm: Any, loaded: Any, pair: Pair, settings: EvalSettings, now: Callable[[str, int], None] = lambda *_: None
) -> Result:
    """Evaluate one task at one recurrence; ``now`` is called with what runs and how many requests are finished."""
    from lm_eval.evaluator import evaluate as run_harness

    from loopscale.evaluate.lm import listening

    name, start = f"{pair.benchmark.label} at R = {pair.key.recurrence}", time.monotonic()
    count = _start_exit(lm, settings.exit)
    _seed(loaded)
    now(name, 0)
    with listening(lm, lambda done: now(name, done)), _fitting(pair.benchmark.task):
        out = run_harness(lm, loaded, limit=settings.limit, log_samples=False, bootstrap_iters=BOOTSTRAPS)
    task = pair.benchmark.task
    own = out["results"].get(task) or out.get("groups", {}).get(task, {})
    scores = _scores(own, out["higher_is_better"].get(task, {}))
    if not scores:
        raise InputError(f"task {task!r} has no own result in lm-eval; name its members instead")
    members = {name: _values(part) for name, part in out["results"].items() if name != task}
    return Result(
        key=pair.key,
        scores=scores,
        samples=sum(int(part["effective"]) for part in out["n-samples"].values()),
        seconds=round(time.monotonic() - start, 3),
        mean_passes=None if count is None else count.mean,
        subtasks=members,
    )


def _start_exit(lm: Any, exit_: EarlyExit | None) -> Any:
    """Set the exit criterion; return what counts its passes."""
    if exit_ is None:
        return None
    from loopscale.evaluate.lm import PassCount
    from loopscale.model import Exit

    lm.exit, lm.passes = Exit(exit_.criterion, exit_.threshold), PassCount()
    return lm.passes


def _seed(loaded: Any) -> None:
    """Draw the same few-shot examples at every recurrence."""
    import torch

    random.seed(0)
    np.random.seed(SEED)  # noqa: NPY002 - lm-eval draws from the global one
    torch.manual_seed(SEED)
    for task in loaded["tasks"].values():
        task.set_fewshot_seed(seed=SEED)


def _scores(own: Mapping[str, Any], better: Mapping[str, Any]) -> dict[str, Score]:
    """Return the metrics of a task with lm-eval's standard errors."""
    scores = {}
    for name, value in _values(own).items():
        metric, _, filter_ = name.partition(",")
        stderr = own.get(f"{metric}_stderr,{filter_}")
        error = float(stderr) if isinstance(stderr, int | float) else None  # lm-eval writes N/A where it has none
        scores[name] = Score(value, error, better.get(metric))
    return scores


def _values(own: Mapping[str, Any]) -> dict[str, float]:
    names = [name for name in own if "," in name and "_stderr," not in name]
    return {name: float(own[name]) for name in names}


@contextmanager
def _fitting(task: str) -> Iterator[None]:
    """Say in a sentence what lm-eval asserts: prompts and answers must fit the context."""
    try:
        yield
    except AssertionError as error:
        if "maximum sequence length" not in str(error):
            raise
        raise InputError(f"task {task!r} does not fit the model's context: {error}") from None
