"""Trains a tenth of the second micro-sweep again and compares it with what ships: ``reproduce.py FOLDER [RUNS]``.

The same machine and versions give the same losses to the last digits; other kernels round otherwise, and small
differences grow in training, so a run passes within TOLERANCE and the differences are printed.
"""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from repeated_runs import within

from loopscale.core.files import write_text
from loopscale.fitting.data.public import MICRO_2
from loopscale.sweep.spec import SHIPPED, read_sweep

TOLERANCE = 0.09
"""Nats, for one loss: another rounding may change a run as much as another seed, and the losses of two seeds of a cell
differ by 0.03 (standard deviation)."""
MEAN_TOLERANCE = 0.015
"""Nats, for the mean difference over all runs."""
PICKED = {
    "A": [("d16", 1, 1, 10), ("d16", 1, 4, 10)],
    "D": [
        *(("d16", E, R, seed) for seed in range(5) for E in (1, 8) for R in (1, 4)),
        *(("d24", 1, R, 0) for R in (1, 4)),
        ("d32", 1, 1, 0),
    ],
}
"""Stage and size, E, R and seed of the cells that are trained again."""
Key = tuple[str, int, int, int, float, int]


def shipped() -> dict[Key, float]:
    """Return the losses that ship, of the cells that were picked."""
    with MICRO_2.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["state"] == "done" and row["recipe"] == "plain"]
    return {_key(row): float(row["loss"]) for row in rows if _key(row)[:4] in PICKED.get(row["stage"], [])}


def _key(row: dict[str, str]) -> Key:
    cell = (row["size"], round(float(row["E"])), round(float(row["R"])), int(row["seed"]))
    return *cell, float(row["learning_rate"]), round(float(row["D (raw)"]))


def sweep_file(losses: dict[Key, float], most: int) -> str:
    """Return a sweep of the runs, with the settings of the whole one."""
    text = (SHIPPED / "micro-2.toml").read_text(encoding="utf-8")
    settings = text[text.index("[base.model]") : text.index("[[overrides]]")]
    runs: dict[tuple[str, int, int, int, float], list[int]] = {}
    for *cell, tokens in losses:
        runs.setdefault(tuple(cell), []).append(tokens)
    tables = [
        f'[[runs]]\nsize = "{size}"\nexperts = {E}\nrecurrence = {R}\nseed = {seed}\ntokens = {sorted(tokens)}\n'
        f'"optimizer.learning_rate" = {rate}\n'
        for (size, E, R, seed, rate), tokens in list(runs.items())[:most]
    ]
    return '[sweep]\nname = "tenth"\n\n' + settings + "".join(tables)


def main(folder: Path, most: int) -> int:
    """Train, compare, and return 0 if all runs are within the tolerance."""
    folder.mkdir(parents=True, exist_ok=True)
    losses = shipped()
    path = folder / "tenth.toml"
    write_text(path, sweep_file(losses, most))
    command = [sys.executable, "-m", "loopscale", "sweep"]
    subprocess.run([*command, "run", str(path), "--workers", "2"], check=True)
    subprocess.run([*command, "export", str(path), "--out", str(folder / "tenth.csv")], check=True)
    with (folder / "tenth.csv").open(encoding="utf-8", newline="") as file:
        differences = {str(_key(row)): float(row["loss"]) - losses[_key(row)] for row in csv.DictReader(file)}
    about = f"{len(differences)} losses of {len(read_sweep(path).runs)} runs"
    return 0 if within(about, differences, MEAN_TOLERANCE, TOLERANCE) else 1


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 100))
