"""The paper's tables, made from any law, sweep and results, as LaTeX, HTML and CSV."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from loopscale.architecture import RUNG_EXPERTS, RUNGS, rung
from loopscale.core.errors import InputError
from loopscale.core.files import write_text
from loopscale.core.quantities import format_count, format_span
from loopscale.core.tables import Table
from loopscale.figures.scores import OVERALL, is_mean, mean_scores, present_groups
from loopscale.planning import Budget
from loopscale.planning.profiles import choice_span, joint_optimum
from loopscale.scaling import PUBLISHED, ScalingLaw, mapping

if TYPE_CHECKING:
    from loopscale.figures.sources import Sources
    from loopscale.fitting import Observations


@dataclass(frozen=True)
class Sheet:
    """A table whose cells are text as printed, with its caption."""

    name: str
    caption: str
    table: Table

    def save(self, folder: Path) -> None:
        """Write the table as LaTeX (booktabs), as an HTML page and as CSV."""
        head = f"<!doctype html><meta charset=utf-8><title>{escape(self.name)}</title><p>{escape(self.caption)}</p>"
        texts = {
            "tex": f"% {self.caption}\n{self.table.latex()}",
            "html": f"{head}\n{self.table.html()}\n",
            "csv": self.table.csv(),
        }
        for ending, text in texts.items():
            write_text(folder / f"{self.name}.{ending}", text)


YES, NO = "yes", "no"
ELSEWHERE = (
    ("looped", "Parcae (2026)", YES, YES, YES, NO, "linear; unbounded", YES, NO, "linear"),
    ("looped MoE", "Sparse Layers (2026)", YES, NO, NO, NO, "fixed R = 2", YES, NO, NO),
    ("looped MoE", "SMELT (2026)", YES, YES, NO, YES, "fixed R = 2", YES, NO, NO),
)
"""Laws of the paper's comparison whose coefficients are not at hand, as the paper describes them."""
REFITTED = {
    "chinchilla-epoch-2024": "epoch-chinchilla",
    "routed-s-base-2022": "clark-routing",
    "routed-rl-r-2022": "clark-routing",
    "routed-hash-2022": "clark-routing",
    "iso-depth-2026": "isodepth",
    "qlabs-loops-2026": "qlabs-loops",
    "qlabs-repetition-2026": "qlabs-regimes",
}
"""The public sweep that a law was refitted to here; tests/external and docs/evidence.md have the numbers."""
LAW_COLUMNS = ("models", "law", "N", "D", "R", "E", "recurrence mapping", "compute", "memory", "fit", "plan",
               "refitted here", "size", "tokens", "experts", "passes")  # fmt: skip


def laws_table() -> Table:
    """Return the paper's comparison of scaling laws: axes, mapping, optimality, and what can be done with each here.

    ``compute`` and ``memory``: whether the law can say which design is best at fixed compute and fixed weight memory.
    ``fit`` and ``plan``: whether its form can be fitted, and whether plans can be made with its coefficients.
    """
    rows = [_law_row(law) for law in PUBLISHED.values()]
    rows += [(*line, NO, NO, "", "", "", "") for line in ELSEWHERE]
    order = ("dense", "MoE", "looped", "looped MoE")
    rows.sort(key=lambda row: order.index(row[0]))
    return Table({name: [row[k] for row in rows] for k, name in enumerate(LAW_COLUMNS)})


def _law_row(law: ScalingLaw) -> tuple[str, ...]:
    experts, tokens, loops = law.outer.uses_experts, law.outer.uses_tokens, law.mapping.loops
    kind = " ".join(word for word, held in (("looped", loops), ("MoE", experts)) if held) or "dense"
    axes = [YES if held else NO for held in (True, tokens, loops, experts)]
    optimal = [YES if held else NO for held in (tokens, tokens and experts)]
    return (kind, law.name, *axes, _mapping_text(law), *optimal, YES, YES if tokens else NO,
            REFITTED.get(law.name, NO), *(span_text(law, axis) for axis in ("size", "tokens", "experts", "recurrence")),
            )  # fmt: skip


def _mapping_text(law: ScalingLaw) -> str:
    if not law.mapping.loops:
        return "–"
    bound = "unbounded" if np.isinf(law.mapping.asymptote(law.coefficients, 0.5)) else "bounded"
    name = "" if law.mapping.name == bound else f"{law.mapping.name}; "
    return f"{name}{bound}"


def span_text(law: ScalingLaw, axis: str) -> str:
    """Return the range that the law was fitted on along one axis, as people write it."""
    low, high = getattr(law.fitted_range, axis)
    return "not stated" if low is None and high is None else format_span(low, high, digits=2)


