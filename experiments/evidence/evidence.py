"""Recompute docs/evidence.md: its tables, pictures and published refits, from the public sweeps by name.

    python experiments/evidence/evidence.py

reads the sweeps from the folder in LOOPSCALE_DATA, or downloads those that can be downloaded. Text between
``<!-- begin NAME -->`` and ``<!-- end NAME -->`` is written anew; the words around it stay. A part whose sweep cannot
be had keeps its table, and the command says so.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
sys.path.insert(0, str(Path(__file__).parent))

import growth
import moe
import prior
import repetition
import saturation
import test_time
from page_tables import replace_tables

import figures
from loopscale.core.errors import InputError
from loopscale.core.files import write_json, write_text
from loopscale.core.tables import markdown
from loopscale.fitting import Fit, load_public
from loopscale.scaling import ScalingLaw, published
from sweeps import R_D, Sweep, looped_sweeps

ROOT = Path(__file__).resolve().parents[2]
PAGE, IMAGES = ROOT / "docs" / "evidence.md", ROOT / "docs" / "images"
LAWS = ROOT / "src" / "loopscale" / "scaling"
DIGITS = 6
BUDGETS = np.geomspace(6e17, 6e18, 9)
GPU_HOUR = 4e14 * 3600
"""FLOPs of an hour at 4e14 a second."""
EPOCHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14)


def main() -> None:
    """Recompute everything."""
    sweeps, tables = looped_sweeps(), {}
    loops = sweeps[0].fitted("general", resamples=100)
    joint = repetition.joint()
    publish(sweeps[0], joint["fit"])
    tables |= saturation_tables(sweeps)
    tables |= repetition_tables(joint)
    tables |= test_time_tables()
    tables |= moe_tables()
    try:
        tables |= growth_tables(loops.law)
    except InputError as error:
        print(f"growth: not recomputed: {error}", file=sys.stderr)
    draw(sweeps)
    write_text(PAGE, replace_tables(PAGE.read_text(encoding="utf-8"), tables))


def publish(loops: Sweep, repeated: Fit) -> None:
    """Write the refits that ship: coefficients, ranges, resampled laws and where they come from."""
    general = loops.fitted("general", resamples=100)
    source = "refitted to the public runs of Q Labs 2026 (arXiv 2609.19107, MIT)"
    notes = {
        "qlabs-loops-2026": (
            general.law,
            f"{source}, 99 looped dense models at equal compute",
            "Fitted without a prior; in every resample the gain is that of the exponential bound. Losses are of its "
            "own tokenizer and data.",
        ),
        "qlabs-repetition-2026": (
            repeated.law,
            f"{source}, 67 looped dense models on fresh and ten times repeated tokens at weight decay 0.8",
            f"B and beta are those of qlabs-loops-2026 and R_D = {R_D:g} is that of data-constrained-2023, all held: "
            "every run has 996M tokens. The overfitting term shrinks with more weight decay.",
        ),
    }
    for name, (law, origin, note) in notes.items():
        content = replace(law, name=name, source=origin, note=note, degenerate=()).to_dict()
        write_json(LAWS / f"{name}.json", _rounded(content))


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    return [_rounded(entry) for entry in value] if isinstance(value, list | tuple) else value


def saturation_tables(sweeps: list[Sweep]) -> dict[str, str]:
    """Return the tables on the shape of the gain."""
    scores = saturation.held_out()
    columns = ("linear", "power", "bounded", "general", "general, no prior")
    rows = [
        [row["sweep"], row["held out"], str(row["rows"]), *_best([row[name] for name in columns])] for row in scores
    ]
    records, pooled = saturation.exponents(sweeps)
    exponents = [
        [
            row["sweep"], str(row["runs"]), row["R"], saturation.lambda_text(row["tail"]),
            f"{saturation.lambda_text(row['low'])} to {saturation.lambda_text(row['high'])}",
            f"{row['kappa1']:.2f}", f"{row['kappa2']:.2f}", f"{row['rmse']:.4f}",
        ]
        for row in records
    ]  # fmt: skip
    span = f"{saturation.lambda_text(pooled['low'])} to {saturation.lambda_text(pooled['high'])}"
    exponents.append(["**pooled**", "", "", saturation.lambda_text(pooled["tail"]), span, "", "", ""])
    apart = {sweep.label: saturation.deciding(sweep) for sweep in (sweeps[0], sweeps[3])}
    passes = [row["R"] for row in apart[sweeps[0].label]]
    deciding = [[label, *(f"{1e3 * row['difference']:.1f}" for row in rows)] for label, rows in apart.items()]
    cases: dict[str, list[str]] = {}
    for row in saturation.sensitivity([sweeps[0], sweeps[3], sweeps[4]]):
        interval = f"{saturation.lambda_text(row['low'])} to {saturation.lambda_text(row['high'])} ({row['rmse']:.4f})"
        cases.setdefault(row["case"], [row["case"]]).append(interval)
    save(figures.exponents(records, pooled), "evidence-exponents")
    priors = [
        [
            row["without"], f"{row['kappa2'].centre:g}, width {row['kappa2'].width:g}", f"width {row['tail'].width:g}",
            f"{row['sweep']} {row['held out']}", f"{row['rmse']:.4f}",
        ]
        for row in prior.held_out(records)
    ]  # fmt: skip
    return {
        "priors": markdown(["learnt without", "kappa2", "tail", "held out", "RMSE"], priors),
        "held-out": markdown(["sweep", "held out", "rows", *columns], rows),
        "exponents": markdown(
            ["sweep", "runs", "R", "lambda", "90% interval", "kappa1", "kappa2", "RMSE"], exponents
        ),
        "sensitivity": markdown(["fit", *(sweeps[k].label for k in (0, 3, 4))], list(cases.values())),
        "deciding": markdown(["millinats between the two at R =", *(str(R) for R in passes)], deciding),
    }  # fmt: skip


def repetition_tables(joint: dict[str, Any]) -> dict[str, str]:
    """Return the tables on repeated data."""
    records = repetition.forms()
    names = list(records[0])
    rows = [[row["law"], str(row["coefficients"]), *(f"{row[name]:.4f}" for name in names[2:])] for row in records]
    spans = [
        [name, f"{row['estimate']:.3g}", f"{row['low']:.3g} to {row['high']:.3g}"]
        for name, row in [*joint["intervals"].items(), ("R_D, where it is fitted", joint["R_D"])]
    ]
    decays = [
        [f"{row['weight decay']:g}", *(f"{a:.3g} ({low:.3g} to {high:.3g})" for a, low, high in
         (row[name] for name in ("O", "c", "kappa1"))), f"{row['rmse']:.4f}"]
        for row in repetition.decays()
    ]  # fmt: skip
    return {
        "repetition": markdown(["law", "coefficients", *names[2:]], rows),
        "joint": markdown(["coefficient", "estimate", "90% interval"], spans),
        "decays": markdown(["weight decay", "O", "c", "kappa1", "RMSE"], decays),
        "best-passes": best_passes(joint["fit"].law),
    }


def best_passes(law: ScalingLaw) -> str:
    """Return, and draw, the best R on fresh and repeated tokens, measured and by the law."""
    data = load_public("qlabs-regimes")
    again, records = repetition.repeated(data), []
    for title, rows, unique in (("fresh", ~again, 1e9), ("ten epochs", again, 1e8)):
        measured = repetition.measured_best(data.where(rows), BUDGETS)
        predicted = repetition.predicted_best(law, BUDGETS, unique)
        records += [
            {"data": title, "flops": float(flops), "measured": m, "predicted": p}
            for flops, m, p in zip(BUDGETS, measured, predicted, strict=True)
        ]
    epochs = [
        {"flops": budget, "epochs": count, "best": repetition.predicted_best(
            law, np.array([budget]), repetition.TOKENS / count)[0]}
        for budget in (1e18, 3e18, 6e18) for count in EPOCHS
    ]  # fmt: skip
    save(figures.best_passes(records, epochs), "evidence-best-passes")
    rows = []
    for title in ("fresh", "ten epochs"):
        for kind in ("measured", "predicted"):
            values = [row[kind] for row in records if row["data"] == title]
            rows.append([f"{title}, {kind}", *("" if np.isnan(value) else f"{value:.1f}" for value in values)])
    return markdown(["best R at FLOPs", *(f"{flops:.1e}" for flops in BUDGETS)], rows)


def growth_tables(law: ScalingLaw) -> dict[str, str]:
    """Return the tables on passes that grow."""
    result = growth.growth(law)
    rows = [
        [row["credit"], str(row["coefficients"]), f"{row['rmse']:.4f}", f"{row['left out']:.4f}"]
        for row in result["credits"]
    ]
    delay = f"delay {result['delay']:.3f} ({result['low']:.3f} to {result['high']:.3f}) of the tokens\n"
    schedules = [
        [
            f"{row['N'] / 1e6:.0f}M", f"{row['flops']:.1e}", ", ".join(map(str, row["passes"])),
            _stages(row["schedule"]), f"{row['tokens'] / 1e9:.2f}B",
            f"{row['fixed R']:g}", f"{1e3 * row['saved']:.1f}",
        ]
        for row in growth.schedules(law)
    ]  # fmt: skip
    return {
        "growth": markdown(["credit for the last passes", "coefficients", "RMSE", "RMSE, series left out"], rows),
        "delay": delay,
        "shares": shares_text(growth.best_shares(law)),
        "schedules": markdown(
            ["N", "FLOPs", "passes allowed", "best schedule", "D", "best fixed R", "millinats below it"], schedules
        ),
    }  # fmt: skip


def shares_text(records: list[dict[str, Any]]) -> str:
    """Compare the best shares of the tokens with four passes, measured and by the law."""
    columns = {name: np.array([row[name] for row in records]) for name in ("measured", "law", "saved", "expected")}
    means = {name: float(values.mean()) for name, values in columns.items()}
    return (
        f"{len(records)} of 18 series have a minimum inside: at a share of {means['measured']:.2f} on average "
        f"({columns['measured'].min():.2f} to {columns['measured'].max():.2f}), where the law expects "
        f"{means['law']:.2f}; growth saves {1e3 * means['saved']:.1f} millinats there, the law expects "
        f"{1e3 * means['expected']:.1f}.\n"
    )


def _stages(stages: list[list[float]]) -> str:
    return "[" + ", ".join(f"[{start:g}, {passes:g}]" for start, passes in stages) + "]"


def test_time_tables() -> dict[str, str]:
    """Return the tables on passes at test time."""
    minima = [
        [
            row["source"], row["trained"], str(row["models"]), _range(row["best / trained"], 2),
            _range(row["rise at twice"], 4),
        ]
        for row in test_time.minima()
    ]  # fmt: skip
    laws = [
        [
            row["trained"], str(row["models"]), f"{row['best / trained']:.2f}",
            *(f"{a:.3g} ({low:.3g} to {high:.3g})" for a, low, high in (row[name] for name in "aqb")),
            f"{row['left out']:.4f}",
        ]
        for row in test_time.laws()
    ]  # fmt: skip
    save(figures.test_time(test_time.curves("qlabs-test-time")), "evidence-test-time")
    return {
        "minima": markdown(["source", "passes in training", "models", "best / trained R", "rise at twice"], minima),
        "test-time": markdown(["passes in training", "models", "best / trained R", "a", "q", "b", "left out"], laws),
    }


def moe_tables() -> dict[str, str]:
    """Return the tables on looped Mixture-of-Experts models."""
    law = published()
    marin = moe.marin(law)
    above = [[run, f"{value:+.3f}"] for run, value in sorted(marin["above"].items())]
    text = (
        f"The paper's law expects {marin['expected']:+.3f} for E1, {marin['fitted from'] / 9.1e6:.0f} times below its "
        "fitted sizes.\n"
    )
    thetas = [
        [row["sweep"], "not identified", "", row["note"]]
        if row["theta"] is None
        else [row["sweep"], f"{row['theta']:.3f}", f"{row['low']:.3f} to {row['high']:.3f}", row["note"]]
        for row in moe.thetas()
    ]
    settling = [
        [
            row["grid"],
            str(row["runs"]),
            f"{row['error']:.3f}",
            f"{row['flops']:.1e}",
            f"{row['flops'] / 4e14 / 3600:,.0f}",
        ]
        for row in moe.settling(law)
    ]
    return {
        "marin": markdown(["variant", "nats above the model without a loop"], above) + "\n" + text,
        "thetas": markdown(["sweep", "theta", "90% interval", "note"], thetas),
        "settling": markdown(
            ["grid of runs", "runs", "standard error of theta", "FLOPs", "GPU-hours at 4e14 FLOP/s"], settling
        ),
    }


def draw(sweeps: list[Sweep]) -> None:
    """Draw the pictures that no table has drawn."""
    fits = {sweep.label: sweep.fitted("general", resamples=100) for sweep in sweeps[:4]}
    measured = {label: saturation.measured_gain(fitted) for label, fitted in fits.items()}
    save(figures.gain_curves(fits, measured), "evidence-gain")
    save(figures.equal_compute(fits[sweeps[0].label], 203_161_600.0), "evidence-equal-compute")


def save(figure: Any, name: str) -> None:
    """Write a picture of the page."""
    figures.save(figure, IMAGES / f"{name}.svg")


def _best(values: Sequence[float]) -> list[str]:
    lowest = min(values)
    return [f"**{value:.4f}**" if value == lowest else f"{value:.4f}" for value in values]


def _range(span: Sequence[float], digits: int) -> str:
    low, high = (f"{value:.{digits}f}" for value in span)
    return low if low == high else f"{low} to {high}"


if __name__ == "__main__":
    main()
