"""``loopscale plan`` and ``loopscale predict``."""

from __future__ import annotations

from typing import Any

import click

from loopscale.architecture import RUNG_EXPERTS, RUNG_RECURRENCES, RUNGS, Architecture, read_config
from loopscale.cli.output import console, print_json, print_table
from loopscale.cli.params import (
    ACTIVE,
    BITS,
    BYTES,
    CONTEXT,
    COUNT,
    EXPERTS,
    FRACTION,
    INTEGERS,
    RUNG_LIST,
    WHOLE,
    check_recurrence,
    law_option,
    model_options,
    one_model,
    output_options,
    trust_options,
)
from loopscale.cli.verbs import verb
from loopscale.core.errors import InputError
from loopscale.core.files import is_file, read_json
from loopscale.core.quantities import format_count, format_power, format_size
from loopscale.core.report import check_report_path
from loopscale.core.tables import Table
from loopscale.planning import (
    DEVICES,
    PRESETS,
    Budget,
    Plan,
    Prediction,
    Rule,
    Space,
    architecture_space,
    continuous_space,
    generation_rate,
    ladder_space,
    plan,
    predict,
    width_space,
)
from loopscale.planning.predict import check, register
from loopscale.planning.text import (
    COLUMNS,
    front_band_text,
    interval_text,
    law_text,
    legend,
    mark,
    sentences,
    table_row,
    trust_text,
)
from loopscale.scaling import ScalingLaw


@verb("predict")
@model_options
@click.option("--params", type=COUNT, help="A parameter count instead, for laws that need no architecture, like 7e9.")
@click.option("--recurrence", type=WHOLE, help="R: passes through the loop.  [default: the model's own]")
@click.option("--tokens", type=COUNT, help="Training tokens, like 500B.")
@click.option("--flops", type=COUNT, help="Training compute instead of tokens, like 5e21.")
@click.option("--register", "register_path", type=click.Path(), help="Write the prediction with its date and a hash.")
@click.option("--check", "check_path", type=click.Path(), help="Compare a registered prediction with --loss.")
@click.option("--loss", type=click.FloatRange(0, min_open=True), help="The measured loss, for --check.")
@law_option
@trust_options
@output_options
def predict_command(
    register_path: str | None,
    check_path: str | None,
    loss: float | None,
    params: float | None,
    recurrence: int | None,
    tokens: float | None,
    flops: float | None,
    law: ScalingLaw,
    extrapolate: bool,
    allow_degenerate: bool,
    as_json: bool,
    as_csv: bool,
    **model: Any,
) -> None:
    """Predict the loss of one model.

    \b
    loopscale predict --rung 1.0B --experts 8 --recurrence 2 --tokens 500B
    loopscale predict --width 2048 --experts 16 --flops 1e22
    loopscale predict --params 7e9 --tokens 2T --law chinchilla-epoch-2024
    loopscale predict --config path/to/config.json --tokens 1T --law chinchilla-epoch-2024
    loopscale predict --params 7e9 --tokens 2T --law law.json --register prediction.json
    loopscale predict --check prediction.json --loss 2.31
    """
    if check_path is not None:
        if loss is None:
            raise click.UsageError("--check needs --loss, the loss that came out")
        click.echo(check(check_path, loss))
        return
    if (tokens is None) == (flops is None):
        raise click.UsageError("give --tokens or --flops, one of them")
    architecture = None
    if params is None:
        architecture = one_model(model.pop("rung"), **model)
        check_recurrence(architecture, recurrence)
    elif any(model[name] for name in ("rung", "width", "layers", "experts", "config")):
        raise click.UsageError("--params states the size; leave out --rung, --width, --layers, --experts and --config")
    prediction = predict(
        architecture, tokens, recurrence, law, flops=flops, N=params, extrapolate=extrapolate,
        allow_degenerate=allow_degenerate,
    )  # fmt: skip
    if register_path is not None:
        register(prediction, register_path)
    if as_json:
        print_json(prediction.to_dict())
    elif as_csv:
        click.echo(Table.from_records([prediction.to_dict()]).csv(), nl=False)
    else:
        _print(prediction, law)


def _print(prediction: Prediction, law: ScalingLaw) -> None:
    out, outside = console(), set(prediction.extrapolated)
    loss = mark(f"{prediction.loss:.4f}", bool(outside))
    band = f" ({interval_text(prediction.interval, prediction.uncertainty)})"
    out.print(f"[bold]loss {loss}[/] nats per token{band}", highlight=False)
    out.print(
        f"{prediction.model}: E = {mark(f'{prediction.experts:g}', 'experts' in outside)}, "
        f"R = {mark(str(prediction.recurrence), 'recurrence' in outside)}, "
        f"{mark(format_count(prediction.tokens), 'tokens' in outside)} tokens; law {law_text(law)}",
        highlight=False,
    )
    for name, text in _facts(prediction, outside):
        out.print(f"  {name:<10} {text}", highlight=False)
    out.print(trust_text(prediction.trust), highlight=False)
    if outside:
        out.print(legend(outside), highlight=False)


