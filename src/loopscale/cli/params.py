"""The types and groups of options that commands share. Options that name a law or a model are in ``subjects``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from loopscale.core import quantities
from loopscale.core.devices import UTILISATION
from loopscale.core.errors import InputError, shown


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


COUNT = QuantityType("COUNT", _unnamed(quantities.count_of))
COUNTS = QuantityType("COUNT,…", _several(quantities.count_of))
BYTES = QuantityType("BYTES", _unnamed(quantities.bytes_of))
MEMORIES = QuantityType("BYTES,…", _several(quantities.bytes_of))
BITS = QuantityType("BITS", _unnamed(quantities.bits_of))
FRACTION = QuantityType("SHARE", _unnamed(quantities.fraction_of))
CONTEXT = QuantityType("TOKENS", _unnamed(quantities.context_of))
DAYS = QuantityType("DAYS", _unnamed(quantities.days_of))
INTEGERS = QuantityType("N,…", _unnamed(quantities.parse_integers))
EXPERTS = QuantityType("E,…", _experts)
WHOLE = click.IntRange(1, 10_000_000)
EXITS = click.Choice(("kl", "entropy", "argmax", "state", "gate"))
ACTIVE = click.IntRange(1, 1024)
WIDTH = click.IntRange(1, 1_000_000)


def options(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return one decorator that adds several options; a command's help lists them in this order."""

    def add(function: Any) -> Any:
        for option in reversed(decorators):
            function = option(function)
        return function

    return add


def run_options(flops: str, several: bool = False) -> Callable[[Any], Any]:
    """Add the options that state one run by its counts, or with ``several`` many: size, tokens, compute, passes."""
    count = COUNTS if several else COUNT
    return options(
        click.option("--params", type=count, help="N: parameters, counted as the law counts them, like 7e9."),
        click.option("--loop-params", type=COUNT, help="N_loop of that model: its looped part, with --recurrence."),
        click.option("--total-params", type=COUNT, help="N_total of that model: with all experts, with --experts."),
        click.option("--tokens", type=count, help="D: training tokens, like 500B."),
        click.option("--unique-tokens", type=COUNT, help="U: different tokens among D, where they are repeated."),
        click.option("--flops", type=count, help=flops),
        click.option("--recurrence", type=WHOLE, help="R: passes through the loop.  [default: the law's or model's]"),
    )


def seal_options(check: str) -> Callable[[Any], Any]:
    """Add ``--register`` and ``--check``; ``check`` says what the later outcome is given as."""
    return options(
        click.option(
            "--register", "register_path", type=click.Path(), help="Seal the answer: write it with its date and a hash."
        ),
        click.option("--check", "check_path", type=click.Path(), help=check),
    )


extrapolate_option = click.option(
    "--extrapolate", is_flag=True, help="Answer even more than 10x beyond what the law was fitted on."
)
trust_options = options(
    extrapolate_option,
    click.option("--allow-degenerate", is_flag=True, help="Use a law even if its fit was degenerate."),
)


def utilisation_option(default: str = "") -> Callable[[Any], Any]:
    """Add ``--utilisation``, which is None where it is not given; ``default`` is what comes before the usual share."""
    share = "Share of listed rates that training reaches."
    return click.option("--utilisation", type=FRACTION, help=f"{share}  [default: {default}{UTILISATION:.0%}]")


def check_device_options(device: str | None) -> None:
    """Refuse options of the command that mean nothing without ``--device``."""
    ctx = click.get_current_context()
    for name in ("gpus", "utilisation", "price"):
        if device is None and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name} goes with --device; give --device, like h100")


price_option = click.option(
    "--price", type=click.FloatRange(min=0), default=2.5, show_default=True, help="Dollars per device-hour."
)
"""The default is a round number for want of the user's own."""
level_option = click.option(
    "--level",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.9,
    show_default=True,
    help="Share that intervals should cover.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
output_options = options(json_option, click.option("--csv", "as_csv", is_flag=True, help="Print the table as CSV."))
verbose_option = click.option("--verbose", is_flag=True, help="Print more than the answer.")
