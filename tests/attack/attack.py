"""The attacks at length: ``make attack``. It prints trials and failures by kind; the table is in docs/security.md.

python tests/attack/attack.py                        everything
python tests/attack/attack.py fuzz --trials 20000    one attack
python tests/attack/attack.py --state FOLDER         where finished parts are kept: a second call does only the rest
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the helpers of all tests
sys.path.insert(0, str(Path(__file__).parent))

import api
import differential
import disks
import flips
import fuzz
import kills
import soak
from artefacts import make_files, make_folders, make_sweep_folder, make_tables

HERE = Path(__file__).resolve().parent
GOOD = ("works", "refused", "found", "harmless", "exact", "not run")
PART = 250
"""Trials of one part: a process of its own, whose memory is measured."""
API = 0.5
"""Share of generated trials that are requests to the API."""


def prepare(folder: Path) -> None:
    """Write the files that generated commands name."""
    make_files(folder)
    make_tables(folder)
    make_folders(folder)
    make_sweep_folder(folder)


SUMS = dict[str, Counter[str]]()
"""Verdicts of each attack, over all its kinds."""


def show(title: str, verdicts: Counter[tuple[str, str]]) -> int:
    """Print a table of trials by kind and verdict; return how many were bad."""
    print(f"\n{title}: {sum(verdicts.values()):,} trials", flush=True)
    for kind in sorted({kind for kind, _ in verdicts}):
        row = {verdict: count for (name, verdict), count in verdicts.items() if name == kind}
        print(f"  {kind:18} " + "  ".join(f"{verdict} {count:,}" for verdict, count in sorted(row.items())))
    bad = sum(count for (_, verdict), count in verdicts.items() if verdict not in GOOD)
    print(f"  failures {bad}", flush=True)
    for (_, verdict), count in verdicts.items():
        SUMS.setdefault(title, Counter())[verdict if verdict in GOOD else "FAILED"] += count
    return bad


def as_part(path: Path, verdicts: Counter[tuple[str, str]], bad: list[Any], seconds: float) -> None:
    """Keep the result of a part, with the most memory that this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    rows = [[kind, verdict, count] for (kind, verdict), count in sorted(verdicts.items())]
    data = {"verdicts": rows, "bad": bad, "peak_bytes": peak, "seconds": round(seconds, 1)}
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(data, indent=1))
    partial.rename(path)


def run_part(options: argparse.Namespace) -> None:
    """Run one part of the generated trials in this process."""
    start, state = time.monotonic(), Path(options.state).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "files"
        shutil.copytree(state / "files", folder)
        os.chdir(folder)
        if options.part.startswith("api"):
            verdicts, bad = api.attack(folder, PART, seed=options.seed)
        elif options.part.startswith("schemathesis"):
            verdicts, bad = api.schemathesis_attack(20, options.seed)
        else:
            verdicts, bad = fuzz.attack(folder, PART, options.seed, keep=state / "bad")
        as_part(state / f"{options.part}.json", verdicts, bad, time.monotonic() - start)


