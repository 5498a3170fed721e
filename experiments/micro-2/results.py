"""The tables and picture of docs/micro-sweep-2.md, from the data of the sweep that ship: ``python results.py``.

Text between ``<!-- begin NAME -->`` and ``<!-- end NAME -->`` is written anew; the words around it stay.
"""

from __future__ import annotations

import csv
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
from scipy import stats

from loopscale.core.errors import LoopscaleError
from loopscale.core.files import write_text
from loopscale.core.tables import markdown
from loopscale.fitting import Fit, Observations, fit
from loopscale.fitting.backtest import backtest
from loopscale.fitting.compare import compare
from loopscale.fitting.data.public import MICRO_2, load_micro, micro_2_rows
from loopscale.sweep.spec import read_sweep
from loopscale.sweep.tune import RateLaw, Trial, fit_rates

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tools"))
from page_tables import replace_tables  # noqa: E402

DOCS = HERE.parents[1] / "docs"
MAPPINGS = ("none", "linear", "power", "bounded", "sparsity-conditional")
SLICES = ("R=4", "E=8", "N>60k", "D>500k")
LEAST_ROWS = 10
STAGES = {"A": "rates", "B": "recipes", "C": "confirm", "D": "micro-2", "E": "followup", "F": "chosen"}
"""The sweep file of each stage of docs/protocol.md."""
ROUTER = "pass_router=True"
"""The recipe that stage C chose."""
DECIDING = ("d16", (1, 8))


@dataclass(frozen=True)
class Row:
    """A finished point of a run."""

    stage: str
    recipe: str
    size: str
    width: int
    E: int
    R: int
    seed: int
    D: int
    rate: float
    loss: float
    flops: float
    """6 N_unroll D."""
    real_flops: float
    """With attention and the output head."""


def shipped() -> list[Row]:
    """Return the finished points that ship."""
    with MICRO_2.open(encoding="utf-8", newline="") as file:
        return [_row(row) for row in csv.DictReader(file) if row["state"] == "done"]


def _row(row: dict[str, str]) -> Row:
    return Row(
        row["stage"], row["recipe"], row["size"], int(row["width"]), int(row["E"]), int(row["R"]), int(row["seed"]),
        int(float(row["D (raw)"])), float(row["learning_rate"]), float(row["loss"]), float(row["training_flops"]),
        float(row["real_training_flops"]),
    )  # fmt: skip


def sweep_files() -> dict[str, str]:
    """Return what ``read_sweep`` takes for each stage: a file beside this one, or the name of a sweep that ships."""
    files = {stage: HERE / f"{name}.toml" for stage, name in STAGES.items()}
    return {stage: str(file) if file.is_file() else STAGES[stage] for stage, file in files.items()}


def counts() -> str:
    """Runs by stage: planned, with results, failed."""
    with MICRO_2.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    lines = []
    for stage, file in sweep_files().items():
        here = [row for row in rows if row["stage"] == stage]
        runs = {row["run"] for row in here}
        failed = {row["run"] for row in here if row["state"] == "failed"}
        losses = sum(row["state"] == "done" for row in here)
        lines.append((stage, str(len(read_sweep(file).runs)), str(len(runs)), str(losses), str(len(failed))))
    return markdown(("stage", "runs planned", "runs with results", "losses", "failed runs"), lines)


def interval(differences: Sequence[float], level: float = 0.9) -> str:
    """Return the mean of paired differences with its t-interval and the number of pairs."""
    mean = fmean(differences)
    if len(differences) < 2:
        return f"{mean:+.4f} (1 pair)"
    half = stats.t.ppf(0.5 + level / 2, len(differences) - 1) * stdev(differences) / math.sqrt(len(differences))
    return f"{mean:+.4f} ({mean - half:+.4f} to {mean + half:+.4f}; {len(differences)} pairs)"


# Stage A


def trials() -> list[Trial]:
    """Return the short runs of the search for rates."""
    return [Trial(r.width, r.R, r.E, r.D, r.rate, r.loss, r.size) for r in shipped() if r.stage == "A"]


def searches() -> str:
    """Loss by rate of every cell and D, the lowest in bold."""
    cells: dict[tuple[int, int, int, int], dict[float, float]] = defaultdict(dict)
    for trial in trials():
        cells[trial.width, trial.experts, trial.recurrence, trial.tokens][trial.rate] = trial.loss
    rates = sorted({rate for losses in cells.values() for rate in losses})
    rows = [
        (*map(str, key[:3]), f"{key[3] / 1e3:.0f}K", *(_bold(losses, rate) for rate in rates))
        for key, losses in sorted(cells.items())
    ]
    return markdown(("width", "E", "R", "D", *(f"{rate:g}" for rate in rates)), rows)


