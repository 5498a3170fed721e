"""``loopscale plan``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
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
from loopscale.cli.output import console, print_json, print_table
from loopscale.cli.params import (
    ACTIVE,
    BYTES,
    COUNT,
    DAYS,
    EXPERTS,
    FRACTION,
    INTEGERS,
    UTILISATION_HELP,
    WHOLE,
    QuantityType,
    output_options,
    trust_options,
    verbose_option,
)
from loopscale.cli.subjects import RUNG_LIST, law_option
from loopscale.core.devices import DEVICES, NODE, UTILISATION
from loopscale.core.errors import InputError
from loopscale.core.files import is_file, read_json
from loopscale.core.quantities import format_power
from loopscale.core.report import check_report_path
from loopscale.core.text import fact
from loopscale.planning import FIELDS, PRESETS, Budget, Plan, Rule, Search, search
from loopscale.planning.budget import BudgetField, Group
from loopscale.planning.compute import device_flops, first_token_seconds, flops_of
from loopscale.planning.rounding import rounding_cost, rounding_text
from loopscale.planning.screen import plan_screen
from loopscale.planning.searching import COSTS, experts_for, recurrences_for
from loopscale.planning.text import COLUMNS, by_loss, front_band_text, growth_text, legend, sentences, table_row
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
    click.option("--like", "like_model", help="Compute of a reference RUNG:EXPERTS:RECURRENCE, with --like-tokens."),
    click.option("--like-tokens", type=COUNT, help="Tokens that the reference is trained on, like 6T."),
    click.option("--gpus", type=WHOLE, help="Compute as a number of devices, with --device and --days."),
    click.option("--days", type=DAYS, help="Days that the devices train, like 21 or 3weeks, with --gpus."),
    click.option("--gpu-hours", type=COUNT, help="Compute as device-hours, with --device."),
    click.option("--dollars", type=COUNT, help="Compute as money, with --device and --price."),
    click.option("--price", type=COUNT, help="Dollars per device-hour: with --dollars, or to show the cost."),
    click.option("--device", help=f"One of {', '.join(DEVICES)}."),
    click.option("--utilisation", type=FRACTION, help=UTILISATION_HELP),
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
    click.option("--rounding", is_flag=True, help="Also say what weights of so few bits cost, by a law of six models."),
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
    compute, space = _Compute(options), _space(options, law)

    limits = _budget(options, compute.flops, compute.real_flops)
    among = (limits, space, law)
    rules: dict[str, Any] = {
        "eps": eps, "rule": rule, "extrapolate": extrapolate, "allow_degenerate": allow_degenerate,
    }  # fmt: skip
    if compute.hours is None:
        found = search(*among, **rules)
    else:
        from loopscale.planning.device_search import search_on

        found = search_on(compute.cluster, *among, **rules)
    planned = Plan.of(found, grow=grow, cluster=compute.named, price=options["price"])
    first = _first_token(planned, options["serve_flops"])
    choice = planned.choice
    cost = rounding_cost(planned.budget.bits, choice.tokens, choice.total_parameters) if rounding else None
    if train is not None:
        _write_training_file(planned, compute.cluster, train)
    if out is not None:
        planned.save(out)
    if report is not None:
        from loopscale.figures.reports import plan_report

        plan_report(planned, law).save(report)
    if as_json:
        print_json(planned.to_dict() | ({} if cost is None else {"rounding": asdict(cost)}))
    elif as_csv:
        click.echo(found.table().csv(), nl=False)
    else:
        asked = {} if cost is None else {"rounding": rounding_text(cost, choice.loss)}
        asked |= {} if first is None else {"prompt": first}
        if verbose:
            print_plan(found, planned, top, extrapolate)
            if grow:
                console().print(f"Growing passes: {growth_text(planned.growth, planned.eps)}", highlight=False)
            for label, text in asked.items():
                click.echo("\n".join(fact(label, text)))
        else:
            answer, *rest = plan_screen(planned, found.rivals(top), grow, extrapolate, asked).splitlines()
            console().print(f"[bold]{answer}[/]", highlight=False, soft_wrap=True)
            click.echo("\n".join(rest))
        if pareto is not None:
            _print_front(found, pareto, extrapolate)


def _first_token(planned: Plan, rate: float | None) -> str | None:
    """Say when the first token of a prompt comes, where the speed of the device is stated."""
    if rate is None:
        return None
    prompt = planned.budget.context
    if prompt is None:
        raise click.UsageError("--serve-flops needs the length of the prompt; give --context")
    seconds = first_token_seconds(planned.choice, prompt, rate, planned.budget.bandwidth)
    return f"{prompt:,} tokens, the first answer token after at least {seconds:.2g} s"


def _write_training_file(planned: Plan, cluster: Cluster, path: str) -> None:
    from loopscale.core.files import write_text

    write_text(path, planned.train_file(cluster))
    click.echo(f"Saved {path}. Next: loopscale train {path} --estimate", err=True)


def _budget(options: dict[str, Any], flops: float | None, real_flops: float | None) -> Budget:
    limits = {name: options[name] for name in FIELDS if options[name] is not None}
    if options["preset"] is not None:
        limits = {**PRESETS[options["preset"]], **limits}
    if (overhead := options["overhead"]) is not None:
        if not overhead < limits.get("memory", 0.0):
            raise click.UsageError("--overhead is a part of --memory; give a memory that is larger")
        limits["memory"] -= overhead
    return Budget(**{**limits, "flops": flops, "real_flops": real_flops})


class _Compute:
    """The training compute, however the options state it, and what the plan costs on the device."""

    WAYS = ("flops", "like_model", "gpus", "gpu_hours", "dollars")
    DEVICES = ("gpus", "gpu_hours", "dollars")
    """Ways that buy real FLOPs, which `real_flops` would state a second time."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        ways = [name for name in self.WAYS if options[name] is not None]
        stated = [
            *ways,
            *(["real_flops"] if options["real_flops"] is not None and set(ways) & set(self.DEVICES) else []),
        ]
        if len(stated) > 1:
            texts = ["--like" if name == "like_model" else f"--{name.replace('_', '-')}" for name in stated]
            raise click.UsageError(f"{' and '.join(texts)} both state the compute; give one")
        self.way = ways[0] if ways else None
        self._check_partners()
        if self.way is None and options["tokens"] is None and options["real_flops"] is None:
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
        if self.way == "like_model":
            try:
                return flops_of(self.options["like_model"], self.options["like_tokens"])
            except InputError as error:
                raise click.BadParameter(str(error), param_hint="'--like'") from None
        return None

    @property
    def real_flops(self) -> float | None:
        """The compute as devices run it, where it is stated so, in devices or in money."""
        if self.hours is None:
            real: float | None = self.options["real_flops"]
            return real
        return device_flops(self.hours, self.cluster.device, self.cluster.utilisation)

    @property
    def hours(self) -> float | None:
        """The compute in device-hours, where it is stated in devices or money."""
        o = self.options
        if self.way == "gpus":
            return float(o["gpus"] * o["days"] * 24)
        if self.way == "gpu_hours":
            return float(o["gpu_hours"])
        return float(o["dollars"] / o["price"]) if self.way == "dollars" else None

    @property
    def cluster(self) -> Cluster:
        """The devices that train the model; a node where their number is not stated."""
        from loopscale.planning.cluster import Cluster

        named = self.options["device"] or "h100"
        return Cluster(named, self.options["gpus"] or NODE, self._utilisation)

    @property
    def _utilisation(self) -> float:
        return self.options["utilisation"] or UTILISATION

    @property
    def named(self) -> Cluster | None:
        """The devices, where the options name them."""
        return None if self.options["device"] is None else self.cluster


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


def print_plan(found: Search, planned: Plan, top: int, extrapolate: bool = False) -> None:
    """Print the choice in sentences, how far it can be trusted, and the table of alternatives."""
    out, texts = console(), sentences(planned)
    out.print(f"[bold]{texts['answer']}[/]", highlight=False)
    subjects = ("speed", "trust", "edge", "confidence", "prices", "kv")
    for line in (texts["costs"], texts["devices"], *(texts[subject] for subject in subjects)):
        if line:
            out.print(line, highlight=False)
    listed = [planned.choice, *by_loss(found.rivals(top))]
    rows = (table_row(row, extrapolate) for row in listed)
    print_table("Nearest designs", COLUMNS, rows, left=("size", "verdict"), optional=("memory",))
    if note := legend(axis for row in listed for axis in row.extrapolated):
        out.print(note, highlight=False)


def _print_front(found: Search, cost: str, extrapolate: bool) -> None:
    """Print the front with the 90% band of each loss."""
    bands = found.front_rows(cost)
    columns = [*COLUMNS[:-1], "FLOPs/token"]
    designs = [found.design(int(flat)) for flat in found.front(cost)]
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
    console().print(front_band_text(kind, found.law.uncertainty), highlight=False)
