"""``loopscale profile`` and ``loopscale matched``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click
import numpy as np

from loopscale.architecture import RUNG_EXPERTS, RUNG_RECURRENCES, RUNGS
from loopscale.cli.output import console, print_json, print_table
from loopscale.cli.params import (
    BITS,
    COUNT,
    COUNTS,
    EXPERTS,
    INTEGERS,
    MEMORIES,
    RUNG_LIST,
    law_option,
    output_options,
    trust_options,
)
from loopscale.cli.verbs import verb
from loopscale.core.quantities import format_bytes, format_count, format_power, format_size
from loopscale.core.tables import Table
from loopscale.planning import (
    Budget,
    Matched,
    Space,
    choice_span,
    experts_map,
    isoflop_over_experts,
    isoflop_over_recurrence,
    isoflop_over_size,
    joint_optimum,
    ladder_space,
    matched,
    recurrence_map,
)
from loopscale.planning.text import law_text, legend, mark, trust_text
from loopscale.scaling import ScalingLaw

KINDS = {
    "size": "loss against N_act at fixed compute, with each curve's minimum",
    "recurrence": "loss against R at fixed compute, with R*",
    "experts": "loss against E at fixed compute, with E*",
    "best-recurrence": "R* over compute and size",
    "best-experts": "E* over memory and R",
    "joint": "the best size, E and R over memory",
}

JOINT_COLUMNS = ("memory", "size", "E", "R", "tokens", "loss", "agreement")


@verb("profile")
@click.argument("kind", type=click.Choice(list(KINDS)))
@click.option("--flops", type=COUNTS, help="Compute budgets, like 5e20,1e21.  [default: 5e21; for maps a range]")
@click.option("--memory", type=MEMORIES, help="Memory budgets, like 1GB,3GB,10GB.  [default: 0.25 GB to 32 GB]")
@click.option("--bits", type=BITS, default="16", show_default=True, help="Bits per weight, for memory.")
@click.option("--rung", "rungs", type=RUNG_LIST, help=f"Rungs.  [default: {','.join(RUNGS)}]")
@click.option("--experts", type=EXPERTS, help="Expert counts.")
@click.option("--recurrence", "recurrences", type=INTEGERS, help="Recurrences, like 1,2,4 or 1..10.")
@click.option("--eps", type=float, help="Least gain that justifies a step.  [default: the law's RMSE]")
@law_option
@output_options
def profile_command(kind: str, law: ScalingLaw, as_json: bool, as_csv: bool, **asked: Any) -> None:
    """Show how loss, or the best choice, changes along an axis.

    \b
    KIND is one of
      size             loss against N_act at fixed compute
      recurrence       loss against R at fixed compute, with R*
      experts          loss against E at fixed compute, with E*
      best-recurrence  R* over compute and size
      best-experts     E* over memory and R
      joint            the best size, E and R over memory

    \b
    loopscale profile recurrence --flops 5e21 --rung 0.3B,1.0B --experts 1,8
    loopscale profile best-recurrence --experts 8
    loopscale profile joint --flops 5e21 --memory 1GB,3GB,10GB --bits int4 --csv
    """
    if kind in ("best-experts", "joint") and asked["flops"] is not None and len(asked["flops"]) > 1:
        raise click.UsageError(f"--flops takes one budget for {kind}")
    table = _table(kind, law, Asked(**asked))
    if as_json:
        print_json({"kind": "profile", "profile": kind, "law": law.name, "rows": list(table.records())})
    elif as_csv:
        click.echo(table.csv(), nl=False)
    else:
        _print(kind, table, law)


@dataclass(frozen=True)
class Asked:
    """What the options said; None where they said nothing."""

    flops: tuple[float, ...] | None
    memory: tuple[float, ...] | None
    bits: float
    rungs: tuple[str, ...] | None
    experts: tuple[float, ...] | None
    recurrences: tuple[int, ...] | None
    eps: float | None

    def space(self, experts: Sequence[float], recurrences: Sequence[int]) -> Space:
        """Return the ladder's candidates, with defaults for what was not said."""
        return ladder_space(self.rungs or tuple(RUNGS), self.experts or experts, self.recurrences or recurrences)

    def memory_problem(self) -> tuple[Sequence[float], Budget, Space]:
        """Return memory budgets, the compute that goes with them, and the whole design space."""
        budget = Budget(flops=(self.flops or (5e21,))[0], bits=self.bits)
        memory = self.memory or tuple(2.0 ** np.arange(-2, 6) * 1e9)
        return memory, budget, self.space(RUNG_EXPERTS, RUNG_RECURRENCES)


