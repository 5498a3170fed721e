"""The command ``loopscale``: its verbs, their help, and how errors end. Each verb is imported when it is called."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

import click

from loopscale import __version__
from loopscale.core.errors import InputError, LoopscaleError, missing_package, nearest, shown

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
    "lab": "Train tiny looped models on tasks with exact answers, and watch each pass.",
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
}
"""Verbs that share a module with another one; every other verb has the module of its name."""


class Verb(click.Command):
    """A command whose errors speak of its options where the library speaks of arguments."""

    def invoke(self, ctx: click.Context) -> Any:
        options = {param.name: _option(param) for param in self.params}
        try:
            return super().invoke(ctx)
        except InputError as error:
            raise InputError(error.told(options.get)) from error


def _option(param: click.Parameter) -> str:
    """Return how a parameter is written on the command line."""
    if isinstance(param, click.Argument):
        return param.human_readable_name
    return next((option for option in param.opts if option.startswith("--")), param.opts[0])


class VerbGroup(click.Group):
    """A command with commands of its own."""

    command_class = Verb


verb = partial(click.command, cls=Verb)
"""The decorator of every command."""


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
