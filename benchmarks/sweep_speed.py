"""Runs per hour of a sweep, one pinned process per core, against the same runs one after another with all threads.

Wall time of interleaved rounds, launch included, so the machine must be quiet. Every run has one D: what points save by
sharing a trunk comes on top. Two peers: a shell's loop over ``loopscale train``, and one process that trains them all,
which pays for loading torch only once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from loopscale.sweep.backends.local import usable_cores
from timing import Ratio

TOKENS = 300_000
SWEEP = f"""
[sweep]
name = "speed"
[grid]
experts = [1, 4]
recurrence = [1, 2]
tokens = {TOKENS}
[base.model]
width = WIDTH
[base.data]
context = 128
[base.run]
batch = 16
validation_sequences = 64
checkpoint_every = 0
"""
LOOP = """
import json, sys
import torch
from loopscale.train.config import TrainConfig
from loopscale.train.trainer import train
torch.set_num_threads(int(sys.argv[2]))
for place, config in enumerate(json.load(open(sys.argv[1]))):
    train(TrainConfig.from_dict(config), f"{sys.argv[1]}-{place}")
"""


def as_sweep(folder: Path, configs: list[dict[str, object]]) -> None:
    """Train the runs with ``loopscale sweep run``, a worker to a core."""
    shutil.rmtree(folder / "speed", ignore_errors=True)
    _call("-m", "loopscale", "sweep", "run", str(folder / "sweep.toml"), "--quiet")


def as_launches(folder: Path, configs: list[dict[str, object]]) -> None:
    """Train each run in a process of its own, one after another, with a thread to a core."""
    for place, config in enumerate(configs):
        (folder / "one.json").write_text(json.dumps([config]))
        _loop(folder / "one.json", folder / f"one.json-{place}")


def as_one_process(folder: Path, configs: list[dict[str, object]]) -> None:
    """Train the runs one after another in one process, with a thread to a core."""
    (folder / "all.json").write_text(json.dumps(configs))
    _loop(folder / "all.json", *(folder / f"all.json-{place}" for place in range(len(configs))))


def _loop(configs: Path, *made: Path) -> None:
    for each in (configs.with_name(f"{configs.name}-0"), *made):
        shutil.rmtree(each, ignore_errors=True)
    _call("-c", LOOP, str(configs), str(len(usable_cores())))


def _call(*argv: str) -> None:
    subprocess.run([sys.executable, *argv], check=True, stdout=subprocess.DEVNULL, env=_threads())


def _threads() -> dict[str, str]:
    """Return this environment without limits on threads that the benchmark itself may run under."""
    return {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}


def measure(width: int, rounds: int) -> None:
    """Compare the three at one width."""
    from loopscale.sweep.spec import read_sweep

    ways = (as_sweep, as_launches, as_one_process)
    times: dict[str, list[float]] = {way.__name__: [] for way in ways}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sweep.toml").write_text(SWEEP.replace("WIDTH", str(width)))
        configs = [run.config.to_dict() for run in read_sweep(folder / "sweep.toml").runs]
        for _ in range(rounds):
            for way in ways:
                start = time.perf_counter()
                way(folder, configs)
                times[way.__name__].append(time.perf_counter() - start)
    ours, launched, looped = times.values()
    cores = len(usable_cores())
    rate = 3600 * len(configs) / min(ours)
    print(f"{len(configs)} runs of {TOKENS:,} tokens, width {width}, {cores} cores: {rate:.0f} runs an hour")
    print(f"  {Ratio(f'over launching them one by one, {cores} threads each, wanted 1.50', ours, launched)}")
    print(f"  {Ratio(f'over one process with {cores} threads', ours, looped)}", flush=True)


def main() -> None:
    """Run everything."""
    measure(width=32, rounds=2)
    measure(width=64, rounds=1)


if __name__ == "__main__":
    main()