def _facts(prediction: Prediction, outside: set[str]) -> list[tuple[str, str]]:
    """Return the counts and costs of a predicted model, with their names."""
    active = mark(format_size(prediction.active), "size" in outside)
    training = ("training", f"{prediction.train_flops:.4g} FLOPs (6 N_unroll D)")
    inference = ("inference", f"{prediction.inference_flops:.4g} FLOPs per generated token (2 N_unroll)")
    if not prediction.loop:
        return [("active", active), training, inference]
    limit = prediction.largest_multiplier
    most = "without bound" if limit is None else f"at most {limit:.3f}x"
    return [
        ("active", f"{active}, of which {format_size(prediction.loop)} looped"),
        (
            "total",
            f"{format_size(prediction.total)} (m = {prediction.m:.4f}), and {format_size(prediction.embedding)} of "
            "embeddings",
        ),
        ("unrolled", f"{format_size(prediction.unrolled)}, which compute is paid for"),
        (
            "effective",
            f"{format_size(prediction.effective)}, {prediction.multiplier:.3f}x active; more passes reach {most}",
        ),
        training,
        inference,
    ]


@verb("plan")
@click.option("--flops", type=COUNT, help="Training compute, like 5e21.")
@click.option("--like", "like_model", help="Compute of a reference model RUNG:EXPERTS:RECURRENCE, with --like-tokens.")
@click.option("--like-tokens", type=COUNT, help="Tokens that the reference is trained on, like 6T.")
@click.option("--gpus", type=WHOLE, help="Compute as a number of devices, with --device and --days.")
@click.option("--days", type=COUNT, help="Days that the devices train, with --gpus.")
@click.option("--gpu-hours", type=COUNT, help="Compute as device-hours, with --device.")
@click.option("--dollars", type=COUNT, help="Compute as money, with --device and --price.")
@click.option("--price", type=COUNT, help="Dollars per device-hour: with --dollars, or to show the cost.")
@click.option("--device", help=f"One of {', '.join(DEVICES)}.")
@click.option("--utilisation", type=FRACTION, help="Share of the peak that training reaches.  [default: 40%]")
@click.option("--tokens", type=COUNT, help="Training tokens, when they are given; compute is then a limit, or none.")
@click.option("--max-tokens", type=COUNT, help="Training tokens available.")
@click.option("--unique-tokens", type=COUNT, help="Different tokens available; repeating them counts for less.")
@click.option("--for", "preset", type=click.Choice(list(PRESETS)), help="Device: sets memory, bits and context.")
@click.option("--memory", type=BYTES, help="Memory for the weights (and KV cache with --context), like 3GB.")
@click.option("--bits", type=BITS, help="Bits per weight: 4, int4, fp8, bf16.  [default: 16]")
@click.option("--context", type=CONTEXT, help="Include the KV cache of a context of this length, like 32k.")
@click.option("--batch", type=WHOLE, default=1, show_default=True, help="Sequences in the KV cache.")
@click.option("--kv-bits", type=BITS, default="16", show_default=True, help="Bits per number in the KV cache.")
@click.option("--kept-passes", type=WHOLE, help="Passes that keep their own KV cache.  [default: all]")
@click.option("--kv-window", type=WHOLE, help="Positions that the other passes keep, with --kept-passes.")
@click.option("--inference-flops", type=COUNT, help="Max inference FLOPs per token (2 N_unroll).")
@click.option("--serve-tokens", type=COUNT, help="Lifetime inference tokens, charged to the compute budget.")
@click.option(
    "--rung", "rungs", type=RUNG_LIST, help=f"Sizes by rung.  [default: {','.join(RUNGS)} and further as needed]"
)
@click.option("--width", "widths", type=INTEGERS, help="Widths to choose from instead, by the ladder's rules.")
@click.option("--continuous", is_flag=True, help="Continuous sizes, buildable or not, instead of rungs.")
@click.option(
    "--config",
    "--candidates",
    "configs",
    multiple=True,
    help="Choose among your own models: config.json or architecture files, like --candidates *.json.",
)
@click.argument("more_configs", nargs=-1, metavar="")
@click.option("--experts", type=EXPERTS, help=f"Expert counts.  [default: {','.join(map(str, RUNG_EXPERTS))}]")
@click.option("--recurrence", type=INTEGERS, help="Recurrences, like 4 or 1..10.  [default: 1..10]")
@click.option("--active-experts", type=ACTIVE, default=2, show_default=True, help="k: experts that a token uses.")
@click.option("--eps", type=float, help="Minimum gain per step (pass or experts).  [default: the law's RMSE]")
@click.option(
    "--rule",
    type=click.Choice([rule.value for rule in Rule]),
    default="paper",
    show_default=True,
    help="paper: each step must gain eps. loss: lowest loss alone.",
)
@law_option
@trust_options
@click.option("--top", type=click.IntRange(1, 1000), default=8, show_default=True, help="Alternatives to show.")
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
    extrapolate: bool,
    allow_degenerate: bool,
    top: int,
    pareto: str | None,
    out: str | None,
    report: str | None,
    as_json: bool,
    as_csv: bool,
    **options: Any,
) -> None:
    """Choose the model to train under your budgets.

    Options you set are held fixed; the rest are optimised.

    \b
    loopscale plan --flops 5e21 --memory 3GB --bits int4
    loopscale plan --gpus 8 --device h100 --days 14 --for phone
    loopscale plan --rung 0.3B --experts 8 --like 0.6B:8:1 --like-tokens 6T
    loopscale plan --flops 1e22 --serve-tokens 1T --inference-flops 2e9 --json
    """
    if report is not None:
        check_report_path(report)
    compute = _Compute(options)
    planned = plan(
        _budget(options, compute.flops), _space(options), law, eps=eps, rule=Rule(rule), extrapolate=extrapolate,
        allow_degenerate=allow_degenerate,
    )  # fmt: skip
    if out is not None:
        planned.save(out)
    if report is not None:
        from loopscale.figures.reports import plan_report

        plan_report(planned.to_dict(), law).save(report)
    if as_json:
        print_json(planned.to_dict())
    elif as_csv:
        click.echo(planned.table().csv(), nl=False)
    else:
        speed = "" if options["preset"] is None else generation_rate(planned, options["preset"]).text
        print_plan(planned, top, compute.cost(planned), speed)
        if pareto is not None:
            _print_front(planned, pareto)


