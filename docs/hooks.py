"""Figures and tables of the documentation, computed from the package.

The pages hold the tables, so that they read well in the repository too: ``make pages`` renews them, and tests compare
them with what the package computes. The figures are drawn when the site is built and are not committed, and equations
(``$$ … $$``) become inline SVG then: the site fetches no script for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.font_manager import FontProperties
from matplotlib.path import Path as Outline
from matplotlib.textpath import TextPath

from loopscale.app.page import export_page
from loopscale.architecture import ladder_space, rung
from loopscale.core.devices import DEVICES, UTILISATION
from loopscale.core.quantities import format_bytes, format_count
from loopscale.core.tables import markdown
from loopscale.figures.drawing import DrawingTask, draw_all
from loopscale.figures.results import paper_psi, paper_results
from loopscale.figures.scores import mean_scores, present_groups
from loopscale.figures.sources import Sources
from loopscale.planning import Budget, search
from loopscale.planning.compute import flops_of
from loopscale.planning.profiles import joint_optimum
from loopscale.scaling import PUBLISHED, published

_EQUATION = re.compile(r"^\$\$\n(.*?)\n\$\$$", flags=re.DOTALL | re.MULTILINE)
_COMMANDS = {Outline.MOVETO: "M", Outline.LINETO: "L", Outline.CURVE3: "Q", Outline.CURVE4: "C", Outline.CLOSEPOLY: "Z"}
_RECORDING = re.compile(r"^!\[[^\]]*\]\(images/explorer\.gif\)$", flags=re.MULTILINE)
_EXPLORER = (
    '<iframe src="explorer/index.html" title="The explorer" loading="lazy" '
    'style="width:100%;height:900px;border:1px solid #ddd;border-radius:12px"></iframe>'
)
_MARK = re.compile(r"<!-- generated: ([a-z-]+) -->\n.*?<!-- end -->", flags=re.DOTALL)


def on_pre_build(config: Any) -> None:
    """Draw the figures that pages show and that are missing."""
    folder = Path(config["docs_dir"]) / "figures"
    folder.mkdir(exist_ok=True)
    pages = Path(config["docs_dir"]).rglob("*.md")
    shown = {name for page in pages for name in re.findall(r"figures/([a-z-]+)\.png", page.read_text(encoding="utf-8"))}
    missing = sorted(name for name in shown if not (folder / f"{name}.png").exists())
    results, psi = paper_results(), paper_psi()
    left_out = draw_all(DrawingTask(Sources(published(), results=results, psi=psi), folder, ("png",)), missing)
    if left_out:
        raise ValueError(f"figures that a page shows could not be drawn: {left_out}")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Set the equations of a page in type; on the home page the explorer itself stands for its recording."""
    if page.is_homepage:
        markdown = _RECORDING.sub(_EXPLORER, markdown)
    return _EQUATION.sub(lambda match: _typeset(match[1]), markdown)


def on_post_build(config: Any) -> None:
    """Write the explorer into the site: it plans in the browser."""
    export_page(Path(config["site_dir"]) / "explorer")


def _typeset(tex: str) -> str:
    """Return an equation as SVG in the colour of the text; every line of it is one line of type."""
    drawn, top = [], 0.0
    widest = 1.0
    for line in tex.splitlines():
        outline = TextPath((0, 0), f"${line.strip()}$", size=18, prop=FontProperties(math_fontfamily="cm"))
        box = outline.get_extents()
        top += box.y1 + 8
        data = "".join(
            _COMMANDS[code] + ("" if code == Outline.CLOSEPOLY else " ".join(f"{number:.2f}" for number in points))
            for points, code in outline.iter_segments()
        )
        drawn.append(f'<path transform="translate(0 {top:.1f}) scale(1 -1)" d="{data}"/>')
        top += 8 - box.y0
        widest = max(widest, box.x1)
    size = f'viewBox="-2 0 {widest + 4:.0f} {top:.0f}" style="width:{widest + 4:.0f}px;max-width:100%"'
    label = escape(" ".join(tex.split()), quote=True)
    return f'<div><svg role="img" aria-label="{label}" {size} fill="currentColor">{"".join(drawn)}</svg></div>'


