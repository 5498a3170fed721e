"""``loopscale plan``."""

from __future__ import annotations

from typing import Any

import click

from loopscale.architecture import RUNG_EXPERTS, RUNG_RECURRENCES, RUNGS, read_config
from loopscale.cli import (
    ACTIVE,
    BITS,
    BYTES,
    COUNT,
    EXPERTS,
    INTEGERS,
    RUNG_LIST,
    WHOLE,
    check_recurrence,
    console,
    law_option,
    model_options,
    one_model,
    output_options,
    print_json,
    print_table,
    reference,
)
from loopscale.laws import ScalingLaw
from loopscale.plan import (
    PEAK_FLOPS,
    Budget,
    Candidate,
    Plan,
    Prediction,
    Rule,
    Space,
    architecture_space,
    continuous_space,
    device_flops,
    ladder_space,
    like,
    plan,
    predict,
    width_space,
)
from loopscale.plan.plan import answer, certainty, costs, law_in_words, legend, mark
from loopscale.quantities import format_bytes, format_count, format_size
from loopscale.report import check_report_path
from loopscale.tables import Table


@click.command("predict")
@model_options
@click.option("--recurrence", type=WHOLE, help="R: passes through the loop.  [default: the model's own]")
@click.option("--tokens", type=COUNT, help="Training tokens, like 500B.")
@click.option("--flops", type=COUNT, help="Training compute instead of tokens, like 5e21.")
@law_option
@output_options
def predict_command(
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


COLUMNS = ("size", "E", "R", "active", "tokens", "loss", "memory", "FLOPs/token", "verdict")
OPTIONAL = ("FLOPs/token", "active", "memory")
"""Columns that a narrow terminal leaves out; --csv and --json have them all."""


@click.command("plan")
@click.option("--flops", type=COUNT, help="Training compute, like 5e21.")
@click.option("--like", "like_model", help="Compute of a reference model RUNG:EXPERTS:RECURRENCE, with --like-tokens.")
@click.option("--like-tokens", type=COUNT, help="Tokens that the reference is trained on, like 6T.")
@click.option("--gpu-hours", type=COUNT, help="Compute as device-hours, with --device and --utilisation.")
@click.option("--device", help=f"One of {', '.join(PEAK_FLOPS)}.")
@click.option("--utilisation", type=float, help="Share of the device's peak that training reaches, like 0.4.")
@click.option("--tokens", type=COUNT, help="Training tokens, when they are given; compute is then a limit, or none.")
@click.option("--max-tokens", type=COUNT, help="The most tokens there are to train on.")
@click.option("--memory", type=BYTES, help="Memory for the weights (and KV cache with --context), like 3GB.")
@click.option("--bits", type=BITS, default="16", show_default=True, help="Bits per weight: 4, int4, fp8, bf16.")
@click.option("--context", type=WHOLE, help="Context length whose KV cache must fit in --memory too.")
@click.option("--batch", type=WHOLE, default=1, show_default=True, help="Sequences in the KV cache.")
@click.option("--kv-bits", type=BITS, default="16", show_default=True, help="Bits per number in the KV cache.")
@click.option("--kept-passes", type=WHOLE, help="Passes that keep a KV cache of their own.  [default: all]")
@click.option("--inference-flops", type=COUNT, help="The most FLOPs a generated token may cost (2 N_unroll).")
@click.option("--serve-tokens", type=COUNT, help="Tokens served over the model's life, paid from the compute too.")
@click.option("--rung", "rungs", type=RUNG_LIST, help=f"Rungs to choose from.  [default: {','.join(RUNGS)}]")
@click.option("--width", "widths", type=INTEGERS, help="Widths to choose from instead, by the ladder's rules.")
@click.option("--continuous", is_flag=True, help="Choose from all sizes between 256 and 4096 wide, buildable or not.")
@click.option("--config", type=click.Path(), help="Plan for the model of a config.json: its recurrence is chosen.")
@click.option("--experts", type=EXPERTS, help=f"Expert counts.  [default: {','.join(map(str, RUNG_EXPERTS))}]")
@click.option("--recurrence", type=INTEGERS, help="Recurrences, like 4 or 1..10.  [default: 1..10]")
@click.option("--active-experts", type=ACTIVE, default=2, show_default=True, help="k: experts that a token uses.")
@click.option("--eps", type=float, help="Least gain that justifies a pass or more experts.  [default: the law's RMSE]")
@click.option(
    "--rule",
    type=click.Choice([each.value for each in Rule]),
    default="paper",
    show_default=True,
    help="paper: each step must gain eps. loss: lowest loss alone.",
)
@law_option
@click.option("--top", type=click.IntRange(1, 1000), default=8, show_default=True, help="Rivals to show.")
@click.option(
    "--pareto",
    type=click.Choice(["memory", "inference"]),
    help="Also show the designs that no other beats in both loss and this cost.",
)
@click.option("--out", type=click.Path(), help="Also save the plan as JSON in this file.")
@click.option("--report", type=click.Path(), help="Also save a report with figures, as .html or .md.")
@output_options
def plan_command(
    law: ScalingLaw,
    eps: float | None,
    rule: str,
    top: int,
    pareto: str | None,
    out: str | None,
    report: str | None,
    as_json: bool,
    as_csv: bool,
    **asked: Any,
) -> None:
    """Choose the model to train under your budgets.

    Fix an axis and it is given; leave it free and it is optimised.

    \b
    loopscale plan --flops 5e21 --memory 3GB --bits int4
    loopscale plan --rung 0.3B --experts 8 --like 0.6B:8:1 --like-tokens 6T
    loopscale plan --gpu-hours 50000 --device h100 --utilisation 0.4 --memory 8GiB --bits 4 --context 8192
    loopscale plan --flops 1e22 --serve-tokens 1T --inference-flops 2e9 --json
    """
    if report is not None:
        check_report_path(report)
    budget = _budget(asked)
    found = plan(budget, _space(asked), law, eps=eps, rule=Rule(rule))
    if out is not None:
        found.save(out)
    if report is not None:
        from loopscale.figures.reports import plan_report

        plan_report(found.to_dict(), law).save(report)
    if as_json:
        print_json(found.to_dict())
    elif as_csv:
        click.echo(found.table().csv(), nl=False)
    else:
        print_plan(found, top)
        if pareto is not None:
            _print_front(found, pareto)


def _budget(asked: dict[str, Any]) -> Budget:
    plain = ("tokens", "max_tokens", "memory", "bits", "context", "batch", "kv_bits", "kept_passes", "inference_flops")
    limits = {name: asked[name] for name in plain}
    if limits["context"] is None and (limits["kept_passes"] or limits["batch"] != 1):
        raise click.UsageError("--batch and --kept-passes size the KV cache; give --context with them")
    if limits["context"] is not None and limits["memory"] is None:
        raise click.UsageError("--context counts against --memory; give --memory with it")
    return Budget(flops=_flops(asked), serve_tokens=asked["serve_tokens"] or 0.0, **limits)


def _flops(asked: dict[str, Any]) -> float | None:
    """Return the compute, however it was said."""
    ways = {"--flops": asked["flops"], "--like": asked["like_model"], "--gpu-hours": asked["gpu_hours"]}
    given = [name for name, value in ways.items() if value is not None]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} both state the compute; give one")
    for name, owner in (("like_tokens", "--like"), ("device", "--gpu-hours"), ("utilisation", "--gpu-hours")):
        if (asked[name] is not None) != (ways[owner] is not None):
            raise click.UsageError(f"{owner} and --{name.replace('_', '-')} go together; give both")
    if not given and asked["tokens"] is None:
        raise click.UsageError("give the compute: --flops 5e21, or --like 0.6B:8:1 --like-tokens 6T, or --gpu-hours")
    if asked["like_model"] is not None:
        model, passes = reference(asked["like_model"])
        return like(model, asked["like_tokens"], passes)
    if asked["gpu_hours"] is not None:
        return device_flops(asked["gpu_hours"], asked["device"], asked["utilisation"])
    flops: float | None = asked["flops"]
    return flops