def laws_sheet(sources: Sources) -> Sheet:
    """The comparison of published laws."""
    caption = "Scaling laws: axes, recurrence mapping, optimality, and what can be done with each here."
    return Sheet("laws", caption, laws_table())


GAINS = {
    "linear": ("(R - 1) N_loop", "infinite"),
    "power": ("(R^phi - 1) N_loop", "infinite"),
    "bounded": ("kappa1 N_loop (1 - exp(-(R - 1) / kappa2))", "kappa1 N_loop"),
    "sparsity-conditional": ("kappa1(m) N_loop (1 - exp(-(R - 1) / kappa2(m)))", "kappa1(m) N_loop"),
}
"""The gain N_eff - N_act of each mapping, and its limit; kappa(m) = kappa m^-theta."""


def mappings_sheet(sources: Sources) -> Sheet:
    """The recurrence mappings and their limits."""
    rows = [(mapping(name).title, *texts) for name, texts in GAINS.items()]
    columns = {head: [row[k] for row in rows] for k, head in enumerate(("mapping", "N_eff - N_act", "R to infinity"))}
    return Sheet("mappings", "Recurrence mappings and their effective-parameter gains.", Table(columns))


def held_out_sheet(sources: Sources) -> Sheet:
    """RMSE of each mapping on rows held out along each axis, in dense models and in all."""
    from loopscale.figures.capacity import dense_rows
    from loopscale.fitting.compare import applicable, compare

    sweep, rows = sources.sweep, []
    several = len(np.unique(sweep.points.experts)) > 1
    for models, data in ([("dense", dense_rows(sweep))] if several else []) + [("all", sweep)]:
        if not len(data):
            continue
        names = [name for name in GAINS if name in applicable(data)]
        for label, part in _slices(data).items():
            scores = compare(data, [part], mappings=names, folds=0, count=10).scores
            cells = {score.mapping: f"{score.rmse:.4f}" for score in scores}
            rows.append({"models": models, "held out": label, **{name: cells.get(name, "–") for name in GAINS}})
    return Sheet("held-out", f"RMSE on held-out rows (nats); losses {sources.where}.", Table.from_records(rows))


def _slices(data: Observations) -> dict[str, str]:
    """Return the slice at the largest value of each axis that has three or more, by what a table calls it."""
    points, slices = data.points, {}
    for letter, values in (("R", points.recurrence), ("E", points.experts), ("N", points.active), ("D", points.tokens)):
        levels = np.unique(values)
        if len(levels) >= 3:
            slices[f"{letter} = {format_count(levels[-1], 3)}"] = f"{letter}={levels[-1]:.10g}"
    return slices


def ladder_sheet(sources: Sources) -> Sheet:
    """The model ladder."""
    rows = []
    for name in RUNGS:
        model = rung(name)
        sizes = {E: rung(name, experts=E) for E in RUNG_EXPERTS if E <= 16}
        rows.append({
            "N_act": name, "d_m": str(model.width), "n_h": str(model.prelude[0].layer.attention.heads),
            "layers": str(model.layers), "looped": str(model.loop_block[0].count), "N_loop": f"{model.loop / 1e9:.1f}",
            **{f"N_total, E={E:g}": f"{(size.total + size.embedding) / 1e9:.1f}" for E, size in sizes.items()},
        })  # fmt: skip
    return Sheet(
        "ladder", "The model ladder; parameters in billions, N_total with embeddings.", Table.from_records(rows)
    )


def coefficients_sheet(sources: Sources) -> Sheet:
    """The coefficients of the law, with 90% intervals where it has resampled laws."""
    law = sources.fitted if sources.observations is not None else sources.law
    rows = []
    for k, (name, value) in enumerate(law.coefficients.items()):
        low, high = (np.nan, np.nan) if law.resamples is None else np.percentile(law.resamples[:, k], [5, 95])
        interval = "" if np.isnan(low) else f"[{low:.4f}, {high:.4f}]"
        rows.append({"coefficient": name, "estimate": f"{value:.4f}", "90% interval": interval})
    if law.rmse is not None:
        rows.append({"coefficient": "RMSE", "estimate": f"{law.rmse:.4f}", "90% interval": ""})
    return Sheet("coefficients", f"Coefficients of {law.name}.", Table.from_records(rows))


