"""``loopscale laws``: the published scaling laws, their coefficients and their compute-optimal sizes."""

from __future__ import annotations

from typing import Any

import click

from loopscale.cli.output import print_json, print_table, say, say_facts
from loopscale.cli.params import COUNTS, verbose_option
from loopscale.cli.subjects import LAW
from loopscale.cli.verbs import verb
from loopscale.core.quantities import format_count, format_power
from loopscale.core.text import side_by_side
from loopscale.planning.intervals import uncertainty_text
from loopscale.scaling import AXES, BILLIONS, PUBLISHED, RAW, ScalingLaw
from loopscale.scaling.optimum import allocations
from loopscale.scaling.proportions import Proportions


@verb("laws")
@click.argument("law", type=LAW, required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a law file for LAW, or all of them by name.")
@click.option("--latex", is_flag=True, help="Print LAW for a paper: the equation and a table of coefficients.")
@click.option("--table", "as_table", is_flag=True, help="Compare the laws: axes, mapping, optimality, ranges, uses.")
@click.option("--flops", type=COUNTS, help="Show the law's compute-optimal size and tokens at these budgets.")
@click.option(
    "--experts", type=click.FloatRange(1, 1e6), default=1.0, help="E of the models for --flops.  [default: 1]"
)
@verbose_option
def laws_command(
    law: ScalingLaw | None,
    as_json: bool,
    latex: bool,
    as_table: bool,
    flops: tuple[float, ...] | None,
    experts: float,
    verbose: bool,
) -> None:
    """List the published scaling laws, or show one (by name or file).

    \b
    loopscale laws
    loopscale laws --table                              # the paper's Table 1, and what can be done with each
    loopscale laws looped-moe-2026
    loopscale laws chinchilla-2022 --flops 1e21,1e23    # the best N and D at each budget
    loopscale laws law.json --latex                     # a fitted law for a paper
    loopscale laws chinchilla-2022 --json > law.json    # then edit, and --law law.json
    """
    if as_table:
        _compare(law, as_json)
    elif latex:
        if law is None:
            raise click.UsageError("--latex prints one law; name the law")
        click.echo(law.latex())
    elif flops is not None:
        if law is None:
            raise click.UsageError("--flops shows one law's optimum; name the law")
        _optimum(law, flops, experts, as_json)
    elif as_json:
        print_json(law.to_dict() if law else {name: published.to_dict() for name, published in PUBLISHED.items()})
    elif law is None:
        _list()
    else:
        _one(law, verbose)


def _list() -> None:
    from loopscale.figures.tables import span_text

    columns = ("name", "outer law", "recurrence", "counts", "size", "tokens", "experts", "R", "RMSE")
    rows = [
        (
            law.name,
            law.outer.name,
            law.mapping.name,
            law.counts.value.replace("-embeddings", ""),
            *(span_text(law, axis) for axis in AXES),
            "" if law.rmse is None else f"{law.rmse:.3g}",
        )
        for law in PUBLISHED.values()
    ]
    print_table(
        "Published laws: what they were fitted on",
        columns,
        rows,
        columns[:4],
        optional=("counts", "recurrence", "outer law", "tokens"),
    )
    say("`loopscale laws NAME` shows coefficients, what its counts include, and the source.")


def _compare(law: ScalingLaw | None, as_json: bool) -> None:
    from loopscale.figures.tables import laws_table

    if law is not None:
        raise click.UsageError("--table compares all laws; leave out the law")
    rows = list(laws_table().records())
    if as_json:
        print_json({"kind": "laws-table", "rows": rows})
        return
    head = ("N", "D", "R", "E", "compute", "memory", "fit", "plan")
    columns = ("law", *head, "mapping", "refitted here")
    marks = {"yes": "✓", "no": "–"}
    cells = [
        (row["law"], *(marks.get(row[name], row[name]) for name in head), row["recurrence mapping"],
         marks.get(row["refitted here"], row["refitted here"]))
        for row in rows
    ]  # fmt: skip
    print_table("", columns, cells, left=("law", "mapping", "refitted here"), optional=("refitted here", "mapping"))
    say("compute, memory: whether the law says which design is best at fixed compute, at fixed weight memory. fit, "
        "plan: in loopscale. Ranges: --json, or `loopscale laws`.")  # fmt: skip


def _one(law: ScalingLaw, verbose: bool) -> None:
    """Print a law on one screen; ``verbose`` says what each coefficient means."""
    from loopscale.figures.tables import span_text

    scales = {BILLIONS: "billions", RAW: "raw counts"}
    scale = scales.get(law.units, f"units of {law.units.parameters:g} and {law.units.tokens:g}")
    say(f"{law.name}: {law.form}", bold=True)
    click.echo()
    say_facts(
        {
            "equation": f"{law.equation()}   (raw counts)",
            "source": law.source or "not stated",
            "note": law.note,
            "degenerate": "; ".join(law.degenerate),
            "units": f"N and D in {scale}; parameters {law.counts.value.replace('-', ' ')}",
            "range": "; ".join(f"{axis} {span_text(law, axis)}" for axis in AXES),
            "error": "" if law.rmse is None else f"{law.rmse:.3g} nats RMSE",
            "intervals": uncertainty_text(law.uncertainty),
        }
    )
    click.echo()
    values = [(term.name, f"{law.coefficients[term.name]:g}") for term in law.terms]
    if not verbose:
        click.echo("\n".join(side_by_side(values)))
        say("What each coefficient means, and its value in raw counts: --verbose")
        return
    raw = law.in_units(RAW).coefficients
    rows = [(*pair, f"{raw[term.name]:.5g}", term.meaning) for pair, term in zip(values, law.terms, strict=True)]
    print_table("", ("coefficient", "value", "in raw counts", "meaning"), rows, left=("coefficient", "meaning"))


def _optimum(law: ScalingLaw, flops: tuple[float, ...], experts: float, as_json: bool) -> None:
    """Print N*(C) and D*(C); with resampled laws, the span of 90% of them."""
    table = allocations(law, flops, Proportions(experts=experts))
    if as_json:
        print_json(list(table.records()))
        return
    columns = ("FLOPs", "N*", "D*", "D*/N*", "loss", "N* ~ C^a", "extrapolated")
    rows = [
        (
            format_power(row["flops"]),
            format_count(row["size"]),
            format_count(row["tokens"]),
            f"{row['tokens'] / row['size']:.3g}",
            f"{row['loss']:.4f}",
            _with_span(row, "size_exponent"),
            row["extrapolated"] or "no",
        )
        for row in table.records()
    ]
    print_table(f"Compute-optimal models of {law.name}, E = {experts:g}", columns, rows, left=("extrapolated",))
    say(f"N counts parameters {law.counts.value.replace('-', ' ')}; C = 6 N D.")


def _with_span(row: dict[str, Any], name: str) -> str:
    value = f"{row[name]:.3f}"
    return f"{value} ({row[f'{name}_low']:.3f} to {row[f'{name}_high']:.3f})" if f"{name}_low" in row else value