def _space(asked: dict[str, Any]) -> Space:
    names = {"rungs": "--rung", "widths": "--width", "continuous": "--continuous", "config": "--config"}
    given = [option for name, option in names.items() if asked[name]]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} both state the sizes; give one")
    experts = asked["experts"] or RUNG_EXPERTS
    recurrences = asked["recurrence"] or RUNG_RECURRENCES
    if asked["config"]:
        if asked["experts"]:
            raise click.UsageError("--experts does not go with --config, which states them itself")
        model = read_config(asked["config"])
        return architecture_space([model], recurrences if model.loop else asked["recurrence"] or (1,))
    if asked["continuous"]:
        return continuous_space(experts, recurrences)
    if asked["widths"]:
        return width_space(asked["widths"], experts, recurrences, asked["active_experts"])
    return ladder_space(asked["rungs"] or tuple(RUNGS), experts, recurrences, asked["active_experts"])


def print_plan(found: Plan, top: int) -> None:
    """Print the choice in words, how sure it is, and the table of rivals."""
    out = console()
    out.print(f"[bold]{answer(found)}[/]", highlight=False)
    out.print(costs(found), highlight=False)
    out.print(certainty(found), highlight=False)
    listed = [found.choice, *found.rivals(top)]
    print_table(
        "The choice and its near rivals", COLUMNS, map(_row, listed), left=("size", "verdict"), optional=OPTIONAL
    )
    axes = [axis for each in listed for axis in each.extrapolated]
    if axes:
        out.print(legend(axes), highlight=False)


def _print_front(found: Plan, cost: str) -> None:
    rows = [_row(each)[:-1] for each in found.pareto(cost)]
    print_table(
        f"No other design beats these in both loss and {cost}", COLUMNS[:-1], rows, left=("size",), optional=OPTIONAL
    )


def _row(each: Candidate) -> tuple[str, ...]:
    outside = each.extrapolated
    return (
        mark(each.rung, "size" in outside),
        mark(f"{each.experts:g}", "experts" in outside),
        mark(str(each.recurrence), "recurrence" in outside),
        format_size(each.active),
        mark(format_count(each.tokens), "tokens" in outside),
        mark(f"{each.loss:.4f}", bool(outside)),
        format_bytes(each.weight_bytes + each.kv_bytes),
        f"{each.inference_flops:.3g}",
        each.verdict,
    )
