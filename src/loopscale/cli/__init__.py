"""The command ``loopscale``: one verb per room. Verbs load when they are called, so that each starts fast."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from importlib import import_module

import click

from loopscale import __version__
from loopscale.errors import InputError, nearest, shown

VERBS = {
    "plan": "The best size, experts and recurrence under your budgets.",
    "predict": "The loss of one model after so many tokens.",
    "profile": "How loss and the best choice change along an axis.",
    "fit": "A law with honest intervals from your own sweep.",
    "compare": "Which recurrence mapping predicts held-out runs best.",
    "next": "The runs that would make a plan surest, per FLOP.",
    "figures": "The paper's figures from any law, sweep and results.",
    "report": "One page for a fit, a plan, a sweep or an evaluation.",
    "count": "Parameters, FLOPs and memory of a model or a config.json.",
    "laws": "The published scaling laws, with what they were fitted on.",
    "train": "Train a looped MoE by a TOML file, on a laptop or under torchrun; stopped runs go on.",
    "sweep": "Train a grid of runs on this machine, Ray or SLURM, and give their losses to `fit`.",
    "app": "The explorer: plan and fit in the browser.",
    "generate": "Continue a prompt with a looped model at several recurrences, side by side.",
    "routing": "Expert-path diversity Psi of a checkpoint over a text file.",
    "eval": "Benchmarks and validation loss of checkpoints at every recurrence.",
    "demo": "The paper's designs and figures from its law, in one go.",
}
MODULES = {
    "predict": "plan",
    "compare": "fit",
    "next": "fit",
    "report": "figures",
    "laws": "count",
    "generate": "model",
    "routing": "model",
}
"""Verbs that share a module with another one; every other verb has the module of its name."""


class Verbs(click.Group):
    """A group whose commands live in modules of their own, imported on first use."""

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
    except click.ClickException as error:
        _stop(_command_path(error), error.format_message())
    except InputError as error:
        _stop("loopscale", str(error))
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:  # the reader, say `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    sys.exit(code if isinstance(code, int) else 0)


def _command_path(error: click.ClickException) -> str:
    ctx = getattr(error, "ctx", None)
    return ctx.command_path if ctx is not None else "loopscale"


def _stop(where: str, message: str) -> None:
    if os.environ.get("RANK", "0") != "0":
        time.sleep(10)  # the first process has most likely said the same; its launcher then ends this one
    sentence = " ".join(message.split())
    click.echo(f"{where}: {sentence}", err=True)
    sys.exit(2)
