"""Every figure of the paper, drawn from the available law, sweep and results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from loopscale.architecture import RUNGS, continuous_space, ladder_space, rung, width_for_active
from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError
from loopscale.core.quantities import format_power
from loopscale.core.tables import Table
from loopscale.figures import capacity, fitting, optima, outcomes, schematic, scores, sweep_scores
from loopscale.figures.pictures import Panel, Picture
from loopscale.figures.sources import Sources
from loopscale.planning import Budget
from loopscale.planning.profiles import (
    experts_map,
    isoflop_over_recurrence,
    isoflop_over_size,
    joint_optimum,
    recurrence_map,
)
from loopscale.scaling import ScalingLaw

BUDGETS = np.geomspace(1e20, 1e23, 121)
SIZES = np.geomspace(0.1e9, 2.5e9, 41)
FITTED_RUNGS = ("0.3B", "0.6B", "1.0B")
"""The sizes that the paper trained."""
MEMORY = np.geomspace(0.17e9, 30e9, 400)
BF16_MEMORY = np.geomspace(0.65e9, 120e9, 400)


def schematic_picture(sources: Sources) -> Picture:
    """A token's path through a looped dense model and a looped MoE."""
    caption = (
        "A looped dense model uses the same weights in each pass; a looped MoE may route to other experts. "
        "An illustration, not a measurement."
    )
    return _one("schematic", caption, schematic.routes(), schematic.draw_routes)


def loss_by_experts(sources: Sources) -> Picture:
    """Loss against R, a curve for each E."""
    law = _looping(sources) if sources.observations is None else sources.fitted
    table = capacity.loss_over_recurrence(sources.sweep, {law.name: law})
    caption = f"Loss against recurrence for each E at one size and D: curves {law.name}, points {sources.where}."
    return _one(
        "loss-by-experts", caption, table, partial(capacity.draw_loss_over_recurrence, simulated=sources.simulated)
    )


def bounded_gain(sources: Sources) -> Picture:
    """Gain of the law for each E beside mappings without a bound."""
    law = _looping(sources)
    unbounded: dict[str, ScalingLaw] = {
        name: sources.mappings[name] for name in ("linear", "power") if name in sources.mappings
    }
    table = capacity.bounded_and_unbounded(law, unbounded, experts=_all_experts(sources))
    caption = (
        f"Effective-parameter gain of {law.name} for several E, and of mappings without a bound, fitted to losses "
        f"{sources.where}."
    )
    return _one("bounded-gain", caption, table, capacity.draw_bounded_and_unbounded)


def gain_by_mapping_picture(sources: Sources) -> Picture:
    """Effective-parameter gain under linear, power-law and bounded mappings."""
    panels = []
    for E in _seen_experts(sources):
        table = capacity.gain_by_mapping(sources.mappings_at(E), rung("1.0B", E))
        panels.append(Panel(table, capacity.draw_gain_by_mapping, f"e{E:g}"))
    caption = f"Effective-parameter gain of each mapping, fitted to losses {sources.where}{sources.fitted_rows}."
    return Picture("gain-by-mapping", caption, tuple(panels))


def loss_by_mapping(sources: Sources) -> Picture:
    """Loss against R by mapping, with the observations fitted and those held out."""
    panels = []
    for E in _seen_experts(sources):
        table = capacity.loss_over_recurrence(sources.sweep, sources.mappings_at(E), [E], sources.hidden)
        panels.append(Panel(table, partial(capacity.draw_loss_over_recurrence, simulated=sources.simulated), f"e{E:g}"))
    held_out = " Hollow points were held out." if sources.hidden else ""
    caption = f"Loss against recurrence: points {sources.where}; mappings fitted{sources.fitted_rows}.{held_out}"
    return Picture("loss-by-mapping", caption, tuple(panels))


