"""A report: text, tables and figures in one self-contained HTML file, or in Markdown with its pictures beside it."""

from __future__ import annotations

import base64
import io
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any

from loopscale import __version__
from loopscale.errors import InputError
from loopscale.files import write_bytes, write_text
from loopscale.tables import markdown

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2rem;border-bottom:1px solid #ccc}
table{border-collapse:collapse;font-size:.85rem;display:block;overflow-x:auto}
th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid #ddd;white-space:nowrap}
th:first-child,td:first-child{text-align:left}
pre{overflow-x:auto;background:#f4f4f4;padding:.8rem;font-size:.8rem}img{max-width:100%;background:#fff}
.answer{border-left:4px solid #0072b2;padding-left:.8rem;font-size:1.1rem}
.warning{border-left:4px solid #d55e00;padding-left:.8rem}figure{margin:1rem 0}figcaption{color:#777;font-size:.85rem}
footer{color:#777;font-size:.8rem;margin-top:3rem}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}pre{background:#252525}th,td{border-color:#444}}
"""


def check_report_path(path: str | Path) -> Path:
    """Refuse a file that no report can be, before any work is done for it."""
    target = Path(path)
    if target.suffix not in (".html", ".htm", ".md"):
        raise InputError(f"{path}: a report ends in .html or .md")
    return target


@dataclass
class Report:
    """Sections in the order they are added. Nothing in it is fetched from elsewhere when it is opened."""

    title: str
    html: list[str] = field(default_factory=list)
    markdown: list[str] = field(default_factory=list)
    pictures: list[bytes] = field(default_factory=list)

    def heading(self, text: str) -> None:
        """Start a section."""
        self._add(f"<h2>{escape(text)}</h2>", f"## {text}\n")

    def question(self, text: str) -> None:
        """Say what the report was asked."""
        self.heading("The question")
        self.text(text)

    def answer(self, text: str) -> None:
        """Say what was found, in a box of its own."""
        self.heading("The answer")
        self._add(f'<p class="answer">{escape(text)}</p>', f"**{text}**\n")

    def text(self, text: str) -> None:
        """Add a paragraph."""
        self._add(f"<p>{escape(text)}</p>", f"{text}\n")

    def warning(self, text: str) -> None:
        """Add a paragraph that must not be missed."""
        self._add(f'<p class="warning">{escape(text)}</p>', f"> **{text}**\n")

    def preformatted(self, text: str) -> None:
        """Add text whose columns matter."""
        self._add(f"<pre>{escape(text)}</pre>", f"```\n{text}\n```\n")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add a table."""
        head = "".join(f"<th>{escape(name)}</th>" for name in columns)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        self._add(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>", markdown(columns, rows))

    def figure(self, figure: Any, caption: str) -> None:
        """Add a matplotlib figure with the sentence that says what it shows."""
        out = io.BytesIO()
        figure.savefig(out, format="png")
        self.pictures.append(out.getvalue())
        data = base64.b64encode(out.getvalue()).decode("ascii")
        width = round(145 * figure.get_figwidth())  # pixels for each inch: text of one size in all figures
        picture = f'<img alt="{escape(caption)}" width="{width}" src="data:image/png;base64,{data}">'
        mark = f"![{caption}](\0{len(self.pictures)})\n\n*{caption}*\n"  # the file's name is known on saving
        self._add(f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>", mark)

    def provenance(self, **facts: str) -> None:
        """Add what made the report: versions, the command, and whatever the caller knows of the data."""
        known = {
            **facts,
            "command": " ".join(["loopscale", *sys.argv[1:]]),
            "loopscale": __version__,
            "python": platform.python_version(),
            **{name: version(name) for name in ("numpy", "scipy", "matplotlib")},
        }
        self.heading("Provenance")
        self.table(("what", "value"), list(known.items()))

    def save(self, path: str | Path) -> None:
        """Write ``.html`` as one file, or ``.md`` with numbered pictures beside it."""
        target = check_report_path(path)
        if target.suffix == ".md":
            self._save_markdown(target)
        else:
            write_text(target, self._page())

    def _page(self) -> str:
        title = escape(self.title)
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{_STYLE}</style></head>'
            f"<body><h1>{title}</h1>{''.join(self.html)}</body></html>\n"
        )

    def _save_markdown(self, target: Path) -> None:
        text = f"# {self.title}\n\n" + "\n".join(self.markdown)
        for number, picture in enumerate(self.pictures, start=1):
            name = f"{target.stem}-{number}.png"
            write_bytes(target.with_name(name), picture)
            text = text.replace(f"(\0{number})", f"({name})")
        write_text(target, text)

    def _add(self, html: str, markdown: str) -> None:
        self.html.append(html)
        self.markdown.append(markdown)
