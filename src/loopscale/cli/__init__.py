"""The command ``loopscale``. Each subcommand is imported when it is called, so that every one starts fast."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import Any, NoReturn, TypeVar

import click
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable

from loopscale import __version__, quantities
from loopscale.architecture import RUNGS, Architecture, at_width, read_config, rung, rung_name
from loopscale.errors import InputError, LoopscaleError, missing_package, nearest, shown
from loopscale.files import finite
from loopscale.laws import DEFAULT, find_law

PIPE_WIDTH = 140
"""Columns of a table that goes to a file or a pipe."""


class _Console(Console):
    """A console that reports a closed pipe as Python does; rich's own ends the process with exit code 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console() -> Console:
    """Return the console for tables and sentences. ``NO_COLOR`` removes every style, bold too."""
    out = _Console(color_system=None, highlight=False) if os.environ.get("NO_COLOR") else _Console()
    if not out.is_terminal and "COLUMNS" not in os.environ:
        out.width = PIPE_WIDTH
    return out


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    left: Sequence[str] = (),
    optional: Sequence[str] = (),
) -> None:
    """Print a table: numbers align right, columns in ``left`` align left and may wrap.

    Columns in ``optional`` are left out, the first first, while the table is wider than the terminal.
    """
    out, body = console(), [tuple(row) for row in rows]
    shown, hidden = list(columns), []
    table = _table(columns, body, shown, left)
    for name in optional:
        if Measurement.get(out, out.options.update(width=10_000), table).maximum <= out.width:
            break
        shown.remove(name)
        hidden.append(name)
        table = _table(columns, body, shown, left)
    if title:
        out.print(f"[bold]{title}[/]", highlight=False)
    out.print(table)
    if hidden:
        out.print(f"Not shown in {out.width} columns: {', '.join(hidden)}.", highlight=False)


def _table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], shown: Sequence[str], left: Sequence[str]
) -> RichTable:
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in shown:
        table.add_column(name, justify="left" if name in left else "right", no_wrap=name not in left, overflow="fold")
    indices = [list(columns).index(name) for name in shown]
    for row in rows:
        table.add_row(*(row[index] for index in indices))
    return table


def print_json(data: object) -> None:
    """Print strict JSON: NaN and infinities become null."""
    click.echo(json.dumps(finite(data), indent=1, allow_nan=False))


F = TypeVar("F", bound=Callable[..., Any])


class Quantity(click.ParamType[Any]):
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


def _bare(parse: Callable[..., Any]) -> Callable[[str], Any]:
    """Return the parser without its own name for the value: the option's name stands there instead."""

    def read(text: str) -> Any:
        try:
            return parse(text, "§")
        except InputError as error:
            raise InputError(str(error).removeprefix("§: ")) from None

    return read


def _counts(text: str) -> tuple[float, ...]:
    return tuple(_bare(quantities.parse_count)(part) for part in text.split(","))


def _memories(text: str) -> tuple[float, ...]:
    return tuple(_bare(quantities.parse_bytes)(part) for part in text.split(","))


def _whole(text: str) -> int:
    """Read a whole number that may be written like 32k."""
    value = _bare(quantities.parse_count)(text)
    if value != round(value) or value > 1e9:
        raise InputError(f"{shown(text)} is not a whole number up to a billion; write it like 8192 or 32k")
    return int(value)


def _experts(text: str) -> tuple[float, ...]:
    """Read expert counts: whole numbers and ranges, or any number from 1 up that routing can reach."""
    found: set[float] = set()
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError:
            found.update(_bare(quantities.parse_integers)(part))
            continue
        if not 1 <= value <= 1e6:
            raise InputError(f"{shown(part.strip())} is not an expert count; it should be from 1 to 1,000,000")
        found.add(value)
    return tuple(sorted(found))


def _rungs(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(rung_name(part) for part in text.split(",")))


COUNT = Quantity("COUNT", _bare(quantities.parse_count))
COUNTS = Quantity("COUNT,…", _counts)
BYTES = Quantity("BYTES", _bare(quantities.parse_bytes))
MEMORIES = Quantity("BYTES,…", _memories)
BITS = Quantity("BITS", _bare(quantities.parse_bits))
FRACTION = Quantity("SHARE", _bare(quantities.parse_fraction))
CONTEXT = Quantity("COUNT", _whole)
INTEGERS = Quantity("N,…", _bare(quantities.parse_integers))
EXPERTS = Quantity("E,…", _experts)
RUNG_LIST = Quantity("RUNG,…", _rungs)
LAW = Quantity("NAME|FILE", find_law)
WHOLE = click.IntRange(1, 10_000_000)
EXITS = click.Choice(("kl", "entropy", "argmax", "state", "gate"))
ACTIVE = click.IntRange(1, 1024)
WIDTH = click.IntRange(1, 1_000_000)


def law_option(function: F) -> F:
    """Add ``--law``."""
    return click.option(
        "--law", type=LAW, default=DEFAULT, show_default=True, help="A published law by name, or a law file (JSON)."
    )(function)


def trust_options(function: F) -> F:
    """Add ``--extrapolate`` and ``--allow-degenerate``."""
    function = click.option("--allow-degenerate", is_flag=True, help="Use a law even if its fit was degenerate.")(
        function
    )
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
    return click.option("--json", "as_json", is_flag=True, help="Print JSON for other programs.")(function)