def gain_by_sparsity_picture(sources: Sources) -> Picture:
    """Effective-parameter gain against R for several E."""
    table = capacity.gain_by_sparsity(_looping(sources), experts=_all_experts(sources))
    return _one("gain-by-sparsity", "Effective-parameter gain for several E.", table, capacity.draw_gain_by_sparsity)


def multiplier(sources: Sources) -> Picture:
    """Effective-parameter multiplier against R for several E."""
    table = capacity.multiplier_by_sparsity(_looping(sources), experts=_all_experts(sources))
    return _one("multiplier", "Effective-parameter multiplier at the 1.0B rung.", table, capacity.draw_multiplier)


def asymptote_picture(sources: Sources) -> Picture:
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
        table = isoflop_over_size(sources.law, (5e20, 1e21), (E,), (1, 2, 4) if sources.law.mapping.loops else (1,),
                                  np.geomspace(640, 2304, 81))  # fmt: skip
        panels.append(Panel(table, optima.draw_isoflop_over_size, f"e{E}"))
    return Picture("isoflop-size", "Loss against active size at fixed compute; markers are minima.", tuple(panels))


def best_recurrence(sources: Sources) -> Picture:
    """R* and the loss at R* against compute."""
    _looping(sources)
    panels = []
    for E in reversed(_experts(sources)):
        table = recurrence_map(sources.law, BUDGETS, ladder_space(FITTED_RUNGS, (E,)))
        table = Table.from_records(sorted(table.records(), key=lambda row: (row["rung"], row["flops"])))
        panels.append(Panel(table, optima.draw_best_recurrence, f"e{E}"))
        panels.append(Panel(table, optima.draw_best_loss, f"e{E}"))
    caption = "Compute-optimal recurrence and its loss against training compute; thinner curves lie on thicker ones."
    return Picture("best-recurrence", caption, tuple(panels))


def isoflop_recurrence(sources: Sources) -> Picture:
    """Loss against R at fixed compute, R* starred."""
    _looping(sources)
    table = isoflop_over_recurrence(sources.law, [sources.flops], ladder_space(FITTED_RUNGS, _experts(sources)))
    caption = f"Loss against recurrence at {format_power(sources.flops)} FLOPs; stars mark R*."
    return _one("isoflop-recurrence", caption, table, optima.draw_isoflop_over_recurrence)


def recurrence_maps(sources: Sources) -> Picture:
    """R* over compute and size."""
    _looping(sources)
    tables = {
        E: recurrence_map(sources.law, BUDGETS[::2], continuous_space((E,), widths=width_for_active(SIZES)))
        for E in reversed(_experts(sources))
    }
    levels = range(1, 1 + int(max(R for table in tables.values() for R in table.columns["best_recurrence"])))
    draw = partial(optima.draw_recurrence_map, levels=levels)
    panels = tuple(Panel(table, draw, f"e{E}") for E, table in tables.items())
    return Picture("recurrence-map", "Compute-optimal recurrence over compute and size.", panels, 2.1)


def best_experts(sources: Sources) -> Picture:
    """E* against bf16 memory at several R, at fixed sizes and with the size free."""
    _routing(sources)
    panels, budget = [], Budget(flops=sources.flops, bits=16)
    for R in (4, 1):
        sizes = [_at_size(sources, BF16_MEMORY, budget, size, (R,)) for size in RUNGS]
        fixed = Table.from_records([row for table in sizes for row in table.records()])
        free = experts_map(sources.law, BF16_MEMORY, budget, ladder_space(recurrences=(R,)))
        panels += [Panel(fixed, optima.draw_best_experts, f"r{R}"), Panel(free, optima.draw_best_experts, f"r{R}-free")]
    caption = (
        f"Memory-optimal experts at {format_power(sources.flops)} FLOPs, bf16 weights: at fixed sizes, as the paper's "
        "rule has it, and with the size free."
    )
    return Picture("best-experts", caption, tuple(panels), 2.4)


