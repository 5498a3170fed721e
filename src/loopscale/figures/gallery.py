"""Every figure of the paper, drawn from the available law, sweep and results."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from loopscale.architecture import rung, width_for_active
from loopscale.core.errors import InputError
from loopscale.core.tables import Table
from loopscale.figures import capacity, fitting, optima, outcomes
from loopscale.figures.capacity import fit_mappings
from loopscale.figures.style import Panel, Picture, groups, scientific
from loopscale.fitting import Observations, simulate_sweep
from loopscale.fitting.data.public import SWEEP_EXPERTS, SWEEP_RECURRENCES
from loopscale.planning import (
    Budget,
    continuous_space,
    experts_map,
    isoflop_over_recurrence,
    isoflop_over_size,
    joint_optimum,
    ladder_space,
    recurrence_map,
)
from loopscale.scaling import ScalingLaw

RESAMPLES = 100


@dataclass(frozen=True, eq=False)
class Sources:
    """What figures are drawn from; a figure whose source is missing is left out."""

    law: ScalingLaw
    observations: Observations | None = None
    held_out: str | None = None
    """A slice like ``R=16``; without one, the largest R is held out where there are three or more."""
    results: Table | None = None
    psi: Table | None = None
    metrics: Table | None = None
    test_time: Table | None = None
    flops: float = 5e21
    origins: Mapping[str, str] | None = None
    """Where ``results`` and ``psi`` come from, to be said in the captions."""

    @cached_property
    def sweep(self) -> Observations:
        """The given sweep, or one simulated from the law on the paper's grid."""
        if self.observations is not None:
            return self.observations
        if not self.law.mapping.loops:
            raise InputError(f"law {self.law.name} has no recurrence term to simulate a sweep with; give --data")
        experts = SWEEP_EXPERTS if self.law.outer.uses_experts else (1,)
        noise = 0.0037 if self.law.rmse is None else self.law.rmse
        return simulate_sweep(self.law, experts=experts, recurrences=(*SWEEP_RECURRENCES, 16), noise=noise)

    @property
    def hidden(self) -> str | None:
        """The slice of the sweep that mappings are not fitted to."""
        return self.held_out or _largest(self.sweep)

    @cached_property
    def mappings(self) -> dict[str, ScalingLaw]:
        """The mappings fitted to the rows that are not held out, each with its resampled laws."""
        return {name: fitted.law for name, fitted in fit_mappings(self.sweep, self.hidden, RESAMPLES).items()}

    @property
    def truth(self) -> ScalingLaw | None:
        """What the sweep was simulated from; None for losses of real runs."""
        return self.law if self.observations is None else None

    @property
    def fitted(self) -> ScalingLaw:
        """The law shown with the sweep: the given one, or a fit to the simulated sweep."""
        if self.observations is not None:
            return self.law
        return self.mappings.get(self.law.mapping.name, list(self.mappings.values())[-1])

    @property
    def where(self) -> str:
        """Where the sweep's losses come from, as a caption continues."""
        return f"of {self.sweep.source}" if self.truth is None else f"simulated from {self.law.name}"

    def prepare(self) -> None:
        """Fit what several pictures share, once."""
        with suppress(InputError):  # reported by the pictures that need it
            self.mappings  # noqa: B018

    def origin(self, name: str) -> str:
        """Return the sentence on where a table comes from, for the end of a caption."""
        return "" if self.origins is None or name not in self.origins else f" {self.origins[name]}"


def _largest(observations: Observations) -> str | None:
    R = np.unique(observations.points.recurrence)
    return f"R={R[-1]:g}" if len(R) >= 3 else None


PAYS = 4
"""With fewer pictures, starting a second process takes longer than it saves."""


@dataclass(frozen=True)
class Task:
    """What to draw from, where to, and in which formats."""

    sources: Sources
    folder: Path
    formats: Sequence[str]

    def draw(self, name: str) -> str | None:
        """Draw one picture; return why not, where its source is missing."""
        try:
            note = "" if name in MEASURED else f"Law: {self.sources.law.name}."
            GALLERY[name](self.sources).save(self.folder, self.formats, note)
        except InputError as error:
            return str(error)
        return None