def model_options(function: F) -> F:
    """Add the options that name one model: a rung, a width, or a config file."""
    options = (
        click.option("--rung", help=f"A rung of the ladder: {', '.join(RUNGS)}."),
        click.option("--width", type=WIDTH, help="Any other width by the ladder's rules."),
        click.option("--layers", type=WHOLE, help="Depth for --width; follows the width unless given."),
        click.option("--experts", type=EXPERTS, help="E: routed experts for each active one.  [default: 1]"),
        click.option("--active-experts", type=ACTIVE, default=2, show_default=True, help="k: experts a token uses."),
        click.option("--config", type=click.Path(), help="A Hugging Face config.json, or the folder that holds one."),
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
        found = f"found {' and '.join(named)}" if named else "found none"
        raise click.UsageError(f"give one of --rung, --width or --config ({found})")
    if config is not None:
        if experts is not None or layers is not None:
            raise click.UsageError("--experts and --layers do not go with --config, which states them itself")
        return read_config(config)
    if experts is not None and len(experts) != 1:
        raise click.UsageError("--experts takes one number here")
    E = experts[0] if experts else 1
    if rung_text is not None:
        if layers is not None:
            raise click.UsageError("--layers goes with --width; a rung has its own depth")
        return rung(rung_text, E, active_experts)
    assert width is not None
    return at_width(width, layers, experts=E, active_experts=active_experts)


def check_recurrence(model: Architecture, recurrence: int | None) -> None:
    """Refuse to loop a model that has nothing to loop."""
    if recurrence is not None and recurrence > 1 and model.loop == 0:
        raise click.UsageError(f"--recurrence {recurrence}: {model.name} has no loop block; leave it at 1")


VERBS = {
    "plan": "Find the best size, experts and recurrence under your budgets.",
    "predict": "Predict the loss of one model after a number of tokens.",
    "profile": "Show how loss and the best choice change along one axis.",
    "matched": "Compare two designs at equal compute, parameters and KV memory.",
    "fit": "Fit a law with calibrated intervals to your own sweep.",
    "backtest": "Hide the largest runs, predict them from the rest, and check the intervals.",
    "compare": "Compare how well recurrence mappings predict held-out runs.",
    "isoflop": "The best size at each budget from isoFLOP parabolas, with exponents.",
    "next": "Choose the runs that would reduce a plan's uncertainty most per FLOP.",
    "seeds": "How many pairs of seeds show a difference between two recipes?",
    "figures": "Draw the paper's kinds of figures from any law, sweep and results.",
    "report": "Write a one-page report of a fit, a plan, a sweep or an evaluation.",
    "reproduce": "Recompute the paper's numbers and show them beside the printed ones.",
    "count": "Count parameters, FLOPs and memory of a model or a config.json.",
    "laws": "List the published scaling laws and what they were fitted on.",
    "schema": "Print the JSON Schema of a file that loopscale reads.",
    "train": "Train a looped MoE from a TOML file, on a laptop or under torchrun; stopped runs resume.",
    "presets": "The training recipes that a file can name, with their values.",
    "sweep": "Train a grid of runs on this machine, Ray or SLURM, and export their losses for `fit`.",
    "verify": "Check a run, sweep, token store, law or results for damage.",
    "app": "Start the explorer: plan and fit in the browser.",
    "generate": "Continue a prompt with a looped model at several recurrences, side by side.",
    "routing": "Measure the expert-path diversity Psi of a checkpoint over a text file.",
    "eval": "Measure benchmarks and validation loss of checkpoints at each recurrence.",
    "demo": "Plan with the paper's law, train six tiny models, fit, compare and report.",
}
MODULES = {
    "predict": "plan",
    "matched": "profile",
    "backtest": "fit",
    "compare": "fit",
    "isoflop": "fit",
    "seeds": "next",
    "report": "figures",
    "laws": "count",
    "schema": "count",
    "verify": "count",
    "presets": "train",
    "generate": "model",
    "routing": "model",
}
"""Verbs that share a module with another one; every other verb has the module of its name."""


class ClosedPipe(Exception):  # noqa: N818 - not an error
    """The reader of standard output, for example ``head``, has closed the pipe."""


class Verbs(click.Group):
    """A group whose commands live in separate modules, imported on first use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module = import_module(f"loopscale.cli.{MODULES.get(cmd_name, cmd_name)}")
        command = getattr(module, f"{cmd_name}_command")
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            ctx.fail(f"{shown(args[0])} is not a command{nearest(args[0], VERBS)}; choose from {', '.join(VERBS)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click itself would exit with code 1
            raise ClosedPipe from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))


@click.group(cls=Verbs, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="loopscale")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Design, predict, train and evaluate looped Mixture-of-Experts language models.

    \b
    loopscale plan --flops 5e21 --memory 3GB --bits int4
    loopscale predict --rung 1.0B --experts 8 --recurrence 2 --tokens 500B
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; bad input ends in one sentence on standard error and exit code 2."""
    try:
        code = cli.main(args=argv, prog_name="loopscale", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        _stop(_command_path(error), error.format_message())
    except ModuleNotFoundError as error:
        _stop("loopscale", missing_package(error))
    except LoopscaleError as error:
        _stop("loopscale", str(error))
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except (ClosedPipe, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code if isinstance(code, int) else 0)


def _command_path(error: click.ClickException) -> str:
    ctx = getattr(error, "ctx", None)
    return ctx.command_path if ctx is not None else "loopscale"


def _stop(where: str, message: str) -> NoReturn:
    if os.environ.get("RANK", "0") != "0":
        time.sleep(10)  # rank 0 has most likely printed the same sentence; its launcher then ends this process
    sentence = " ".join(message.split())
    click.echo(f"{where}: {sentence}", err=True)
    sys.exit(2)
