"""Renew the tables that an experiment writes into its page."""

from __future__ import annotations

import re
from collections.abc import Mapping


def replace_tables(text: str, tables: Mapping[str, str]) -> str:
    """Return a page with what stands between ``<!-- begin NAME -->`` and ``<!-- end NAME -->`` replaced, by name."""
    for name, table in tables.items():
        mark = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        assert mark.search(text), name
        text = mark.sub(lambda match, table=table: f"{match[1]}{table.rstrip()}\n{match[2]}", text)
    return text