def optima_sheet(sources: Sources) -> Sheet:
    """The joint optimum at three memories, with what 90% of the resampled laws choose."""
    from loopscale.figures.optima import MARKED

    if not sources.law.outer.uses_experts:
        raise InputError(f"law {sources.law.name} has no expert term")
    table = joint_optimum(sources.law, MARKED, Budget(flops=sources.flops, bits=4))
    rows = [
        {
            "compute": f"{sources.flops:.3g}",
            "memory": f"{row['memory'] / 1e9:g} GB",
            "N_act": f"{row['rung']} {choice_span(row, 'active', format_count)}".strip(),
            "E": f"{row['experts']:g} {choice_span(row, 'experts', '{:g}'.format)}".strip(),
            "R": f"{row['recurrence']:g} {choice_span(row, 'recurrence', '{:g}'.format)}".strip(),
            "loss": f"{row['loss']:.4f}",
        }
        for row in table.records()
    ]
    return Sheet("optima", "The best design for int4 weights in three memories.", Table.from_records(rows))


def psi_sheet(sources: Sources) -> Sheet:
    """Expert-path diversity, a row for each E and a column for each R."""
    if sources.psi is None:
        raise InputError("give --psi")
    rows = list(sources.psi.records())
    cells = {(row["experts"], row["recurrence"]): row for row in rows}
    passes = sorted({row["recurrence"] for row in rows})
    table = []
    for E in sorted({row["experts"] for row in rows}):
        line = {"E": f"{E:g}"}
        for R in passes:
            cell = cells.get((E, R))
            line[f"R={R:g}"] = "–" if cell is None else _with_spread(cell["psi"], cell["spread"])
        table.append(line)
    caption = f"Expert-path diversity: mean ± standard deviation over prompts.{sources.origin('psi')}"
    return Sheet("psi", caption, Table.from_records(table))


def _with_spread(value: float, spread: float) -> str:
    return f"{value:.4f}" if spread != spread else f"{value:.4f} ± {spread:.4f}"


def scores_sheet(sources: Sources) -> Sheet:
    """Scores by task, with the relative inference compute where it is known and the gain over R = 1."""
    if sources.results is None:
        raise InputError("give --results")
    results = sources.results
    overall = {(row["model"], row["recurrence"]): row for row in mean_scores(results).records()}
    tasks = [name for name in dict.fromkeys(results.columns["task"])
             if any(row["task"] == name and not is_mean(row) for row in results.records())]  # fmt: skip
    groups = [name for name in present_groups(results) if name != OVERALL]
    by_group = {
        group: {(row["model"], row["recurrence"]): row["score"] for row in mean_scores(results, group).records()}
        for group in groups
    }
    values = {(row["model"], row["recurrence"], row["task"]): row["value"] for row in results.records()}
    compute = {(row["model"], row["recurrence"]): row.get("relative_compute", np.nan) for row in results.records()}
    rows = []
    for model, R in overall:
        relative, total = compute[model, R], overall[model, R]["score"]
        first = overall.get((model, 1))
        gain = "" if first is None or R == 1 else f" ({total - first['score']:+.1f})"
        rows.append({
            "model": str(model), "R": f"{R:g}",
            "compute": "" if relative is None or relative != relative else f"{relative:.1f}×",
            **{task: _number(values.get((model, R, task))) for task in tasks},
            **{group.capitalize(): _number(by_group[group].get((model, R))) for group in groups},
            "Overall": f"{total:.1f}{gain}",
        })  # fmt: skip
    caption = f"Scores; compute is inference compute over the baseline's.{sources.origin('results')}"
    return Sheet("scores", caption, Table.from_records(rows))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def benchmarks_sheet(sources: Sources) -> Sheet:
    """The benchmarks of the paper's suite with their shots and metrics."""
    from loopscale.evaluate.suites import load_suite

    rows = [
        {"category": one.category, "benchmark": one.label, "task": one.task, "shots": str(one.shots or 0),
         "metric": (one.metric or "").removesuffix(",none")}
        for one in load_suite("paper").benchmarks
    ]  # fmt: skip
    return Sheet(
        "benchmarks", "The paper's benchmarks; names and metrics as lm-eval has them.", Table.from_records(rows)
    )


TABLES: dict[str, Callable[[Sources], Sheet]] = {
    "laws": laws_sheet,
    "mappings": mappings_sheet,
    "held-out": held_out_sheet,
    "ladder": ladder_sheet,
    "coefficients": coefficients_sheet,
    "optima": optima_sheet,
    "psi": psi_sheet,
    "scores": scores_sheet,
    "benchmarks": benchmarks_sheet,
}
"""Every table by name, in the paper's order."""


def write_tables(sources: Sources, folder: Path) -> dict[str, str]:
    """Write the tables; return those left out, each with the reason."""
    left_out = {}
    for name, sheet in TABLES.items():
        try:
            sheet(sources).save(folder)
        except InputError as error:
            left_out[name] = str(error)
    return left_out
