"""``loopscale count``, ``laws``, ``schema`` and ``verify``: what models cost, and what files hold."""

from __future__ import annotations

from typing import Any

import click

from loopscale.architecture import Architecture
from loopscale.cli.output import console, print_json, print_table
from loopscale.cli.params import BITS, COUNTS, LAW, WHOLE, check_recurrence, model_options, one_model, output_options
from loopscale.cli.verbs import verb
from loopscale.core.quantities import format_bytes, format_count, format_power, plain
from loopscale.core.tables import Table
from loopscale.planning.design import card_size, experts_text
from loopscale.planning.text import uncertainty_text
from loopscale.scaling import AXES, BILLIONS, PUBLISHED, RAW, ScalingLaw
from loopscale.scaling.costs import Design, allocations


@verb("laws")
@click.argument("law", type=LAW, required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a law file for LAW, or all of them by name.")
@click.option("--flops", type=COUNTS, help="Show the law's compute-optimal size and tokens at these budgets.")
@click.option(
    "--experts", type=click.FloatRange(1, 1e6), default=1.0, help="E of the models for --flops.  [default: 1]"
)
def laws_command(law: ScalingLaw | None, as_json: bool, flops: tuple[float, ...] | None, experts: float) -> None:
    """List the published laws, or show one (by name or file).

    \b
    loopscale laws
    loopscale laws looped-moe-2026
    loopscale laws chinchilla-2022 --flops 1e21,1e23    # the best N and D at each budget
    loopscale laws chinchilla-2022 --json > law.json    # then edit, and --law law.json
    """
    if flops is not None:
        if law is None:
            raise click.UsageError("--flops shows one law's optimum; name the law")
        _optimum(law, flops, experts, as_json)
    elif as_json:
        print_json(law.to_dict() if law else {name: published.to_dict() for name, published in PUBLISHED.items()})
    elif law is None:
        _list()
    else:
        _one(law)


def _list() -> None:
    columns = ("name", "outer law", "recurrence", "counts", "size", "tokens", "experts", "R", "RMSE")
    rows = [
        (
            law.name,
            law.outer.name,
            law.mapping.name,
            law.counts.value.replace("-embeddings", ""),
            *(_span(law, axis) for axis in AXES),
            "" if law.rmse is None else f"{law.rmse:g}",
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
    console().print(
        "counts: parameters with or without embeddings. `loopscale laws NAME` shows coefficients and source."
    )


def _one(law: ScalingLaw) -> None:
    out = console()
    out.print(f"[bold]{law.name}[/]: {law.form}", highlight=False)
    out.print(f"source  {law.source or 'not stated'}", highlight=False)
    if law.note:
        out.print(f"note    {law.note}", highlight=False)
    scale = "billions" if law.units == BILLIONS else f"{law.units.parameters:g} and {law.units.tokens:g}"
    out.print(f"units   N and D in {scale}; parameters {law.counts.value.replace('-', ' ')}", highlight=False)
    out.print("range   " + "; ".join(f"{axis} {_span(law, axis)}" for axis in AXES), highlight=False)
    out.print(f"in raw counts: {law.equation()}", highlight=False)
    raw = law.in_units(RAW).coefficients
    rows = [
        (term.name, f"{law.coefficients[term.name]:g}", f"{raw[term.name]:.5g}", term.meaning) for term in law.terms
    ]
    print_table("", ("coefficient", "value", "in raw counts", "meaning"), rows, left=("coefficient", "meaning"))
    if law.rmse is not None:
        out.print(f"RMSE {law.rmse:g} nats", highlight=False)
    out.print(uncertainty_text(law.uncertainty), highlight=False)


def _optimum(law: ScalingLaw, flops: tuple[float, ...], experts: float, as_json: bool) -> None:
    """Print N*(C) and D*(C); with resampled laws, the span of 90% of them."""
    table = allocations(law, flops, Design(experts=experts))
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
    console().print(f"N counts parameters {law.counts.value.replace('-', ' ')}; C = 6 N D.", highlight=False)


def _with_span(row: dict[str, Any], name: str) -> str:
    value = f"{row[name]:.3f}"
    return f"{value} ({row[f'{name}_low']:.3f} to {row[f'{name}_high']:.3f})" if f"{name}_low" in row else value


def _span(law: ScalingLaw, axis: str) -> str:
    low, high = getattr(law.fitted_range, axis)
    if low is None and high is None:
        return "not stated"
    ends = ["?" if end is None else format_count(end, 2) for end in (low, high)]
    return ends[0] if ends[0] == ends[1] else "–".join(ends)


@verb("schema")
@click.argument("name", required=False)
def schema_command(name: str | None) -> None:
    """Print the JSON Schema of a kind of file, for editors and other programs; without NAME, list the kinds.

    \b
    loopscale schema
    loopscale schema law > law.schema.json
    """
    from loopscale.saved import MODELS, json_schema

    if name is None:
        click.echo("\n".join(MODELS))
    else:
        print_json(json_schema(name))


@verb("verify")
@click.argument("path", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print JSON for other programs.")
@click.pass_context
def verify_command(ctx: click.Context, path: str, as_json: bool) -> None:
    """Check a run, a sweep, a token store, a model, results, a law, a plan or a table of runs from end to end.

    Checksums, schema, provenance and values that are not finite. It says what it could not check. The exit code is 1 if
    something is damaged.

    \b
    loopscale verify runs/tiny
    loopscale verify law.json
    """
    from loopscale.verify import Outcome, verify

    checks = list(verify(path))
    if as_json:
        print_json([{"what": check.what, "outcome": check.outcome.value, "detail": check.detail} for check in checks])
    else:
        rows = [(check.what, check.outcome.value, check.detail) for check in checks]
        print_table("", ("", "outcome", "detail"), rows, left=("", "outcome", "detail"))
    if any(check.outcome is Outcome.BAD for check in checks):
        ctx.exit(1)


@verb("count")
@click.argument("config_path", metavar="[CONFIG]", required=False, type=click.Path())
@model_options
@click.option("--recurrence", type=WHOLE, help="R for the costs.  [default: the model's own]")
@click.option("--bits", type=BITS, default="16", show_default=True, help="Bits per weight.")
@click.option("--kv-bits", type=BITS, default="16", show_default=True, help="Bits per number in the KV cache.")
@click.option("--context", type=WHOLE, default=2048, show_default=True, help="Context for attention and KV cache.")
@click.option("--batch", type=WHOLE, default=1, show_default=True, help="Sequences in the KV cache.")
@click.option("--kept-passes", type=WHOLE, help="Passes that keep their own KV cache.  [default: all]")
@click.option("--per-loop-supervision", is_flag=True, help="Count training with a loss after every pass.")
@output_options
def count_command(
    config_path: str | None,
    recurrence: int | None,
    bits: float,
    kv_bits: float,
    context: int,
    batch: int,
    kept_passes: int | None,
    per_loop_supervision: bool,
    as_json: bool,
    as_csv: bool,
    **model: Any,
) -> None:
    """Count the parameters, FLOPs and memory of a model before it is built.

    \b
    loopscale count path/to/config.json
    loopscale count --rung 0.3B --experts 8 --recurrence 5 --context 8192 --bits int4
    """
    if config_path is not None:
        if model["config"] is not None:
            raise click.UsageError("give the config once, as an argument or with --config")
        model["config"] = config_path
    architecture = one_model(model.pop("rung"), **model)
    check_recurrence(architecture, recurrence)
    R = architecture.recurrence if recurrence is None else recurrence
    counts = {
        "model": architecture.name,
        "width": architecture.width,
        "layers": architecture.layers,
        "experts": plain(architecture.experts),
        "recurrence": R,
        "experts_active": plain(architecture.active_experts),
        "experts_total": plain(architecture.routed_experts),
        "parameters": architecture.parameters,
        "active_parameters": architecture.parameters - (architecture.total - architecture.active),
        "active": architecture.active,
        "loop": architecture.loop,
        "total": architecture.total,
        "m": float(architecture.m),
        "embedding": architecture.embedding,
        "router": architecture.router,
        "norms": architecture.norms,
        "pass_weights": architecture.pass_weights,
        "unrolled": architecture.unrolled(R),
        "train_flops_per_token": architecture.train_flops_per_token(R),
        "real_train_flops_per_token": plain(
            architecture.real_train_flops_per_token(R, context=context, per_loop_supervision=per_loop_supervision)
        ),
        "inference_flops_per_token": architecture.inference_flops_per_token(R),
        "real_inference_flops_per_token": plain(architecture.real_inference_flops_per_token(R, context=context)),
        "weight_bytes": plain(architecture.weight_bytes(bits)),
        "stored_bytes": plain(architecture.weight_bytes(bits, routers=True)),
        "kv_bytes": plain(
            architecture.kv_bytes(R, context=context, batch=batch, bits=kv_bits, kept_passes=kept_passes)
        ),
    }
    if as_json:
        print_json(counts)
    elif as_csv:
        click.echo(Table.from_records([counts]).csv(), nl=False)
    else:
        _print(architecture, counts, bits, context)


def _print(model: Architecture, counts: dict[str, Any], bits: float, context: int) -> None:
    notes = {
        "parameters": "all weights of the built model",
        "active_parameters": "used by a token, embeddings included",
        "active": "N_act: used by a token in one pass, as the law counts",
        "loop": "N_loop: its looped part",
        "total": "N_total: all weights of the layers, as the law counts",
        "embedding": ("tied" if model.tied else "input and output") + "; not in N_act or N_total",
        "router": "not in N_act or N_total",
        "norms": "inside the layers",
        "pass_weights": "of passes after the first alone; in N_total",
        "unrolled": f"N_unroll at R = {counts['recurrence']}",
    }
    if model.pass_parts is None:
        del notes["pass_weights"]
    rows = [(name, format_count(counts[name], 4), f"{counts[name]:,}", note) for name, note in notes.items()]
    sizes = f"{card_size(counts['active_parameters'])} active, {card_size(counts['parameters'])} total"
    mixture = experts_text(counts["experts_active"], counts["experts_total"])
    title = f"{counts['model']}: {sizes}, {mixture}, width {counts['width']}, {counts['layers']} layers"
    print_table(title, ("", "count", "exactly", "what"), rows, left=("", "what"))
    costs = [
        ("training", f"{counts['train_flops_per_token']:.4g}", f"{counts['real_train_flops_per_token']:.4g}"),
        ("inference", f"{counts['inference_flops_per_token']:.4g}", f"{counts['real_inference_flops_per_token']:.4g}"),
    ]
    print_table("FLOPs per token", ("", "the paper's", "real"), costs, left=("",))
    console().print(
        f"real: with output head, routers and attention over {context} positions\n"
        f"weights {format_bytes(counts['weight_bytes'])} at {bits:g} bits; "
        f"KV cache {format_bytes(counts['kv_bytes'])} at {context} positions",
        highlight=False,
    )
