"""Runs whose passes grow, beside fixed passes at equal training FLOPs: small models on the built-in corpus.

    python experiments/evidence/grown.py --seeds 3

writes a training file for each schedule and seed, runs ``loopscale train`` with it as written, and adds a row to
grown.csv. It resumes: a row is never trained again. About five seconds of an idle core for each run.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from loopscale.core.tables import markdown
from loopscale.lab.tables import Mean

RESULTS = Path(__file__).parent / "grown.csv"
COLUMNS = ("schedule", "seed", "passes", "tokens", "training_flops", "loss")
SCHEDULES = ("[[0, 1]]", "[[0, 1], [0.65, 3]]", "[[0, 2]]", "[[0, 3]]")
MOST = 3
TOKENS = 400_000
"""Of the run with the most passes throughout; the others have as many more as their mean passes leave."""
FILE = """[model]
width = 32
layers = 1
edge_layers = 0
head_size = 16
recurrence = {last}
[data]
context = 128
validation = 0.04
[optimizer]
learning_rate = 16e-3
recurrence_rule = 0.5
[schedule]
warmup_steps = 50
cooldown = 0.25
recurrence = {schedule}
[run]
tokens = {tokens}
batch = 8
seed = {seed}
validation_sequences = 1000000
"""


def mean_passes(schedule: str) -> float:
    """Return the token-averaged passes."""
    stages = json.loads(schedule)
    ends = [*(start for start, _ in stages[1:]), 1.0]
    return sum(passes * (end - start) for (start, passes), end in zip(stages, ends, strict=True))


def trained(schedule: str, seed: int) -> dict[str, Any]:
    """Train one schedule with one seed by the command line, and return its row."""
    last, tokens = json.loads(schedule)[-1][1], round(TOKENS * MOST / mean_passes(schedule))
    with TemporaryDirectory() as folder:
        file, out = Path(folder) / "grown.toml", Path(folder) / "run"
        file.write_text(FILE.format(last=last, schedule=schedule, tokens=tokens, seed=seed))
        command = [sys.executable, "-m", "loopscale", "train", str(file), "--out", str(out), "--quiet"]
        subprocess.run(command, check=True)
        summary = json.loads((out / "summary.json").read_text())
    return {
        "schedule": schedule, "seed": seed, "passes": round(mean_passes(schedule), 2), "tokens": summary["tokens"],
        "training_flops": f"{summary['training_flops']:.4g}", "loss": f"{summary['validation_loss']:.4f}",
    }  # fmt: skip


def table() -> str:
    """Return the mean loss of each schedule, and its difference from one pass, seed by seed."""
    with RESULTS.open(newline="") as file:
        rows = list(csv.DictReader(file))
    loss = {(row["schedule"], row["seed"]): float(row["loss"]) for row in rows}
    seeds = sorted({row["seed"] for row in rows})
    lines = []
    for schedule in SCHEDULES:
        of_it = [row for row in rows if row["schedule"] == schedule]
        change = Mean.of([loss[schedule, seed] - loss[SCHEDULES[0], seed] for seed in seeds])
        half = "" if change.interval is None else f" ± {(change.interval[1] - change.interval[0]) / 2:.3f}"
        lines.append(
            [schedule, of_it[0]["passes"], f"{int(of_it[0]['tokens']):,}", f"{float(of_it[0]['training_flops']):.2e}",
             f"{fmean(loss[schedule, seed] for seed in seeds):.3f}",
             "" if schedule == SCHEDULES[0] else f"{change.value:+.3f}{half}"]
        )  # fmt: skip
    return markdown(["schedule", "mean R", "tokens", "FLOPs", "loss", "difference from one pass"], lines)


def main() -> None:
    """Train what is missing, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    seeds = parser.parse_args().seeds
    rows: list[dict[str, Any]] = []
    if RESULTS.is_file():
        with RESULTS.open(newline="") as file:
            rows = list(csv.DictReader(file))
    done = {(row["schedule"], int(row["seed"])) for row in rows}
    for seed in range(seeds):
        for schedule in SCHEDULES:
            if (schedule, seed) not in done:
                rows.append(trained(schedule, seed))
                with RESULTS.open("w", newline="") as file:
                    writer = csv.DictWriter(file, COLUMNS)
                    writer.writeheader()
                    writer.writerows(rows)


if __name__ == "__main__":
    main()