def experts_maps(sources: Sources) -> Picture:
    """E* over int4 memory and R, at a fixed size and with the size free."""
    _routing(sources)
    budget = Budget(flops=sources.flops, bits=4)
    fixed = _at_size(sources, MEMORY[::3], budget, "1.0B")
    free = experts_map(sources.law, MEMORY[::3], budget)
    levels = sorted({E for table in (fixed, free) for E in table.columns["best_experts"] if E == E})
    draw = partial(optima.draw_experts_map, levels=levels)
    caption = (
        f"Memory-optimal experts over int4 memory and R at {format_power(sources.flops)} FLOPs: at a fixed size, as "
        "the paper's rule has it, and with the size free. White: nothing fits."
    )
    return Picture("experts-map", caption, (Panel(fixed, draw, "1.0b"), Panel(free, draw, "free")), 2.2)


def _at_size(
    sources: Sources, memory: FloatArray, budget: Budget, size: str, recurrences: Sequence[int] | None = None
) -> Table:
    """Return E* over memory at one size, named in the column ``fixed``."""
    space = ladder_space([size]) if recurrences is None else ladder_space([size], recurrences=recurrences)
    table = experts_map(sources.law, memory, budget, space)
    return Table({**table.columns, "fixed": [size] * len(table)})


def joint(sources: Sources) -> Picture:
    """The joint optimum against int4 memory."""
    _routing(sources)
    table = joint_optimum(sources.law, MEMORY, Budget(flops=sources.flops, bits=4))
    caption = f"The best size, experts and recurrence as int4 memory grows, at {format_power(sources.flops)} FLOPs."
    return _one("joint-optimum", caption, table, optima.draw_joint_optimum, 2.8)


def loss_compute(sources: Sources) -> Picture:
    """Loss over compute: the runs, the law with its band, and a run predicted beyond them."""
    table = fitting.loss_over_compute(sources.fitted, sources.sweep, sources.flops)
    caption = (
        f"Loss over training compute: points {sources.where}; curve: the lowest loss that {sources.fitted.name} finds "
        "at each budget, dotted beyond the data; band: 90% for one run; star: a predicted run."
    )
    return _one("loss-compute", caption, table, _title_simulated(fitting.draw_loss_over_compute, sources))


def residual_panels(sources: Sources) -> Picture:
    """Residuals of the law along each axis of the data."""
    table = fitting.residuals(sources.fitted, sources.sweep)
    axes = fitting.varied_axes(sources.sweep)
    draw = _title_simulated(fitting.draw_residuals, sources)
    panels = tuple(Panel(table, partial(draw, axis=axis), axis) for axis in axes)
    caption = f"Residuals of {sources.fitted.name} along each axis; losses {sources.where}."
    return Picture("residuals", caption, panels, 1.7)


def observed(sources: Sources) -> Picture:
    """Predicted against observed loss."""
    table = fitting.residuals(sources.fitted, sources.sweep)
    caption = f"Predicted against observed loss; losses {sources.where}."
    return _one("observed", caption, table, _title_simulated(fitting.draw_observed, sources))


def interval_picture(sources: Sources) -> Picture:
    """Intervals of the coefficients."""
    table = fitting.intervals(sources.fitted, sources.truth)
    caption = f"Coefficients with their 90% intervals over resampled runs; losses {sources.where}."
    return _one("intervals", caption, table, _title_simulated(fitting.draw_intervals, sources), 3.2)


def downstream_picture(sources: Sources) -> Picture:
    """Scores against training compute; for the models of a sweep, over E at one R and over R at one E."""
    results = _required(sources.results, "--results")
    by_model = sweep_scores.sweep_scores(results)
    if by_model is None:
        return _scores(sources, "downstream", "Scores against training compute.", scores.draw_downstream)
    panels = []
    for by in ("experts", "recurrence"):
        for group in sweep_scores.sweep_groups(results):
            grouped = sweep_scores.sweep_scores(results, group)
            assert grouped is not None
            draw = partial(sweep_scores.draw_sweep_downstream, limits=sweep_scores.score_range(grouped))
            panels.append(Panel(sweep_scores.along(grouped, by), draw, f"{by}-{group}"))
    panels.append(Panel(by_model, sweep_scores.draw_loss_to_accuracy, "loss"))
    caption = (
        f"Measured scores of {len(by_model)} models of a sweep against training compute and validation loss. Error "
        "bars are one standard error; bars on the dashed line are interpolated at equal compute."
        f"{sweep_scores.significance(by_model)}"
    )
    return Picture("downstream", caption + sources.origin("results"), tuple(panels))


