"""The page as a folder of files: one script, one style sheet and one HTML file, the same for the server and for a disk.

Browsers load no modules from ``file://``, so the modules under ``static/js`` are joined into one plain script. Two of
them are made here: ``formulas.js`` from the Python formulas, ``data.js`` from the laws, fields and devices.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

STATIC = Path(__file__).parent / "static"
_IMPORT = re.compile(r"^import\s+(?:[^;]*?\s+from\s+)?\"\./([\w-]+\.js)\";[^\n]*\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|const|let|class)\b)", re.MULTILINE)


@lru_cache(maxsize=1)
def generated() -> dict[str, str]:
    """Return the modules that are made from Python, by name."""
    from loopscale.app.formulas import formulas
    from loopscale.app.page_data import data_module

    return {"formulas.js": formulas(), "data.js": data_module()}


def module(name: str) -> str:
    """Return the text of a module."""
    made = generated()
    return made[name] if name in made else (STATIC / "js" / name).read_text(encoding="utf-8")


def bundle(*entries: str) -> str:
    """Return modules and all that they import as one script; what they export is visible to all of them."""
    done: dict[str, str] = {}

    def add(name: str) -> None:
        if name in done:
            return
        text = module(name)
        done[name] = ""  # a cycle of functions is fine: they are called later
        for needed in _IMPORT.findall(text):
            add(needed)
        done.pop(name)
        done[name] = _EXPORT.sub("", _IMPORT.sub("", text))

    for entry in entries:
        add(entry)
    return "".join(f"// {name}\n{text}" for name, text in done.items())


def script(*entries: str) -> str:
    """Return the bundle as a script of its own scope."""
    return f'"use strict";\n(() => {{\n{bundle(*entries)}}})();\n'
