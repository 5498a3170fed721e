"""Commands that write to a disk which fills up: one sentence, the old file as it was, and nothing half written."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fuzz import call

from loopscale.core.errors import LoopscaleError
from loopscale.verify import Outcome, verify

KILOBYTES = (4, 12, 40, 120, 400, 1200)
"""Sizes of the disk, from one that holds nothing to one that holds all."""
PREDICT = ("--rung", "0.3B", "--tokens", "1T", "--register")
FIGURE = ("--only", "test-time", "--test-time", "test-time.csv", "--format", "png", "--out")


@contextmanager
def small_disk(folder: Path, kilobytes: int) -> Iterator[Path | None]:
    """Mount a small disk; None where that is not permitted."""
    folder.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    try:
        yield folder if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def commands(disk: Path, folder: Path) -> dict[str, tuple[list[str], list[Path]]]:
    """Return commands that write to the disk, and what each writes."""
    files = {name: disk / name for name in ("law.json", "plan.json", "plan.html", "p.json", "out.csv", "report.md")}
    tokens = f"data.folder={disk / 'tokens'}"
    return {
        "fit": (["fit", "dense.csv", "--resamples", "20", "--out", str(files["law.json"])], [files["law.json"]]),
        "plan": (["plan", "--flops", "5e21", "--out", str(files["plan.json"])], [files["plan.json"]]),
        "predict": (["predict", *PREDICT, str(files["p.json"])], [files["p.json"]]),
        "report": (["report", "evaluation", "results.csv", "--out", str(files["plan.html"])], [files["plan.html"]]),
        "export": (["sweep", "export", "sweepdir/sweep.toml", "--out", str(files["out.csv"])], [files["out.csv"]]),
        "figures": (["figures", *FIGURE, str(disk / "f")], []),
        "eval": (["eval", "model", "--text", "prompts.txt", "--results", str(disk / "r")], [disk / "r"]),
        "tokens": (["train", "run.toml", "--check", "--set", tokens], [disk / "tokens"]),
        "convert": (["convert", "plain", "--prelude", "1", "--coda", "1", "--out", str(disk / "m")], [disk / "m"]),
        "unrolled": (["export", "model", "--to", "unrolled", "-R", "2", "--out", str(disk / "u")], [disk / "u"]),
        "gguf": (["export", "model", "--to", "gguf", "-R", "2", "--out", str(disk / "u.new")], []),
        "train": (["train", "run.toml", "--quiet", "--out", str(disk / "run")], [disk / "run"]),
    }  # fmt: skip


def judge(argv: list[str], outputs: list[Path]) -> str:
    """Run a command on a disk of any size; return works, refused or what is wrong."""
    before = {path: path.read_bytes() for path in outputs if path.is_file()}
    verdict = call(argv)
    if verdict == "refused":
        changed = [path.name for path, content in before.items() if path.read_bytes() != content]
        return f"CHANGED {changed}" if changed else _sound(outputs)
    if verdict != "works":
        return verdict
    missing = [path.name for path in outputs if not path.exists()]
    return f"MISSING {missing}" if missing else ("works" if _sound(outputs) == "refused" else _sound(outputs))


def _sound(outputs: list[Path]) -> str:
    """Return refused if nothing that was left is damaged."""
    for path in outputs:
        if not path.is_dir() or not any(path.iterdir()):
            continue
        try:
            bad = [check.detail for check in verify(path) if check.outcome is Outcome.BAD]
        except LoopscaleError:  # nothing there yet that has a name
            bad = []
        if bad:
            return f"DAMAGED {bad[0]}"
    return "refused"


def attack(folder: Path, sizes: tuple[int, ...] = KILOBYTES) -> Counter[tuple[str, str]]:
    """Run every command on disks of several sizes, the current folder holding the inputs."""
    verdicts, disk = Counter[tuple[str, str]](), folder / "disk"
    for kilobytes in sizes:
        for name in commands(disk, folder):
            with small_disk(disk, kilobytes) as mounted:
                if mounted is None:
                    verdicts[f"disk full: {name}", "not run"] += 1
                    continue
                argv, outputs = commands(disk, folder)[name]
                for path in outputs:
                    if path.suffix:
                        path.write_text("old")
                verdict = judge(argv, outputs)
                left = [path for path in disk.rglob(".*") if path.is_file() and path.name != ".lock"]
                if verdict == "refused" and name not in ("train", "tokens") and left:
                    verdict = f"LEFT {left[0].name}"
                verdicts[f"disk full: {name}", verdict] += 1
    shutil.rmtree(disk, ignore_errors=True)
    os.chdir(folder)
    return verdicts