def scores_by_recurrence(sources: Sources) -> Picture:
    """Scores against test-time recurrence."""
    text = "Scores against test-time recurrence."
    return _scores(sources, "scores-by-recurrence", text, scores.draw_scores_by_recurrence)


def psi_picture(sources: Sources) -> Picture:
    """Expert-path diversity."""
    table = _required(sources.psi, "--psi")
    return _one("psi", f"Expert-path diversity.{sources.origin('psi')}", table, outcomes.draw_psi)


def training(sources: Sources) -> Picture:
    """Training loss against tokens."""
    return _one("training", "Training loss.", _required(sources.metrics, "--metrics"), outcomes.draw_training)


def test_time(sources: Sources) -> Picture:
    """Loss against test-time recurrence."""
    table = _required(sources.test_time, "--test-time")
    return _one("test-time", "Loss against test-time recurrence.", table, outcomes.draw_test_time)


GALLERY: dict[str, Callable[[Sources], Picture]] = {
    "schematic": schematic_picture,
    "loss-by-experts": loss_by_experts,
    "bounded-gain": bounded_gain,
    "gain-by-mapping": gain_by_mapping_picture,
    "loss-by-mapping": loss_by_mapping,
    "gain-by-sparsity": gain_by_sparsity_picture,
    "multiplier": multiplier,
    "asymptote": asymptote_picture,
    "isoflop-size": isoflop_size,
    "best-recurrence": best_recurrence,
    "isoflop-recurrence": isoflop_recurrence,
    "recurrence-map": recurrence_maps,
    "best-experts": best_experts,
    "experts-map": experts_maps,
    "joint-optimum": joint,
    "loss-compute": loss_compute,
    "residuals": residual_panels,
    "observed": observed,
    "intervals": interval_picture,
    "downstream": downstream_picture,
    "scores-by-recurrence": scores_by_recurrence,
    "psi": psi_picture,
    "training": training,
    "test-time": test_time,
}
"""Every picture by name, in the paper's order."""
MEASURED = ("schematic", "downstream", "scores-by-recurrence", "psi", "training", "test-time")
"""Pictures without a law."""


def _title_simulated(draw: Callable[..., Any], sources: Sources) -> Callable[..., Any]:
    """Return ``draw``; for simulated losses, one that says so in the title, as a paper's style draws no caption."""
    return partial(_draw_simulated, draw=draw) if sources.simulated else draw


def _draw_simulated(table: Table, axes: Any | None = None, *, draw: Callable[..., Any], **options: Any) -> Any:
    axes = draw(table, axes, **options)
    title = axes.get_title(loc="left")
    axes.set_title(f"{title}, simulated" if title else "simulated losses", fontsize=8, loc="left")
    return axes


def _one(name: str, caption: str, table: Table, draw: Callable[..., object], height: float = 2.6) -> Picture:
    return Picture(name, caption, (Panel(table, draw),), height)


def _scores(sources: Sources, name: str, caption: str, draw: Callable[..., object]) -> Picture:
    results = _required(sources.results, "--results")
    wanted = [group for group in (scores.OVERALL, "reasoning") if group in scores.present_groups(results)]
    panels = tuple(Panel(scores.mean_scores(results, group), draw, group) for group in wanted)
    return Picture(name, caption + sources.origin("results"), panels)


def _required(table: Table | None, option: str) -> Table:
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
