"""``loopscale presets``."""

from __future__ import annotations

import json
from textwrap import wrap

import click

from loopscale.cli.output import print_json
from loopscale.cli.params import json_option
from loopscale.cli.verbs import verb
from loopscale.core.errors import InputError, nearest, shown
from loopscale.core.text import WIDTH


@verb("presets")
@click.argument("name", required=False)
@json_option
def presets_command(name: str | None, as_json: bool) -> None:
    """List the training recipes, or print one as TOML sections.

    A file names one with `[recipe] name = "paper"`. Values in the file override those of the recipe.
    """
    from loopscale.planning.recipes import RECIPE_NOTES, RECIPES

    if name is not None and name not in RECIPE_NOTES:
        raise InputError(
            f"recipe {shown(name)} is not known{nearest(name, RECIPE_NOTES)}; choose from {', '.join(RECIPE_NOTES)}"
        )
    if as_json:
        print_json(RECIPES[name] if name else {recipe: RECIPES[recipe] for recipe in RECIPE_NOTES})
    elif name is None:
        for recipe, note in RECIPE_NOTES.items():
            click.echo("\n".join([recipe, *wrap(note, WIDTH, initial_indent="    ", subsequent_indent="    ")]))
    else:
        for section, values in RECIPES[name].items():
            lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
            click.echo("\n".join([f"[{section}]", *lines]))
