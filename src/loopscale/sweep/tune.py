"""``[tune]`` of a sweep: the best learning rate of some cells by bracketed search, and a law of it for all the others.

Each cell is trained for a short time at a few rates. While its best rate is the lowest or the highest tried, the next
one beyond it is added. Near its minimum the loss is a parabola in ln rate, whose place moves with the cell:

    loss = offset(cell, D) + curvature (ln rate - mu)^2,   mu = constant + sum of exponent ln(variable)

over the variables width, R, E and D. Multiplied out this is linear, so that all cells give one least-squares fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from loopscale.architecture import rung
from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError
from loopscale.core.files import read_json, write_json
from loopscale.core.schemas import File, parse
from loopscale.sweep.spec import RATE, Run, Sweep
from loopscale.train.config import TrainConfig

VARIABLES = ("width", "recurrence", "experts", "tokens")
FOLDER, FILE = "tune", "rates.json"
RESAMPLES = 400
NEAR = 2.0
"""Of the rates of a cell, those within this factor of its best one are fitted: farther off the loss is no parabola."""
Losses = Mapping[str, Mapping[int, float]]
"""Loss by the run's key and its tokens; a run that failed has none."""


@dataclass(frozen=True)
class Trial:
    """A short run of the search: what was trained at which rate, and its loss; infinite if the run failed."""

    width: int
    recurrence: int
    experts: int
    tokens: int
    rate: float
    loss: float
    size: str = ""

    @property
    def cell(self) -> tuple[str, int, int, int]:
        """What the best rate is looked for."""
        return self.size, self.width, self.experts, self.recurrence


class RateLaw(File):
    """The best learning rate as a power law, with 90% intervals from resampled cells."""

    KIND: ClassVar[str] = "learning-rate law"
    VERSION: ClassVar[int] = 1
    centre: dict[str, float]
    """Geometric mean of each variable over the cells."""
    rate: float
    """Best rate at the centre."""
    exponents: dict[str, float]
    """Powers of width, recurrence, experts and tokens; only of those that were varied."""
    intervals: dict[str, tuple[float, float]]
    """5% and 95% of the refits, for "rate" and every exponent."""
    curvature: float
    """Nats per squared ln of the rate."""
    residual: float
    """Standard deviation of the losses about the fit, in nats."""
    cells: int
    trials: int

    def at(self, **variables: float) -> float:
        """Return the best rate for a width, recurrence, experts and tokens; those never varied do not count."""
        scale = sum(power * math.log(variables[name] / self.centre[name]) for name, power in self.exponents.items())
        return self.rate * math.exp(scale)

    def save(self, path: Path) -> None:
        """Write the law as JSON."""
        write_json(path, {"kind": self.KIND, "schema": self.VERSION, **self.model_dump(mode="json")})

    @classmethod
    def read(cls, path: Path) -> RateLaw:
        """Read a law."""
        return parse(cls, read_json(path), str(path))

    def __str__(self) -> str:
        def shown(name: str, value: float) -> str:
            low, high = self.intervals[name]
            return f"{value:.3g} ({low:.3g} to {high:.3g})"

        powers = [f"{name}^{shown(name, value)}" for name, value in self.exponents.items()]
        return f"rate {shown('rate', self.rate)} at the centre" + "".join(f" x {power}" for power in powers)


def fit_rates(trials: Iterable[Trial], *, near: float = NEAR, resamples: int = RESAMPLES, seed: int = 0) -> RateLaw:
    """Fit the law to the trials of all cells; refuse trials that show no best rate."""
    groups = _near_best(trials, near)
    if not groups:
        raise InputError(
            "no cell has finished runs at three rates, which a learning-rate law needs; give [tune] more rates"
        )
    varied = [name for name in VARIABLES if len({getattr(group[0], name) for group in groups}) > 1]
    cells = sorted({group[0].cell for group in groups})
    if len(cells) <= len([name for name in varied if name != "tokens"]):
        raise InputError(
            f"{len(cells)} cells are too few for a learning-rate law over {', '.join(varied)}; tune on more cells"
        )
    centre = {name: math.exp(np.mean([math.log(getattr(group[0], name)) for group in groups])) for name in varied}
    solve = _Parabolas(groups, centre)
    best, residual = solve.fit(range(len(groups)))
    if best is None:
        raise InputError("the losses do not have a minimum over the rates; try rates farther apart, or longer runs")
    draws = solve.resampled(cells, resamples, seed)
    spans = [tuple(np.quantile([draw[k] for draw in draws], [0.05, 0.95]).tolist()) for k in range(1, 2 + len(varied))]
    names = ["rate", *varied]
    intervals = {name: (low, high) for name, (low, high) in zip(names, spans, strict=True)}
    intervals["rate"] = (math.exp(intervals["rate"][0]), math.exp(intervals["rate"][1]))
    return RateLaw(
        centre=centre,
        rate=math.exp(best[1]),
        exponents=dict(zip(varied, map(float, best[2:]), strict=True)),
        intervals=intervals,
        curvature=float(best[0]),
        residual=residual,
        cells=len(cells),
        trials=sum(map(len, groups)),
    )