def draw_all(task: Task, names: Sequence[str], progress: Callable[[int, int], None] | None = None) -> dict[str, str]:
    """Draw the named pictures; return those left out, each with the reason."""
    left_out: dict[str, str] = {}
    for done, (name, reason) in enumerate(_drawn(task, names), 1):
        if reason is not None:
            left_out[name] = reason
        if progress is not None:
            progress(done, len(names))
    return left_out


def _drawn(task: Task, names: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    workers = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, 4)
    if workers < 2 or len(names) < PAYS:
        yield from ((name, task.draw(name)) for name in names)
        return
    task.sources.prepare()
    context = multiprocessing.get_context("fork")  # passes the task on without pickling it
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_take, initargs=(task,)) as pool:
        yield from zip(names, pool.map(_draw, names), strict=True)


_taken: list[Task] = []
"""The task of this worker process."""


def _take(task: Task) -> None:
    _taken.append(task)


def _draw(name: str) -> str | None:
    return _taken[-1].draw(name)


BUDGETS = np.geomspace(1e20, 1e23, 121)
SIZES = np.geomspace(0.1e9, 2.5e9, 41)
MEMORY = np.geomspace(0.17e9, 30e9, 400)
BF16_MEMORY = np.geomspace(0.65e9, 120e9, 400)


def gain_by_mapping(sources: Sources) -> Picture:
    """Effective-parameter gain under linear, power-law and bounded mappings."""
    panels = []
    for E in _seen_experts(sources):
        table = capacity.gain_by_mapping(sources.mappings, rung("1.0B", E))
        panels.append(Panel(table, capacity.draw_gain_by_mapping, f"e{E:g}"))
    caption = f"Effective-parameter gain of each mapping, fitted to losses {sources.where} without {sources.hidden}."
    return Picture("gain-by-mapping", caption, tuple(panels))


def loss_by_mapping(sources: Sources) -> Picture:
    """Loss against R by mapping, with the observations fitted and those held out."""
    panels = []
    for E in _seen_experts(sources):
        table = capacity.loss_over_recurrence(sources.sweep, sources.mappings, [E], sources.hidden)
        panels.append(Panel(table, capacity.draw_loss_over_recurrence, f"e{E:g}"))
    caption = f"Loss against recurrence: points {sources.where}, hollow ones ({sources.hidden}) not fitted."
    return Picture("loss-by-mapping", caption, tuple(panels))


def gain_by_sparsity(sources: Sources) -> Picture:
    """Effective-parameter gain against R for several E."""
    table = capacity.gain_by_sparsity(_looping(sources), experts=_all_experts(sources))
    return _one("gain-by-sparsity", "Effective-parameter gain for several E.", table, capacity.draw_gain_by_sparsity)


def multiplier(sources: Sources) -> Picture:
    """Effective-parameter multiplier against R for several E."""
    table = capacity.multiplier_by_sparsity(_looping(sources), experts=_all_experts(sources))
    return _one("multiplier", "Effective-parameter multiplier at the 1.0B rung.", table, capacity.draw_multiplier)


def asymptote(sources: Sources) -> Picture:
    """The multiplier's limit over E."""
    law = _looping(sources)
    if np.isinf(law.mapping.asymptote(law.coefficients, 0.5)):
        raise InputError(f"law {law.name} sets no upper limit on the gain from looping")
    caption = "The limit of the effective-parameter multiplier over experts."
    return _one("asymptote", caption, capacity.asymptote(law), capacity.draw_asymptote)


def isoflop_size(sources: Sources) -> Picture:
    """Loss against size at fixed compute for several R."""
    panels = []
    for E in _experts(sources):
        table = isoflop_over_size(sources.law, (5e20, 1e21), (E,), (1, 2, 4), np.geomspace(640, 2304, 81))
        panels.append(Panel(table, optima.draw_isoflop_over_size, f"e{E}"))
    return Picture("isoflop-size", "Loss against active size at fixed compute; markers are minima.", tuple(panels))


