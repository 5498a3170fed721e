"""Options under headings in the help of a command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from loopscale.cli.verbs import Verb

F = TypeVar("F", bound=Callable[..., Any])
OTHER = "Options"


def option_group(name: str, *options: Callable[[Any], Any]) -> Callable[[F], F]:
    """Add options, or decorators that add some, under a heading."""

    def decorate(function: F) -> F:
        before = len(getattr(function, "__click_params__", []))
        for option in reversed(options):
            function = option(function)
        for param in function.__click_params__[before:]:  # type: ignore[attr-defined]
            param.group = name
        return function

    return decorate


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
