"""``loopscale predict``."""

from __future__ import annotations

from typing import Any

import click

from loopscale.cli.output import print_json, say, say_facts
from loopscale.cli.params import (
    COUNT,
    WHOLE,
    check_device_options,
    output_options,
    run_options,
    seal_options,
    trust_options,
    utilisation_option,
    verbose_option,
)
from loopscale.cli.subjects import check_recurrence, law_option, model_options, one_model, one_of
from loopscale.cli.verbs import verb
from loopscale.core.devices import NODE, utilisation_of
from loopscale.core.quantities import format_count, format_power, format_size
from loopscale.core.tables import Table
from loopscale.planning.cluster import Cluster
from loopscale.planning.design import card_size, design_text, law_counts_text
from loopscale.planning.intervals import interval_text
from loopscale.planning.predictions import Prediction, predict
from loopscale.planning.screen import prediction_screen, training_text
from loopscale.planning.text import law_text, legend, mark, trust_text
from loopscale.scaling import ScalingLaw


@verb("predict")
@model_options
@run_options("Training compute instead of tokens, like 5e21.")
@click.option("--real-flops", type=COUNT, help="The same with output head, attention and expert padding.")
@click.option("--gpus", type=WHOLE, default=NODE, show_default=True, help="Devices that train it, with --device.")
@click.option("--device", help="Also say what training takes on devices of this kind, like h100.")
@utilisation_option()
@click.option("--price", type=COUNT, help="Dollars per device-hour, with --device.")
@seal_options("Score a sealed prediction against --loss.")
@click.option("--loss", type=click.FloatRange(0, min_open=True), help="The measured loss, for --check.")
@law_option
@trust_options
@output_options
@verbose_option
def predict_command(
    register_path: str | None,
    check_path: str | None,
    loss: float | None,
    params: float | None,
    loop_params: float | None,
    total_params: float | None,
    recurrence: int | None,
    tokens: float | None,
    unique_tokens: float | None,
    flops: float | None,
    real_flops: float | None,
    gpus: int,
    device: str | None,
    utilisation: float | None,
    price: float | None,
    law: ScalingLaw,
    extrapolate: bool,
    allow_degenerate: bool,
    as_json: bool,
    as_csv: bool,
    verbose: bool,
    **model: Any,
) -> None:
    """Predict the loss of one model.

    \b
    loopscale predict --rung 1.0B --experts 8 --recurrence 2 --tokens 500B
    loopscale predict --width 2048 --experts 16 --flops 1e22
    loopscale predict --rung 0.6B --experts 8 --tokens 500B --gpus 64 --device h100
    loopscale predict --params 7e9 --tokens 2T --law chinchilla-epoch-2024
    loopscale predict --params 4B --loop-params 2B --recurrence 4 --tokens 400B --law law.json
    loopscale predict --config path/to/config.json --tokens 1T --law chinchilla-epoch-2024
    loopscale predict --params 7e9 --tokens 2T --law law.json --register prediction.json
    loopscale predict --check prediction.json --loss 2.31
    """
    if check_path is not None:
        if loss is None:
            raise click.UsageError("--check needs --loss, the loss that came out")
        from loopscale.planning.registered import check  # reads a file, with pydantic, which is slow to import

        click.echo(check(check_path, loss))
        return
    if params is None and not any(model[name] for name in ("rung", "width", "config")):
        raise click.UsageError("give one of --rung, --width or --config, or a size by --params 7e9")
    if sum(amount is not None for amount in (tokens, flops, real_flops)) != 1:
        raise click.UsageError("give --tokens, --flops or --real-flops, one of them")
    check_device_options(device)
    architecture = None
    if params is None:
        architecture = one_model(model.pop("rung"), **model)
        check_recurrence(architecture, recurrence)
    elif any(model[name] for name in ("rung", "width", "layers", "config")):
        raise click.UsageError("--params states the size; leave out --rung, --width, --layers and --config")
    experts = one_of(model["experts"]) if params is not None else 1
    prediction = predict(
        architecture, tokens, recurrence, law, flops=flops, real_flops=real_flops, N=params, loop_params=loop_params,
        total_params=total_params, unique_tokens=unique_tokens, experts=experts, extrapolate=extrapolate,
        cluster=None if device is None else Cluster(device, gpus, utilisation_of(utilisation)), price=price,
        allow_degenerate=allow_degenerate,
    )  # fmt: skip
    if register_path is not None:
        from loopscale.planning.registered import register

        register(prediction, register_path)
    if as_json:
        print_json(prediction.to_dict())
    elif as_csv:
        click.echo(Table.from_records([_row(prediction)]).csv(), nl=False)
    else:
        if verbose:
            _print(prediction, law)
        else:
            click.echo(prediction_screen(prediction))


def _row(prediction: Prediction) -> dict[str, Any]:
    """Return the prediction as one line of a table, without nested values."""
    values = {name: value for name, value in prediction.to_dict().items() if name not in ("interval", "devices")}
    return {
        **values,
        "extrapolated": " ".join(prediction.design.extrapolated),
        "trust": prediction.trust.level,
    }


def _print(prediction: Prediction, law: ScalingLaw) -> None:
    design = prediction.design
    outside = set(design.extrapolated)
    loss = mark(f"{prediction.loss:.4f}", bool(outside))
    band = interval_text(prediction.interval, prediction.uncertainty, prediction.trust.level)
    say(f"loss {loss} nats per token ({band})", bold=True)
    tokens = mark(format_count(design.tokens), "tokens" in outside)
    law_name = law_text(law.name, 0 if law.resamples is None else len(law.resamples))
    say(f"{design.rung}: {design_text(design)}, on {tokens} tokens; law {law_name}")
    limit = prediction.largest_multiplier
    most = "without bound" if limit is None else f"at most {limit:.3f}x N_act"
    as_good = f"as good as {card_size(design.effective_parameters)} without looping; more passes reach {most}"
    say_facts(
        {
            "looping": as_good if design.recurrence > 1 else "",
            "training": training_text(design),
            "devices": "" if prediction.devices is None else prediction.devices.text(),
            "inference": f"{format_power(design.inference_flops, 4)} FLOPs per generated token (2 N_unroll)",
            "counts": f"{law_counts_text(design)}, N_unroll {format_size(design.unrolled)}",
        }
    )
    say(trust_text(prediction.trust))
    if outside:
        say(legend(outside))