def _table(kind: str, law: ScalingLaw, asked: Asked) -> Table:
    if kind == "size":
        sizes = np.geomspace(512, 4096, 25)
        return isoflop_over_size(
            law, asked.flops or (5e20, 1e21), asked.experts or (1, 8), asked.recurrences or (1, 2, 4), sizes
        )
    if kind == "recurrence":
        return isoflop_over_recurrence(law, asked.flops or (5e21,), asked.space((1, 8), RUNG_RECURRENCES), asked.eps)
    if kind == "experts":
        return isoflop_over_experts(law, asked.flops or (5e21,), asked.space(RUNG_EXPERTS, (1, 4)), asked.eps)
    if kind == "best-recurrence":
        flops = asked.flops or tuple(np.geomspace(1e20, 1e23, 10))
        return recurrence_map(law, flops, asked.space((1, 8), RUNG_RECURRENCES), asked.eps)
    over_memory = experts_map if kind == "best-experts" else joint_optimum
    return over_memory(law, *asked.memory_problem(), eps=asked.eps)


def _print(kind: str, table: Table, law: ScalingLaw) -> None:
    rows = list(table.records())
    title = f"{KINDS[kind]} (law {law_text(law)})"
    if kind == "joint":
        print_joint(title, table)
    elif kind == "best-recurrence":
        _print_map(title, rows, lambda r: f"{r['rung']} E={r['experts']:g}", "flops", "best_recurrence", format_count)
    elif kind == "best-experts":
        _print_map(title, rows, lambda r: f"R={r['recurrence']}", "memory", "best_experts", format_bytes)
    else:
        _print_curves(title, kind, rows)


STARS = {
    "recurrence": "R*: the last pass that gains at least eps",
    "experts": "E*: the last step in experts that gains at least eps",
    "size": "lowest loss of its curve",
}
"""What the star of a curve marks; a later pass can have a lower loss, by less than eps a pass."""


def _print_curves(title: str, axis: str, rows: list[dict[str, Any]]) -> None:
    """Print one column per curve; what the rule takes of each stands in bold with a star."""
    across = {"size": "active"}.get(axis, axis)
    keys = [
        name
        for name in ("flops", "rung", "experts", "recurrence")
        if name != axis and not (axis == "size" and name == "rung")
    ]
    curves = list(dict.fromkeys(tuple(row[name] for name in keys) for row in rows))
    cells = {(row[across], tuple(row[name] for name in keys)): row for row in rows}
    names = [_curve_name(keys, curve) for curve in curves]
    lines = []
    for at in dict.fromkeys(row[across] for row in rows):
        found = [cells.get((at, curve)) for curve in curves]
        lines.append([format_size(at) if axis == "size" else f"{at:g}", *(_cell(row) for row in found)])
    label = {"size": "N_act", "recurrence": "R", "experts": "E"}[axis]
    for start in range(0, len(names), 10):  # ten curves fit a screen
        part = [[line[0], *line[1 + start : 11 + start]] for line in lines]
        print_table(title if start == 0 else "", [label, *names[start : start + 10]], part)
    note = legend(axis for row in rows for axis in row["extrapolated"].split())
    console().print(f"* {STARS[axis]}. {note}", highlight=False)


def _curve_name(keys: list[str], curve: tuple[Any, ...]) -> str:
    letters = {"experts": "E", "recurrence": "R"}
    parts = zip(keys, curve, strict=True)
    return "\n".join(
        format_power(value) if name == "flops" else str(value) if name == "rung" else f"{letters[name]}={value:g}"
        for name, value in parts
    )


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    text = mark(f"{row['loss']:.4f}", bool(row["extrapolated"]))
    return f"[bold]{text}*[/]" if row["best"] else text


