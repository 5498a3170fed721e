"""The types and groups of options that commands share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from loopscale.architecture import RUNGS, Architecture, at_width, read_config, rung, rung_name
from loopscale.core import quantities
from loopscale.core.errors import InputError, require, shown
from loopscale.scaling import DEFAULT, find_law

if TYPE_CHECKING:
    from loopscale.model import LoopedMoEConfig
    from loopscale.train.config import TrainConfig

F = TypeVar("F", bound=Callable[..., Any])


class QuantityType(click.ParamType[Any]):
    """An option that one of our parsers reads; its error becomes the option's error."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.parse(value)
        except InputError as error:
            self.fail(str(error), param, ctx)


def _unnamed(parse: Callable[[str, str], Any]) -> Callable[[str], Any]:
    """Return the parser without a name for the value: click names the option."""
    return lambda text: parse(text, "")


def _several(parse: Callable[[str, str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """Return the parser of values with commas between them."""
    return lambda text: tuple(parse(part, "") for part in text.split(","))


def _context(text: str) -> int:
    """Read a context length, where 8k is 8,192."""
    value = quantities.parse_context(text, "")
    if value != round(value) or value > 1e9:
        raise InputError(f"{shown(text)} is not a whole number up to a billion; write it like 8192 or 32k")
    return int(value)


def _experts(text: str) -> tuple[float, ...]:
    """Read expert counts: whole numbers and ranges, or any number from 1 up that routing can reach."""
    counts: set[float] = set()
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            counts.update(quantities.parse_integers(part, ""))
            continue
        if not 1 <= value <= 1e6:
            raise InputError(f"{shown(part.strip())} is not an expert count; it should be from 1 to 1,000,000")
        counts.add(value)
    return tuple(sorted(counts))


def _rungs(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(rung_name(part) for part in text.split(",")))


COUNT = QuantityType("COUNT", _unnamed(quantities.parse_count))
COUNTS = QuantityType("COUNT,…", _several(quantities.parse_count))
BYTES = QuantityType("BYTES", _unnamed(quantities.parse_bytes))
MEMORIES = QuantityType("BYTES,…", _several(quantities.parse_bytes))
BITS = QuantityType("BITS", _unnamed(quantities.parse_bits))
FRACTION = QuantityType("SHARE", _unnamed(quantities.parse_fraction))
CONTEXT = QuantityType("TOKENS", _context)
DAYS = QuantityType("DAYS", _unnamed(quantities.parse_days))
INTEGERS = QuantityType("N,…", _unnamed(quantities.parse_integers))
EXPERTS = QuantityType("E,…", _experts)
RUNG_LIST = QuantityType("RUNG,…", _rungs)
WHOLE = click.IntRange(1, 10_000_000)
EXITS = click.Choice(("kl", "entropy", "argmax", "state", "gate"))
ACTIVE = click.IntRange(1, 1024)
WIDTH = click.IntRange(1, 1_000_000)


class LawType(QuantityType):
    """A law by its name or file; ``--group``, which is read before, chooses one of several in a file."""

    def __init__(self) -> None:
        super().__init__("NAME|FILE", find_law)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return find_law(value, None if ctx is None else ctx.meta.get(GROUP))
        except InputError as error:
            self.fail(error.told({"group": "--group"}.get), param, ctx)


LAW = LawType()
GROUP = "loopscale.group"


def _store_group(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    ctx.meta[GROUP] = value


def law_option(function: F) -> F:
    """Add ``--law``, and ``--group`` for files that hold the laws of several groups."""
    function = click.option(
        "--group", is_eager=True, expose_value=False, callback=_store_group, help="Which law of `fit --group`."
    )(function)
    return click.option(
        "--law", type=LAW, default=DEFAULT, show_default=True, help="A published law by name, or a law file (JSON)."
    )(function)


def trust_options(function: F) -> F:
    """Add ``--extrapolate`` and ``--allow-degenerate``."""
    function = click.option("--allow-degenerate", is_flag=True, help="Use a law even if its fit was degenerate.")(
        function
    )
    return extrapolate_option(function)


def extrapolate_option(function: F) -> F:
    """Add ``--extrapolate``."""
    return click.option(
        "--extrapolate", is_flag=True, help="Answer even more than 10x beyond what the law was fitted on."
    )(function)


def price_option(function: F) -> F:
    """Add ``--price``; the default is a round number for want of the user's own."""
    return click.option(
        "--price", type=click.FloatRange(min=0), default=2.5, show_default=True, help="Dollars per device-hour."
    )(function)


def output_options(function: F) -> F:
    """Add ``--json`` and ``--csv``."""
    function = click.option("--csv", "as_csv", is_flag=True, help="Print the table as CSV.")(function)
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def run_options(flops: str, several: bool = False) -> Callable[[F], F]:
    """Add the options that state one run by its counts, or with ``several`` many: size, tokens, compute, passes."""
    count = COUNTS if several else COUNT
    options = (
        click.option("--params", type=count, help="N: parameters, counted as the law counts them, like 7e9."),
        click.option("--loop-params", type=COUNT, help="N_loop of that model: its looped part, with --recurrence."),
        click.option("--total-params", type=COUNT, help="N_total of that model: with all experts, with --experts."),
        click.option("--tokens", type=count, help="D: training tokens, like 500B."),
        click.option("--flops", type=count, help=flops),
        click.option("--recurrence", type=WHOLE, help="R: passes through the loop.  [default: the law's or model's]"),
    )

    def add(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def seal_options(check: str) -> Callable[[F], F]:
    """Add ``--register`` and ``--check``; ``check`` says what the later outcome is given as."""

    def add(function: F) -> F:
        function = click.option("--check", "check_path", type=click.Path(), help=check)(function)
        return click.option(
            "--register", "register_path", type=click.Path(), help="Seal the answer: write it with its date and a hash."
        )(function)

    return add


def level_option(function: F) -> F:
    """Add ``--level``."""
    return click.option(
        "--level",
        type=click.FloatRange(0, 1, min_open=True, max_open=True),
        default=0.9,
        show_default=True,
        help="Share that intervals should cover.",
    )(function)


def verbose_option(function: F) -> F:
    """Add ``--verbose``."""
    return click.option("--verbose", is_flag=True, help="Print more than the answer.")(function)


def model_options(function: F) -> F:
    """Add the options that name one model: a rung, a width, or a config file."""
    options = (
        click.option("--rung", help=f"A rung of the ladder: {', '.join(RUNGS)}."),
        click.option("--width", type=WIDTH, help="Any other width by the ladder's rules."),
        click.option("--layers", type=WHOLE, help="Depth for --width; follows the width unless given."),
        click.option("--experts", type=EXPERTS, help="E: routed experts for each active one.  [default: 1]"),
        click.option("--active-experts", type=ACTIVE, default=2, show_default=True, help="k: experts a token uses."),
        click.option("--config", type=click.Path(), help="A Hugging Face config.json, its folder, or a training file."),
    )  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


def one_model(
    rung_text: str | None,
    width: int | None,
    layers: int | None,
    experts: tuple[float, ...] | None,
    active_experts: int,
    config: str | None,
) -> Architecture:
    """Return the model that the options name; exactly one of rung, width and config."""
    named = [text for text, value in (("--rung", rung_text), ("--width", width), ("--config", config)) if value]
    if len(named) != 1:
        stated = f"found {' and '.join(named)}" if named else "found none"
        raise click.UsageError(f"give one of --rung, --width or --config ({stated})")
    if config is not None:
        if experts is not None or layers is not None:
            raise click.UsageError("--experts and --layers do not go with --config, which states them itself")
        if config.endswith(".toml"):
            built: Architecture = trained_model(config)[1].to_architecture()
            return replace(built, name=Path(config).stem)
        return read_config(config)
    E = one_of(experts)
    if rung_text is not None:
        if layers is not None:
            raise click.UsageError("--layers goes with --width; a rung has its own depth")
        return rung(rung_text, E, active_experts)
    assert width is not None
    return at_width(width, layers, experts=E, active_experts=active_experts)


def trained_model(path: str) -> tuple[TrainConfig, LoopedMoEConfig]:
    """Read a training file, and the model that it trains."""
    require("torch", extra="train")
    from loopscale.train.config import TrainConfig
    from loopscale.train.settings import model_without_text

    config = TrainConfig.read(path)
    return config, model_without_text(config)


def one_of(experts: tuple[float, ...] | None) -> float:
    """Return the one number of experts that an option names."""
    if experts is not None and len(experts) != 1:
        raise click.UsageError("--experts takes one number here")
    return experts[0] if experts else 1


def check_recurrence(model: Architecture, recurrence: int | None) -> None:
    """Refuse to loop a model that has nothing to loop."""
    if recurrence is not None and recurrence > 1 and model.loop == 0:
        raise click.UsageError(f"--recurrence {recurrence}: {model.name} has no loop block; leave it at 1")