def _bold(losses: dict[float, float], rate: float) -> str:
    if rate not in losses:
        return ""
    return f"**{losses[rate]:.4f}**" if losses[rate] == min(losses.values()) else f"{losses[rate]:.4f}"


RULES = {
    "recurrence": "0 (no rule), -0.5 (root of R), -1 (1/R)",
    "width": "-1 (mup, hidden matrices), -0.37 (marin)",
    "experts": "none that we know of",
    "tokens": "-0.28 (marin)",
}


def rate_law(law: RateLaw) -> str:
    """The exponents with their intervals, beside published rules."""
    rows = [
        (name, f"{power:+.2f}", "{:+.2f} to {:+.2f}".format(*law.intervals[name]), RULES[name])
        for name, power in law.exponents.items()
    ]
    return markdown(("exponent of", "estimate", "90% interval", "published rules"), rows)


# Stages B and C


def screening() -> str:
    """Lowest loss of every recipe over its rates."""
    by: dict[str, dict[float, float]] = defaultdict(dict)
    for row in shipped():
        if row.stage == "B":
            by[row.recipe][row.rate] = row.loss
    best = {name: min((loss, rate) for rate, loss in losses.items()) for name, losses in by.items()}
    plain = best["plain"][0]
    rows = [
        (name, f"{loss:.4f}", f"{rate:g}", f"{loss - plain:+.4f}", ", ".join(f"{r:g}" for r in sorted(by[name])))
        for name, (loss, rate) in sorted(best.items(), key=lambda item: item[1])
    ]
    return markdown(("recipe, R = 4", "loss", "best rate", "less plain", "rates tried"), rows)


def confirmation() -> str:
    """Paired differences of every recipe to the plain loop at R = 4 and to R = 1, on fresh seeds."""
    rows = [row for row in shipped() if row.stage == "C"]
    losses = {(row.recipe, row.R, row.seed): row.loss for row in rows}
    seeds = sorted({row.seed for row in rows})
    lines = []
    for R, _, recipe in sorted({(row.R, row.recipe != "plain", row.recipe) for row in rows}):
        own = {seed: losses[recipe, R, seed] for seed in seeds if (recipe, R, seed) in losses}
        differences = [
            [own[seed] - losses[other, r, seed] for seed in own if (other, r, seed) in losses]
            for other, r in (("plain", 4), ("plain", 1))
        ]
        shown = ["" if not d or (other == (recipe, R)) else interval(d)
                 for d, other in zip(differences, (("plain", 4), ("plain", 1)), strict=True)]  # fmt: skip
        lines.append((recipe, str(R), f"{fmean(own.values()):.4f}", *shown))
    return markdown(("recipe", "R", "mean loss", "less plain R = 4", "less R = 1"), lines)


def exploration() -> str:
    """The plain loop of stage C at half its rate: paired differences to the other recipes of the stage."""
    halved = {row.seed: row.loss for row in shipped() if row.stage == "E" and row.recipe == "plain"}
    first = {(row.recipe, row.R, row.seed): row.loss for row in shipped() if row.stage == "C"}
    others = {"plain, R = 4, rate 0.032": ("plain", 4), "router per pass, R = 4, rate 0.016": ("pass_router=True", 4),
              "plain, R = 1": ("plain", 1)}  # fmt: skip
    rows = [
        (name, interval([loss - first[recipe, R, seed] for seed, loss in sorted(halved.items())]))
        for name, (recipe, R) in others.items()
    ]
    return markdown((f"plain, R = 4, rate 0.016 (mean {fmean(halved.values()):.4f}) less", "difference"), rows)


def chosen() -> str:
    """The recipe of stage C in the cells that decide theta: gains over R = 1 and over the plain loop, by seed."""
    plain = {(row.E, row.D, row.seed, row.R): row.loss for row in shipped() if row.stage == "D" and row.size == "d16"}
    pairs: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for row in shipped():
        if row.stage == "E" and row.recipe == ROUTER:
            one, four = (plain[row.E, row.D, row.seed, R] for R in (1, 4))
            pairs[row.E, row.D].append((one - row.loss, four - row.loss))
    rows = [
        (str(E), f"{D / 1e3:.0f}K", *(interval(values) for values in zip(*found, strict=True)))
        for (E, D), found in sorted(pairs.items())
    ]
    return markdown(("E", "D", "gain over R = 1", "gain over the plain loop, R = 4"), rows)


