"""How far a reader walks to follow one thing: functions, files, and steps from one file to another, by a tracer.

Importing a module is not entering it: only functions and methods that run are counted. A step is a distinct pair of
functions of two files, of which one calls the other. It is a report, not a limit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TRACER = """
import atexit, inspect, json, os, sys, threading
import loopscale
ROOT = os.path.dirname(loopscale.__file__) + os.sep
steps = set()
def place(frame):
    code = frame.f_code
    ours = code.co_flags & inspect.CO_OPTIMIZED and code.co_filename.startswith(ROOT)
    # A comprehension or a lambda stands in the function that a reader is in already.
    return (code.co_filename[len(ROOT):], code.co_qualname.partition(".<locals>.<")[0]) if ours else None
def enter(frame, event, argument):
    if (here := place(frame)) is not None:
        steps.add(((frame.f_back and place(frame.f_back)) or here, here))
def write():
    with open(os.path.join(os.environ["JOURNEY"], f"{os.getpid()}.json"), "w") as file:
        json.dump(sorted(steps), file)
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


Place = tuple[str, str]
"""A file and a function in it."""
Step = tuple[Place, Place]
"""A function and one that it calls; a function that other code calls, twice."""


def journey(script: str, *arguments: str, cwd: Path) -> set[Step]:
    """Run a traced script and return the steps in it and in its processes."""
    with tempfile.TemporaryDirectory() as notes:
        environment = {**os.environ, "JOURNEY": notes}
        subprocess.run(
            [sys.executable, "-c", script, *arguments], cwd=cwd, env=environment, check=True, stdout=subprocess.DEVNULL
        )
        return {
            (tuple(caller), tuple(called))
            for note in Path(notes).glob("*.json")
            for caller, called in json.loads(note.read_text())
        }


def plan_journey(folder: Path) -> set[Step]:
    """Return the steps that ``loopscale plan`` takes."""
    return journey(COMMAND, "plan", "--flops", "5e21", "--memory", "3GB", "--bits", "int4", cwd=folder)


def fit_journey(folder: Path) -> set[Step]:
    """Return the steps that ``loopscale fit runs.csv`` takes."""
    from loopscale.fitting import simulate_sweep

    simulate_sweep(tokens=(1e11, 3e11)).to_csv(folder / "runs.csv")
    return journey(COMMAND, "fit", "runs.csv", cwd=folder)


def step_journey(folder: Path) -> set[Step]:
    """Return the steps that one training step takes."""
    (folder / "text.txt").write_text(TEXT)
    (folder / "train.toml").write_text(TRAIN)
    return journey(STEP, "train.toml", "run", cwd=folder)


def sweep_journey(folder: Path) -> set[Step]:
    """Return the steps that ``loopscale sweep run`` takes in the command itself, training apart."""
    (folder / "text.txt").write_text(TEXT)
    (folder / "sweep.toml").write_text(SWEEP)
    return journey(COMMAND, "sweep", "run", "sweep.toml", "--workers", "1", cwd=folder)


JOURNEYS = {"plan": plan_journey, "fit": fit_journey, "sweep run": sweep_journey, "training step": step_journey}


def main() -> None:
    """Print the functions, files and steps of each journey."""
    for name, trace in JOURNEYS.items():
        with tempfile.TemporaryDirectory() as folder:
            steps = trace(Path(folder))
        entered = {called for _, called in steps}
        files, switches = {file for file, _ in entered}, sum(caller[0] != called[0] for caller, called in steps)
        print(
            f"{name:<14} {len(entered):>4} functions in {len(files):>3} files, {switches:>4} steps to another file",
            flush=True,
        )


if __name__ == "__main__":
    main()
