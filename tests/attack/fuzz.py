"""Generate commands and files from grammars: most are right, so that deep paths are reached, and some are odd.

A trial is bad if a command ends in an exception, exits with another code than 0, 1 (verify) or 2, or refuses with
anything but one line.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import random
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loopscale.cli import main

ODD = [
    "",
    "0",
    "-1",
    "nan",
    "inf",
    "1e400",
    "10" * 200,
    "1e-300",
    "x",
    "é",
    "1..",
    "--",
    "[[[[",
    "\t",
    "9" * 5000,
    "1,,2",
    "٣",
]
ODD_VALUES: list[Any] = [
    None, True, -1, 0, 10**30, 10**400, 1e300, -1e-300, "", "x", "nan", [], {}, [[[]]], {"a": {}}, "1" * 3000, 5e-324,
]  # fmt: skip
RUNGS = ["0.3B", "0.6B", "1.0B", "1.6B", "2.4B"]
LAWS = ["looped-moe-2026", "chinchilla-2022", "epoch-2024", "law.json", "fit.json", "mutant.json"]


class Grammar:
    """Draws the options of a command; one in fifty values is odd."""

    def __init__(self, draw: random.Random, odd: float = 0.02) -> None:
        self.draw, self.odd = draw, odd

    def value(self, *good: str) -> str:
        """Return one of the good values, or rarely an odd one."""
        return self.draw.choice(ODD) if self.draw.random() < self.odd else self.draw.choice(good)

    def maybe(self, option: str, *good: str, chance: float = 0.3) -> list[str]:
        """Return an option with a value, or nothing."""
        return [option, self.value(*good)] if self.draw.random() < chance else []

    def flag(self, option: str, chance: float = 0.15) -> list[str]:
        """Return a flag, or nothing."""
        return [option] if self.draw.random() < chance else []


def plan(g: Grammar) -> list[str]:
    """``loopscale plan``."""
    compute = g.draw.choice([
        ["--flops", g.value("5e21", "1e20", "1e22", "3e18")],
        ["--gpu-hours", g.value("1000", "50k"), "--device", g.value("h100", "a100")],
        ["--like", g.value("0.6B:8:1", "0.3B:1:1"), "--like-tokens", g.value("6T", "100B")],
        ["--gpus", g.value("8", "1"), "--device", g.value("h100"), "--days", g.value("14", "1")],
    ])  # fmt: skip
    return [
        "plan", *compute, *g.maybe("--memory", "3GB", "1GB", "8GiB", "500MB"), *g.maybe("--bits", "4", "int4", "bf16"),
        *g.maybe("--context", "8192", "32k"), *g.maybe("--serve-tokens", "1T"), *g.maybe("--inference-flops", "2e9"),
        *g.maybe("--rung", *RUNGS, "0.3B,1.0B"), *g.maybe("--experts", "8", "1,2,4", "1..16"),
        *g.maybe("--recurrence", "1..4", "2"), *g.maybe("--law", *LAWS), *g.maybe("--eps", "0.001"),
        *g.maybe("--max-tokens", "10T"), *g.maybe("--top", "3"), *g.flag("--json"), *g.flag("--csv"),
        *g.flag("--extrapolate", 0.5), *g.flag("--continuous"), *g.maybe("--rule", "paper", "loss", chance=0.1),
    ]  # fmt: skip


def predict(g: Grammar) -> list[str]:
    """``loopscale predict``."""
    model = g.draw.choice(
        [["--rung", g.value(*RUNGS)], ["--width", g.value("768", "256")], ["--config", "config.json"]]
    )
    return [
        "predict", *model, "--tokens", g.value("500B", "1T", "20e9"),
        *(g.maybe("--experts", "8", "1", "2.5") if model[0] != "--config" else []),
        *g.maybe("--recurrence", "1", "2", "4"), *g.maybe("--law", *LAWS), *g.flag("--json"),
    ]  # fmt: skip


def profile(g: Grammar) -> list[str]:
    """``loopscale profile``."""
    kind = g.value("joint", "recurrence", "best-recurrence", "experts", "size")
    given = {"joint": ["--memory", g.value("1GB,3GB", "10GB"), "--bits", "4"]}.get(kind, [])
    return ["profile", kind, *given, *g.maybe("--law", *LAWS), *g.flag("--csv"), *g.flag("--json")]


def count(g: Grammar) -> list[str]:
    """``loopscale count``."""
    model = g.draw.choice(
        [["--rung", g.value(*RUNGS)], ["--width", g.value("512", "1024")], ["config.json"], ["mutant-config.json"]]
    )
    plain = model[0].startswith("--")
    return [
        "count", *model, *(g.maybe("--experts", "8", "16") if plain else []), *g.maybe("--bits", "4", "fp8"),
        *g.maybe("--context", "8192", "32k"), *g.flag("--json"),
    ]  # fmt: skip


def laws(g: Grammar) -> list[str]:
    """``loopscale laws`` and ``loopscale schema``."""
    return g.draw.choice([
        ["laws", *([g.value(*LAWS)] if g.draw.random() < 0.7 else []), *g.flag("--json")],
        ["schema", *([g.value("law", "plan", "architecture")] if g.draw.random() < 0.8 else [])],
    ])  # fmt: skip


def check(g: Grammar) -> list[str]:
    """``loopscale verify``."""
    return ["verify", g.value("law.json", "plan.json", "runs.csv", "mutant.json", "results"), *g.flag("--json")]


def fit(g: Grammar) -> list[str]:
    """``loopscale fit`` on good and mutated tables."""
    return ["fit", g.value("dense.csv", "mutant.csv", "mutant.csv"), "--resamples", g.value("2"), *g.flag("--json")]


COMMANDS: dict[str, tuple[Callable[[Grammar], list[str]], float]] = {
    "plan": (plan, 30), "predict": (predict, 30), "profile": (profile, 4), "count": (count, 15), "laws": (laws, 10),
    "verify": (check, 8), "fit": (fit, 3),
}  # fmt: skip
"""The grammar of each command, and how often it is drawn."""


def mutated(data: Any, draw: random.Random) -> Any:
    """Return JSON-like data with one value changed, removed, added or nested."""
    data = copy.deepcopy(data)
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        items = (
            list(value.items())
            if isinstance(value, dict)
            else list(enumerate(value))
            if isinstance(value, list)
            else []
        )
        for key, item in items:
            places.append((value, key))
            walk(item)

    walk(data)
    if not places:
        return data
    parent, key = draw.choice(places)
    kind = draw.random()
    if kind < 0.3 and isinstance(parent[key], int | float) and not isinstance(parent[key], bool):
        parent[key] = parent[key] * draw.choice([0.9, 1.1, 1.5])  # another number, which is often right
    elif kind < 0.75:
        parent[key] = draw.choice(ODD_VALUES)
    elif kind < 0.9 and isinstance(parent, dict):
        del parent[key]
    elif isinstance(parent, dict):
        parent[str(key) + "x"] = parent[key]
    return data


def mutate_table(text: str, draw: random.Random) -> str:
    """Return a CSV table with one cell, row or column changed."""
    rows = [line.split(",") for line in text.strip().splitlines()]
    row, column = draw.randrange(len(rows)), draw.randrange(len(rows[0]))
    kind = draw.random()
    if kind < 0.4:
        rows[row][column] = draw.choice([*ODD, "1e300", "1e-300", "1e9"])
    elif kind < 0.6:
        del rows[row][column]
    elif kind < 0.8:
        del rows[row]
    else:
        rows.append(rows[-1])
    return "\n".join(",".join(cells) for cells in rows) + "\n"


class Files:
    """The files that the commands name, in the current folder; some are mutated anew for each trial."""

    def __init__(self, folder: Path, draw: random.Random) -> None:
        self.folder, self.draw = folder, draw
        self.law = json.loads((folder / "law.json").read_text())
        self.law.pop("checksum", None)
        self.config = json.loads((folder / "config.json").read_text())
        self.table = (folder / "dense.csv").read_text()

    def renew(self) -> None:
        """Mutate."""
        for name, data in (("mutant.json", self.law), ("mutant-config.json", self.config)):
            try:
                text = json.dumps(mutated(data, self.draw))
            except (ValueError, RecursionError):
                continue
            (self.folder / name).write_text(text)
        (self.folder / "mutant.csv").write_text(mutate_table(self.table, self.draw), encoding="utf-8")


def call(argv: list[str]) -> str:
    """Run a command in this process; return works, refused, or what is wrong."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main(argv)
    except SystemExit as stop:
        if stop.code in (0, 1) and (stop.code == 0 or argv[0] == "verify"):
            return "works"
        lines = err.getvalue().strip().splitlines()
        return "refused" if stop.code == 2 and len(lines) == 1 else f"EXIT {stop.code} {lines[:2]}"
    except Exception as error:
        return f"TRACEBACK {type(error).__name__}: {str(error)[:120]}"
    return "works"


