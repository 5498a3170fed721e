"""The page as a folder of files: one script, one style sheet and one HTML file, the same for the server and for a disk.

Browsers load no modules from ``file://``, so the modules under ``static/js`` are joined into one plain script. Two of
them are made here: ``formulas.js`` from the Python formulas, ``data.js`` from the laws, fields and devices.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from pathlib import Path

STATIC = Path(__file__).parent / "static"
_IMPORT = re.compile(r"^import\s+(?:[^;]*?\s+from\s+)?\"\./([\w-]+\.js)\";[^\n]*\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function\*?|const|class) ([\w$]+))", re.MULTILINE)


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
    """Return modules and all that they import as one script.

    Each module keeps its own scope; what it exports becomes a name of the script. A cycle of imports is fine as long
    as nothing is called across it while the modules load.
    """
    done: dict[str, str] = {}

    def add(name: str) -> None:
        if name in done:
            return
        done[name] = text = module(name)
        for needed in _IMPORT.findall(text):
            add(needed)
        done[name] = done.pop(name)  # after what it needs

    for entry in entries:
        add(entry)
    owners: dict[str, str] = {}
    parts = []
    for name, text in done.items():
        exported = _EXPORT.findall(text)
        for export in exported:
            if owners.setdefault(export, name) != name:
                raise AssertionError(f"{name} and {owners[export]} both export {export}")
        body = _EXPORT.sub("", _IMPORT.sub("", text))
        listed = ", ".join(exported)
        wrapped = f"(() => {{\n{body}return {{ {listed} }};\n}})()"
        parts.append(f"// {name}\n" + (f"({{ {listed} }} = {wrapped});\n" if exported else f"{wrapped};\n"))
    return f"let {', '.join(owners)};\n{''.join(parts)}"


def script(*entries: str) -> str:
    """Return the bundle as a script that leaves no names behind."""
    return f'"use strict";\n(() => {{\n{bundle(*entries)}}})();\n'


def _with_first_view(index: str) -> str:
    """Put the first view into the page's file, so that it is seen before the script has run.

    ``docs/explorer_pictures.py`` takes it from a browser; a test compares it with what the script draws.
    """
    for name, html in json.loads((STATIC / "first_view.json").read_text(encoding="utf-8")).items():
        empty = re.findall(rf'id="{name}"[^>]*>(?=</)', index)
        if len(empty) != 1:
            raise AssertionError(f"the page has no empty element called {name}")
        index = index.replace(empty[0], empty[0] + html)
    return index


@lru_cache(maxsize=2)
def page_files(server: bool) -> dict[str, bytes]:
    """Return the page by file name. With ``server`` it uses the API beside it; else it is complete by itself."""
    from loopscale.app.lab_data import experts_script, lab_script

    index = _with_first_view((STATIC / "index.html").read_text(encoding="utf-8"))
    index = index.replace('data-server="no"', f'data-server="{"yes" if server else "no"}"')
    texts = {
        "index.html": index,
        "page.js": script("main.js"),
        "lab.js": lab_script(),
        "lab-experts.js": experts_script(),
        "theme.js": module("theme.js"),
        "style.css": (STATIC / "style.css").read_text(encoding="utf-8"),
    }
    copied = {name: (STATIC / name).read_bytes() for name in ("icon.svg", "preview.png")}
    return {name: text.encode() for name, text in texts.items()} | copied


def export_page(folder: str | Path) -> list[Path]:
    """Write the page into a folder, which opens from a disk and from any web server; return its files."""
    from loopscale.core.files import make_folder, write_bytes

    written = []
    for name, content in page_files(server=False).items():
        path = Path(folder) / name
        make_folder(path.parent)
        write_bytes(path, content)
        written.append(path)
    return written