# Stages D and F


def plain_rows() -> list[Row]:
    """Return the rows of the plain loop: the sweep, and of each search the lowest loss at each D."""
    return [_row(row) for row in micro_2_rows()]


def router_rows() -> list[Row]:
    """Return the cells with several experts: a router for each pass, and R = 1."""
    return [row for row in map(_row, micro_2_rows(router=True)) if row.E > 1]


def gains(rows: Iterable[Row]) -> dict[tuple[str, int, int], list[float]]:
    """Return what R = 4 gains over R = 1 at equal tokens, by size, E and D, a value for each seed."""
    losses = {(r.size, r.E, r.D, r.seed, r.R): r.loss for r in rows}
    found: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for (size, E, D, seed, R), loss in sorted(losses.items()):
        if R == 4 and (size, E, D, seed, 1) in losses:
            found[size, E, D].append(losses[size, E, D, seed, 1] - loss)
    return found


def equal_flops(rows: list[Row], real: bool) -> dict[tuple[str, int], list[float]]:
    """Return what R = 4 gains over R = 1 at equal FLOPs, by size and E, a value for each seed.

    The loss of R = 1, trained to its longest D, is interpolated in ln FLOPs between its own points.
    """
    longest = max(row.D for row in rows)
    whole = {(row.size, row.E, row.seed) for row in rows if row.R == 1 and longest == row.D}
    curves: dict[tuple[str, int, int, int], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        curves[row.size, row.E, row.seed, row.R].append((row.real_flops if real else row.flops, row.loss))
    found: dict[tuple[str, int], list[float]] = defaultdict(list)
    for (size, E, seed, R), points in sorted(curves.items()):
        one = sorted(curves.get((size, E, seed, 1), []))
        if R != 4 or (size, E, seed) not in whole:
            continue
        inside = [(flops, loss) for flops, loss in sorted(points) if one[0][0] <= flops <= one[-1][0]]
        if inside:
            flops, loss = inside[-1]
            at = np.interp(math.log(flops), [math.log(f) for f, _ in one], [value for _, value in one])
            found[size, E].append(float(at) - loss)
    return found


def gains_table(rows: Iterable[Row]) -> str:
    """Gains of R = 4 at equal tokens."""
    found = gains(rows)
    lengths = sorted({D for *_, D in found})
    cells = sorted({(size, E) for size, E, _ in found})
    lines = [(size, str(E), *(_gain(found.get((size, E, D), [])) for D in lengths)) for size, E in cells]
    return markdown(("size", "E", *(f"D = {D / 1e3:.0f}K" for D in lengths)), lines)


def _gain(values: Sequence[float]) -> str:
    return interval(values) if len(values) > 1 else "".join(f"{value:+.4f}" for value in values)


def equal_flops_table(rows: list[Row]) -> str:
    """Gains of R = 4 at equal FLOPs, by both counts."""
    paper, real = equal_flops(rows, False), equal_flops(rows, True)
    lines = [(size, str(E), _gain(paper[size, E]), _gain(real.get((size, E), []))) for size, E in sorted(paper)]
    return markdown(("size", "E", "gain at equal 6 N_unroll D", "gain at equal real FLOPs"), lines)


def deciding() -> str:
    """The cells that decide theta: gain at the largest D over all seeds, and its standard error."""
    found = gains(plain_rows())
    longest = max(D for *_, D in found)
    rows = []
    for E in DECIDING[1]:
        values = found.get((DECIDING[0], E, longest), [])
        spread = stdev(values) if len(values) > 1 else math.nan
        shown = ("", "") if math.isnan(spread) else (f"{spread:.4f}", f"{spread / math.sqrt(len(values)):.4f}")
        rows.append((str(E), interval(values) if values else "no pair", *shown))
    return markdown(("E", "gain of R = 4 at equal tokens", "std over seeds", "standard error"), rows)


def over_cells(rows: Iterable[Row]) -> str:
    """The mean gain over all (size, E) pairs at each D, seeds averaged within a pair."""
    found = gains(rows)
    lines = []
    for D in sorted({D for *_, D in found}):
        lines.append((f"{D / 1e3:.0f}K", *_mean_of_cells(each for (*_, length), each in found.items() if length == D)))
    return markdown(("D", "mean gain of R = 4 over cells", "cells with a gain"), lines)


def _mean_of_cells(cells: Iterable[Sequence[float]]) -> tuple[str, str]:
    """Return the mean over cells, each with the values of its seeds, and in how many it is above zero."""
    values = [fmean(seeds) for seeds in cells]
    return interval(values).replace("pairs", "cells"), f"{sum(value > 0 for value in values)} of {len(values)}"


def router_table() -> str:
    """What a router for each pass gains over the plain loop at equal size, E, R, D and seed, over all such pairs."""
    plain = {(row.size, row.E, row.R, row.D, row.seed): row.loss for row in shipped() if row.stage == "D"}
    pairs: dict[tuple[int, int], dict[tuple[str, int], list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in router_rows():
        key = (row.size, row.E, row.R, row.D, row.seed)
        if row.R > 1 and key in plain:
            pairs[row.R, row.D][row.size, row.E].append(plain[key] - row.loss)
    lines = []
    for (R, D), cells in sorted(pairs.items()):
        lines.append((str(R), f"{D / 1e3:.0f}K", *_mean_of_cells(cells.values())))
    return markdown(("R", "D", "mean gain over the plain loop, over cells", "cells with a gain"), lines)


def passes() -> str:
    """Loss and Psi of models trained with R = 4, by test-time R."""
    with (HERE / "passes.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    tested = sorted({int(row["recurrence"]) for row in rows})
    by = {(row["run"], int(row["recurrence"])): row for row in rows}
    lines = []
    for run, E in sorted({(row["run"], int(row["experts"])) for row in rows}):
        lines.append((run, "loss", *(f"{float(by[run, R]['loss']):.4f}" for R in tested)))
        if E > 1:
            lines.append((run, "Psi", *(f"{float(by[run, R]['psi']):.3f}" for R in tested)))
    return markdown(("model", "", *(f"R = {R}" for R in tested)), lines)


def fits(data: Observations, resamples: int = 200) -> dict[str, Fit]:
    """Return the fit of every mapping."""
    return {name: fit(data, outer="joint-moe", mapping=name, resamples=resamples) for name in MAPPINGS}


def coefficients(found: dict[str, Fit]) -> str:
    """Recurrence coefficients and errors by mapping."""
    rows = []
    for name, each in found.items():
        spans = {row["coefficient"]: (row["low"], row["high"]) for row in each.conf_int().records()}
        shown = [_span(each.law.coefficients.get(key), spans.get(key)) for key in ("kappa1", "kappa2", "theta")]
        rows.append((name, *shown, f"{each.law.rmse:.4f}"))
    return markdown(("mapping", "kappa1", "kappa2", "theta", "RMSE (nats)"), rows)


def _span(value: float | None, span: tuple[float, float] | None) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if span is None else f"{value:.3g} ({span[0]:.3g} – {span[1]:.3g})"


def held_out(data: Observations) -> str:
    """RMSE on rows that the fit has not seen, by mapping, for slices of ten rows and more."""
    large = [part for part in SLICES if _usable(data, part)]
    made = compare(data, tuple(large), outer="joint-moe", mappings=MAPPINGS)
    rows = []
    for name in MAPPINGS:
        scores = [made.score(part, name) for part in made.slices]
        rows.append((name, *(f"**{each.rmse:.4f}**" if each.best else f"{each.rmse:.4f}" for each in scores)))
    counted = [f"{part} ({made.score(part, MAPPINGS[0]).rows} rows)" for part in made.slices]
    return markdown(("mapping", *counted), rows)


def _usable(data: Observations, part: str) -> bool:
    """Whether a slice has enough rows, and the others still vary in E."""
    try:
        chosen = data.keep(part.replace("=", "=="))
    except LoopscaleError:
        return False
    name, _, value = part.partition("=")
    others = {E for E in data.points.experts.tolist() if not (name == "E" and f"{float(E):g}" == value)}
    return len(chosen) >= LEAST_ROWS and len(others) > 1


def backtests(data: Observations) -> str:
    """The most expensive runs predicted from the others, by mapping."""
    rows = []
    for name in ("none", "bounded", "sparsity-conditional"):
        score = backtest(data, decades=0.5, outer="joint-moe", mapping=name, resamples=60).score
        rows.append((
            name, str(score.train_rows), str(score.held_out), f"{100 * score.mean_abs_relative_error:.2f}%",
            f"{score.bias:+.4f}", f"{score.coverage:.0%}",
        ))  # fmt: skip
    return markdown(
        ("mapping", "rows fitted", "rows hidden", "mean error", "bias in ln loss", "inside the 90% interval"), rows
    )


def picture(rows: list[Row], name: str) -> None:
    """Paired gains of R = 4 by D: a line for each seed, the colour is E, and 90% intervals of three seeds and more."""
    import matplotlib.pyplot as plt

    losses = {(r.size, r.E, r.seed, r.R, r.D): r.loss for r in rows}
    curves: dict[tuple[str, int, int], list[tuple[int, float]]] = defaultdict(list)
    for (size, E, seed, R, D), loss in sorted(losses.items()):
        if R == 4 and (size, E, seed, 1, D) in losses:
            curves[size, E, seed].append((D, losses[size, E, seed, 1, D] - loss))
    sizes = sorted({size for size, *_ in curves})
    lengths = sorted({D for points in curves.values() for D, _ in points})
    figure, axes = plt.subplots(1, len(sizes), figsize=(3.2 * len(sizes), 2.8), sharey=True, squeeze=False)
    colours = {E: f"C{index}" for index, E in enumerate(sorted({E for _, E, _ in curves}))}
    for axis, size in zip(axes[0], sizes, strict=True):
        for (_, E, _), points in ((key, points) for key, points in curves.items() if key[0] == size):
            axis.plot(
                *zip(*points, strict=True), color=colours[E], marker="o", ms=3, lw=0.8, alpha=0.4, label=f"E = {E}"
            )
        for (_, E, D), values in ((key, values) for key, values in gains(rows).items() if key[0] == size):
            if len(values) > 2:
                axis.errorbar(
                    1.08 * D, fmean(values), yerr=_half(values), color=colours[E], marker="s", ms=4, capsize=3, zorder=3
                )
        axis.axhline(0, color="grey", lw=0.8)
        axis.set(xscale="log", xlabel="D (tokens)", title=f"width {size[1:]}")
        axis.set_xticks(lengths, [f"{D / 1e3:.0f}K" for D in lengths], fontsize=7)
        axis.minorticks_off()
        named = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
        for handle in axis.legend(named.values(), named.keys(), fontsize=7).legend_handles:
            handle.set_alpha(1)
    axes[0][0].set_ylabel("loss at R = 1 less R = 4 (nats)")
    figure.tight_layout()
    figure.savefig(DOCS / "images" / f"{name}.png", dpi=150)
    plt.close(figure)


def _half(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    return float(stats.t.ppf(0.95, len(values) - 1) * stdev(values) / math.sqrt(len(values)))


def tables() -> Iterable[tuple[str, str]]:
    """Yield every table of the page that needs no fit of a law."""
    yield from (("counts", counts()), ("searches", searches()))
    yield from (("screening", screening()), ("confirmation", confirmation()), ("exploration", exploration()))
    yield from (("chosen", chosen()), ("deciding", deciding()), ("passes", passes()), ("router", router_table()))
    for suffix, rows in (("", plain_rows()), ("-router", router_rows())):
        yield f"gains{suffix}", gains_table(rows)
        yield f"over-cells{suffix}", over_cells(rows)
        yield f"equal-flops{suffix}", equal_flops_table(rows)


def laws() -> Iterable[tuple[str, str]]:
    """Yield the tables that are made from fits."""
    law = fit_rates(trials())
    centre = ", ".join(f"{name} {value:.3g}" for name, value in law.centre.items())
    yield from (("rate-law", rate_law(law)), ("rate-law-text", f"{law}; centre: {centre}."))
    for suffix in ("", "-router"):
        data = load_micro(f"micro-2{suffix}")
        yield f"coefficients{suffix}", coefficients(fits(data))
        yield f"held-out{suffix}", held_out(data)
        yield f"backtest{suffix}", backtests(data)


def main() -> None:
    """Write the page's tables and pictures."""
    page = DOCS / "micro-sweep-2.md"
    write_text(page, replace_tables(page.read_text(encoding="utf-8"), {**dict(tables()), **dict(laws())}))
    picture(plain_rows(), "micro-2")
    picture(router_rows(), "micro-2-router")


if __name__ == "__main__":
    main()