def best_recurrence(sources: Sources) -> Picture:
    """R* against compute."""
    _looping(sources)
    table = recurrence_map(sources.law, BUDGETS, ladder_space(["0.3B", "1.0B"], _experts(sources)))
    table = Table.from_records(sorted(table.records(), key=lambda row: (row["rung"], row["experts"], row["flops"])))
    caption = "Compute-optimal recurrence against training compute; thinner curves lie on thicker ones."
    return _one("best-recurrence", caption, table, optima.draw_best_recurrence)


def isoflop_recurrence(sources: Sources) -> Picture:
    """Loss against R at fixed compute, R* starred."""
    _looping(sources)
    table = isoflop_over_recurrence(sources.law, [sources.flops], ladder_space(["0.3B", "1.0B"], _experts(sources)))
    caption = f"Loss against recurrence at {scientific(sources.flops)} FLOPs; stars mark R*."
    return _one("isoflop-recurrence", caption, table, optima.draw_isoflop_over_recurrence)


def recurrence_maps(sources: Sources) -> Picture:
    """R* over compute and size."""
    _looping(sources)
    panels = []
    for E in reversed(_experts(sources)):
        space = continuous_space((E,), widths=width_for_active(SIZES))
        panels.append(Panel(recurrence_map(sources.law, BUDGETS[::2], space), optima.draw_recurrence_map, f"e{E}"))
    return Picture("recurrence-map", "Compute-optimal recurrence over compute and size.", tuple(panels), 2.1)


def best_experts(sources: Sources) -> Picture:
    """E* against bf16 memory at several R."""
    _routing(sources)
    panels, budget = [], Budget(flops=sources.flops, bits=16)
    for R in (4, 1):
        table = experts_map(sources.law, BF16_MEMORY, budget, ladder_space(recurrences=(R,)))
        panels.append(Panel(table, optima.draw_best_experts, f"r{R}"))
    caption = f"Memory-optimal experts at {scientific(sources.flops)} FLOPs, bf16 weights, the size free."
    return Picture("best-experts", caption, tuple(panels), 2.3)


def experts_maps(sources: Sources) -> Picture:
    """E* over int4 memory and R."""
    _routing(sources)
    table = experts_map(sources.law, MEMORY[::3], Budget(flops=sources.flops, bits=4))
    caption = f"Memory-optimal experts over int4 memory and R at {scientific(sources.flops)} FLOPs, the size free."
    return _one("experts-map", caption, table, optima.draw_experts_map, 2.2)


def joint(sources: Sources) -> Picture:
    """The joint optimum against int4 memory."""
    _routing(sources)
    table = joint_optimum(sources.law, MEMORY, Budget(flops=sources.flops, bits=4))
    caption = f"The best size, experts and recurrence as int4 memory grows, at {scientific(sources.flops)} FLOPs."
    return _one("joint-optimum", caption, table, optima.draw_joint_optimum, 2.8)


def residual_panels(sources: Sources) -> Picture:
    """Residuals of the law along each axis of the data."""
    table = fitting.residuals(sources.fitted, sources.sweep)
    axes = fitting.varied_axes(sources.sweep)
    panels = tuple(Panel(table, partial(fitting.draw_residuals, axis=axis), axis) for axis in axes)
    caption = f"Residuals of {sources.fitted.name} along each axis; losses {sources.where}."
    return Picture("residuals", caption, panels, 1.7)


def observed(sources: Sources) -> Picture:
    """Predicted against observed loss."""
    table = fitting.residuals(sources.fitted, sources.sweep)
    return _one("observed", f"Predicted against observed loss; losses {sources.where}.", table, fitting.draw_observed)


def interval_picture(sources: Sources) -> Picture:
    """Intervals of the coefficients."""
    table = fitting.intervals(sources.fitted, sources.truth)
    caption = f"Coefficients with their 90% intervals over resampled runs; losses {sources.where}."
    return _one("intervals", caption, table, fitting.draw_intervals, 3.2)


