"""``loopscale predict``."""

from __future__ import annotations

from typing import Any

import click

from loopscale.cli.options import (
    COUNT,
    WHOLE,
    check_recurrence,
    law_option,
    model_options,
    one_model,
    output_options,
)
from loopscale.cli.show import console, print_json
from loopscale.laws import ScalingLaw
from loopscale.plan import Prediction, predict
from loopscale.plan.words import law_in_words, legend, mark
from loopscale.quantities import format_count, format_size
from loopscale.tables import Table


@click.command("predict")
@model_options
@click.option("--recurrence", type=WHOLE, help="R: passes through the loop.  [default: the model's own]")
@click.option("--tokens", type=COUNT, help="Training tokens, like 500B.")
@click.option("--flops", type=COUNT, help="Training compute instead of tokens, like 5e21.")
@law_option
@output_options
def command(
    recurrence: int | None,
    tokens: float | None,
    flops: float | None,
    law: ScalingLaw,
    as_json: bool,
    as_csv: bool,
    **model: Any,
) -> None:
    """Predict the loss of one model.

    \b
    loopscale predict --rung 1.0B --experts 8 --recurrence 2 --tokens 500B
    loopscale predict --width 2048 --experts 16 --flops 1e22
    loopscale predict --config path/to/config.json --tokens 1T --law chinchilla-epoch-2024
    """
    architecture = one_model(model.pop("rung"), **model)
    if (tokens is None) == (flops is None):
        raise click.UsageError("give --tokens or --flops, one of them")
    check_recurrence(architecture, recurrence)
    if tokens is None:
        assert flops is not None
        tokens = float(flops / architecture.train_flops_per_token(recurrence))
    found = predict(architecture, tokens, recurrence, law)
    if as_json:
        print_json(found.to_dict())
    elif as_csv:
        click.echo(Table.from_records([found.to_dict()]).csv(), nl=False)
    else:
        _print(found, law)


def _print(found: Prediction, law: ScalingLaw) -> None:
    out = console()
    outside = set(found.extrapolated)
    band = "" if found.loss_low is None else f"  (90% of resampled laws: {found.loss_low:.4f} – {found.loss_high:.4f})"
    loss = mark(f"{found.loss:.4f}", bool(outside))
    out.print(f"[bold]loss {loss}[/] nats a token{band}", highlight=False)
    out.print(
        f"{found.model}: E = {mark(f'{found.experts:g}', 'experts' in outside)}, "
        f"R = {mark(str(found.recurrence), 'recurrence' in outside)}, "
        f"{mark(format_count(found.tokens), 'tokens' in outside)} tokens; {law_in_words(law)}",
        highlight=False,
    )
    most = "without bound" if found.largest_multiplier is None else f"at most {found.largest_multiplier:.3f}x"
    lines = (
        ("active", f"{mark(format_size(found.active), 'size' in outside)}  of which looped {format_size(found.loop)}"),
        (
            "total",
            f"{format_size(found.total)}  (m = {found.m:.4f}), {format_size(found.embedding)} of embeddings apart",
        ),
        ("unrolled", f"{format_size(found.unrolled)}  what compute is paid for"),
        ("effective", f"{format_size(found.effective)}  {found.multiplier:.3f}x active; more passes reach {most}"),
        ("training", f"{found.train_flops:.4g} FLOPs (6 N_unroll D)"),
        ("inference", f"{found.inference_flops:.4g} FLOPs a token (2 N_unroll)"),
    )
    for name, text in lines:
        out.print(f"  {name:<10} {text}", highlight=False)
    if outside:
        out.print(legend(outside), highlight=False)
