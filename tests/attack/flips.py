"""Flip single bits in files that loopscale reads back, and swap files of equal size: found, or nothing changes."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import loopscale as ls
from loopscale.core.errors import LoopscaleError
from loopscale.verify import Outcome, verify

Read = Callable[[Path], Any]


def flip(path: Path, draw: random.Random) -> int:
    """Flip one random bit of a file; return where."""
    content = bytearray(path.read_bytes())
    position = draw.randrange(len(content) * 8)
    content[position // 8] ^= 1 << position % 8
    path.write_bytes(bytes(content))
    return position


def judge(path: Path, read: Read, expected: Any, draw: random.Random) -> str:
    """Flip a bit of a file, read it, put it back; return found, harmless, SILENT or TRACEBACK."""
    original = path.read_bytes()
    flip(path, draw)
    try:
        return verdict(path, read, expected)
    finally:
        path.write_bytes(original)


def verdict(path: Path, read: Read, expected: Any) -> str:
    """Read a damaged file or folder; return found, harmless, SILENT or TRACEBACK."""
    try:
        return "harmless" if read(path) == expected else "SILENT"
    except LoopscaleError:
        return "found"
    except Exception as error:
        return f"TRACEBACK {type(error).__name__}: {error}"


def saved(path: Path) -> Any:
    """Return all numbers of a saved file."""
    loaded = ls.load(path)
    return loaded.to_dict()


def json_files(folder: Path) -> Iterator[tuple[str, Path, Read]]:
    """Yield the saved files: their kind, their path, and what reads them."""
    for name in ("law", "plan", "architecture"):
        yield name, folder / f"{name}.json", saved
    yield "fit", folder / "fit.json", lambda path: (ls.load(path).law.to_dict(), repr(ls.load(path)))
    yield "result", folder / "results" / "a" / "x.result.json", saved


def verified(folder: Path) -> Read:
    """Return what verifies ``folder`` and raises what is damaged; a file that no check covers must be harmless."""

    def read(path: Path) -> Any:
        for check in verify(folder):
            if check.outcome is Outcome.BAD:
                raise LoopscaleError(check.detail)
        return None

    return read


def folder_files(folder: Path) -> Iterator[tuple[str, Path, Read]]:
    """Yield the files of a run, a token store and a sweep: checkpoints, shards, database and summaries."""
    run = folder / "run"
    for path in sorted((run / "checkpoints").glob("step-*/*")):
        yield "checkpoint", path, verified(run)
    for path in sorted((run / "model").iterdir()):
        if path.is_file():
            yield "model", path, verified(run)
    for name in ("run.json", "summary.json"):
        yield "run", run / name, verified(run)
    for path in sorted((folder / "tokens").iterdir()):
        if path.is_file():
            yield "tokens", path, verified(folder / "tokens")


def sweep_files(folder: Path) -> Iterator[tuple[str, Path, Read]]:
    """Yield the files of a sweep's runs."""
    for path in sorted((folder / "tiny" / "runs").rglob("*")):
        if path.is_file() and path.name != ".lock":
            yield "sweep", path, lambda _: sweep_rows(folder / "tiny")


def swap_attack(files: list[tuple[str, Path, Read]], trials: int, seed: int = 0) -> Counter[tuple[str, str]]:
    """Swap pairs of files of equal size and different content; count the verdicts by kind of file."""
    draw, verdicts = random.Random(seed), Counter[tuple[str, str]]()
    sizes: dict[int, list[tuple[str, Path, Read]]] = {}
    for file in files:
        sizes.setdefault(file[1].stat().st_size, []).append(file)
    pairs = [
        (one, other)
        for group in sizes.values()
        for one in group
        for other in group
        if one[1] < other[1] and one[1].read_bytes() != other[1].read_bytes()
    ]
    for _ in range(trials):
        one, other = draw.choice(pairs)
        expected = [read(path) for _, path, read in (one, other)]
        contents = [path.read_bytes() for _, path, _ in (one, other)]
        one[1].write_bytes(contents[1])
        other[1].write_bytes(contents[0])
        try:
            found = {
                verdict(path, read, wanted) for (_, path, read), wanted in zip((one, other), expected, strict=True)
            }
        finally:
            for (_, path, _), content in zip((one, other), contents, strict=True):
                path.write_bytes(content)
        bad = [word for word in found if word not in ("found", "harmless")]
        verdicts[f"swap of {one[0]} files", bad[0] if bad else "found" if "found" in found else "harmless"] += 1
    return verdicts


def sweep_rows(folder: Path) -> Any:
    """Return every observation of a sweep, verified."""
    from loopscale.sweep.store import Store

    for check in verify(folder):
        if check.outcome is Outcome.BAD:
            raise LoopscaleError(check.detail)
    with Store(folder) as store:
        return list(store.observations())


def judge_sweep(folder: Path, scratch: Path, draw: random.Random) -> str:
    """Flip a bit of a copy of a sweep's database; return the verdict."""
    expected = sweep_rows(folder)
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(folder, scratch)
    flip(scratch / "sweep.sqlite", draw)
    return verdict(scratch, sweep_rows, expected)


def attack(files: list[tuple[str, Path, Read]], trials: int, seed: int = 0) -> Counter[tuple[str, str]]:
    """Flip bits in the files in turn; count the verdicts by kind of file."""
    draw, verdicts = random.Random(seed), Counter[tuple[str, str]]()
    expected = {path: read(path) for _, path, read in files}
    for trial in range(trials):
        kind, path, read = files[trial % len(files)]
        verdicts[kind, judge(path, read, expected[path], draw)] += 1
    return verdicts