def _near_best(trials: Iterable[Trial], near: float) -> list[list[Trial]]:
    """Return the finished trials of each cell and D that are near its best rate, where there are at least three."""
    groups: dict[tuple[Any, int], list[Trial]] = {}
    for trial in trials:
        if math.isfinite(trial.loss):
            groups.setdefault((trial.cell, trial.tokens), []).append(trial)
    near_best = []
    for group in groups.values():
        best = min(group, key=lambda trial: trial.loss).rate
        close = [trial for trial in group if abs(math.log(trial.rate / best)) <= math.log(near) * 1.01]
        if len(close) < 3:  # the best rate is at an edge
            close = sorted(group, key=lambda trial: abs(math.log(trial.rate / best)))[:3]
        if len(close) >= 3:
            near_best.append(close)
    return near_best


class _Parabolas:
    """The joint least-squares problem: loss less the group's mean, over centred columns."""

    def __init__(self, groups: Sequence[list[Trial]], centre: Mapping[str, float]) -> None:
        self.groups = groups
        self.columns = [_columns(group, centre) for group in groups]
        self.losses = [np.array([trial.loss for trial in group]) for group in groups]
        self.losses = [loss - loss.mean() for loss in self.losses]

    def fit(self, chosen: Iterable[int]) -> tuple[FloatArray | None, float]:
        """Return curvature, ln rate at the centre and exponents, and the residuals' standard deviation."""
        indices = list(chosen)
        matrix = np.concatenate([self.columns[k] for k in indices])
        loss = np.concatenate([self.losses[k] for k in indices])
        answer, _, rank, _ = np.linalg.lstsq(matrix, loss, rcond=None)
        if rank < matrix.shape[1] or answer[0] <= 0:
            return None, math.nan
        free = max(1, len(loss) - len(indices) - len(answer))
        residual = float(np.sqrt(np.sum((loss - matrix @ answer) ** 2) / free))
        return np.concatenate([answer[:1], answer[1:] / (-2 * answer[0])]), residual

    def resampled(self, cells: Sequence[Any], resamples: int, seed: int) -> list[FloatArray]:
        """Return fits to cells drawn with replacement; draws without a minimum or a varied variable do not count."""
        random = np.random.default_rng(seed)
        of_cell = {cell: [k for k, group in enumerate(self.groups) if group[0].cell == cell] for cell in cells}
        draws = []
        for _ in range(resamples):
            draw = random.integers(len(cells), size=len(cells))
            answer, _ = self.fit(k for index in draw for k in of_cell[cells[index]])
            if answer is not None:
                draws.append(answer)
        if len(draws) < resamples / 5:
            raise InputError(
                "too few resampled cells show a best rate and vary every variable: tune on more cells or longer runs"
            )
        return draws


def _columns(group: Sequence[Trial], centre: Mapping[str, float]) -> FloatArray:
    """Return x^2, x and x ln(variable) for x = ln rate, each less its mean over the group."""
    x = np.log([trial.rate for trial in group])
    features = [1.0, *(math.log(getattr(group[0], name) / middle) for name, middle in centre.items())]
    columns = np.stack([x**2, *(x * value for value in features)], axis=1)
    return np.asarray(columns - columns.mean(axis=0))


