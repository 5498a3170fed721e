"""``loopscale plan``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from loopscale.architecture import (
    RUNG_EXPERTS,
    RUNGS,
    Architecture,
    Space,
    architecture_space,
    continuous_space,
    ladder_space,
    read_config,
    width_space,
)
from loopscale.cli.groups import GroupedVerb, option_group
from loopscale.cli.output import print_json, print_table, say
from loopscale.cli.params import (
    ACTIVE,
    BYTES,
    COUNT,
    DAYS,
    EXPERTS,
    INTEGERS,
    WHOLE,
    QuantityType,
    check_device_options,
    output_options,
    trust_options,
    utilisation_option,
    verbose_option,
)
from loopscale.cli.subjects import RUNG_LIST, law_option
from loopscale.core.devices import DEVICES, NODE, utilisation_of
from loopscale.core.errors import InputError
from loopscale.core.files import is_file, read_json, write_text
from loopscale.core.quantities import format_power
from loopscale.core.report import check_report_path
from loopscale.core.text import fact
from loopscale.planning import FIELDS, PRESETS, Budget, Plan, Rule, Search, search
from loopscale.planning.budget import BudgetField, Group
from loopscale.planning.compute import device_flops, first_token_seconds, flops_of
from loopscale.planning.defaults import experts_for, recurrences_for
from loopscale.planning.intervals import front_band_text
from loopscale.planning.rounding import rounding_cost, rounding_text
from loopscale.planning.screen import plan_screen
from loopscale.planning.searching import COSTS
from loopscale.planning.text import COLUMNS, by_loss, growth_text, legend, sentences, table_row
from loopscale.scaling import ScalingLaw

if TYPE_CHECKING:
    from loopscale.planning.cluster import Cluster


def _budget_option(field: BudgetField) -> Callable[[Any], Any]:
    default = "" if field.default is None else f"  [default: {field.amount.write(field.default)}]"
    kind = QuantityType(field.amount.name, lambda text: field.amount.read(text, ""))
    return click.option(field.option, field.name, type=kind, help=f"{field.help}{default}")


def _budget_options(group: Group) -> list[Callable[[Any], Any]]:
    """Return the options of the budget's fields in a group."""
    return [_budget_option(field) for field in FIELDS.values() if field.group is group]


