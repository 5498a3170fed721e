"""How many of our files a reader crosses to follow one thing: distinct source files entered, counted with a tracer.

Importing a module is not entering it: only files in which a function or method runs are counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

MOST_FILES = 140
LIMITS = {"plan": 12, "fit": 12, "sweep run": 14, "training step": 14}
"""What we allow ourselves, in files."""

TRACER = """
import atexit, inspect, json, os, sys, threading
import loopscale
ROOT = os.path.dirname(loopscale.__file__) + os.sep
entered = set()
def enter(frame, event, argument):
    code = frame.f_code
    if code.co_flags & inspect.CO_OPTIMIZED and code.co_filename.startswith(ROOT):
        entered.add(code.co_filename[len(ROOT):])
def write():
    with open(os.path.join(os.environ["JOURNEY"], f"{os.getpid()}.json"), "w") as file:
        json.dump(sorted(entered), file)
"""
COMMAND = f"""{TRACER}
from loopscale.cli import main
from loopscale.cli.verbs import cli
cli.get_command(None, sys.argv[1])
atexit.register(write)
sys.setprofile(enter); threading.setprofile(enter)
main(sys.argv[1:])
"""
STEP = f"""{TRACER}
from loopscale.train.config import TrainConfig
from loopscale.train.trainer import Trainer
trainer = Trainer(TrainConfig.read(sys.argv[1]), sys.argv[2])
trainer.train(until=1)
sys.setprofile(enter)
trainer.one_step()
sys.setprofile(None)
write()
"""
"""The second step of a run: what happens once per run is not part of a step."""

WORDS = " ".join(f"word{n * n % 97}" for n in range(60_000))
TEXT = "\n\n".join(WORDS[start : start + 900] for start in range(0, len(WORDS), 900))
SETTINGS = """
[{prefix}model]
width = 16
layers = 3
head_size = 8
experts = 2
recurrence = 2
[{prefix}data]
files = ["text.txt"]
folder = "tokens"
context = 16
validation = 0.2
[{prefix}schedule]
warmup_steps = 2
[{prefix}run]
batch = 2
validation_sequences = 4
"""
TRAIN = SETTINGS.format(prefix="") + "tokens = 640\nlog_every = 1\n"
SWEEP = '[sweep]\nname = "journey"\n[grid]\ntokens = [640]\n' + SETTINGS.format(prefix="base.")


def journey(script: str, *arguments: str, cwd: Path) -> list[str]:
    """Run a traced script and return the files entered in it and in the processes that it started."""
    with tempfile.TemporaryDirectory() as notes:
        environment = {**os.environ, "JOURNEY": notes}
        subprocess.run(
            [sys.executable, "-c", script, *arguments], cwd=cwd, env=environment, check=True, stdout=subprocess.DEVNULL
        )
        files: set[str] = set()
        for note in Path(notes).glob("*.json"):
            files.update(json.loads(note.read_text()))
    return sorted(files)


def plan_files(folder: Path) -> list[str]:
    """Return the files that ``loopscale plan`` enters."""
    return journey(COMMAND, "plan", "--flops", "5e21", "--memory", "3GB", "--bits", "int4", cwd=folder)


def fit_files(folder: Path) -> list[str]:
    """Return the files that ``loopscale fit runs.csv`` enters."""
    from loopscale.fitting import simulate_sweep

    simulate_sweep(tokens=(1e11, 3e11)).to_csv(folder / "runs.csv")
    return journey(COMMAND, "fit", "runs.csv", cwd=folder)


def step_files(folder: Path) -> list[str]:
    """Return the files that one training step enters."""
    (folder / "text.txt").write_text(TEXT)
    (folder / "train.toml").write_text(TRAIN)
    return journey(STEP, "train.toml", "run", cwd=folder)


def sweep_files(folder: Path) -> list[str]:
    """Return the files that ``loopscale sweep run`` enters in the command itself, training apart."""
    (folder / "text.txt").write_text(TEXT)
    (folder / "sweep.toml").write_text(SWEEP)
    return journey(COMMAND, "sweep", "run", "sweep.toml", "--workers", "1", cwd=folder)


JOURNEYS = {"plan": plan_files, "fit": fit_files, "sweep run": sweep_files, "training step": step_files}


def source_files() -> int:
    """Return how many Python files there are in src/loopscale."""
    import loopscale

    return len(list(Path(loopscale.__file__).parent.rglob("*.py")))


def main() -> None:
    """Print each journey with its limit, and the files of those that exceed it."""
    for name, files_of in JOURNEYS.items():
        with tempfile.TemporaryDirectory() as folder:
            files = files_of(Path(folder))
        verdict = "" if len(files) <= LIMITS[name] else f"  too many: {', '.join(files)}"
        print(f"{name:<14} {len(files):>3} files, limit {LIMITS[name]}{verdict}", flush=True)
    print(f"{'in src':<14} {source_files():>3} files, limit {MOST_FILES}")


if __name__ == "__main__":
    main()
