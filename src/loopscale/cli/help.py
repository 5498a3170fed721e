"""``loopscale help``."""

from __future__ import annotations

import click

from loopscale.cli.verbs import VERBS, cli, summaries, verb
from loopscale.core.errors import nearest, shown


@verb("help")
@click.argument("name", metavar="[COMMAND]", required=False)
@click.option("--all", "every", is_flag=True, help="List all commands.")
@click.pass_context
def help_command(ctx: click.Context, name: str | None, every: bool) -> None:
    """Show the help of a command, or list all commands.

    \b
    loopscale help plan
    loopscale help --all
    """
    group = ctx.parent or click.Context(cli, info_name="loopscale")
    if name is None:
        click.echo("\n".join(summaries(VERBS)) if every else cli.get_help(group))
        return
    command = cli.get_command(group, name)
    if command is None:
        raise click.UsageError(f"{shown(name)} is not a command{nearest(name, VERBS)}; choose from {', '.join(VERBS)}")
    click.echo(command.get_help(click.Context(command, info_name=name, parent=group)))