@click.command("plan", cls=GroupedVerb)
@option_group(
    "Compute",
    *_budget_options(Group.COMPUTE),
    click.option("--like", help="Compute of a reference RUNG:EXPERTS:RECURRENCE, with --like-tokens."),
    click.option("--like-tokens", type=COUNT, help="Tokens that the reference is trained on, like 6T."),
    click.option("--gpus", type=WHOLE, help="Compute as a number of devices, with --device and --days."),
    click.option("--days", type=DAYS, help="Days that the devices train, like 21 or 3weeks, with --gpus."),
    click.option("--gpu-hours", type=COUNT, help="Compute as device-hours, with --device."),
    click.option("--dollars", type=COUNT, help="Compute as money, with --device and --price."),
    click.option("--price", type=COUNT, help="Dollars per device-hour: with --dollars, or to show the cost."),
    click.option("--device", help=f"One of {', '.join(DEVICES)}."),
    utilisation_option(),
)
@option_group("Data", *_budget_options(Group.DATA))
@option_group(
    "Memory and serving",
    click.option(
        "--for", "preset", type=click.Choice(list(PRESETS)), help="Device: sets memory, bits, context and bandwidth."
    ),
    *_budget_options(Group.MEMORY),
    click.option(
        "--overhead", type=BYTES, metavar="BYTES", help="Part of --memory that the runtime takes, like 500MB."
    ),
    click.option(
        "--serve-flops", type=COUNT, help="FLOP/s where the model runs: gives the time to the first token of --context."
    ),
)
@option_group(
    "Models",
    click.option(
        "--rung", "rungs", type=RUNG_LIST, help=f"Sizes by rung.  [default: {','.join(RUNGS)} and further as needed]"
    ),
    click.option("--width", "widths", type=INTEGERS, help="Widths to choose from instead, by the ladder's rules."),
    click.option("--continuous", is_flag=True, help="Continuous sizes, buildable or not, instead of rungs."),
    click.option(
        "--config",
        "--candidates",
        "configs",
        multiple=True,
        help="Choose among your own models: config.json or architecture files, like --candidates *.json.",
    ),
    click.argument("more_configs", nargs=-1, metavar=""),
    click.option(
        "--experts",
        type=EXPERTS,
        help=f"E: experts stored for each active one.  [default: {','.join(map(str, RUNG_EXPERTS))}]",
    ),
    click.option("--recurrence", type=INTEGERS, help="R: passes, like 4 or 1..10.  [default: 1..10]"),
    click.option("--active-experts", type=ACTIVE, default=2, show_default=True, help="k: experts that a token uses."),
)
@option_group(
    "Choice",
    law_option,
    click.option("--eps", type=float, help="Minimum gain per step (pass or experts).  [default: the law's RMSE]"),
    click.option(
        "--rule",
        type=click.Choice([rule.value for rule in Rule]),
        default="paper",
        show_default=True,
        help="paper: each step must gain eps. loss: lowest loss alone.",
    ),
    click.option(
        "--grow", is_flag=True, help="Let passes grow during training: also find the schedule that lowers the loss."
    ),
    click.option(
        "--rounding", is_flag=True, help="Also say what weights of few bits cost in loss, by a law of six models."
    ),
    trust_options,
)
@option_group(
    "Output",
    click.option("--top", type=click.IntRange(1, 1000), default=8, show_default=True, help="Alternatives to show."),
    click.option(
        "--pareto",
        type=click.Choice(list(COSTS)),
        help="Also show the designs that no other beats in both loss and this cost.",
    ),
    click.option("--out", type=click.Path(), help="Also save the plan as JSON in this file."),
    click.option("--train", type=click.Path(), help="Also save the choice as a training file (TOML) for --gpus."),
    click.option("--report", type=click.Path(), help="Also save a report with figures, as .html or .md."),
    output_options,
    verbose_option,
    click.help_option("-h", "--help"),
)
def plan_command(
    law: ScalingLaw,
    eps: float | None,
    rule: str,
    extrapolate: bool,
    allow_degenerate: bool,
    grow: bool,
    rounding: bool,
    top: int,
    pareto: str | None,
    out: str | None,
    train: str | None,
    report: str | None,
    as_json: bool,
    as_csv: bool,
    verbose: bool,
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
    compute, space = _compute(options), _space(options, law)
    if train is None:  # a training file has its own device where none is named
        check_device_options(options["device"])
    cluster = _cluster(options) if options["device"] or train else None
    choose: Callable[..., Search] = search
    if compute.hours is not None:
        from loopscale.planning.device_search import search_on

        choose = partial(search_on, _cluster(options))
    result = choose(
        _budget(options, compute), space, law, eps=eps, rule=rule, extrapolate=extrapolate,
        allow_degenerate=allow_degenerate,
    )  # fmt: skip
    planned = Plan.of(result, grow=grow, cluster=cluster if options["device"] else None, price=options["price"])
    first = _first_token(planned, options["serve_flops"])
    choice = planned.choice
    cost = rounding_cost(planned.budget.bits, choice.tokens, choice.total_parameters) if rounding else None
    if train is not None:
        write_text(train, planned.train_file(cluster))
    if out is not None:
        planned.save(out)
    if report is not None:
        from loopscale.figures.reports import plan_report

        plan_report(planned, law).save(report)
    saved = [path for path in (train, out, report) if path not in (None, "-")]
    ending = f"Saved {', '.join(saved)}."
    if train is not None:
        ending += f" Next: loopscale train {train} --estimate"
    if as_json:
        print_json(planned.to_dict() | ({} if cost is None else {"rounding": asdict(cost)}))
    elif as_csv:
        click.echo(result.table().csv(), nl=False)
    else:
        asked = {} if cost is None else {"rounding": rounding_text(cost, choice.loss)}
        asked |= {} if first is None else {"prompt": first}
        if verbose:
            print_plan(result, planned, top, extrapolate)
            if grow:
                say(f"Growing passes: {growth_text(planned.growth, planned.eps)}")
            for label, text in asked.items():
                click.echo("\n".join(fact(label, text)))
            if saved:
                click.echo(ending)
        else:
            screen = plan_screen(
                planned, result.rivals(top), grow, extrapolate, asked, **({"ending": ending} if saved else {})
            )
            answer, *rest = screen.splitlines()
            say(answer, bold=True)
            click.echo("\n".join(rest))
        if pareto is not None:
            _print_front(result, pareto, extrapolate)


def _first_token(planned: Plan, rate: float | None) -> str | None:
    """Say when the first token of a prompt comes, where the speed of the device is stated."""
    if rate is None:
        return None
    prompt = planned.budget.context
    if prompt is None:
        raise click.UsageError("--serve-flops needs the length of the prompt; give --context")
    seconds = first_token_seconds(planned.choice, prompt, rate, planned.budget.bandwidth)
    return f"{prompt:,} tokens, the first answer token after at least {seconds:.2g} s"


def _budget(options: dict[str, Any], compute: Compute) -> Budget:
    limits = {name: options[name] for name in FIELDS if options[name] is not None}
    if options["preset"] is not None:
        limits = {**PRESETS[options["preset"]], **limits}
    if (overhead := options["overhead"]) is not None:
        if not overhead < limits.get("memory", 0.0):
            raise click.UsageError("--overhead is a part of --memory; give a memory that is larger")
        limits["memory"] -= overhead
    return Budget(**{**limits, "flops": compute.flops, "real_flops": compute.real_flops})


PARTNERS = {"like": ("like_tokens",), "gpus": ("device", "days"), "gpu_hours": ("device",),
            "dollars": ("device", "price")}  # fmt: skip
"""The options that a way to state the compute needs."""
OWNERS = {"like_tokens": "like", "days": "gpus"}
"""Options that mean nothing without another."""


@dataclass(frozen=True)
class Compute:
    """The training compute, however the options state it."""

    flops: float | None
    """As the paper counts."""
    real_flops: float | None
    """As devices run it."""
    hours: float | None
    """Device-hours, where devices or money state it."""


def _compute(options: dict[str, Any]) -> Compute:
    """Return the training compute, which one way states together with its partners."""
    ways = [name for name in ("flops", *PARTNERS) if options[name] is not None]
    if options["real_flops"] is not None and set(ways) - {"flops", "like"}:  # devices and money buy real FLOPs
        ways.append("real_flops")
    if len(ways) > 1:
        raise click.UsageError(f"{' and '.join(map(_option, ways))} both state the compute; give one")
    way = ways[0] if ways else None
    if missing := [_option(name) for name in PARTNERS.get(way or "", ()) if options[name] is None]:
        raise click.UsageError(f"give {' and '.join(missing)} with {_option(str(way))}")
    for name, owner in OWNERS.items():
        if options[name] is not None and way != owner:
            raise click.UsageError(f"give {_option(owner)} with {_option(name)}")
    if way is None and options["tokens"] is None and options["real_flops"] is None:
        raise click.UsageError(
            "give the compute: --flops 5e21, --gpus 8 --device h100 --days 14, or --like 0.6B:8:1 --like-tokens 6T"
        )
    flops, hours = options["flops"], options["gpu_hours"]
    if way == "like":
        try:
            flops = flops_of(options["like"], options["like_tokens"])
        except InputError as error:
            raise click.BadParameter(str(error), param_hint="'--like'") from None
    elif way == "gpus":
        hours = options["gpus"] * options["days"] * 24
    elif way == "dollars":
        hours = options["dollars"] / options["price"]
    if hours is None:
        return Compute(flops, options["real_flops"], None)
    return Compute(None, device_flops(hours, options["device"], options["utilisation"]), float(hours))


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _cluster(options: dict[str, Any]) -> Cluster:
    """Return the devices that train the model; a node where their number is not stated."""
    from loopscale.planning.cluster import Cluster  # most plans are for no device and start without it

    return Cluster(options["device"] or "h100", options["gpus"] or NODE, utilisation_of(options["utilisation"]))


def _space(options: dict[str, Any], law: ScalingLaw) -> Space | None:
    """Return the designs to choose from; None leaves it to the law."""
    names = {"rungs": "--rung", "widths": "--width", "continuous": "--continuous", "configs": "--config"}
    sizes = [option for name, option in names.items() if options[name]]
    if len(sizes) > 1:
        raise click.UsageError(f"{' and '.join(sizes)} both state the sizes; give one")
    recurrences = options["recurrence"] or recurrences_for(law)
    if options["configs"]:
        return _own_models(options, recurrences)
    if options["more_configs"]:
        raise click.UsageError(f"unexpected argument {options['more_configs'][0]!r}; models follow --candidates")
    axes = {"size": options["rungs"], "experts": options["experts"], "recurrence": options["recurrence"]}
    free = [axis for axis, values in axes.items() if values is None]
    experts = options["experts"] or experts_for(law)
    if options["continuous"]:
        return continuous_space(experts, recurrences, free=free)
    if options["widths"]:
        return width_space(options["widths"], experts, recurrences, options["active_experts"])
    if len(free) == 3 and options["active_experts"] == 2:
        return None
    return ladder_space(options["rungs"] or tuple(RUNGS), experts, recurrences, options["active_experts"], free)


def _own_models(options: dict[str, Any], recurrences: tuple[int, ...]) -> Space:
    if options["experts"]:
        raise click.UsageError("--experts does not go with --config, which states them itself")
    models = [_own_model(path) for path in (*options["configs"], *options["more_configs"])]
    loops = any(model.loop for model in models)
    return architecture_space(models, recurrences if loops or options["recurrence"] else (1,))


def _own_model(path: str) -> Architecture:
    """Read an architecture file of ours, or a Hugging Face config."""
    if is_file(path):
        data = read_json(path)
        if isinstance(data, dict) and data.get("kind") == "architecture":
            return Architecture.from_dict(data, path)
    return read_config(path)


def print_plan(result: Search, planned: Plan, top: int, extrapolate: bool = False) -> None:
    """Print the choice in sentences, how far it can be trusted, and the table of alternatives."""
    texts = sentences(planned)
    say(texts["answer"], bold=True)
    subjects = ("speed", "trust", "edge", "confidence", "prices", "kv")
    for line in (texts["costs"], texts["devices"], *(texts[subject] for subject in subjects)):
        if line:
            say(line)
    listed = [planned.choice, *by_loss(result.rivals(top))]
    rows = (table_row(row, extrapolate) for row in listed)
    print_table("Nearest designs", COLUMNS, rows, left=("size", "verdict"), optional=("memory",))
    if note := legend(axis for row in listed for axis in row.extrapolated):
        say(note)


def _print_front(result: Search, cost: str, extrapolate: bool) -> None:
    """Print the front with the 90% band of each loss."""
    bands = result.front_rows(cost)
    columns = [*COLUMNS[:-1], "FLOPs/token"]
    designs = [result.design(int(flat)) for flat in result.front(cost)]
    rows = [(*table_row(row, extrapolate)[:-1], format_power(row.inference_flops)) for row in designs]
    if bands and bands[0].interval is not None:
        columns.insert(5, "90% band")
        spans = [
            f"{band.loss_low:.4f}–{band.loss_high:.4f}" if extrapolate or band.trust != "beyond" else ""
            for band in bands
        ]
        rows = [(*row[:5], span, *row[5:]) for row, span in zip(rows, spans, strict=True)]
    title = f"No other design beats these in both loss and {cost}"
    print_table(title, columns, rows, left=("size",), optional=("tokens",))
    kind = bands[0].interval if bands else None
    say(front_band_text(kind, result.law.uncertainty))