def _budget(options: dict[str, Any], flops: float | None) -> Budget:
    names = (
        "tokens",
        "max_tokens",
        "memory",
        "bits",
        "context",
        "batch",
        "kv_bits",
        "kept_passes",
        "kv_window",
        "inference_flops",
        "unique_tokens",
    )
    limits = {name: options[name] for name in names if options[name] is not None}
    if options["preset"] is not None:
        limits = {**PRESETS[options["preset"]], **limits}
    if "context" not in limits and ("kept_passes" in limits or limits["batch"] != 1):
        raise click.UsageError("--batch and --kept-passes size the KV cache; give --context with them")
    if "context" in limits and "memory" not in limits:
        raise click.UsageError("--context counts against --memory; give --memory with it")
    return Budget(flops=flops, serve_tokens=options["serve_tokens"] or 0.0, **limits)


class _Compute:
    """The training compute, however the options state it, and what the plan costs on the device."""

    WAYS = ("flops", "like_model", "gpus", "gpu_hours", "dollars")

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        given = [name for name in self.WAYS if options[name] is not None]
        if len(given) > 1:
            texts = ["--like" if name == "like_model" else f"--{name.replace('_', '-')}" for name in given]
            raise click.UsageError(f"{' and '.join(texts)} both state the compute; give one")
        self.way = given[0] if given else None
        self._check_partners()
        if self.way is None and options["tokens"] is None:
            raise click.UsageError(
                "give the compute: --flops 5e21, --gpus 8 --device h100 --days 14, or --like 0.6B:8:1 --like-tokens 6T"
            )

    def _check_partners(self) -> None:
        partners = {"like_model": ("like_tokens",), "gpus": ("device", "days"), "gpu_hours": ("device",),
                    "dollars": ("device", "price")}  # fmt: skip
        for name in partners.get(self.way or "", ()):
            if self.options[name] is None:
                way = "like" if self.way == "like_model" else str(self.way).replace("_", "-")
                raise click.UsageError(f"--{way} and --{name.replace('_', '-')} go together; give both")
        owners = {"like_tokens": "like_model", "days": "gpus"}
        for name, owner in owners.items():
            if self.options[name] is not None and self.way != owner:
                option = "--like" if owner == "like_model" else "--gpus"
                raise click.UsageError(f"{option} and --{name.replace('_', '-')} go together; give both")

    @property
    def flops(self) -> float | None:
        """The compute in FLOPs; None when only tokens are given."""
        if self.way in (None, "flops"):
            flops: float | None = self.options["flops"]
            return flops
        from loopscale.planning.devices import device_flops, flops_of

        if self.way == "like_model":
            try:
                return flops_of(self.options["like_model"], self.options["like_tokens"])
            except InputError as error:
                raise click.BadParameter(str(error), param_hint="'--like'") from None
        hours = {
            "gpus": lambda o: o["gpus"] * o["days"] * 24,
            "gpu_hours": lambda o: o["gpu_hours"],
            "dollars": lambda o: o["dollars"] / o["price"],
        }[self.way](self.options)
        return device_flops(hours, self.options["device"], self._utilisation)

    @property
    def _utilisation(self) -> float:
        from loopscale.planning.devices import UTILISATION

        return self.options["utilisation"] or UTILISATION

    def cost(self, planned: Plan) -> str:
        """Say what training takes on the device; nothing where none was named."""
        if self.options["device"] is None:
            return ""
        from loopscale.planning.devices import training_cost

        gpus = self.options["gpus"] or 1
        cost = training_cost(
            planned.choice.train_flops, self.options["device"], gpus, self._utilisation, self.options["price"]
        )
        stated = "" if self.options["utilisation"] else " (assumed; --utilisation changes it)"
        money = "" if cost.dollars is None else f", {cost.dollars:,.0f} dollars at {self.options['price']:g} an hour"
        return (
            f"On {gpus} {self.options['device']}: {cost.days:.3g} days, {cost.hours:,.0f} device-hours, "
            f"{cost.kilowatt_hours:,.0f} kWh{money}, at {self._utilisation:.0%} of the peak{stated}"
        )


