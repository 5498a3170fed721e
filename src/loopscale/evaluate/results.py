"""The paper's results table from stored results: models and recurrences against benchmarks, with compute and gains."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from loopscale.core.errors import InputError, nearest
from loopscale.core.tables import Table
from loopscale.evaluate.store import PREFERRED, Model, Result, Score
from loopscale.evaluate.suites import OVERALL, Benchmark, Suite
from loopscale.scaling import PAPER as PRINTED
from loopscale.scaling import AtTestTime, at_test_time, mapping


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
    table = PRINTED["downstream"]
    rows = tuple(
        PublishedRow(row["model"], row["recurrence"], row["inference_ratio"], row["overall"],
                     dict(zip(table["tasks"], row["scores"], strict=True)))
        for row in table["rows"]
    )  # fmt: skip
    source = f"{PRINTED['source']}, {table['where']}"
    return PublishedTable(source, "paper", PRINTED["case_study"]["flops_1e22"] * 1e22, rows)


LEAST = 3
"""As many points as coefficients; they leave no residual to judge the curve by."""


@dataclass(frozen=True)
class Saturation:
    """L(R) = once - kappa1 (1 - exp(-(R - 1) / kappa2)): the loss at R = 1, the most that passes can gain, how fast."""

    once: float
    kappa1: float
    kappa2: float
    rmse: float
    rising_from: int | None
    """The first recurrence after the best one, where the measured loss rises again; such points are not fitted."""

    def __call__(self, recurrence: ArrayLike) -> NDArray[np.float64]:
        """Return the curve's loss."""
        gain = mapping("bounded").gain(
            {"kappa1": self.kappa1, "kappa2": self.kappa2}, np.asarray(recurrence, float), 1.0
        )
        return np.asarray(self.once - gain, dtype=np.float64)

    @property
    def limit(self) -> float:
        """The loss that endless passes would reach, were the curve to hold."""
        return self.once - self.kappa1


