"""``loopscale schema``: the JSON Schemas of loopscale's files."""

from __future__ import annotations

import click

from loopscale.cli.output import print_json
from loopscale.cli.verbs import verb
from loopscale.saved import MODELS, json_schema


@verb("schema")
@click.argument("name", required=False)
def schema_command(name: str | None) -> None:
    """Print the JSON Schema of a kind of file; without NAME, list the kinds.

    \b
    loopscale schema
    loopscale schema law > law.schema.json
    """
    if name is None:
        click.echo("\n".join(MODELS))
    else:
        print_json(json_schema(name))
