"""Options under headings in the help of a command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from loopscale.cli.params import options
from loopscale.cli.verbs import Verb

OTHER = "Options"


def option_group(name: str, *decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Add options, or decorators that add some, under a heading."""

    def add(function: Any) -> Any:
        before = len(getattr(function, "__click_params__", []))
        function = options(*decorators)(function)
        for param in function.__click_params__[before:]:
            param.group = name
        return function

    return add


class GroupedVerb(Verb):
    """A command whose help lists its options by group."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if record is not None:
                groups.setdefault(getattr(param, "group", OTHER), []).append(record)
        for name, records in groups.items():
            with formatter.section(name):
                formatter.write_dl(records)
