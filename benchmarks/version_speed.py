"""This version against another one: ``python benchmarks/version_speed.py OTHER [ROUNDS] [commands|training|sweeps]``.

OTHER is the ``src`` folder of the other version, for example of a worktree of an older commit. Commands run in turn,
and their CPU time is compared, start included; other work on the machine matters little. Both versions train at the
same time, each on one core, and change cores every round; of their CPU time a short run is subtracted from a long one,
because both pay for starting. Sweeps use both cores and run one after the other: wall time, for which the machine must
be quiet.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from timing import Ratio, compare

HERE = Path(__file__).parents[1] / "src"
TRAIN = """
[model]
width = 128
layers = 6
edge_layers = 2
head_size = 32
kv_heads = 2
experts = 4
recurrence = 2
[data]
context = 256
[run]
tokens = TOKENS
batch = 8
checkpoint_every = 0
log_every = 4
compile = COMPILE
"""
SAME_FORM = ("--outer", "joint-moe", "--mapping", "sparsity-conditional")
COMMANDS = {
    "--help": ("--help",),
    "train --help": ("train", "--help"),
    "sweep --help": ("sweep", "--help"),
    "plan": ("plan", "--flops", "5e21", "--memory", "3GB"),
    "predict": ("predict", "--rung", "1.0B", "--tokens", "1T", "--experts", "8", "--recurrence", "2"),
    "fit": ("fit", "micro"),
    "fit of the same form": ("fit", "micro", *SAME_FORM),
    "backtest": ("backtest", "micro"),
    "backtest of the same form": ("backtest", "micro", *SAME_FORM),
}
"""Commands that both versions have. A form that is named is not compared with others, as 0.2 never did."""
STEP_TOKENS, SHORT, LONG = 8 * 256, 4, 44
SWEEP = """
[sweep]
name = "speed"
[base.model]
width = 32
layers = 3
edge_layers = 1
head_size = 8
[base.data]
context = 128
[base.run]
batch = 8
checkpoint_every = 0
validation_sequences = 64
[grid]
experts = [1, 4]
recurrence = [1, 2]
seed = [0, 1]
tokens = [100000, 200000]
"""


def start(folder: Path, source: Path, *command: str) -> subprocess.Popen[bytes]:
    """Start ``loopscale COMMAND`` of the version in ``source``."""
    for old in ("out", "speed"):
        shutil.rmtree(folder / old, ignore_errors=True)
    names = {"TORCHINDUCTOR_CACHE_DIR": "compiled", "XDG_CACHE_HOME": "cache", "PYTHONPYCACHEPREFIX": "bytecode"}
    caches = {name: str(folder / cache) for name, cache in names.items()}
    variables = {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", **caches}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    variables = {**os.environ, **variables}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    return subprocess.Popen(command, cwd=folder, env=variables, **quiet)


def cpu_seconds(folder: Path, sources: tuple[Path, Path], cores: tuple[int, int], file: str) -> list[float]:
    """Train with both versions at once, each on its core; return the CPU time of each."""
    command = (sys.executable, "-m", "loopscale", "train", file, "--out", "out", "--quiet")
    started = [
        start(folder / name, source, "taskset", "-c", str(core), *command)
        for name, source, core in zip(("ours", "peer"), sources, cores, strict=True)
    ]
    return [finished(process) for process in started]


def finished(process: subprocess.Popen[bytes]) -> float:
    """Wait for a command; return its CPU time."""
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{process.args} failed")
    return usage.ru_utime + usage.ru_stime


def commands(folder: Path, sources: tuple[Path, Path], rounds: int) -> Iterator[Ratio]:
    """Yield the ratio of the CPU time of each command; the first round of each is not counted."""
    for name, arguments in COMMANDS.items():
        used: tuple[list[float], list[float]] = ([], [])
        for place in range(rounds + 1):
            for side in (0, 1) if place % 2 else (1, 0):
                seconds = finished(start(folder, sources[side], sys.executable, "-m", "loopscale", *arguments))
                used[side].extend([seconds] if place else [])
        yield Ratio(f"loopscale {name}, CPU time, over the other version", *used)


def write(folder: Path, name: str, text: str) -> None:
    """Write a settings file for both versions."""
    for side in ("ours", "peer"):
        (folder / side).mkdir(exist_ok=True)
        (folder / side / name).write_text(text)


def training(folder: Path, sources: tuple[Path, Path], rounds: int, compiled: bool) -> Ratio:
    """Return the ratio of the CPU time of a training step."""
    settings = TRAIN.replace("COMPILE", str(compiled).lower())
    write(folder, "short.toml", settings.replace("TOKENS", str(SHORT * STEP_TOKENS)))
    write(folder, "long.toml", settings.replace("TOKENS", str(LONG * STEP_TOKENS)))
    steps: tuple[list[float], list[float]] = ([], [])
    for place in range(rounds):
        cores = (place % 2, 1 - place % 2)
        short, long = (cpu_seconds(folder, sources, cores, file) for file in ("short.toml", "long.toml"))
        for side, each in enumerate(steps):
            each.append((long[side] - short[side]) / (LONG - SHORT))
    return Ratio(f"training step, width 128, R = 2{', compiled' if compiled else ''}, over the other version", *steps)


def sweeps(folder: Path, sources: tuple[Path, Path], rounds: int) -> Ratio:
    """Return the ratio of the wall time of a sweep of eight runs with two workers, starting included."""
    write(folder, "speed.toml", SWEEP)
    command = (sys.executable, "-m", "loopscale", "sweep", "run", "speed.toml", "--workers", "2", "--quiet")

    def run(name: str, source: Path) -> None:
        if start(folder / name, source, *command).wait():
            sys.exit("loopscale sweep run failed")

    name = "sweep of 8 runs of 200,000 tokens, width 32, 2 workers, over the other version"
    return compare(name, lambda: run("ours", sources[0]), lambda: run("peer", sources[1]), rounds)


def main(other: Path, rounds: int = 4, part: str = "") -> None:
    """Print the ratios, of all parts or one; above 1 this version is faster."""
    sources = (HERE, other.resolve())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if part in ("", "commands"):
            for ratio in commands(folder, sources, rounds):
                print(ratio, flush=True)
        if part in ("", "training"):
            for compiled in (False, True):
                print(training(folder, sources, rounds, compiled), flush=True)
        if part in ("", "sweeps"):
            print(sweeps(folder, sources, rounds), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:3]), *sys.argv[3:])
