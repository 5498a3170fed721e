"""The tables and the picture of docs/micro-sweep.md, from the data that ships: ``python results.py``.

Text between ``<!-- begin NAME -->`` and ``<!-- end NAME -->`` is written anew; the words around it stay.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from loopscale.core.files import write_text
from loopscale.core.quantities import format_count
from loopscale.core.tables import markdown
from loopscale.figures.capacity import draw_loss_over_recurrence, loss_over_recurrence
from loopscale.figures.outcomes import draw_psi
from loopscale.figures.pictures import Panel, Picture
from loopscale.figures.results import PSI, read_table
from loopscale.figures.style import save
from loopscale.fitting import Fit, Observations, fit
from loopscale.fitting.compare import compare
from loopscale.fitting.data.public import load_micro

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tools"))
from page_tables import replace_tables  # noqa: E402

DOCS = HERE.parents[1] / "docs"
DATA = HERE.parents[1] / "src" / "loopscale" / "fitting" / "data" / "micro-sweep.csv"
SLICES = ("R=8", "E=16", "N>60k")
MAPPINGS = ("none", "linear", "power", "bounded", "sparsity-conditional")
Row = dict[str, str]


def shipped() -> list[Row]:
    """Return the rows that ship."""
    with DATA.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _key(row: Row) -> tuple[str, int, float]:
    return row["size"], round(float(row["E"])), round(float(row["D (raw)"]) / 1e5) / 10


def losses(seed: str) -> str:
    """Loss of one seed by R, where the fits look."""
    found: dict[tuple[str, int, float], dict[int, float]] = defaultdict(dict)
    for row in shipped():
        if row["seed"] == seed:
            found[_key(row)][round(float(row["R"]))] = float(row["loss"])
    passes = sorted({R for each in found.values() for R in each})
    rows = [
        (size, str(E), f"{D:g}M", *(f"{by[R]:.4f}" if R in by else "" for R in passes))
        for (size, E, D), by in sorted(found.items())
        if D >= 0.7
    ]
    return markdown(("size", "E", "D", *(f"R = {R}" for R in passes)), rows)


def paired() -> dict[tuple[str, int, float], list[tuple[float, float]]]:
    """Return the losses at one pass and at four of every seed that has both."""
    found: dict[tuple[str, int, float], dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for row in shipped():
        found[_key(row)][row["seed"]][round(float(row["R"]))] = float(row["loss"])
    return {
        key: [(by[1], by[4]) for _, by in sorted(seeds.items()) if {1, 4} <= by.keys()] for key, seeds in found.items()
    }


def gains() -> str:
    """What four passes gain over one, by D, as the mean over seeds: where the sign turns."""
    found = paired()
    lengths = sorted({D for *_, D in found})
    pairs = sorted({(size, E) for size, E, _ in found})
    rows = [(size, str(E), *(_gain(found.get((size, E, D), [])) for D in lengths)) for size, E in pairs]
    return markdown(("size", "E", *(f"D = {D:g}M" for D in lengths)), rows)


def _gain(pairs: list[tuple[float, float]]) -> str:
    if not pairs:
        return ""
    return f"{fmean(one - four for one, four in pairs):+.4f}" + (f" ({len(pairs)})" if len(pairs) > 1 else "")


def noise() -> str:
    """Spread over seeds of losses, and of paired gains."""
    rows = []
    for (size, E, D), pairs in sorted(paired().items()):
        if len(pairs) < 2 or D < 0.7:
            continue
        gain = [one - four for one, four in pairs]
        spread = [f"{stdev(losses):.4f}" for losses in zip(*pairs, strict=True)]
        rows.append((size, str(E), f"{D:g}M", str(len(pairs)), *spread, f"{fmean(gain):+.4f} ± {stdev(gain):.4f}"))
    return markdown(("size", "E", "D", "seeds", "std of loss, R = 1", "R = 4", "gain of R = 4, mean ± std"), rows)


def fits(data: Observations) -> dict[str, Fit]:
    """Return the fits that the page shows, with their refits on resampled runs."""
    return {name: fit(data, outer="joint-moe", mapping=name, resamples=200) for name in MAPPINGS[3:]}


def coefficients(found: dict[str, Fit]) -> str:
    """The coefficients with their intervals."""
    ranges = {
        name: {row["coefficient"]: (row["low"], row["high"]) for row in each.conf_int().records()}
        for name, each in found.items()
    }
    names = list(dict.fromkeys(key for each in found.values() for key in each.law.coefficients))
    rows = [
        (key, *(_interval(each.law.coefficients.get(key), ranges[name].get(key)) for name, each in found.items()))
        for key in names
    ]
    rows.append(("RMSE (nats)", *(f"{each.law.rmse:.4f}" for each in found.values())))
    return markdown(("coefficient", *found), rows)


def cuts(parts: dict[str, Observations]) -> str:
    """RMSE of every mapping on rows from a D up, and what the bounded one says."""
    rows = []
    for name, data in parts.items():
        laws = {mapping: fit(data, outer="joint-moe", mapping=mapping, resamples=0).law for mapping in MAPPINGS[:4]}
        bound = laws["bounded"].coefficients
        scores = (f"{law.rmse:.4f}" for law in laws.values())
        rows.append((name, str(len(data)), *scores, f"{bound['kappa1']:.3f}", f"{bound['kappa2']:.3f}"))
    return markdown(("D from", "rows", *MAPPINGS[:4], "kappa1", "kappa2"), rows)


def _interval(value: float | None, span: tuple[float, float] | None) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if span is None else f"{value:.3g} ({span[0]:.3g} – {span[1]:.3g})"


def held_out(data: Observations, outer: str, slices: tuple[str, ...], mappings: tuple[str, ...]) -> str:
    """RMSE on rows that the fit has not seen, by mapping."""
    made = compare(data, slices, outer=outer, mappings=mappings)
    rows = []
    for name in mappings:
        scores = [made.score(part, name) for part in made.slices]
        rows.append((name, *(f"**{each.rmse:.4f}**" if each.best else f"{each.rmse:.4f}" for each in scores)))
    counted = [f"{part} ({made.score(part, mappings[0]).rows} rows)" for part in made.slices]
    return markdown(("mapping", *counted), rows)


def psi() -> str:
    """Expert-path diversity by R and E."""
    table = list(read_table(HERE / "psi.csv", PSI).records())
    passes = sorted({round(row["recurrence"]) for row in table})
    by = {(round(row["experts"]), round(row["recurrence"])): row for row in table}
    rows = [
        (str(E), *(f"{by[E, R]['psi']:.3f} ± {by[E, R]['spread']:.3f}" for R in passes))
        for E in sorted({E for E, _ in by})
    ]
    return markdown(("E", *(f"R = {R}" for R in passes)), rows)


def picture(data: Observations, found: Fit) -> None:
    """Loss against R by E with the law, where R goes far and where D does, and Psi."""
    shorter = data.where(data.points.tokens < 2e6)
    curves = (loss_over_recurrence(each, {"bounded": found.law}) for each in (shorter, data))
    panels = (
        *(Panel(each, draw_loss_over_recurrence) for each in curves),
        Panel(read_table(HERE / "psi.csv", PSI), draw_psi),
    )
    save(Picture("micro", "", panels, 2.8).figure(columns=3), DOCS / "images" / "micro-sweep.png")


def available(data: Observations) -> tuple[str, ...]:
    """Return the slices that the data have."""
    p = data.points
    there = {
        "R=8": np.any(p.recurrence == 8),
        "E=16": np.any(p.experts == 16),
        "N>60k": np.any(p.active > 6e4),
    }
    return tuple(name for name in SLICES if there[name])


def tables() -> dict[str, str]:
    """Return every table of the page, and draw its picture."""
    data, every = load_micro(), load_micro("micro-all")
    found = fits(data)
    longer = every.where(every.points.tokens >= 0.7e6)
    picture(data, found["bounded"])
    dense = data.where(data.points.experts == 1)
    p = data.points
    about = (
        f"{len(every)} losses of {len(every.runs)} runs; {len(data)} of them at D of 1.5M tokens or more, which the "
        f"fits use: N_act from {format_count(p.active.min())} to {format_count(p.active.max())}, E from "
        f"{p.experts.min():g} to {p.experts.max():g}, R from {p.recurrence.min():g} to {p.recurrence.max():g}."
    )
    slices = available(data)
    return {
        "about": about,
        "losses": losses("0"),
        "losses-long": losses("3"),
        "gains": gains(),
        "noise": noise(),
        "coefficients": coefficients(found),
        "held-out-dense": held_out(dense, "chinchilla", tuple(s for s in slices if s != "E=16"), MAPPINGS[:4]),
        "held-out": held_out(data, "joint-moe", slices, MAPPINGS),
        "held-out-tokens": held_out(data, "joint-moe", ("D>5M",), MAPPINGS),
        "cuts": cuts({"0.7M": longer, "1.5M": data}),
        "psi": psi(),
    }


def main() -> None:
    """Write the page's tables."""
    page = DOCS / "micro-sweep.md"
    write_text(page, replace_tables(page.read_text(encoding="utf-8"), tables()))


if __name__ == "__main__":
    main()
