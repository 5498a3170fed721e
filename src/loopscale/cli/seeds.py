"""``loopscale seeds``."""

from __future__ import annotations

import click

from loopscale.choosing import pairs_needed
from loopscale.cli.output import print_json, say
from loopscale.cli.params import json_option
from loopscale.cli.verbs import verb


@verb("seeds")
@click.option("--difference", type=float, required=True, help="Difference in the loss to find, like 0.01 nats.")
@click.option("--spread", type=float, required=True, help="Standard deviation of the paired difference over seeds.")
@click.option("--power", type=float, default=0.8, show_default=True, help="Chance to find it.")
@click.option("--level", type=float, default=0.05, show_default=True, help="Chance to find one that is not there.")
@json_option
def seeds_command(difference: float, spread: float, power: float, level: float, as_json: bool) -> None:
    """Number of seed pairs needed to detect a difference.

    A pair is two runs with the same seed, which sets initial weights and order of the data, one of each recipe. The
    spread is that of their difference, from earlier pairs: two pairs tell little about it.

    \b
    loopscale seeds --difference 0.01 --spread 0.0144
    """
    pairs = pairs_needed(difference, spread, power=power, level=level)
    error = spread / pairs**0.5
    if as_json:
        print_json({"kind": "seeds", "pairs": pairs, "runs": 2 * pairs, "standard_error": error})
        return
    say(f"{pairs} pairs of seeds ({2 * pairs} runs); the mean difference then has a standard error of {error:.2g}.")
