"""A report: text, tables and figures in one self-contained HTML file, or in Markdown with its pictures beside it."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from loopscale import __version__
from loopscale.core.errors import InputError
from loopscale.core.files import write_bytes, write_text
from loopscale.core.tables import markdown

THEMED = {"#000000": "currentColor", "#ffffff": "var(--ground)", "#ebebeb": "var(--shade)"}
"""Colours of a drawing that follow the page's theme: ink, paper, and the shade of extrapolated ranges."""
WIDE_CELL = 28
"""Characters from which a column of a table counts as text: it stands left and may wrap."""


def without_folder(word: str) -> str:
    """Return a path as others may read it: its name alone where it tells the folders of this machine."""
    return Path(word).name if Path(word).is_absolute() else word


def check_report_path(path: str | Path) -> Path:
    """Refuse a path that cannot hold a report, before any work is done for it."""
    target = Path(path)
    if target.suffix not in (".html", ".htm", ".md"):
        raise InputError("a report ends in .html or .md", where=str(path))
    return target


@dataclass(frozen=True)
class Drawing:
    """One figure: SVG to stand inside a page, PNG to stand beside a Markdown file."""

    svg: str
    png: bytes


@dataclass(frozen=True)
class Part:
    """One element of a report; which fields it uses depends on ``kind``, the name of the method that adds it."""

    kind: str
    text: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    drawings: Sequence[Drawing] = ()

    def is_text(self, column: int) -> bool:
        """Tell whether a column of the table holds sentences rather than numbers or names."""
        return column > 0 and any(len(row[column]) > WIDE_CELL for row in self.rows)


@dataclass
class Report:
    """Parts in the order they are added. A browser fetches nothing from elsewhere to show it."""

    title: str
    parts: list[Part] = field(default_factory=list)

    def heading(self, text: str) -> None:
        """Start a section."""
        self.parts.append(Part("heading", text))

    def question(self, text: str) -> None:
        """Add the question that the report answers."""
        self.heading("Question")
        self.text(text)

    def answer(self, text: str) -> None:
        """Add the answer, set off from the rest."""
        self.heading("Answer")
        self.parts.append(Part("answer", text))

    def text(self, text: str) -> None:
        """Add a paragraph."""
        self.parts.append(Part("text", text))

    def warning(self, text: str) -> None:
        """Add a warning."""
        self.parts.append(Part("warning", text))

    def preformatted(self, text: str) -> None:
        """Add text whose line breaks and columns matter."""
        self.parts.append(Part("preformatted", text))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add a table."""
        self.parts.append(Part("table", columns=columns, rows=rows))

    def figure(self, figures: Sequence[Any], caption: str) -> None:
        """Add matplotlib figures side by side, under one caption."""
        first = sum(len(part.drawings) for part in self.parts) + 1
        drawings = [Drawing(themed_svg(figure, f"f{first + k}"), _png(figure)) for k, figure in enumerate(figures)]
        self.parts.append(Part("figure", caption, drawings=drawings))

    def provenance(self, **facts: str) -> None:
        """Add what made the report: data, command (by default the one that runs) and versions."""
        import platform  # slow to import, and every command checks where its report goes
        from importlib.metadata import version

        rows = {
            **facts,
            "command": facts.get("command", " ".join(["loopscale", *map(without_folder, sys.argv[1:])])),
            "loopscale": __version__,
            "python": platform.python_version(),
            **{name: version(name) for name in ("numpy", "scipy", "matplotlib")},
        }
        self.heading("Provenance")
        self.table(("what", "value"), list(rows.items()))

    def html(self) -> str:
        """Return the report as one HTML page; every text in it is escaped."""
        from importlib.resources import files

        from jinja2 import Environment
        from markupsafe import Markup

        source = files("loopscale.core").joinpath("report.html.j2").read_text(encoding="utf-8")
        template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(source)
        trusted = [_with_markup(part, Markup) for part in self.parts]
        return template.render(title=self.title, parts=trusted)

    def markdown(self, picture: str = "picture") -> tuple[str, dict[str, bytes]]:
        """Return the report as Markdown, and its pictures by file name; names start with ``picture``."""
        pictures: dict[str, bytes] = {}
        lines = [f"# {_plain(self.title)}\n", *(_markdown(part, picture, pictures) for part in self.parts)]
        return "\n".join(lines), pictures

    def save(self, path: str | Path) -> None:
        """Write ``.html`` as one file, or ``.md`` with numbered pictures beside it."""
        target = check_report_path(path)
        if target.suffix != ".md":
            write_text(target, self.html())
            return
        text, pictures = self.markdown(target.stem)
        for name, content in pictures.items():
            write_bytes(target.with_name(name), content)
        write_text(target, text)


def themed_svg(figure: Any, prefix: str) -> str:
    """Return a matplotlib figure as an SVG element that takes its ink and paper from the page around it.

    ``prefix`` keeps the ids of several drawings on one page apart.
    """
    from matplotlib import rc_context

    out = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "loopscale"}):
        figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg)  # a page in HTML knows the namespaces
    svg = re.sub(r'\sid="([^"]+)"', rf' id="{prefix}-\1"', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\1{prefix}-", svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    for colour, themed in THEMED.items():
        svg = svg.replace(colour, themed)
    return svg


def _png(figure: Any) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


def _with_markup(part: Part, markup: Any) -> Part:
    """Mark the drawings, which matplotlib wrote and escaped, as safe to insert."""
    if not part.drawings:
        return part
    return Part(part.kind, part.text, drawings=[Drawing(markup(drawing.svg), drawing.png) for drawing in part.drawings])


def _plain(text: str) -> str:
    """Return text as Markdown shows it literally: no HTML, links, code or emphasis in it takes effect."""
    return re.sub(r"([\\`*_\[\]])", r"\\\1", escape(text, quote=False))


def _markdown(part: Part, picture: str, pictures: dict[str, bytes]) -> str:
    text = _plain(part.text)
    if part.kind == "heading":
        return f"## {text}\n"
    if part.kind == "answer":
        return f"**{text}**\n"
    if part.kind == "warning":
        return f"> **{text}**\n"
    if part.kind == "preformatted":
        return "<pre>\n" + escape(part.text, quote=False) + "\n</pre>\n"
    if part.kind == "table":
        return markdown([_plain(name) for name in part.columns], [[_plain(cell) for cell in row] for row in part.rows])
    if part.kind == "figure":
        from urllib.parse import quote

        lines = []
        for drawing in part.drawings:
            name = f"{picture}-{len(pictures) + 1}.png"
            pictures[name] = drawing.png
            lines.append(f"![{text}]({quote(name)})\n")
        return "\n".join([*lines, f"*{text}*\n"])
    return f"{text}\n"
