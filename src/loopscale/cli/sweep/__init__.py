"""``loopscale sweep plan|run|status|watch|extend|export|rebuild``."""

from __future__ import annotations

import click

from loopscale.cli.sweep.files import export, extend, rebuild
from loopscale.cli.sweep.plan import plan
from loopscale.cli.sweep.run import run
from loopscale.cli.sweep.status import status
from loopscale.cli.sweep.watch import watch
from loopscale.cli.verbs import VerbGroup

__all__ = ["run", "sweep_command"]


@click.group("sweep", cls=VerbGroup)
def sweep_command() -> None:
    """Train a grid of runs; every finished point becomes an observation for `loopscale fit`.

    SWEEP is a TOML file, or the name of a sweep that comes with loopscale: paper, case-study,
    paper-mini, micro or micro-2.

    \b
    loopscale sweep plan sweep.toml
    loopscale sweep run sweep.toml --workers 2
    loopscale sweep status sweep.toml --live
    loopscale sweep export sweep.toml --out runs.csv
    """


for command in (plan, run, status, watch, extend, export, rebuild):
    sweep_command.add_command(command)
