"""Ships runs of the laboratory and renews what shows them: ``renew.py [--two-axes FOLDER] [--downstream FOLDER]``.

A folder is what ``loopscale lab two-axes --out`` or ``lab downstream --out`` wrote. Its table replaces the shipped one
if it has more runs; then the figures of docs/images and the outputs in docs/lab.md are made again.
"""

from __future__ import annotations

import argparse
import csv
import re
import shutil
import sys
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from click.testing import CliRunner
from page_tables import replace_tables

from loopscale.cli.verbs import cli
from loopscale.core.tables import markdown
from loopscale.figures.lab import draw_downstream, draw_scores, draw_two_axes
from loopscale.figures.style import save
from loopscale.lab import downstream, two_axes
from loopscale.lab.questions import summary
from loopscale.lab.shipped import shipped_model, show_shipped
from loopscale.lab.tables import Mean, RunColumns

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[2]
DATA, PAGE, IMAGES = ROOT / "src/loopscale/lab/data", ROOT / "docs/lab.md", ROOT / "docs/images"


def ship(table: RunColumns, folder: Path | None, name: str) -> None:
    """Replace the shipped table by that of a folder, if it has more runs."""
    if folder is None:
        return
    before, now = len(table.read(DATA / name)), len(table.read(folder / name))
    if now > before:
        shutil.copy(folder / name, DATA / name)
    print(f"{name}: {before} runs shipped, {now} in {folder}")


def renew(command: str) -> None:
    """Put what a command prints into the page, below it."""
    result = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1"}).invoke(cli, command.split(), catch_exceptions=False)
    body = "".join(f"{line.rstrip()}\n" for line in result.output.splitlines())
    block = re.compile(rf"(    loopscale {command}\n\n<!-- output: measured -->\n```text\n).*?```", re.DOTALL)
    PAGE.write_text(block.sub(lambda match: f"{match[1]}{body}```", PAGE.read_text()))


def tables() -> dict[str, str]:
    """Return the tables of the page that no command prints."""
    return {
        "seeds": seeds_table(), "controls": controls_table(), "injections": injections_table(), "paths": paths_table(),
        "capacity": capacity_table(), "text": text_table(),
    }  # fmt: skip


def _rows(name: str) -> list[dict[str, str]]:
    with (HERE / name).open(newline="") as file:
        return list(csv.DictReader(file))


def seeds_table() -> str:
    """Return the accuracy of each seed of the word problem by test-time R, and on longer words."""
    shown = (1, 4, 8, 10, 12, 16, 24)
    lines = []
    for model, rows in groupby(
        _rows("s3-seeds.csv"), key=lambda row: (row["model"], row["mean_recurrence"], row["seed"])
    ):
        name, recurrence, seed = model
        if (name, recurrence) != ("diagonal", "10"):
            continue
        of_run = list(rows)
        at = {(row["elements"], int(row["test_recurrence"])): f"{float(row['accuracy']):.2f}" for row in of_run}
        core_seconds = f"{float(of_run[0]['cpu_seconds']):.0f}"
        lines.append([seed, *(at["12", R] for R in shown), at["18", 18], core_seconds])
    return markdown(["seed", *(f"R = {R}" for R in shown), "words of 18, R = 18", "core-seconds"], lines)


def controls_table() -> str:
    """Return loops with several injections and separate layers on words of 12 and of 18, by their seeds."""
    rows = [row for row in _rows("s3-seeds.csv") if row["mean_recurrence"] in ("10", "1")]
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        loops = not model.endswith("layers")
        cells = []
        for elements in (12, 18):
            passes = elements if loops else 1
            values = [
                float(row["accuracy"])
                for row in rows
                if (row["model"], row["elements"], row["test_recurrence"]) == (model, f"{elements}", f"{passes}")
            ]
            cells.append(", ".join(f"{value:.2f}" for value in values))
        lines.append([f"one layer, looped, `{model}`" if loops else f"{model.replace(' ', ' separate ')}", *cells])
    return markdown(["model", "words of 12, seed by seed", "words of 18"], lines)


def capacity_table() -> str:
    """Return how many of 8,192 facts models of one pass recall, seed by seed."""
    recalled: dict[str, list[str]] = {}
    for row in _rows("capacity.csv"):
        recalled.setdefault(row["model"], []).append(f"{float(row['accuracy']):.2f}")
    return markdown(
        ["model", "recalled, seed by seed"], [[model, ", ".join(seeds)] for model, seeds in recalled.items()]
    )


