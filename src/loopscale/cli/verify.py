"""``loopscale verify``: check what loopscale wrote for damage."""

from __future__ import annotations

import click

from loopscale.cli.output import print_json, print_table
from loopscale.cli.params import json_option
from loopscale.cli.verbs import verb
from loopscale.verify import Outcome, verify


@verb("verify")
@click.argument("path", type=click.Path())
@json_option
@click.pass_context
def verify_command(ctx: click.Context, path: str, as_json: bool) -> None:
    """Check saved files for damage: a run, sweep, token store, model, law, plan, results or table of runs.

    Checksums, schema, provenance and values that are not finite. It says what it could not check. The exit code is 1 if
    something is damaged.

    \b
    loopscale verify runs/tiny
    loopscale verify law.json
    """
    checks = list(verify(path))
    if as_json:
        print_json([{"what": check.what, "outcome": check.outcome.value, "detail": check.detail} for check in checks])
    else:
        rows = [(check.what, check.outcome.value, check.detail) for check in checks]
        print_table("", ("", "outcome", "detail"), rows, left=("", "outcome", "detail"))
    if any(check.outcome is Outcome.BAD for check in checks):
        ctx.exit(1)
