"""The model that a command names: a run, a folder, or the one that comes with the package."""

from __future__ import annotations

from pathlib import Path

import click

from loopscale.train.run_dir import model_of

tokenizer_option = click.option("--tokenizer", help="A tokenizer's folder.  [default: the model's]")


def model_folder(checkpoint: str) -> Path:
    """Return the model's folder of a run; ``demo`` is the model that comes with the package, ``./demo`` a folder."""
    from loopscale.model.loading import DEMO

    if checkpoint != "demo":
        return Path(model_of(checkpoint))
    if Path(checkpoint).exists():
        click.echo("note: demo is the model that comes with loopscale; your own folder is ./demo", err=True)
    return DEMO
