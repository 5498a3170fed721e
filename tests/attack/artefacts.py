"""One small file or folder of every kind that loopscale writes and reads back."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

import loopscale as ls
from loopscale.architecture import rung
from loopscale.cli import main
from loopscale.evaluate.store import Key, Result, Score
from loopscale.fit.data.public import simulate_sweep
from loopscale.laws import published
from sweeps import BASE

RUN = """
[model]
width = 16
layers = 3
head_size = 8
experts = 2
recurrence = 2
[data]
files = ["text"]
folder = "tokens"
context = 16
validation = 0.2
[schedule]
warmup_steps = 2
[run]
tokens = 640
batch = 4
log_every = 1
checkpoint_every = 4
validation_sequences = 4
"""
SWEEP = '[sweep]\nname = "tiny"\n[grid]\nrecurrence = [1, 2]\ntokens = [256, 512]\n' + BASE.replace("text.txt", "text")


def run(*argv: str) -> int:
    """Run a command in this process and return its exit code."""
    try:
        main([str(part) for part in argv])
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    return 0


def make_files(folder: Path) -> None:
    """Write the files that need no torch: runs, law, fit, plan, architecture and results."""
    sweep = simulate_sweep(recurrences=(1, 2, 4), tokens=np.linspace(1e11, 5e11, 3).tolist())
    sweep.to_csv(folder / "runs.csv")
    published().save(folder / "law.json")
    ls.fit(sweep, resamples=5).save(folder / "fit.json")
    ls.plan(flops="5e21", memory="3GB", bits="int4").save(folder / "plan.json")
    rung("0.3B", experts=8).save(folder / "architecture.json")
    make_result(folder / "results" / "a" / "x.result.json")


def make_result(path: Path) -> None:
    """Write one result of an evaluation."""
    from loopscale.files import write_json

    path.parent.mkdir(parents=True, exist_ok=True)
    key = Key("c" * 64, "task", 2, {"batch": 4})
    write_json(path, Result(key, {"acc,none": Score(0.5, 0.1)}, samples=10, seconds=1.0).to_dict())


def make_text(folder: Path) -> None:
    """Write a text of many short documents."""
    draw = random.Random(0)
    (folder / "text").mkdir()
    for number in range(40):
        words = " ".join(draw.choice(("loop", "state", "expert", "small", "model")) for _ in range(60))
        (folder / "text" / f"{number}.txt").write_text(f"{number} {words}\n")


def make_folders(folder: Path) -> None:
    """Train a tiny run and a tiny sweep in the current folder, which must be ``folder``."""
    make_text(folder)
    (folder / "run.toml").write_text(RUN)
    (folder / "sweep.toml").write_text(SWEEP)
    assert run("train", "run.toml", "--out", "run", "--quiet") == 0
    assert run("sweep", "run", "sweep.toml", "--workers", "1") == 0