def text_table() -> str:
    """Return the loss on text with each injection at the better of its rates, less that without injection."""
    losses: dict[str, dict[str, dict[str, float]]] = {}
    for row in _rows("injections-text.csv"):
        losses.setdefault(row["injection"], {}).setdefault(row["learning_rate"], {})[row["seed"]] = float(row["loss"])
    best = {name: min(rates.items(), key=lambda entry: fmean(entry[1].values())) for name, rates in losses.items()}
    plain = best["none"][1]
    lines = []
    for name, (rate, of_seed) in best.items():
        change = Mean.of([of_seed[seed] - plain[seed] for seed in plain])
        less = "" if name == "none" else f"{change.value:+.3f} ± {(change.interval[1] - change.interval[0]) / 2:.3f}"
        lines.append([f"`{name}`", rate, f"{fmean(of_seed.values()):.4f}", less])
    return markdown(["injection", "rate", "loss, four seeds", "less none"], sorted(lines, key=lambda line: line[2]))


def draw_word_problem() -> Any:
    """Return the figure of the shipped model at every R, with the mean of separate layers beside it."""
    model = shipped_model()
    weights = sum(weight.numel() for weight in model.parameters())
    deep = [row for row in _rows("s3-seeds.csv") if row["model"] == "12 layers" and row["elements"] == "12"]
    control = {"12 separate layers": fmean(float(row["accuracy"]) for row in deep)}
    return draw_scores([show_shipped(24)], [f"one layer, {weights:,} weights"], model.config.recurrence, control)


def injections_table() -> str:
    """Return how reliably each injection trains: accuracy over seeds, the lowest seed, and how many learnt the task."""
    rows = _rows("injections.csv")
    lines = []
    by_injection: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        by_injection.setdefault(row["model"], []).append(row)
    for injection, of_it in sorted(
        by_injection.items(), key=lambda entry: -fmean(float(row["accuracy"]) for row in entry[1])
    ):
        accuracy = [float(row["accuracy"]) for row in of_it]
        learnt = sum(row["status"] == "learnt" for row in of_it)
        lines.append(
            [f"`{injection}`", f"{int(of_it[0]['weights']):,}", f"{len(of_it)}", _span(Mean.of(accuracy)),
             f"{min(accuracy):.2f}", f"{max(accuracy):.2f}", f"{learnt} of {len(of_it)}"]
        )  # fmt: skip
    return markdown(["injection", "weights", "seeds", "accuracy", "lowest", "highest", "learnt"], lines)


def paths_table() -> str:
    """Return Psi, the diversity of expert paths, of the looped models with experts."""
    rows = [row for row in downstream.shipped_rows() if row["experts"] > 1 and row["recurrence"] > 1]
    lines = []
    for width, budget in sorted({(row["width"], row["budget"]) for row in rows}):
        of_cell = [row for row in rows if (row["width"], row["budget"]) == (width, budget)]
        spans = (Mean.of([row[f"{part}_psi"] for row in of_cell]) for part in ("words", "facts"))
        lines.append([f"{width}", f"{of_cell[0]['steps']:,}", f"{len(of_cell)}", *(_span(mean) for mean in spans)])
    return markdown(["width", "steps", "seeds", "words", "facts"], lines)


def _span(mean: Mean) -> str:
    half = "" if mean.interval is None else f" ± {(mean.interval[1] - mean.interval[0]) / 2:.2f}"
    return f"{mean.value:.2f}{half}"


def main() -> None:
    """Ship, draw and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--two-axes", type=Path)
    parser.add_argument("--downstream", type=Path)
    options = parser.parse_args()
    ship(two_axes.TABLE, options.two_axes, two_axes.RESULTS)
    ship(downstream.TABLE, options.downstream, downstream.RESULTS)
    save(draw_word_problem(), IMAGES / "lab-s3.svg")
    save(draw_two_axes(two_axes.summary(two_axes.shipped_rows())), IMAGES / "lab-two-axes.svg")
    save(draw_downstream(summary(downstream.shipped_rows())), IMAGES / "lab-downstream.svg")
    PAGE.write_text(replace_tables(PAGE.read_text(), tables()))
    for command in ("lab two-axes --shipped", "lab downstream --shipped", "lab downstream --shipped --law"):
        renew(command)


if __name__ == "__main__":
    main()
