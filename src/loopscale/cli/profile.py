"""``loopscale profile``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click
import numpy as np
from rich.text import Text

from loopscale.architecture import RUNG_EXPERTS, RUNG_RECURRENCES, RUNGS, Space, ladder_space
from loopscale.cli.output import columns_by_table, print_json, print_table, print_wide_table, say
from loopscale.cli.params import (
    BITS,
    CONTEXT,
    COUNTS,
    EXPERTS,
    INTEGERS,
    MEMORIES,
    extrapolate_option,
    output_options,
    verbose_option,
)
from loopscale.cli.subjects import RUNG_LIST, law_option
from loopscale.cli.verbs import verb
from loopscale.core.quantities import format_bytes, format_count, format_power, format_size
from loopscale.core.tables import Table
from loopscale.planning import Budget
from loopscale.planning.profiles import (
    built_experts,
    choice_span,
    experts_map,
    isoflop_over_experts,
    isoflop_over_recurrence,
    isoflop_over_size,
    joint_optimum,
    recurrence_map,
)
from loopscale.planning.refusals import withheld
from loopscale.planning.text import legend, mark
from loopscale.scaling import ScalingLaw

KINDS = {
    "size": "Loss by active size",
    "recurrence": "Loss by passes (R)",
    "experts": "Loss by experts",
    "best-recurrence": "Best passes (R) by compute and size",
    "best-experts": "Best experts by memory and passes (R)",
    "joint": "Best size, experts and passes (R) by memory",
}
SCREEN = 20
"""Lines that tables of curves may take; more become one line for each curve, unless all are asked for."""

CERTAIN = 0.9
"""Share of resampled laws that should agree; below it a choice has a question mark."""
BEYOND = "beyond"
"""What stands in place of an answer that is withheld."""
JOINT_COLUMNS = ("memory", "size", "experts", "R", "tokens", "loss", "agreement")


@verb("profile")
@click.argument("kind", type=click.Choice(list(KINDS)))
@click.option("--flops", type=COUNTS, help="Compute budgets, like 5e20,1e21.  [default: 5e21; for maps a range]")
@click.option("--memory", type=MEMORIES, help="Memory budgets, like 1GB,3GB,10GB.  [default: 0.25 GB to 32 GB]")
@click.option("--bits", type=BITS, default="16", show_default=True, help="Bits per weight, for memory.")
@click.option("--context", type=CONTEXT, help="Count the KV cache of this context, for memory; 8k is 8,192.")
@click.option("--rung", "rungs", type=RUNG_LIST, help=f"Rungs.  [default: {','.join(RUNGS)}]")
@click.option("--experts", type=EXPERTS, help="Expert counts.")
@click.option("--recurrence", "recurrences", type=INTEGERS, help="Recurrences, like 1,2,4 or 1..10.")
@click.option("--eps", type=float, help="Least gain that justifies a step.  [default: the law's RMSE]")
@extrapolate_option
@law_option
@output_options
@verbose_option
def profile_command(
    kind: str, law: ScalingLaw, extrapolate: bool, as_json: bool, as_csv: bool, verbose: bool, **options: Any
) -> None:
    """Show how loss, or the best choice, changes along an axis.

    \b
    KIND is one of
      size             loss by active size at fixed compute
      recurrence       loss by passes (R) at fixed compute, with the best
      experts          loss by experts at fixed compute, with the best
      best-recurrence  the best passes by compute and size
      best-experts     the best experts by memory and passes
      joint            the best size, experts and passes by memory

    Experts are those of the built model, 2 of 16: E = 8 stored for each active one.

    \b
    loopscale profile recurrence --flops 5e21 --rung 0.3B,1.0B --experts 1,8
    loopscale profile best-recurrence --experts 8
    loopscale profile joint --flops 5e21 --memory 1GB,3GB,10GB --bits int4 --csv
    """
    if kind in ("best-experts", "joint") and options["flops"] is not None and len(options["flops"]) > 1:
        raise click.UsageError(f"--flops takes one budget for {kind}")
    table = _table(kind, law, ProfileOptions(**options))
    if not extrapolate:
        table = withheld(table)
    if as_json:
        print_json({"kind": "profile", "profile": kind, "law": law.name, "rows": list(table.records())})
    elif as_csv:
        click.echo(table.csv(), nl=False)
    else:
        _print(kind, table, law, verbose)


@dataclass(frozen=True)
class ProfileOptions:
    """The options of a profile; None where the default depends on its kind."""

    flops: tuple[float, ...] | None
    memory: tuple[float, ...] | None
    bits: float
    context: int | None
    rungs: tuple[str, ...] | None
    experts: tuple[float, ...] | None
    recurrences: tuple[int, ...] | None
    eps: float | None

    def space(self, experts: Sequence[float], recurrences: Sequence[int]) -> Space:
        """Return the ladder's candidates, with these experts and passes where the options state none."""
        return ladder_space(self.rungs or tuple(RUNGS), self.experts or experts, self.recurrences or recurrences)

    def memory_problem(self) -> tuple[Sequence[float], Budget, Space]:
        """Return memory budgets, the compute that goes with them, and the whole design space."""
        budget = Budget(flops=(self.flops or (5e21,))[0], bits=self.bits, context=self.context)
        memory = self.memory or tuple(2.0 ** np.arange(-2, 6) * 1e9)
        return memory, budget, self.space(RUNG_EXPERTS, RUNG_RECURRENCES)


