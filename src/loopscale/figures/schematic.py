"""The schematic of a looped model: which weights a token uses in each pass."""

from __future__ import annotations

from typing import Any

from loopscale.core.tables import Table
from loopscale.figures.curves import groups
from loopscale.figures.style import colour, or_new


def routes(passes: int = 3, experts: int = 4) -> Table:
    """Return the choices that the schematic shows, an illustration: ``model, pass, expert, chosen``."""
    rows = [{"model": "dense", "pass": p, "expert": 0, "chosen": True} for p in range(1, passes + 1)]
    rows += [
        {"model": "MoE", "pass": p, "expert": e, "chosen": e == (3 * p + 2) % experts}
        for p in range(1, passes + 1)
        for e in range(experts)
    ]
    return Table.from_records(rows)


def draw_routes(table: Table, axes: Any | None = None) -> Any:
    """Draw a token's path through a looped dense model and a looped MoE, from the bottom up: an illustration."""
    from matplotlib.patches import FancyBboxPatch

    axes = or_new(axes)
    axes.set(xlim=(0, 10), ylim=(-1.35, 1.6 + max(table.columns["pass"])), xticks=[], yticks=[])
    for side in axes.spines.values():
        side.set_visible(False)

    def box(x: float, y: float, width: float, text: str, shade: str, ink: str = "black") -> None:
        style = "round,pad=0,rounding_size=0.08"
        axes.add_patch(FancyBboxPatch((x, y), width, 0.55, boxstyle=style, facecolor=shade, edgecolor="0.3", lw=0.7))
        axes.text(x + width / 2, y + 0.27, text, ha="center", va="center", fontsize=6, color=ink)

    for (model,), rows in groups(table, "model").items():
        left = 0.45 if model == "dense" else 5.2
        passes, experts = max(row["pass"] for row in rows), 1 + max(row["expert"] for row in rows)
        axes.text(
            left + 2.35, passes + 1.2, "dense, looped" if experts == 1 else "MoE, looped", ha="center", fontsize=7
        )
        box(left + 0.9, -1.3, 2.9, "prelude", "0.93")
        box(left + 0.9, passes + 0.45, 2.9, "coda", "0.93")
        width, path = 2.9 / experts, [(left + 2.35, -0.75)]
        for row in rows:
            x, y = left + 0.9 + row["expert"] * width, row["pass"] - 0.75
            shade, ink = (colour(row["expert"]), "white") if row["chosen"] else ("white", "0.45")
            box(
                x,
                y,
                width * (0.86 if experts > 1 else 1),
                "FFN" if experts == 1 else f"{row['expert'] + 1}",
                shade,
                ink,
            )
            if row["chosen"]:
                centre = x + width * (0.43 if experts > 1 else 0.5)
                path += [(centre, y), (centre, y + 0.55)]
        for p in range(1, passes + 1):
            axes.text(left + 0.75, p - 0.48, f"pass {p}", ha="right", va="center", fontsize=6)
        path.append((left + 2.35, passes + 0.45))
        for start, end in zip(path[::2], path[1::2], strict=True):
            axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "lw": 0.8, "color": "0.2", "shrinkA": 0,
                                                      "shrinkB": 0, "mutation_scale": 5})  # fmt: skip
    axes.set_title("One block of weights, or a choice of experts", fontsize=8, loc="left")
    return axes