class RateSearch:
    """A bracketed search over the cells of a sweep."""

    def __init__(self, sweep: Sweep) -> None:
        if sweep.tune is None:
            raise InputError(f"{sweep.path}: there is no [tune] table; add one to search for learning rates")
        self.sweep, self.tune = sweep, sweep.tune
        self.cells = self._tuned_cells()
        self.rates = {run.cell: sorted(self.tune.rates) for run in self.cells}
        """Rates of each cell that are tried."""

    def run(self, train: Callable[[Sweep], Losses]) -> list[Trial]:
        """Train short runs until the best rate of every cell lies between two others, or there are enough of them."""
        while True:
            short = self.short_sweep()
            losses = train(short)
            if not self._extend(short, losses):
                return [
                    Trial(
                        _width(run),
                        run.cell.recurrence,
                        run.cell.experts,
                        tokens,
                        run.config.optimizer.learning_rate,
                        losses.get(run.key, {}).get(tokens, math.inf),
                        run.cell.size,
                    )
                    for run in short.runs
                    for tokens in run.points
                ]

    def short_sweep(self) -> Sweep:
        """Return the sweep of the short runs so far, in a separate folder inside the sweep's."""
        runs = tuple(self._short(run, rate) for run in self.cells for rate in self.rates[run.cell])
        folder = f"{self.sweep.folder}/{FOLDER}"
        return replace(
            self.sweep,
            name=f"{self.sweep.name}-tune",
            folder=folder,
            keep_models=False,
            runs=runs,
            labels=(),
            tune=None,
            objects=None,
        )

    def _tuned_cells(self) -> list[Run]:
        """Return one run for each (size, E, R) of the grid that [tune] does not leave out."""
        first: dict[tuple[str, int, int], Run] = {}
        tune = self.tune
        for run in self.sweep.runs:
            size, experts, recurrence = run.cell.model
            is_tuned = size in (tune.size or [size]) and experts in (tune.experts or [experts])
            if is_tuned and recurrence in (tune.recurrence or [recurrence]):
                first.setdefault(run.cell.model, run)
        if not first:
            raise InputError(f"{self.sweep.path}: [tune] leaves no size, experts and recurrence of the grid")
        return list(first.values())

    def _short(self, run: Run, rate: float) -> Run:
        cell = replace(run.cell, seed=self.tune.seed, settings=((RATE, rate),))
        config = run.config.changed(optimizer={"learning_rate": rate}, run={"seed": self.tune.seed})
        lengths = [config.changed(run={"tokens": tokens}) for tokens in sorted(self.tune.tokens)]
        points = {short.steps * short.step_tokens: short.run.tokens for short in lengths}
        return replace(run, cell=cell, config=lengths[-1], points=points)

    def _extend(self, short: Sweep, losses: Losses) -> bool:
        """Add a rate to every cell whose best one at the longest D is at an edge; tell whether any was added."""
        extended = False
        for cell, rates in self.rates.items():
            runs = [run for run in short.runs if run.cell.model == cell.model]
            by_rate = [dict(losses.get(run.key, {})).get(max(run.points), math.inf) for run in runs]
            beyond = _next_rate(rates, by_rate)
            if beyond is not None and len(rates) < self.tune.most:
                self.rates[cell] = sorted([*rates, beyond])
                extended = True
        return extended


def _next_rate(rates: Sequence[float], losses: Sequence[float]) -> float | None:
    """Return the rate beyond the edge that the lowest loss is at, or None when it lies between two others."""
    best = int(np.argmin(losses))
    if not math.isfinite(losses[best]):
        return rates[0] ** 2 / rates[1]  # every run failed: the rates are too high
    if best == 0:
        return rates[0] ** 2 / rates[1]
    return rates[-1] ** 2 / rates[-2] if best == len(rates) - 1 else None


def _width(run: Run) -> int:
    section = run.config.model
    return section.width if section.rung is None else rung(section.rung).width


def law_path(sweep: Sweep) -> Path:
    """Return where the law of a sweep's rates is kept."""
    return sweep.results / FOLDER / FILE


def with_tuned_rates(sweep: Sweep) -> Sweep:
    """Return the sweep with the law's rate in every run, at its width, R, E and longest D; as it is before a search."""
    path = law_path(sweep)
    if not path.is_file():
        return sweep
    law = RateLaw.read(path)
    return replace(sweep, runs=tuple(replace(run, config=_tuned(run, law)) for run in sweep.runs))


def _tuned(run: Run, law: RateLaw) -> TrainConfig:
    rate = law.at(width=_width(run), recurrence=run.cell.recurrence, experts=run.cell.experts, tokens=max(run.points))
    return run.config.changed(optimizer={"learning_rate": float(f"{rate:.3g}")})
