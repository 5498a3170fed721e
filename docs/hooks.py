"""What the site is built with: figures drawn and tables computed from the package, so that no page can fall behind."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loopscale.architecture import rung
from loopscale.figures.gallery import Sources, Task, draw_all
from loopscale.figures.outcomes import mean_scores, present_groups
from loopscale.figures.results import paper_psi, paper_results
from loopscale.laws import PUBLISHED, published
from loopscale.plan import Budget, flops_of, joint_optimum, ladder_space, plan
from loopscale.quantities import format_bytes, format_count

_MARK = re.compile(r"<!-- generated: ([a-z-]+) -->")


def on_pre_build(config: Any) -> None:
    """Draw the figures that the pages show, where they are not there yet."""
    folder = Path(config["docs_dir"]) / "figures"
    folder.mkdir(exist_ok=True)
    pages = Path(config["docs_dir"]).rglob("*.md")
    shown = {name for page in pages for name in re.findall(r"figures/([a-z-]+)\.png", page.read_text(encoding="utf-8"))}
    missing = sorted(name for name in shown if not (folder / f"{name}.png").exists())
    results, psi = paper_results(), paper_psi()
    left_out = draw_all(Task(Sources(published(), results=results, psi=psi), folder, ("png",)), missing)
    if left_out:
        raise ValueError(f"figures that a page shows could not be drawn: {left_out}")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put computed tables where a page asks for them."""
    return _MARK.sub(lambda match: TABLES[match[1]](), markdown)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)


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
    found = plan(Budget(flops=flops_of(rung("0.6B", experts=8), 6e12)), ladder_space(["0.3B"], [8]), published())
    gains = found.grid.pass_gain_ZFSKP[0, 0, 0, 0]
    rows = [
        (f"{R} → {R + 1}", f"{gain:.4f}", "yes" if gain >= found.grid.eps else "no")
        for R, gain in enumerate(gains[1:7], 1)
    ]
    said = f"\n\nR* = {found.choice.recurrence}, on {format_count(found.choice.tokens)} tokens."
    return _table(("pass", "gain (nats)", "at least eps"), rows) + said


def _scores() -> str:
    results = paper_results()
    groups = present_groups(results)
    tables = [list(mean_scores(results, group).records()) for group in groups]
    rows = [
        (row["model"], f"{row['recurrence']:g}", *(f"{table[place]['score']:.1f}" for table in tables))
        for place, row in enumerate(tables[0])
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
        (f"`{law.name}`", str(law.form), "" if law.rmse is None else f"{law.rmse:g}", law.source)
        for law in PUBLISHED.values()
    ]
    return _table(("name", "form", "RMSE", "source"), rows)


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
}
