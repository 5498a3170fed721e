"""``loopscale lab``: tasks in which looping and experts visibly work."""

from __future__ import annotations

import click

from loopscale.cli.lab.experiments import downstream_command, two_axes_command
from loopscale.cli.lab.gym import gym_check_command, gym_command
from loopscale.cli.lab.scores import NAMES, score_command, tasks_command, test_time_command
from loopscale.cli.lab.training import task_command
from loopscale.cli.verbs import VerbGroup
from loopscale.core.errors import check_extra


class LabGroup(VerbGroup):
    """Makes the command of a task when it is asked for: its defaults are those of a recipe, which imports torch."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*NAMES, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return task_command(cmd_name) if cmd_name in NAMES else super().get_command(ctx, cmd_name)


@click.group("lab", cls=LabGroup)
def lab_command() -> None:
    """Train a small looped model on a task with exact answers: watch what each pass adds.

    \b
    loopscale lab s3             # two minutes: from chance at R = 1 to right at R = 12
    loopscale lab s3 --shipped   # a model that is already trained, in seconds
    loopscale lab two-axes       # recurrence and experts, on reasoning and on knowledge
    loopscale lab downstream     # both in one model, at matched training FLOPs
    loopscale lab tasks          # every task; `lab tasks hops` shows a problem
    loopscale lab gym chain_sum --out sums   # problems of reasoning-gym as rows to train on
    """
    check_extra("train", "loopscale lab")


for command in (
    tasks_command,
    score_command,
    test_time_command,
    gym_command,
    gym_check_command,
    two_axes_command,
    downstream_command,
):
    lab_command.add_command(command)