def _table(kind: str, law: ScalingLaw, options: ProfileOptions) -> Table:
    if kind == "size":
        sizes = np.geomspace(512, 4096, 13)
        return isoflop_over_size(
            law, options.flops or (5e20, 1e21), options.experts or (1, 8), options.recurrences or (1, 2, 4), sizes
        )
    if kind == "recurrence":
        return isoflop_over_recurrence(
            law, options.flops or (5e21,), options.space((1, 8), RUNG_RECURRENCES), options.eps
        )
    if kind == "experts":
        return isoflop_over_experts(law, options.flops or (5e21,), options.space(RUNG_EXPERTS, (1, 4)), options.eps)
    if kind == "best-recurrence":
        flops = options.flops or tuple(np.geomspace(1e20, 1e23, 7))
        return recurrence_map(law, flops, options.space((1, 8), RUNG_RECURRENCES), options.eps)
    over_memory = experts_map if kind == "best-experts" else joint_optimum
    return over_memory(law, *options.memory_problem(), eps=options.eps)


def _print(kind: str, table: Table, law: ScalingLaw, verbose: bool) -> None:
    rows, resamples = list(table.records()), 0 if law.resamples is None else len(law.resamples)
    title = f"{KINDS[kind]}, law {law.name}"
    if kind == "joint":
        print_joint(title, table)
        if resamples:
            say(f"agreement: share of {resamples} resampled laws that choose the same; [low, high]: 90% of choices")
    elif kind == "best-recurrence":
        named = lambda row: f"{row['rung']} {built_experts(row['experts'])}"  # noqa: E731
        _print_map(title, "size", rows, named, "flops", "best_recurrence", format_power, resamples)
    elif kind == "best-experts":
        by_passes = lambda row: str(row["recurrence"])  # noqa: E731
        _print_map(title, "R", rows, by_passes, "memory", "best_experts", format_bytes, resamples)
    else:
        _print_curves(kind, rows, law.name, verbose)


STARS = {
    "recurrence": "best: the last pass that gains at least eps",
    "experts": "best: the last step in experts that gains at least eps",
    "size": "lowest loss of its curve",
}
"""What the star of a curve marks; a later pass can have a lower loss, by less than eps a pass."""
WRITE: dict[str, Callable[[Any], str]] = {
    "active": format_size, "flops": format_power, "rung": str, "experts": built_experts, "recurrence": "{:g}".format,
}  # fmt: skip
LABELS = {"active": "active", "flops": "FLOPs", "rung": "size", "experts": "experts", "recurrence": "R"}


