"""The result of a fit: the law with its uncertainty, predictions, and the file that holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

import loopscale
from loopscale.core.arrays import BoolArray, FloatArray
from loopscale.core.errors import choice
from loopscale.core.files import finite, read_json, write_json
from loopscale.core.tables import Table
from loopscale.fitting.covariance import coefficient_intervals
from loopscale.fitting.data.observations import Observations
from loopscale.fitting.frontier import fit_frontier
from loopscale.fitting.noise import Noise, noise_components, robust_scale, run_effects, run_noise
from loopscale.fitting.prediction import LossPrediction, one_of_two, predict_loss, read_counts
from loopscale.fitting.predictive import predictive_spread
from loopscale.fitting.problem import Problem, build_problem
from loopscale.fitting.resample import Progress, Scheme, resample
from loopscale.fitting.residuals import diverged_rows
from loopscale.fitting.search import Recipe
from loopscale.fitting.summary import LEVEL, SCHEMES, estimates, summary
from loopscale.fitting.warnings import law_note, warnings_of
from loopscale.scaling import (
    BILLIONS,
    FittedRange,
    Frontier,
    OuterLaw,
    Points,
    Provenance,
    RecurrenceMapping,
    ScalingLaw,
    Spread,
    with_repetition,
)
from loopscale.scaling.published import repetition_text
from loopscale.scaling.variables import check_variables, default_variables

if TYPE_CHECKING:
    from loopscale.fitting.ladder import LadderScore

KIND, SCHEMA = "fit", 2
RESAMPLES = 100


@dataclass(frozen=True, eq=False, repr=False)
class Fit:
    """A fitted law, the data it was fitted to, and how well they determine it."""

    observations: Observations
    outer: OuterLaw
    mapping: RecurrenceMapping
    coefficients: Mapping[str, float]
    """At the optimum, with counts in billions."""
    objective: float
    """Sum of Huber(delta) over the residuals of ln loss."""
    delta: float
    recipe: Recipe
    starts: int
    agreeing: int
    """Starts that ended within 0.1% of the best objective."""
    degenerate: tuple[str, ...]
    """Why the data do not determine the coefficients; empty for a sound fit."""
    fixed: Mapping[str, float] = field(default_factory=dict)
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """The user's own bounds; other coefficients keep those of their form."""
    tie: Mapping[str, str] = field(default_factory=dict)
    """Coefficients that take the value of another one."""
    resamples: FloatArray | None = None
    """Coefficients of refits on resampled data, one row each, in the order of the law's names."""
    scheme: Scheme | None = None
    """How the resampled data were drawn; None where there are none."""
    seed: int = 0
    """Seed of the random starts and of the first resamples."""
    spread: Spread | None = None
    """What predictive intervals add to the uncertainty of the coefficients; None without resamples."""

    frontier: Frontier | None = None
    """The compute-optimal frontier that the runs show; None without resamples, or where the form has none."""
    ladder: tuple[LadderScore, ...] = ()
    """The forms that were tried where the data do not determine the full one, or it leaves a trend; else empty."""

    @property
    def name(self) -> str:
        """What the sweep, and so the law, is called."""
        return self.observations.name

    @cached_property
    def problem(self) -> Problem:
        """What was minimised: the form, the bounds and the rows."""
        return build_problem(self.observations, self.outer, self.mapping, self.fixed, self.bounds, self.tie, self.prior)

    @property
    def prior(self) -> bool:
        """Whether coefficients that have a prior were pulled towards it; the paper's procedure has none."""
        return self.recipe is Recipe.DEFAULT

    @property
    def free(self) -> tuple[str, ...]:
        """The coefficients that were varied."""
        return self.problem.free_names

    @cached_property
    def optimum(self) -> FloatArray:
        """The free coefficients in search coordinates."""
        return self.problem.point(self.coefficients)

    @property
    def at_bound(self) -> tuple[str, ...]:
        """The free coefficients that ended on a bound."""
        return self.problem.at_bound(self.optimum)

    @cached_property
    def linearised(self) -> tuple[FloatArray, FloatArray]:
        """Residuals at the optimum and their derivatives by each free coefficient, in search coordinates."""
        return self.problem.linearised(self.optimum)

    @cached_property
    def residuals(self) -> FloatArray:
        """Predicted minus observed ln loss, row by row."""
        return self.problem.residuals(self.optimum)

    @cached_property
    def law(self) -> ScalingLaw:
        """The fitted law, with its resamples, its frontier, its range and the fit's warnings."""
        return self.curve if self.frontier is None else replace(self.curve, frontier=self.frontier)

    @cached_property
    def curve(self) -> ScalingLaw:
        """The fitted law without its frontier."""
        data = self.observations
        errors = np.expm1(self.residuals) * data.loss
        drawn = "" if self.resamples is None or self.scheme is None else f"{len(self.resamples)} {SCHEMES[self.scheme]}"
        return ScalingLaw(
            self.outer,
            self.mapping,
            self.coefficients,
            BILLIONS,
            data.counts,
            name=self.name,
            source=f"fitted to {data.source}",
            note=law_note(self),
            fitted=True,
            degenerate=self.degenerate,
            rmse=float(np.sqrt(np.mean(errors[self.sound] ** 2))),
            noise=robust_scale(errors, len(self.free)),
            spread=self.spread,
            fitted_range=fitted_range(data),
            resamples=self.resamples,
            resampled_by=drawn,
            provenance=Provenance(
                data.reading, len(data), data.digest, dict(data.columns_used), self.seed, loopscale.__version__
            ),
        )

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """What a reader of the fit must know, each in a sentence, ordered by cause."""
        return tuple(warning.problem for warning in warnings_of(self))

    @cached_property
    def run_noise(self) -> float:
        """Standard deviation of ln loss of a new run about the law, within the range of the data."""
        return run_noise(self.residuals, self.observations.run, len(self.free))

    @cached_property
    def noise_components(self) -> Noise | None:
        """The run noise as two parts, within a run and between runs; None where the data cannot show them."""
        return noise_components(self.residuals, self.observations.run, len(self.free))

    def run_effects(self) -> Table:
        """Return how far each run lies above the law in ln loss, as a random effect: run, rows, effect, error."""
        return run_effects(self)

    @cached_property
    def sound(self) -> BoolArray:
        """Which rows are not of diverged runs; RMSE and R² are over these."""
        rows = np.ones(len(self.observations), dtype=bool)
        rows[diverged_rows(self)] = False
        return rows

    @property
    def r_squared(self) -> float:
        """The share of the losses' variance that the law explains; NaN where all losses are equal."""
        loss = self.observations.loss[self.sound]
        errors = np.expm1(self.residuals[self.sound]) * loss
        spread = float(np.sum((loss - loss.mean()) ** 2))
        return 1 - float(errors @ errors) / spread if spread > 0 else float("nan")

    def resample(
        self,
        count: int = RESAMPLES,
        *,
        scheme: Scheme | str = Scheme.RUNS,
        seed: int = 0,
        workers: int | None = None,
        progress: Progress | None = None,
    ) -> Fit:
        """Return the fit with its law refitted on ``count`` resampled data sets.

        ``scheme`` says what a data set is made of: whole runs drawn with replacement ("runs"), single rows
        ("observations"), 90% of the rows as in the paper ("paper"), or the same rows with new noise ("noise").
        ``workers`` processes share the refits; None means several only where the work takes long. ``progress`` is
        called with the number of refits done and the total.
        """
        options: Any = {"scheme": scheme, "seed": seed, "workers": workers, "progress": progress}
        return resampled(self, self.problem, self.optimum, count, **options).with_frontier()

    def with_frontier(self) -> Fit:
        """Return the fit with the frontier that its runs and its law show."""
        return replace(self, frontier=fit_frontier(self.observations, self.curve))

    def conf_int(self, level: float = LEVEL) -> Table:
        """Return each coefficient with its interval over the resampled laws: coefficient, estimate, low, high."""
        spans = coefficient_intervals(self, level)
        rows = [(name, self.coefficients[name], *spans[name]) for name in self.law.names]
        return Table(
            dict(zip(("coefficient", "estimate", "low", "high"), map(list, zip(*rows, strict=True)), strict=True))
        )

    def predict(
        self,
        N: Any,
        D: Any,
        *,
        E: Any = None,
        R: Any = None,
        loop: Any = None,
        total: Any = None,
        unique: Any = None,
        N_loop: Any = None,
        N_total: Any = None,
        U: Any = None,
        level: float = LEVEL,
    ) -> LossPrediction:
        """Predict the loss of new runs, with a predictive interval and the confidence band of the curve.

        N and D are counts of parameters and tokens, numbers or text like ``"7B"``; arrays broadcast. N is counted as
        the data count it. E and R are 1 unless given, or what all the data have. ``loop`` (N_loop) is needed where
        R > 1 and the law has a recurrence mapping, ``total`` (N_total) where E > 1 and the mapping depends on
        sparsity. ``unique`` (U) are the different tokens among D, all of them unless given. The names of columns serve
        too: N_loop, N_total, U. E and R that the law has no term for are refused; repeated tokens take the published
        discount of dense models, and ``note`` says so, and where a point is more than 10x beyond the data.
        """
        sizes = {
            "loop": one_of_two(loop, N_loop, "loop", "N_loop"),
            "total": one_of_two(total, N_total, "total", "N_total"),
            "unique": one_of_two(unique, U, "unique", "U"),
        }
        default_E, default_R = default_variables(self.law)
        E, R = default_E if E is None else E, default_R if R is None else R
        counts = (None if value is None else read_counts(value, name) for name, value in sizes.items())
        points = Points(read_counts(N, "N"), read_counts(D, "D"), R, E, *counts)
        check_variables(self.law, points.experts, points.recurrence)
        law = self.law if unique is None and U is None else with_repetition(self.law)
        notes = [repetition_text(self.law, points)]
        if (trust := self.law.trust(points)).level == "beyond":
            notes.append(f"more than 10x beyond the data: {'; '.join(trust.reasons)}")
        return predict_loss(law, points, level, "; ".join(filter(None, notes)))

    def predict_points(self, points: Points, level: float = LEVEL) -> LossPrediction:
        """Predict the loss at ``points`` by the fitted law, as it is."""
        return predict_loss(self.law, points, level)

    def summary(self, verbose: bool = False) -> str:
        """Return the fit as plain text: law, error, range, coefficients and warnings; ``verbose`` adds all details."""
        return summary(self, verbose)

    def plot(self) -> Any:
        """Return a matplotlib figure: predicted against observed loss, and residuals along each axis that varies."""
        from loopscale.fitting.plot import plot_fit  # matplotlib takes half a second

        return plot_fit(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the fit as plain values: the content of its file, for ``from_dict``.

        Beside what the fit is made of (law, data, procedure) it states what follows: coefficients, intervals, quality.
        """
        parts = self.noise_components
        between, within = (None, None) if parts is None else (parts.run, parts.observation)
        content = {
            "kind": KIND,
            "schema": SCHEMA,
            "law": self.law.to_dict(),
            "coefficients": dict(self.coefficients),
            "intervals": None if self.resamples is None else coefficient_intervals(self),
            "rmse": self.law.rmse,
            "r_squared": self.r_squared,
            "noise": {"new_run": self.run_noise, "between_runs": between, "within_run": within},
            "warnings": list(self.warnings),
            "degenerate": list(self.degenerate),
            "at_bound": list(self.at_bound),
            "free": list(self.free),
            "fixed": dict(self.fixed),
            "bounds": dict(self.bounds),
            "tie": dict(self.tie),
            "objective": self.objective,
            "delta": self.delta,
            "recipe": self.recipe.value,
            "starts": self.starts,
            "seed": self.seed,
            "agreeing": self.agreeing,
            "scheme": None if self.scheme is None else self.scheme.value,
            "ladder": [asdict(score) for score in self.ladder],
            "data": self.observations.to_dict(),
        }
        plain: dict[str, Any] = finite(content)  # an infinite delta is null
        return plain

    @classmethod
    def from_dict(cls, data: object, where: str = "fit") -> Fit:
        """Read a fit from the content of its file; ``where`` names its origin in errors."""
        from loopscale.core.schemas import parse
        from loopscale.fitting.schema import FitFile  # pydantic takes a moment to import

        file = parse(FitFile, data, where)
        law = ScalingLaw.from_dict(file.law, f"{where}: law")
        record = file.data if file.data.name else file.data.model_copy(update={"name": law.name})
        return cls(
            observations=Observations.from_record(record, where),
            outer=law.outer,
            mapping=law.mapping,
            coefficients=law.coefficients,
            objective=file.objective,
            delta=np.inf if file.delta is None else file.delta,
            recipe=file.recipe,
            starts=file.starts,
            seed=file.seed,
            agreeing=file.agreeing,
            degenerate=tuple(file.degenerate),
            fixed=MappingProxyType(file.fixed),
            bounds=MappingProxyType(file.bounds),
            tie=MappingProxyType(file.tie),
            resamples=law.resamples,
            scheme=file.scheme,
            spread=law.spread,
            frontier=law.frontier,
            ladder=tuple(file.ladder),
        )

    def save(self, path: str | Path) -> None:
        """Write the fit with its data and resampled laws as JSON, for ``load``."""
        write_json(path, self.to_dict())

    @classmethod
    def load(cls, path: str | Path) -> Fit:
        """Read a fit that ``save`` wrote."""
        return cls.from_dict(read_json(path), str(path))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fit) and self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.name, self.objective, tuple(self.coefficients.items())))

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        state = ", degenerate" if self.degenerate else ""
        return (
            f"<Fit {self.name!r}: {self.law.form}; {len(self.observations)} losses of "
            f"{len(self.observations.runs)} runs, RMSE {self.law.rmse:.4f} nats{state}>"
        )

    def _repr_html_(self) -> str:
        from html import escape

        table = self.conf_int() if self.resamples is not None else estimates(self)
        notes = "".join(f"<li>{escape(sentence)}</li>" for sentence in self.warnings)
        return f"<p>{escape(repr(self))}</p>{table._repr_html_()}" + (f"<ul>{notes}</ul>" if notes else "")


def resampled(
    fit: Fit,
    problem: Problem,
    u: FloatArray,
    count: int,
    *,
    scheme: Scheme | str,
    seed: int,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Fit:
    """Return a fit with refits of its problem from the optimum ``u``, and the spread of its predictive intervals."""
    data = fit.observations
    noise = run_noise(problem.residuals(u), data.run, len(problem.free))
    rows, drawn_by = resample(
        problem, u, fit.delta, data.run, noise, scheme=choice(Scheme, scheme, "scheme"), count=count, seed=seed,
        workers=workers, progress=progress,
    )  # fmt: skip
    spread = fit.spread or predictive_spread(data, problem, u, fit.delta, seed)
    return replace(fit, resamples=rows, scheme=drawn_by, spread=spread)


def fitted_range(data: Observations) -> FittedRange:
    """Return the span of the data along each axis."""
    p = data.points
    axes = [p.active, p.tokens, p.experts, p.recurrence]
    axes += [] if p.unique_tokens is None else [p.tokens / p.unique]
    spans = [(float(axis.min()), float(axis.max())) for axis in axes]
    return FittedRange(*spans)