def fuzz_all(options: argparse.Namespace) -> int:
    """Run the generated trials in parts; parts that a former call finished are not run again."""
    state = Path(options.state).resolve()
    made(options)
    parts = max(options.trials // PART, 1)
    requests = round(parts * API)
    names = [f"api-{number}" for number in range(requests)] + ["schemathesis-0"]
    names += [f"commands-{number}" for number in range(parts - requests)]
    for name in names:
        if not (state / f"{name}.json").is_file():
            number = options.seed + int(name.rpartition("-")[2])
            command = [sys.executable, __file__, "part", "--part", name, "--seed", str(number)]
            subprocess.run([*command, "--state", str(state)], check=True)
    return report_parts([state / f"{name}.json" for name in names])


def report_parts(paths: list[Path]) -> int:
    """Print the sums over all parts; return the failures, a peak above 2 GB among them."""
    verdicts, peak, seconds, bad = Counter[tuple[str, str]](), 0, 0.0, []
    for path in paths:
        data = json.loads(path.read_text())
        verdicts += Counter({(kind, verdict): count for kind, verdict, count in data["verdicts"]})
        peak, seconds, bad = max(peak, data["peak_bytes"]), seconds + data["seconds"], bad + data["bad"]
    failures = show("generated commands, files and requests", verdicts)
    works = sum(count for (_, verdict), count in verdicts.items() if verdict == "works")
    print(f"  works {works / max(verdicts.total(), 1):.0%}; most memory {peak / 1e9:.2f} GB; {seconds:.0f} s")
    for argv, verdict in bad[:40]:
        print(f"  {verdict}: {' '.join(map(repr, argv))[:300]}")
    return failures + (peak > 2e9) + (3 * works < verdicts.total())


def flip_all(options: argparse.Namespace) -> int:
    """Flip bits in every kind of file that is read back."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.chdir(folder)
        make_files(folder)
        verdicts = flips.attack(list(flips.json_files(folder)), options.flips, options.seed)
        make_folders(folder)
        verdicts += flips.attack(list(flips.folder_files(folder)), options.flips, options.seed)
        draw = random.Random(options.seed)
        for _ in range(options.flips):
            verdicts["database", flips.judge_sweep(folder / "tiny", folder / "copy", draw)] += 1
        every = [*flips.json_files(folder), *flips.folder_files(folder), *flips.sweep_files(folder)]
        verdicts += flips.swap_attack(every, options.flips // 2, options.seed)
    return show("bit flips and swaps", verdicts)


def differential_all(options: argparse.Namespace) -> int:
    """Ask random questions on every surface."""
    verdicts, bad = differential.attack(options.trials, options.seed)
    for question in bad[:40]:
        print(f"  {question}")
    return show("differential and metamorphic questions", verdicts)


def power_all(options: argparse.Namespace) -> int:
    """Simulate power cuts at every moment, and train on from all of them."""
    code = pytest_of("test_power_cuts.py", {"LOOPSCALE_RESUMED": "1000"}, "-s")  # prints how many cuts
    return show("power cuts", Counter({("power cuts", "exact" if code == 0 else "FAILED"): 1}))


def kill_all(options: argparse.Namespace) -> int:
    """Kill training, with checkpoints that are written in the background."""
    folder = Path(options.state) / "kills"
    folder.mkdir(exist_ok=True)
    counts = kills.attack(folder, options.kills, options.seed)
    verdicts = Counter({("kill -9 of training", verdict): counts[verdict] for verdict in ("exact", "DIFFERENT")})
    return show(f"kills in {counts['rounds']} runs", verdicts)


def sweep_all(options: argparse.Namespace) -> int:
    """Disturb sweeps on every backend."""
    import disturbances

    verdicts = Counter[tuple[str, str]]()
    for backend in options.backend or disturbances.BACKENDS:
        verdicts += disturbances.attack(Path(options.state) / "sweeps", backend, options.disturbances, options.seed)
    return show("disturbances of sweeps", verdicts)


def disk_all(options: argparse.Namespace) -> int:
    """Fill disks of several sizes."""
    folder = made(options)
    with tempfile.TemporaryDirectory() as name:
        shutil.copytree(folder, Path(name) / "files")
        os.chdir(Path(name) / "files")
        verdicts = disks.attack(Path(name) / "files")
        os.chdir("/")
    return show("full disks", verdicts)


def store_all(options: argparse.Namespace) -> int:
    """Two writers, clocks ten minutes apart, lost and damaged databases: the tests of those, again."""
    verdicts = Counter[tuple[str, str]]()
    for name, file, chosen in STORES:
        verdicts[name, "exact" if pytest_of(file, {}, "-k", chosen) == 0 else "FAILED"] += 1
    return show("two writers, clocks and databases", verdicts)


STORES = (
    ("two writers of a run", "../train/test_run_safety.py", "two_processes"),
    ("workers that claim at once", "../sweep/test_store.py", "claim_at_once"),
    ("clocks apart", "../sweep/test_store.py", "clocks_of_two_machines"),
    ("database lost or damaged", "../sweep/test_rebuild.py", "rebuild or full_disk or cannot_grow"),
)


def soak_all(options: argparse.Namespace) -> int:
    """Keep the explorer busy and watch its memory."""
    measured = soak.soak(options.soak, 50.0, min(60.0, options.soak / 4))
    print(json.dumps(measured, indent=1))
    left = measured["files_left"] or measured["processes_left"]
    good = measured["server_errors"] == 0 and measured["growth"] <= 1.2 and not left
    return show("soak", Counter({("soak", "works" if good else "FAILED"): measured["requests"]}))


def pytest_of(file: str, environment: dict[str, str], *options: str) -> int:
    """Run tests in a process of their own; return its exit code."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / file), *options]
    return subprocess.run(command, cwd=HERE.parents[1], env={**os.environ, **environment}).returncode


def made(options: argparse.Namespace) -> Path:
    """Return a folder with one of everything, made by the first attack that needs it."""
    folder = Path(options.state) / "files"
    if not folder.is_dir():
        with tempfile.TemporaryDirectory(dir=options.state) as name:
            fresh = Path(name) / "files"
            fresh.mkdir()
            os.chdir(fresh)
            prepare(fresh)
            os.chdir(options.state)
            fresh.rename(folder)
    return folder


ATTACKS: dict[str, Callable[[argparse.Namespace], int]] = {
    "fuzz": fuzz_all, "flips": flip_all, "power": power_all, "kills": kill_all, "disks": disk_all, "stores": store_all,
    "soak": soak_all, "sweeps": sweep_all, "differential": differential_all,
}  # fmt: skip


def main() -> None:
    """Run the attacks that are asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("attack", nargs="*", choices=[*ATTACKS, "part", []], help="[default: all]")
    parser.add_argument("--trials", type=int, default=20_000, help="generated commands and requests")
    parser.add_argument("--flips", type=int, default=300, help="flips in each kind of file, and half as many swaps")
    parser.add_argument("--kills", type=int, default=200, help="kills of training")
    parser.add_argument("--disturbances", type=int, default=70, help="disturbances of sweeps on each backend")
    parser.add_argument("--backend", action="append", help="disturb sweeps on this backend only")
    parser.add_argument("--soak", type=float, default=3600.0, help="seconds of the soak")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--state", default="out/attack", help="where finished parts are kept")
    options = parser.parse_args()
    Path(options.state).mkdir(parents=True, exist_ok=True)
    options.state = str(Path(options.state).resolve())
    if options.attack == ["part"]:
        run_part(options)
        return
    failures = sum(ATTACKS[name](options) for name in options.attack or ATTACKS)
    print("\ntrials by kind of attack")
    for title, verdicts in SUMS.items():
        row = "  ".join(f"{verdict} {count:,}" for verdict, count in sorted(verdicts.items()))
        print(f"  {title:40} {verdicts.total():>8,}  {row}")
    print(f"  {'all':40} {sum(verdicts.total() for verdicts in SUMS.values()):>8,}  failures {failures:,}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
