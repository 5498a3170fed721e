"""``loopscale help``."""

from __future__ import annotations

import click

from loopscale.cli.verbs import VERBS, cli, summaries, verb


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
    _, command, _ = cli.resolve_command(group, [name])
    assert command is not None
    click.echo(command.get_help(click.Context(command, info_name=name, parent=group)))