def downstream(sources: Sources) -> Picture:
    """Scores against training compute; for the models of a sweep, with panels over E and over R."""
    scores = outcomes.sweep_scores(_given(sources.results, "--results"))
    if scores is None:
        return _scores(sources, "downstream", "Scores against training compute.", outcomes.draw_downstream)
    panels, limits = [], outcomes.score_range(scores)
    for axis, by in (("experts", "recurrence"), ("recurrence", "experts")):
        for (value,), rows in sorted(groups(scores, axis).items()):
            draw = partial(outcomes.draw_sweep_downstream, by=by, limits=limits)
            panels.append(Panel(Table.from_records(rows), draw, f"{axis}-{value:g}"))
    panels.append(Panel(scores, outcomes.draw_loss_to_accuracy, "loss"))
    caption = (
        f"Measured scores of {len(scores)} models of a sweep against training compute, for each E and each R, and "
        f"against validation loss. Error bars are one standard error.{outcomes.significance(scores)}"
    )
    return Picture("downstream", caption + sources.origin("results"), tuple(panels), 1.9)


def scores_by_recurrence(sources: Sources) -> Picture:
    """Scores against test-time recurrence."""
    text = "Scores against test-time recurrence."
    return _scores(sources, "scores-by-recurrence", text, outcomes.draw_scores_by_recurrence)


def psi(sources: Sources) -> Picture:
    """Expert-path diversity."""
    table = _given(sources.psi, "--psi")
    return _one("psi", f"Expert-path diversity.{sources.origin('psi')}", table, outcomes.draw_psi)


def training(sources: Sources) -> Picture:
    """Training loss against tokens."""
    return _one("training", "Training loss.", _given(sources.metrics, "--metrics"), outcomes.draw_training)


def test_time(sources: Sources) -> Picture:
    """Loss against test-time recurrence."""
    table = _given(sources.test_time, "--test-time")
    return _one("test-time", "Loss against test-time recurrence.", table, outcomes.draw_test_time)


GALLERY: dict[str, Callable[[Sources], Picture]] = {
    "gain-by-mapping": gain_by_mapping,
    "loss-by-mapping": loss_by_mapping,
    "gain-by-sparsity": gain_by_sparsity,
    "multiplier": multiplier,
    "asymptote": asymptote,
    "isoflop-size": isoflop_size,
    "best-recurrence": best_recurrence,
    "isoflop-recurrence": isoflop_recurrence,
    "recurrence-map": recurrence_maps,
    "best-experts": best_experts,
    "experts-map": experts_maps,
    "joint-optimum": joint,
    "residuals": residual_panels,
    "observed": observed,
    "intervals": interval_picture,
    "downstream": downstream,
    "scores-by-recurrence": scores_by_recurrence,
    "psi": psi,
    "training": training,
    "test-time": test_time,
}
"""Every picture by name, in the paper's order."""


MEASURED = ("downstream", "scores-by-recurrence", "psi", "training", "test-time")
"""Pictures of measurements, without a law."""


def _one(name: str, caption: str, table: Table, draw: Callable[..., object], height: float = 2.6) -> Picture:
    return Picture(name, caption, (Panel(table, draw),), height)


def _scores(sources: Sources, name: str, caption: str, draw: Callable[..., object]) -> Picture:
    results = _given(sources.results, "--results")
    wanted = [group for group in (outcomes.OVERALL, "reasoning") if group in outcomes.present_groups(results)]
    panels = tuple(Panel(outcomes.mean_scores(results, group), draw, group) for group in wanted)
    return Picture(name, caption + sources.origin("results"), panels)


def _given(table: Table | None, option: str) -> Table:
    if table is None:
        raise InputError(f"give {option}")
    return table


def _seen_experts(sources: Sources) -> list[float]:
    """Return two expert counts of the sweep: the smallest, and the paper's 8 or else the largest."""
    seen = np.unique(sources.sweep.points.experts).tolist()
    return [seen[0], 8.0 if 8.0 in seen else seen[-1]][: len(seen)]


def _experts(sources: Sources) -> tuple[int, ...]:
    return (1, 8) if sources.law.outer.uses_experts else (1,)


def _all_experts(sources: Sources) -> tuple[int, ...]:
    return capacity.EXPERTS if sources.law.mapping.needs_ratio else (1,)


def _looping(sources: Sources) -> ScalingLaw:
    if not sources.law.mapping.loops:
        raise InputError(f"law {sources.law.name} has no recurrence term")
    return sources.law


def _routing(sources: Sources) -> ScalingLaw:
    if not sources.law.outer.uses_experts:
        raise InputError(f"law {sources.law.name} has no expert term")
    return sources.law