def _print_curves(kind: str, rows: list[dict[str, Any]], law: str, verbose: bool) -> None:
    """Print one column per curve; what the rule takes of each stands in bold with a star."""
    across = "active" if kind == "size" else kind
    budgets = {row["flops"] for row in rows}
    at = f" at {format_power(budgets.pop())} FLOPs" if len(budgets) == 1 else ""
    axes = [name for name in ("flops", "rung", "experts", "recurrence") if name != kind]
    keys = [name for name in axes if not (name == "flops" and at) and not (name == "rung" and kind == "size")]
    curves = list(dict.fromkeys(tuple(row[name] for name in keys) for row in rows))
    cells = {(row[across], tuple(row[name] for name in keys)): row for row in rows}
    headings = ("\n".join(_heading(*part) for part in zip(keys, curve, strict=True)) for curve in curves)
    columns = [LABELS[across], *headings]
    lines = [
        [Text(WRITE[across](value)), *(_cell(cells.get((value, curve))) for curve in curves)]
        for value in dict.fromkeys(row[across] for row in rows)
        if any(cells[value, curve]["loss"] is not None for curve in curves if (value, curve) in cells)
    ]  # the others lie beyond the data, which a line below says
    title, tables = f"{KINDS[kind]}{at}, law {law}", columns_by_table(columns, lines)
    if len(tables) * (len(lines) + len(keys) + 1) > SCREEN and not verbose:
        best = [(curve, row) for (_, curve), row in cells.items() if row["best"]]
        body = [
            [
                *(WRITE[name](value) for name, value in zip(keys, curve, strict=True)),
                WRITE[across](row[across]),
                mark(_loss(row), bool(row["extrapolated"])),
            ]
            for curve, row in sorted(best, key=lambda pair: curves.index(pair[0]))
        ]
        print_table(title, [*(LABELS[name] for name in keys), f"best {LABELS[across]}", "loss"], body)
        say(f"best: {STARS[kind].removeprefix('best: ')}. Every loss: --verbose or --csv")
        rows = [row for _, row in best]
    else:
        print_wide_table(title, columns, lines)
        say(f"* {STARS[kind]}")
    _print_legend(rows)


def _heading(name: str, value: Any) -> str:
    return f"R={value:g}" if name == "recurrence" else WRITE[name](value)


def _cell(row: dict[str, Any] | None) -> Text:
    if row is None:
        return Text("")
    text = mark(_loss(row), bool(row["extrapolated"]) and row["loss"] is not None)
    return Text(f"{text}*", "bold") if row["best"] else Text(text)


def _loss(row: dict[str, Any]) -> str:
    if row["loss"] is None:
        return BEYOND
    return f"{row['loss']:.4f}" if np.isfinite(row["loss"]) else "–"


def _print_map(
    title: str,
    label: str,
    rows: list[dict[str, Any]],
    line: Callable[[dict[str, Any]], str],
    across: str,
    value: str,
    write: Callable[[float], str],
    resamples: int,
) -> None:
    columns = list(dict.fromkeys(row[across] for row in rows))
    cells = {(line(row), row[across]): row for row in rows}
    lines = list(dict.fromkeys(line(row) for row in rows))
    body = [[name, *(_map_cell(cells[name, at], value) for at in columns)] for name in lines]
    print_table(title, [label, *(write(at) for at in columns)], body, left=(label,))
    _print_legend(rows)
    if any(row["agreement"] < CERTAIN for row in rows):
        say(f"? fewer than {CERTAIN:.0%} of {resamples} resampled laws agree; --csv has the shares")


def _map_cell(row: dict[str, Any], value: str) -> str:
    if row[value] != row[value]:
        return "–"
    if row["loss"] is None:
        return BEYOND
    written = built_experts(row[value]) if value == "best_experts" else f"{row[value]:g}"
    return mark(written, bool(row["extrapolated"])) + ("?" if row["agreement"] < CERTAIN else "")


def print_joint(title: str, table: Table) -> None:
    """Print the best design for each memory budget."""
    rows = list(table.records())
    print_table(title, JOINT_COLUMNS, [joint_row(row) for row in rows], left=("size",))
    _print_legend(rows)


def joint_row(row: dict[str, Any]) -> tuple[str, ...]:
    """Return one line of the joint optimum's table; 90% spans where the law has resamples."""
    if not row["rung"]:
        return (format_bytes(row["memory"]), "nothing fits", "", "", "", "", "")
    return (
        format_bytes(row["memory"]),
        _with_span(row["rung"], row, "active", format_size),
        _with_span(built_experts(row["experts"]), row, "experts", built_experts),
        _with_span(str(row["recurrence"]), row, "recurrence", "{:g}".format),
        format_count(row["tokens"]),
        mark(_loss(row), bool(row["extrapolated"])),
        "" if row["agreement"] != row["agreement"] else f"{row['agreement']:.0%}",
    )


def _with_span(text: str, row: dict[str, Any], name: str, write: Callable[[float], str]) -> str:
    """Return a choice with the span of what resampled laws choose, where they do not all choose the same."""
    agreed = row.get(f"{name}_low") == row.get(f"{name}_high")
    return text if agreed else f"{text} {choice_span(row, name, write)}".rstrip()


def _print_legend(rows: list[dict[str, Any]]) -> None:
    if note := legend(axis for row in rows for axis in row["extrapolated"].split()):
        say(note)
    if any(row["loss"] is None for row in rows):
        say(f"{BEYOND}: no answer more than 10x beyond the law's data; --extrapolate shows it")