def _space(options: dict[str, Any]) -> Space | None:
    """Return the designs to choose from; None leaves it to the law."""
    names = {"rungs": "--rung", "widths": "--width", "continuous": "--continuous", "configs": "--config"}
    given = [option for name, option in names.items() if options[name]]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} both state the sizes; give one")
    if options["configs"]:
        return _own_models(options)
    if options["more_configs"]:
        raise click.UsageError(f"unexpected argument {options['more_configs'][0]!r}; models follow --candidates")
    axes = {"size": options["rungs"], "experts": options["experts"], "recurrence": options["recurrence"]}
    free = [axis for axis, values in axes.items() if values is None]
    experts = options["experts"] or RUNG_EXPERTS
    recurrences = options["recurrence"] or RUNG_RECURRENCES
    if options["continuous"]:
        return continuous_space(experts, recurrences, free=free)
    if options["widths"]:
        return width_space(options["widths"], experts, recurrences, options["active_experts"])
    if len(free) == 3 and options["active_experts"] == 2:
        return None
    return ladder_space(options["rungs"] or tuple(RUNGS), experts, recurrences, options["active_experts"], free)


def _own_models(options: dict[str, Any]) -> Space:
    if options["experts"]:
        raise click.UsageError("--experts does not go with --config, which states them itself")
    models = [_own_model(path) for path in (*options["configs"], *options["more_configs"])]
    loops = any(model.loop for model in models)
    return architecture_space(models, options["recurrence"] or (RUNG_RECURRENCES if loops else (1,)))


def _own_model(path: str) -> Architecture:
    """Read an architecture file of ours, or a Hugging Face config."""
    if is_file(path):
        data = read_json(path)
        if isinstance(data, dict) and data.get("kind") == "architecture":
            return Architecture.from_dict(data, path)
    return read_config(path)


def print_plan(planned: Plan, top: int, cost: str = "", speed: str = "") -> None:
    """Print the choice in sentences, how far it can be trusted, and the table of alternatives."""
    out, said = console(), sentences(planned)
    out.print(f"[bold]{said['answer']}[/]", highlight=False)
    subjects = ("trust", "edge", "confidence", "prices", "kv")
    for line in (said["costs"], cost, speed, *(said[subject] for subject in subjects)):
        if line:
            out.print(line, highlight=False)
    listed = [planned.choice, *planned.rivals(top)]
    print_table(
        "Alternatives considered, the closest first",
        COLUMNS,
        map(table_row, listed),
        left=("size", "verdict"),
        optional=("memory",),
    )
    if note := legend(axis for row in listed for axis in row.extrapolated):
        out.print(note, highlight=False)


def _print_front(planned: Plan, cost: str) -> None:
    """Print the front with the 90% band of each loss."""
    bands = list(planned.pareto_table(cost).records())
    columns = [*COLUMNS[:-1], "FLOPs/token"]
    rows = [(*table_row(row)[:-1], format_power(row.inference_flops)) for row in planned.pareto(cost)]
    if bands and bands[0]["interval"] is not None:
        columns.insert(5, "90% band")
        spans = [f"{band['loss_low']:.4f}–{band['loss_high']:.4f}" for band in bands]
        rows = [(*row[:5], span, *row[5:]) for row, span in zip(rows, spans, strict=True)]
    title = f"No other design beats these in both loss and {cost}"
    print_table(title, columns, rows, left=("size",), optional=("tokens",))
    console().print(front_band_text(bands[0].get("interval") if bands else None, planned.uncertainty), highlight=False)