def with_tables(page: str) -> str:
    """Return the page with every generated table computed again."""
    return _MARK.sub(lambda match: f"<!-- generated: {match[1]} -->\n{TABLES[match[1]]()}\n<!-- end -->", page)


def renew_pages() -> None:
    """Compute the tables in all pages again."""
    for page in sorted(Path(__file__).parent.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        if with_tables(text) != text:
            page.write_text(with_tables(text), encoding="utf-8")
            print(f"renewed {page}")


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    return markdown(head, rows).rstrip()


def _joint() -> str:
    table = joint_optimum(published(), [1e9, 3e9, 1e10], Budget(flops=5e21, bits=4))
    rows = [
        (
            format_bytes(row["memory"]),
            row["rung"],
            f"{row['experts']:g}",
            str(row["recurrence"]),
            format_count(row["tokens"]),
            f"{row['loss']:.4f}",
        )
        for row in table.records()
    ]
    return _table(("int4 weights in", "size", "E", "R", "tokens", "loss"), rows)


def _case_study() -> str:
    case = search(Budget(flops=flops_of(rung("0.6B", experts=8), 6e12)), ladder_space(["0.3B"], [8]), published())
    gains = case.grid.pass_gain_ZFSKP[0, 0, 0, 0]
    rows = [
        (f"{R} → {R + 1}", f"{gain:.4f}", "yes" if gain >= case.grid.eps else "no")
        for R, gain in enumerate(gains[1:7], 1)
    ]
    sentence = f"\n\nR* = {case.choice.recurrence}, on {format_count(case.choice.tokens)} tokens."
    return _table(("pass", "gain (nats)", "at least eps"), rows) + sentence


def _scores() -> str:
    results = paper_results()
    groups = present_groups(results)
    tables = [list(mean_scores(results, group).records()) for group in groups]
    rows = [
        (row["model"], f"{row['recurrence']:g}", *(f"{table[index]['score']:.1f}" for table in tables))
        for index, row in enumerate(tables[0])
    ]
    return _table(("model", "R", *groups), rows)


def _psi() -> str:
    rows = list(paper_psi().records())
    passes = sorted({row["recurrence"] for row in rows})
    cells = {(row["experts"], row["recurrence"]): f"{row['psi']:.4f} ± {row['spread']:.4f}" for row in rows}
    experts = sorted({row["experts"] for row in rows})
    head = ("E", *(f"R = {R:g}" for R in passes))
    return _table(head, [(f"{E:g}", *(cells[E, R] for R in passes)) for E in experts])


def _laws() -> str:
    rows = [
        (f"`{law.name}`", str(law.form), "" if law.rmse is None else f"{law.rmse:.3g}", law.source)
        for law in PUBLISHED.values()
    ]
    return _table(("name", "form", "RMSE", "source"), rows)


def _devices() -> str:
    rows = []
    for name, device in DEVICES.items():
        hours = [compute / (device.flops * UTILISATION * 3600) for compute in (1e20, 1e21, 5e21, 1e22)]
        rows.append((name, f"{device.flops / 1e12:,.0f}", *(f"{hour:,.0f}" for hour in hours)))
    return _table(("device", "peak TFLOP/s (bf16)", "1e20 FLOPs", "1e21", "5e21", "1e22"), rows)


def _benchmarks() -> str:
    text = (Path(__file__).parents[1] / "benchmarks" / "results.txt").read_text(encoding="utf-8")
    return f"```text\n{text.rstrip()}\n```"


TABLES: dict[str, Callable[[], str]] = {
    "joint-optimum": _joint,
    "case-study": _case_study,
    "paper-scores": _scores,
    "paper-psi": _psi,
    "published-laws": _laws,
    "benchmarks": _benchmarks,
    "devices": _devices,
}

if __name__ == "__main__":
    renew_pages()
