"""``loopscale count``: what a model costs before it exists."""

from __future__ import annotations

from typing import Any

import click

from loopscale.architecture import Architecture
from loopscale.cli.output import print_json
from loopscale.cli.params import BITS, CONTEXT, WHOLE, output_options
from loopscale.cli.subjects import check_recurrence, model_options, one_model, trained_model
from loopscale.cli.verbs import verb
from loopscale.core.quantities import format_bytes, format_count, format_power, plain
from loopscale.core.tables import Table
from loopscale.core.text import fact, text_table
from loopscale.planning.design import experts_text
from loopscale.planning.recipes import CAPACITY, padding

DEFAULT_CONTEXT = 2048


@verb("count")
@click.argument("config_path", metavar="[CONFIG]", required=False, type=click.Path())
@model_options
@click.option("--recurrence", type=WHOLE, help="R for the costs.  [default: the model's own]")
@click.option("--bits", type=BITS, default="16", show_default=True, help="Bits per weight.")
@click.option("--kv-bits", type=BITS, default="16", show_default=True, help="Bits per number in the KV cache.")
@click.option("--context", type=CONTEXT, help="Context for attention and KV cache.  [default: the file's, or 2048]")
@click.option("--batch", type=WHOLE, default=1, show_default=True, help="Sequences in the KV cache.")
@click.option("--kept-passes", type=WHOLE, help="Passes that keep their own KV cache.  [default: all]")
@output_options
def count_command(
    config_path: str | None,
    recurrence: int | None,
    bits: float,
    kv_bits: float,
    context: int | None,
    batch: int,
    kept_passes: int | None,
    as_json: bool,
    as_csv: bool,
    **model: Any,
) -> None:
    """Count a model's parameters, FLOPs and memory.

    \b
    loopscale count path/to/config.json
    loopscale count train.toml --bits q4_k_m
    loopscale count --rung 0.3B --experts 8 --recurrence 5 --context 8192 --bits int4
    """
    if config_path is not None:
        if model["config"] is not None:
            raise click.UsageError("give the config once, as an argument or with --config")
        model["config"] = config_path
    file = str(model["config"] or "")
    architecture = one_model(model.pop("rung"), **model)
    check_recurrence(architecture, recurrence)
    R = architecture.recurrence if recurrence is None else recurrence
    padded, supervised = float(padding(architecture, CAPACITY)), False
    if file.endswith(".toml"):
        from loopscale.train.job import row_padding

        run, built = trained_model(file)
        context, padded, supervised = context or run.data.context, row_padding(built), built.reads_every_pass
    context = context or DEFAULT_CONTEXT
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
            architecture.real_train_flops_per_token(R, context=context, per_loop_supervision=supervised, padding=padded)
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
        _print(architecture, counts, bits, context, padded)


def _print(model: Architecture, counts: dict[str, Any], bits: float, context: int, padded: float) -> None:
    notes = {
        "parameters": "all of the built model",
        "active_parameters": "active, embeddings included",
        "active": "N_act: active, as the law counts",
        "loop": "N_loop: its looped part",
        "total": "N_total: stored, as the law counts",
        "embedding": ("tied" if model.tied else "input and output") + "; not in N_act or N_total",
        "router": "not in N_act or N_total",
        "norms": "inside the layers",
        "pass_weights": "of passes after the first alone; in N_total",
        "unrolled": f"N_unroll at R = {counts['recurrence']}",
    }
    if model.pass_parts is None:
        del notes["pass_weights"]
    rows = [(name, f"{counts[name]:,}", note) for name, note in notes.items()]
    sizes = f"{format_count(counts['parameters'], 4)} total, {format_count(counts['active_parameters'], 4)} active"
    kind = f"{experts_text(counts['experts_active'], counts['experts_total'])}"
    name = f"{counts['model']}: " if counts["model"] else ""
    head = [f"{name}{sizes} · {kind} · width {counts['width']} · {counts['layers']} layers", ""]
    head += fact("weights", f"{format_bytes(counts['weight_bytes'])} at {bits:g} bits")
    head += fact("KV cache", f"{format_bytes(counts['kv_bytes'])} at {context:,} positions")
    for what, formula in (("training", "6 N_unroll"), ("inference", "2 N_unroll")):
        short = "train" if what == "training" else what
        paper, real = counts[f"{short}_flops_per_token"], counts[f"real_{short}_flops_per_token"]
        head += fact(what, f"{format_power(paper)} FLOPs per token by {formula}; {format_power(real)} in full")
    routers = "routers, " if counts["router"] else ""
    runs = f"with output head, {routers}attention over {context:,} positions"
    head += fact("in full", runs + (f", {padded:g} padded rows for each routed one in training" if padded > 1 else ""))
    table = text_table(("weights", "exactly", "what"), rows, left=("weights", "what"))
    click.echo("\n".join([*head, "", table]))