def attack(folder: Path, trials: int, seed: int = 0) -> tuple[Counter[tuple[str, str]], list[tuple[list[str], str]]]:
    """Run generated commands; return the counts by command and verdict, and the bad trials."""
    draw = random.Random(seed)
    files, grammar = Files(folder, draw), Grammar(draw)
    verdicts, bad = Counter[tuple[str, str]](), []
    names = list(COMMANDS)
    weights = [weight for _, weight in COMMANDS.values()]
    for _ in range(trials):
        files.renew()
        name = draw.choices(names, weights)[0]
        argv = COMMANDS[name][0](grammar)
        verdict = call(argv)
        verdicts[name, verdict if verdict in ("works", "refused") else "BAD"] += 1
        if verdict not in ("works", "refused"):
            bad.append((argv, verdict))
            if "mutant.json" in argv or "mutant.csv" in argv or "mutant-config.json" in argv:
                kept = folder / f"bad-{len(bad)}"
                kept.mkdir(exist_ok=True)
                for mutant in folder.glob("mutant*"):
                    (kept / mutant.name).write_bytes(mutant.read_bytes())
    return verdicts, bad


def mutate_toml(text: str, draw: random.Random) -> dict[str, Any]:
    """Return the values of a TOML file with one changed."""
    return dict(mutated(tomllib.loads(text), draw))
