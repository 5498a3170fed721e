"""``loopscale data``."""

from __future__ import annotations

from textwrap import shorten

import click

from loopscale.cli.output import print_json, print_table, say, say_facts
from loopscale.cli.verbs import verb
from loopscale.core.errors import InputError, nearest, shown
from loopscale.fitting import load_public, load_table
from loopscale.fitting.data.downloads import PUBLIC_FILES
from loopscale.fitting.data.looped import TABLES

ORIGIN = 54
"""Columns of a sweep's source in the list."""


@verb("data")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the sources by name.")
def data_command(name: str | None, as_json: bool) -> None:
    """List the public sweeps, or show one: where it comes from and what it holds.

    \b
    loopscale data
    loopscale data qlabs-loops
    loopscale fit qlabs-loops                           # a sweep by name, downloaded if need be
    """
    if name is not None and name not in PUBLIC_FILES:
        raise InputError(f"`name` {shown(name)} is not a public sweep{nearest(name, PUBLIC_FILES)}")
    if as_json:
        chosen = PUBLIC_FILES if name is None else {name: PUBLIC_FILES[name]}
        fields = ("file", "origin", "licence", "sha256", "url", "parts", "otherwise", "note")
        print_json({key: {field: getattr(source, field) for field in fields} for key, source in chosen.items()})
    elif name is None:
        rows = [
            (key, source.licence, "downloaded" if source.url or source.parts else "LOOPSCALE_DATA",
             shorten(source.origin, ORIGIN, placeholder=" …"))
            for key, source in PUBLIC_FILES.items()
        ]  # fmt: skip
        columns = ("name", "licence", "obtained", "source")
        print_table("Public sweeps", columns, rows, left=columns, optional=("licence", "obtained"))
        say("`loopscale data NAME` shows what one holds, its derived columns and its caveats.")
    else:
        _show(name)


def _show(name: str) -> None:
    source = PUBLIC_FILES[name]
    try:
        count = len(load_table(name)) if name in TABLES else len(load_public(name))
    except InputError as error:
        rows = f"unknown: {error}"
    else:
        reader = f'ls.fitting.load_table("{name}")' if name in TABLES else f"loopscale fit {name}"
        rows = f"{count}; read it with {reader}"
    say(name, bold=True)
    click.echo()
    say_facts(
        {
            "rows": rows,
            "source": source.origin,
            "licence": source.licence,
            "sha256": source.sha256,
            "note": source.note,
            "to get it": "" if source.url or source.parts else source.otherwise,
        }
    )