def fit_saturation(recurrences: Sequence[int], losses: Sequence[float]) -> Saturation:
    """Fit the curve to the losses up to the best one: a loss that rises again later does not saturate."""
    order = np.argsort(recurrences)
    R, L = np.asarray(recurrences, float)[order], np.asarray(losses, float)[order]
    best = int(np.argmin(L))
    rising = int(R[best + 1]) if best + 1 < len(R) else None
    R, L = R[: best + 1], L[: best + 1]
    if len(R) < LEAST:
        raise InputError(
            f"a saturating curve needs {LEAST} recurrences or more up to the best one; there are {len(R)}"
            + (f", as the loss rises from R = {rising}" if rising else "")
        )

    from scipy.optimize import least_squares  # a plan need not wait for it

    scale = max(float(L[0] - L[-1]), 1e-9)

    def curve(c: NDArray[np.float64]) -> Saturation:
        return Saturation(float(c[0]), float(c[1]), float(c[2]), 0.0, rising)

    def misses(c: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray((curve(c)(R) - L) / scale, dtype=np.float64)

    fits = [
        least_squares(
            misses,
            (L[0], scale, start),
            bounds=((-np.inf, 0.0, 1e-3), (np.inf, np.inf, 1e6)),
            x_scale=(scale, scale, 1.0),
        )
        for start in (0.3, 1.0, 3.0)
    ]
    found = curve(min(fits, key=lambda fitted: float(fitted.cost)).x)
    rmse = float(np.sqrt(np.mean((found(R) - L) ** 2)))
    return Saturation(found.once, found.kappa1, found.kappa2, rmse, rising)


@dataclass(frozen=True)
class AccuracyCurve:
    """accuracy = floor + (top - floor) / (1 + exp((loss - middle) / width)): from chance up as the loss falls."""

    floor: float
    top: float
    middle: float
    width: float
    rmse: float
    constant_rmse: float
    """The error of the mean alone."""
    informative: bool
    """Whether the curve predicts better than the mean, its coefficients counted (AICc)."""

    def __call__(self, loss: ArrayLike) -> NDArray[np.float64]:
        """Return the curve's accuracy."""
        z = np.clip((np.asarray(loss, float) - self.middle) / self.width, -500, 500)
        return np.asarray(self.floor + (self.top - self.floor) / (1 + np.exp(z)), dtype=np.float64)


FEWEST_MODELS = 8
"""Models that a curve of four coefficients needs to be judged at all."""


def fit_accuracy(losses: ArrayLike, accuracies: ArrayLike) -> AccuracyCurve:
    """Fit accuracy to validation loss over models, each a point; say whether that beats a constant."""
    L, A = np.asarray(losses, float), np.asarray(accuracies, float)
    if len(L) < FEWEST_MODELS or not (np.isfinite(L).all() and np.isfinite(A).all()) or np.ptp(L) == 0:
        raise InputError(
            f"accuracy against loss needs {FEWEST_MODELS} models or more with different losses; there are {len(L)}"
        )
    from scipy.optimize import least_squares

    low, high, spread = float(A.min()), float(A.max()), float(np.ptp(L))
    scale = max(high - low, 1e-9)

    def curve(c: NDArray[np.float64]) -> AccuracyCurve:
        return AccuracyCurve(float(c[0]), float(c[1]), float(c[2]), float(c[3]), 0.0, 0.0, True)

    def residuals(c: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray((curve(c)(L) - A) / scale, dtype=np.float64)

    bounds = ((low - scale, low, L.min() - spread, 0.02 * spread), (high, high + scale, L.max() + spread, 10 * spread))
    fits = [
        least_squares(residuals, np.clip((low, high, middle, width), *bounds), bounds=bounds)
        for middle in np.quantile(L, (0.25, 0.5, 0.75))
        for width in (0.1 * spread, 0.5 * spread)
    ]
    best = min(fits, key=lambda fitted: float(fitted.cost)).x
    rmse = float(np.sqrt(np.mean((curve(best)(L) - A) ** 2)))
    constant = float(A.std())
    informative = _aicc(len(L), rmse, 4) < _aicc(len(L), constant, 1)
    return replace(curve(best), rmse=rmse, constant_rmse=constant, informative=informative)


def _aicc(count: int, rmse: float, coefficients: int) -> float:
    """Return the corrected Akaike criterion of a least-squares fit; its error's variance is one more coefficient."""
    k = coefficients + 1
    return count * math.log(max(rmse, 1e-12) ** 2) + 2 * k + 2 * k * (k + 1) / (count - k - 1)


PROPORTIONS = frozenset({*PREFERRED, "em", "pass@1", "acc_bytes", "acc_mutual_info", "mcc", "contains"})
"""Metrics from 0 to 1, shown in percent; others count in no mean."""
PAPER = "†"
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
        return f"{self.model} {PAPER}" if self.published else self.model

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


def make_rows(suite: Suite, models: Sequence[Model], results: Sequence[Result], baseline: str | None) -> list[Row]:
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


def tidy(rows: Sequence[Row]) -> Table:
    """Return one line for each score: what other tools plot, downstream results against training compute among it."""
    names = ("model", "recurrence", "task", "metric", "value", "stderr", "training_flops", "size", "run", "experts",
             "trained_recurrence", "tokens", "validation_loss", "kv", "relative_compute")  # fmt: skip
    lines = [
        (
            row.title,
            row.passes if row.exit else row.recurrence,
            label,
            row.metrics.get(label, "mean"),
            score.value,
            score.stderr,
            row.training_flops,
            row.size,
            row.run,
            row.experts,
            row.trained_recurrence,
            row.tokens,
            row.validation_loss,
            row.kv,
            row.compute,
        )
        for row in rows
        for label, score in row.scores.items()
    ]
    return Table({name: [line[column] for line in lines] for column, name in enumerate(names)})


def wide(suite: Suite, rows: Sequence[Row]) -> Table:
    """Return the results table in numbers: a column for each score, its standard error and its 95% interval."""
    columns: dict[str, list[object]] = {
        "model": [row.title for row in rows],
        "recurrence": [row.recurrence for row in rows],
        "exit": [row.exit for row in rows],
        "kv": [row.kv for row in rows],
        "passes": [row.passes for row in rows],
        "relative_compute": [row.compute for row in rows],
    }
    for label in labels(suite, rows):
        found = [row.scores.get(label) for row in rows]
        columns[label] = [None if score is None else score.value for score in found]
        columns[f"{label}_stderr"] = [None if score is None else score.stderr for score in found]
        spans = [interval(suite, row, label) for row in rows]
        if any(span is not None for span in spans):
            columns[f"{label}_low"] = [None if span is None else span[0] for span in spans]
            columns[f"{label}_high"] = [None if span is None else span[1] for span in spans]
    columns["gain"] = [row.gain for row in rows]
    return Table(columns)


def printed(suite: Suite, rows: Sequence[Row], only: Sequence[str] | None = None) -> Table:
    """Return the table as people read it: scores and means with 95% intervals, and the gain over R = 1."""
    columns = {
        "model": [row.title for row in rows],
        "R": [row.at for row in rows],
        "compute": ["" if row.compute is None else f"{row.compute:.1f}×" for row in rows],
    }
    shots = {benchmark.label: benchmark.shots for benchmark in suite.benchmarks}
    for label in only if only is not None else labels(suite, rows):
        title = f"{label} ({shots[label]})" if shots.get(label) else label
        columns[title] = [_cell(suite, row, label) for row in rows]
    return Table(columns)


def labels(suite: Suite, rows: Sequence[Row]) -> list[str]:
    """Return the columns that some row has a score for: benchmarks, then means, the overall one last."""
    names = [benchmark.label for benchmark in suite.benchmarks] + [*suite.categories(), OVERALL]
    return [name for name in names if any(name in row.scores for row in rows)]


def _distinct(models: Sequence[Model]) -> list[Model]:
    """Return the models with a piece of the hash behind names that occur twice."""
    once = list({model.checkpoint: model for model in models}.values())
    names = [model.name for model in once]
    return [replace(m, name=f"{m.name}@{m.checkpoint[:6]}") if names.count(m.name) > 1 else m for m in once]


def _row(suite: Suite, model: Model, name: str, results: Sequence[Result], flops: float | None) -> Row:
    scores: dict[str, Score] = {}
    metrics: dict[str, str] = {}
    samples: dict[str, int] = {}
    for benchmark in suite.benchmarks:
        if found := _score(benchmark, results):
            metrics[benchmark.label], scores[benchmark.label], samples[benchmark.label] = found
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


def _expected_rise(model: Model, passes: float) -> float | None:
    trained = model.architecture.recurrence
    if trained == 1:
        return None
    law = law_at_test_time(model.random_recurrence)
    return float(law.rise(passes, trained) - law.rise(trained, trained))


def law_at_test_time(random: bool) -> AtTestTime:
    """Return what is expected of the loss at other passes, for a model trained at fixed or at random ones."""
    return at_test_time("random" if random else "fixed")


def _of_proportions(suite: Suite, metrics: Mapping[str, str]) -> Suite:
    kept = (benchmark for benchmark in suite.benchmarks if _is_proportion(metrics.get(benchmark.label, PREFERRED[0])))
    return replace(suite, benchmarks=tuple(kept))


def _score(benchmark: Benchmark, results: Sequence[Result]) -> tuple[str, Score, int] | None:
    for result in results:
        found = result.primary_metric(benchmark.metric) if result.key.task == benchmark.task else None
        if found is not None:
            name, score = found
            return name, _percent(score) if _is_proportion(name) else score, result.samples
    return None


def _is_proportion(metric: str) -> bool:
    return metric.partition(",")[0] in PROPORTIONS


def _is_share(metric: str) -> bool:
    """Tell whether a metric is the share of items that are right, which a correlation is not."""
    return _is_proportion(metric) and metric.partition(",")[0] != "mcc"


def wilson_interval(share: float, count: int, level: float = 0.95) -> tuple[float, float]:
    """Return Wilson's interval of a share of ``count`` items: 0 of 10 right is 0 to 0.28, not 0 ± 0."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    centre = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2)) / (1 + z**2 / count)
    return max(centre - half, 0.0), min(centre + half, 1.0)


def interval(suite: Suite, row: Row, label: str) -> tuple[float, float] | None:
    """Return the 95% interval of a score: Wilson's for a share of right items; for a mean, put together from these.

    A mean's distance to each end is the root of the summed squares of its tasks' distances, over their number (the
    MOVER method): tasks without a right answer do not make it certain. None where items or errors are not known.
    """
    score = row.scores.get(label)
    if score is None or score.stderr is None:
        return None
    members = {**suite.categories(), OVERALL: [one for one in suite.benchmarks if one.scored]}.get(label)
    if members is None:
        return _of_task(row, label) if _is_share(row.metrics.get(label, PREFERRED[0])) else None
    known = [one.label for one in members if _is_proportion(row.metrics.get(one.label, PREFERRED[0]))]
    spans = [(row.scores[name].value, _of_task(row, name)) for name in known if name in row.scores]
    if not spans or any(span is None for _, span in spans):
        return None
    below, above = (
        math.sqrt(sum((value - span[end]) ** 2 for value, span in spans if span is not None)) / len(spans)
        for end in (0, 1)
    )
    return score.value - below, score.value + above


def _of_task(row: Row, label: str) -> tuple[float, float] | None:
    """Return the 95% interval of one task: Wilson's for a share of items, normal for other proportions."""
    score, items = row.scores[label], row.samples.get(label)
    if items and _is_share(row.metrics.get(label, PREFERRED[0])):
        low, high = wilson_interval(score.value / 100, items)
        return 100 * low, 100 * high
    if score.stderr is None or not items:
        return None
    return score.value - 1.96 * score.stderr, score.value + 1.96 * score.stderr


def _percent(score: Score) -> Score:
    stderr = None if score.stderr is None else 100 * score.stderr
    return replace(score, value=100 * score.value, stderr=stderr)


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


def _cell(suite: Suite, row: Row, label: str) -> str:
    score = row.scores.get(label)
    if score is None:
        return "–"
    metric = row.metrics.get(label, PREFERRED[0])
    digits = 1 if _is_proportion(metric) else 3
    error = "" if score.stderr is None else f" ± {score.stderr:.{digits}f}"
    span = interval(suite, row, label)
    if span is not None:
        low, high = span
        places = 0 if high - low >= 10 else 1
        error = f" [{low:.{places}f}, {high:.{places}f}]"
    gain = f" ({row.gain:+.1f})" if label == OVERALL and row.gain is not None else ""
    return f"{score.value:.{digits}f}{error}{gain}"


def _exit(result: Result) -> str:
    exit_ = result.key.settings.get("exit")
    return f"{exit_['criterion']} {exit_['threshold']:g}" if exit_ else ""


def _kv(result: Result) -> str:
    return result.key.settings.get("kv") or ""


def baseline_flops(models: Sequence[Model], baseline: str | None) -> float | None:
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
