"""Rows of the results table, from stored results or as the paper printed them: scores, means, compute and gains."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from loopscale.core.errors import InputError, nearest
from loopscale.evaluate.store import PREFERRED, EvaluatedModel, Result, Score
from loopscale.evaluate.suites import OVERALL, Benchmark, Suite
from loopscale.scaling import PAPER
from loopscale.scaling.at_test_time import AtTestTime, at_test_time


@dataclass(frozen=True)
class PublishedRow:
    """One row of a published table, in percent, as printed."""

    model: str
    recurrence: int
    compute: float
    """Inference compute relative to the table's baseline."""
    overall: float
    scores: dict[str, float]
    """By the label of the benchmark."""


@dataclass(frozen=True)
class PublishedTable:
    """A table that others measured."""

    source: str
    suite: str
    training_flops: float
    rows: tuple[PublishedRow, ...]


def case_study() -> PublishedTable:
    """Return the paper's table of downstream results at matched training compute: its numbers, not ours."""
    table = PAPER["downstream"]
    rows = tuple(
        PublishedRow(row["model"], row["recurrence"], row["inference_ratio"], row["overall"],
                     dict(zip(table["tasks"], row["scores"], strict=True)))
        for row in table["rows"]
    )  # fmt: skip
    source = f"{PAPER['source']}, {table['where']}"
    return PublishedTable(source, "paper", PAPER["case_study"]["flops_1e22"] * 1e22, rows)


PROPORTIONS = frozenset({*PREFERRED, "em", "pass@1", "acc_bytes", "acc_mutual_info", "mcc", "contains"})
"""Metrics from 0 to 1, shown in percent; others count in no mean."""
DAGGER = "†"
"""Marks a row that the paper printed; it was not measured here."""


@dataclass(frozen=True)
class Row:
    """One model at one recurrence. Scores are in percent; those that are no scores are as lm-eval has them."""

    model: str
    recurrence: int
    passes: float
    exit: str = ""
    kv: str = ""
    """The smaller KV cache that the text was read through."""
    compute: float | None = None
    """Inference FLOPs of a token over the baseline's."""
    scores: Mapping[str, Score] = field(default_factory=dict)
    """By the label of the benchmark, and the means by their names."""
    gain: float | None = None
    """Overall, over the same model at R = 1."""
    training_flops: float | None = None
    metrics: Mapping[str, str] = field(default_factory=dict)
    """The metric that each score is of."""
    samples: Mapping[str, int] = field(default_factory=dict)
    """The items that each score is over."""
    published: bool = False
    experts: float | None = None
    trained_recurrence: int | None = None
    tokens: float | None = None
    size: str = ""
    run: str = ""
    validation_loss: float | None = None
    random_recurrence: bool = False
    """Whether passes were drawn at random in training."""
    expected_rise: float | None = None
    """Nats above the loss at the trained passes, by the law of passes at test time; None for a model trained at R = 1.
    """

    @property
    def title(self) -> str:
        """The model's name, marked if the row is the paper's."""
        return f"{self.model} {DAGGER}" if self.published else self.model

    @property
    def is_plain(self) -> bool:
        """Whether every token ran all passes, with the keys and values of each."""
        return not self.exit and not self.kv

    @property
    def at(self) -> str:
        """The recurrence as a table shows it."""
        if self.exit:
            return f"≤{self.recurrence} {self.exit} ({self.passes:.2f})"
        return f"{self.recurrence} {self.kv}".rstrip()


def make_rows(
    suite: Suite, models: Sequence[EvaluatedModel], results: Sequence[Result], baseline: str | None
) -> list[Row]:
    """Return a row for each model and recurrence, for each early exit and KV cache, in the order of the models.

    Results of several backends or precisions have separate rows.
    """
    models = _distinct(models)
    known = {model.checkpoint: model for model in models}
    groups: dict[tuple[int, str, int, str, str], list[Result]] = {}
    order = {model.checkpoint: index for index, model in enumerate(models)}
    for result in results:
        key = result.key
        if key.checkpoint in known:
            how = f"{key.settings['backend']} {key.settings['dtype']}"
            group = (order[key.checkpoint], how, key.recurrence, _exit(result), _kv(result))
            groups.setdefault(group, []).append(result)
    flops = baseline_flops(models, baseline)
    several = len({how for _, how, *_ in groups}) > 1
    rows = [
        _row(suite, models[index], f"{models[index].name} ({how})" if several else models[index].name, group, flops)
        for (index, how, *_), group in sorted(groups.items())
    ]
    return _with_gains(rows)


def published_rows(suite: Suite, table: PublishedTable) -> list[Row]:
    """Return the rows of a published table for the benchmarks of a suite; its compute is over its own baseline."""
    rows = []
    for line in table.rows:
        scores = {name: Score(value) for name, value in line.scores.items()}
        means = {name: Score(value) for name, value in suite.means(line.scores).items()}
        means[OVERALL] = Score(line.overall)
        row = Row(line.model, line.recurrence, line.recurrence, compute=line.compute, scores={**scores, **means})
        rows.append(replace(row, training_flops=table.training_flops, published=True))
    return _with_gains(rows)