def _print_map(
    title: str,
    rows: list[dict[str, Any]],
    line: Callable[[dict[str, Any]], str],
    across: str,
    value: str,
    write: Callable[[float], str],
) -> None:
    columns = list(dict.fromkeys(row[across] for row in rows))
    found = {(line(row), row[across]): row for row in rows}
    lines = list(dict.fromkeys(line(row) for row in rows))
    body = [[name, *(_map_cell(found[name, at], value) for at in columns)] for name in lines]
    print_table(title, ["", *(write(at) for at in columns)], body, left=("",))
    _print_legend(rows)


def _map_cell(row: dict[str, Any], value: str) -> str:
    if row[value] != row[value]:
        return "–"
    text = mark(f"{row[value]:g}", bool(row["extrapolated"]))
    return text if row["agreement"] != row["agreement"] else f"{text} ({row['agreement']:.0%})"


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
        f"{row['rung']} {choice_span(row, 'active', format_size)}".rstrip(),
        f"{row['experts']:g} {choice_span(row, 'experts', '{:g}'.format)}".rstrip(),
        f"{row['recurrence']} {choice_span(row, 'recurrence', '{:g}'.format)}".rstrip(),
        format_count(row["tokens"]),
        mark(f"{row['loss']:.4f}", bool(row["extrapolated"])),
        "" if row["agreement"] != row["agreement"] else f"{row['agreement']:.0%}",
    )


def _print_legend(rows: list[dict[str, Any]]) -> None:
    if note := legend(axis for row in rows for axis in row["extrapolated"].split()):
        console().print(note, highlight=False)


@verb("matched")
@click.argument("first")
@click.argument("second")
@click.option("--flops", type=COUNT, required=True, help="Training compute of both, like 5e21.")
@law_option
@trust_options
@output_options
def matched_command(
    first: str,
    second: str,
    flops: float,
    law: ScalingLaw,
    extrapolate: bool,
    allow_degenerate: bool,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Compare two designs on equal terms; each is written RUNG:EXPERTS:RECURRENCE.

    Looped against not, or sparse against dense: at equal training FLOPs, then also at equal total parameters, at equal
    KV memory, and at all of them; and how much more compute the second needs to reach the loss of the first.

    \b
    loopscale matched 0.3B:8:4 0.6B:8:1 --flops 1e22
    loopscale matched 1.0B:8:1 1.0B:1:1 --flops 5e21 --json
    """
    found = matched(first, second, flops, law, extrapolate=extrapolate, allow_degenerate=allow_degenerate)
    if as_json:
        print_json({"kind": "matched", **found.to_dict()})
    elif as_csv:
        click.echo(Table.from_records(found.rows).csv(), nl=False)
    else:
        _print_matched(found)


def _loss_text(loss: float | None) -> str:
    return "" if loss is None else f"{loss:.4f}"


def _print_matched(found: Matched) -> None:
    rows = [
        (
            row["condition"],
            f"{format_size(row['first_active'])} {_loss_text(row['first_loss'])}",
            f"{format_size(row['second_active'])} {_loss_text(row['second_loss'])}",
            "withheld" if row["difference"] is None else f"{row['difference']:+.4f}",
            "" if row["low"] is None else f"{row['low']:+.4f} to {row['high']:+.4f}",
        )
        for row in found.rows
    ]
    title = f"Active size and loss after {format_power(found.flops)} FLOPs, equal in"
    print_table(title, ("", found.first, found.second, "difference", "90% interval"), rows, left=("",))
    out = console()
    if found.compute is None:
        out.print("At equal loss the two are more than 20x apart in compute.", highlight=False)
    else:
        span = found.compute_interval
        interval = "" if span is None else f" (90% interval {span[0]:.3g}x to {span[1]:.3g}x)"
        out.print(
            f"At equal loss, each at its own best size, the second kind needs {found.compute:.3g}x the compute of the "
            f"first{interval}",
            highlight=False,
        )
    out.print(trust_text(found.trust), highlight=False)
    if any(row["difference"] is None for row in found.rows):
        out.print(
            "Withheld: a size that lies more than 10x beyond what the law was fitted on; --extrapolate shows it",
            highlight=False,
        )
