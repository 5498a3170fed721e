"""The command ``loopscale``: its verbs, their help, and how errors end. Each verb is imported when it is called."""

from __future__ import annotations

import ast
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from textwrap import shorten, wrap
from typing import Any, NoReturn

import click

from loopscale import __version__
from loopscale.cli.terminal import drop_output, is_output_error, prepare_streams
from loopscale.core.errors import InputError, LoopscaleError, missing_package, nearest, reason, shown

DEBUG = "LOOPSCALE_DEBUG"
"""Set this variable to see the traceback of an unexpected exception."""

GROUPS = {
    "Plan": ("plan", "predict", "matched", "count", "profile", "laws"),
    "Fit": (
        "fit",
        "forecast",
        "scoreboard",
        "backtest",
        "compare",
        "next",
        "isoflop",
        "gate",
        "downstream",
        "seeds",
        "data",
    ),
    "Train": ("train", "sweep", "eval", "generate", "lab", "presets", "routing", "convert", "export", "serve"),
    "Look": ("app", "figures", "report", "demo", "reproduce", "verify", "conform", "schema", "help"),
}
"""Every verb, in groups. Verb ``x`` is the command ``x_command`` in ``cli/x.py``."""

FIRST_SCREEN = ("plan", "predict", "count", "fit", "forecast", "backtest", "next",
                "train", "sweep", "eval", "generate", "lab", "app", "figures")  # fmt: skip
"""The verbs that ``loopscale --help`` explains; it names the others."""

OTHER_WORDS = {
    "--weeks": "write --days 3weeks",
    "--hours": "write --days 36h, or --gpu-hours for all devices together",
    "--tokens-per-second": "write --min-speed 20 --bandwidth 51GB/s",
    "--speed": "write --min-speed 20 --bandwidth 51GB/s",
    "--ram": "write --memory 3GB",
    "--quantization": "write --bits q4_k_m",
    "--compute": "write --flops 5e21",
    "--loops": "write --recurrence 4",
    "--passes": "write --recurrence 4",
}
"""Options that people try under another name, and what to write."""

VERBS = tuple(name for names in GROUPS.values() for name in names)


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
    """A command that has subcommands."""

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
        module = import_module(f"loopscale.cli.{cmd_name}")
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

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the first screen: 24 lines of 80 columns."""
        others = [name for name in VERBS if name not in FIRST_SCREEN]
        lines = [
            "Usage: loopscale COMMAND [OPTIONS], for example: loopscale plan --flops 5e21",
            "",
            "Design, predict, train and evaluate looped Mixture-of-Experts language models.",
            "",
            *summaries(FIRST_SCREEN),
            "",
            *wrap(f"More: {', '.join(others)}.", 80),
            "`loopscale COMMAND --help` explains a command, `loopscale help --all` lists all.",
        ]
        formatter.write("\n".join(lines) + "\n")


def summaries(names: Collection[str]) -> Iterator[str]:
    """Yield one line for each of the named verbs: its group, its name and the start of its help."""
    for group, members in GROUPS.items():
        label = group
        for name in (name for name in members if name in names):
            yield f"{label:<7}{name:<11}{_short_help(name)}"
            label = ""


def _short_help(name: str) -> str:
    """Return the first sentence of a command's help, up to what explains it further.

    It is read from the source: importing every command takes half a second, and some need packages of an extra.
    """
    spec = find_spec(f"loopscale.cli.{name}")
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).read_text(encoding="utf-8")
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    docstring = next(ast.get_docstring(node) for node in functions if node.name == f"{name}_command") or ""
    sentence = docstring.partition("\n\n")[0].removesuffix(".")
    return shorten(re.split(r"[:;] ", sentence, maxsplit=1)[0], 62, placeholder=" …")


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
    prepare_streams()
    if sys.stdout is None:
        _stop("loopscale", "standard output is closed")
    try:
        code = cli.main(args=argv, prog_name="loopscale", standalone_mode=False)
        sys.stdout.flush()
    except click.NoSuchOption as error:
        hint = OTHER_WORDS.get(error.option_name)
        message = error.format_message() if hint is None else f"no option {error.option_name}; {hint}"
        _stop(_command_path(error), message)
    except click.exceptions.NoArgsIsHelpError as error:  # a group without a command; its message is its help
        click.echo(error.format_message(), err=True)
        sys.exit(2)
    except click.ClickException as error:
        _stop(_command_path(error), error.format_message())
    except LoopscaleError as error:
        _stop("loopscale", str(error))
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except (ClosedPipe, BrokenPipeError):
        drop_output()
        code = 0
    except Exception as error:
        if isinstance(error, OSError) and is_output_error(error):
            drop_output()
            _stop("loopscale", f"standard output cannot be written: {reason(error)}")
        if isinstance(error, ModuleNotFoundError) and (sentence := missing_package(error)):
            _stop("loopscale", sentence)
        if os.environ.get(DEBUG):
            raise
        _report_bug(error)
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


def _report_bug(error: Exception) -> NoReturn:
    """End with one line about an exception that no command should raise; its traceback is saved for a report."""
    lines = [f"loopscale {__version__}, Python {sys.version}, {sys.platform}\n", *traceback.format_exception(error)]
    try:
        handle, path = tempfile.mkstemp(".txt", "loopscale-")
        os.close(handle)
        Path(path).write_text("".join(lines), encoding="utf-8")
        saved = f"please report it with the traceback in {path}"
    except OSError:  # no space, or nowhere to write
        saved = f"please report it with the traceback that {DEBUG}=1 shows"
    what = shorten(f"{type(error).__name__}: {error}", 200, placeholder=" …")
    click.echo(f"loopscale: a bug in loopscale stopped this command ({what}); {saved}", err=True)
    sys.exit(1)