def _distinct(models: Sequence[EvaluatedModel]) -> list[EvaluatedModel]:
    """Return the models with a piece of the hash behind names that occur twice."""
    once = list({model.checkpoint: model for model in models}.values())
    names = [model.name for model in once]
    return [replace(m, name=f"{m.name}@{m.checkpoint[:6]}") if names.count(m.name) > 1 else m for m in once]


def _row(suite: Suite, model: EvaluatedModel, name: str, results: Sequence[Result], flops: float | None) -> Row:
    scores: dict[str, Score] = {}
    metrics: dict[str, str] = {}
    samples: dict[str, int] = {}
    for benchmark in suite.benchmarks:
        if measured := _score(benchmark, results):
            metrics[benchmark.label], scores[benchmark.label], samples[benchmark.label] = measured
    passes = sum(result.passes for result in results) / len(results)
    return Row(
        model=name,
        recurrence=results[0].key.recurrence,
        passes=passes,
        exit=_exit(results[0]),
        kv=_kv(results[0]),
        compute=None if flops is None else model.inference_flops(passes) / flops,
        scores={**scores, **_means(_of_proportions(suite, metrics), scores)},
        training_flops=model.training_flops,
        metrics=metrics,
        samples=samples,
        experts=float(model.architecture.experts),
        trained_recurrence=model.architecture.recurrence,
        tokens=model.training_tokens,
        size=model.size,
        run=model.run,
        validation_loss=model.validation_loss,
        random_recurrence=model.random_recurrence,
        expected_rise=_expected_rise(model, passes),
    )


def _expected_rise(model: EvaluatedModel, passes: float) -> float | None:
    trained = model.architecture.recurrence
    if trained == 1:
        return None
    law = law_at_test_time(model.random_recurrence)
    return float(law.rise(passes, trained) - law.rise(trained, trained))


def law_at_test_time(random: bool) -> AtTestTime:
    """Return what is expected of the loss at other passes, for a model trained at fixed or at random ones."""
    return at_test_time("random" if random else "fixed")


def _of_proportions(suite: Suite, metrics: Mapping[str, str]) -> Suite:
    members = (benchmark for benchmark in suite.benchmarks if is_proportion(metrics.get(benchmark.label, PREFERRED[0])))
    return replace(suite, benchmarks=tuple(members))


def _score(benchmark: Benchmark, results: Sequence[Result]) -> tuple[str, Score, int] | None:
    for result in results:
        primary = result.primary_metric(benchmark.metric) if result.key.task == benchmark.task else None
        if primary is not None:
            name, score = primary
            if is_proportion(name):
                stderr = None if score.stderr is None else 100 * score.stderr
                score = replace(score, value=100 * score.value, stderr=stderr)
            return name, score, result.samples
    return None


def is_proportion(metric: str) -> bool:
    """Tell whether a metric is from 0 to 1, and so shown in percent."""
    return metric.partition(",")[0] in PROPORTIONS


def _means(suite: Suite, scores: Mapping[str, Score]) -> dict[str, Score]:
    """Return the means, with the standard error of a mean of independent scores."""
    values = suite.means({name: score.value for name, score in scores.items()})
    squares = suite.means({name: score.stderr**2 for name, score in scores.items() if score.stderr is not None})
    sizes = {name: len(members) for name, members in suite.categories().items()}
    sizes[OVERALL] = sum(benchmark.scored for benchmark in suite.benchmarks)
    errors = {name: math.sqrt(square / sizes[name]) for name, square in squares.items()}
    return {name: Score(value, errors.get(name)) for name, value in values.items()}


def _with_gains(rows: Sequence[Row]) -> list[Row]:
    once = {(row.model, row.published): row for row in rows if row.recurrence == 1 and row.is_plain}
    return [replace(row, gain=_gain(row, once.get((row.model, row.published)))) for row in rows]


def _gain(row: Row, first: Row | None) -> float | None:
    if first is None or first is row or OVERALL not in row.scores or OVERALL not in first.scores:
        return None
    return row.scores[OVERALL].value - first.scores[OVERALL].value


def _exit(result: Result) -> str:
    exit_ = result.key.settings.get("exit")
    return f"{exit_['criterion']} {exit_['threshold']:g}" if exit_ else ""


def _kv(result: Result) -> str:
    return result.key.settings.get("kv") or ""


def baseline_flops(models: Sequence[EvaluatedModel], baseline: str | None) -> float | None:
    """Return the inference FLOPs that compute is stated over: of NAME[:R], or the first model at R = 1."""
    if not models:
        return None
    if baseline is None:
        return models[0].inference_flops(1)
    name, _, passes = baseline.rpartition(":")
    if not passes.isdigit():
        name, passes = baseline, "1"
    for model in models:
        if name in (model.name, model.checkpoint[: len(name)]) and int(passes) >= 1:
            return model.inference_flops(int(passes))
    known = [model.name for model in models]
    raise InputError(
        f"baseline {baseline!r} is no evaluated model{nearest(name, known)}; write one of {', '.join(known)}, with :R"
    )
