"""Generate commands from grammars: most are right, so that deep paths are reached, and some options or files are odd.

A trial is bad if a command ends in an exception, exits with another code than 0, 1 (verify, conform) or 2, refuses with
anything but one line, prints JSON that is not strict, or computes for longer than a minute.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
import signal
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mutants import ODD, Files

from loopscale.cli import main

RUNGS = ["0.3B", "0.6B", "1.0B", "1.6B", "2.4B"]
LAWS = ["looped-moe-2026", "chinchilla-2022", "chinchilla-epoch-2024", "law.json", "fit.json", "law.json"]
LONGEST = 60.0
"""Seconds of computing that a trial may take."""


class Grammar:
    """Draws the options of a command; one in fifty values is odd."""

    def __init__(self, draw: random.Random, files: Files, odd: float = 0.02) -> None:
        self.draw, self.files, self.odd = draw, files, odd

    def value(self, *good: str) -> str:
        """Return one of the good values, or rarely an odd one."""
        return self.draw.choice(ODD) if self.draw.random() < self.odd else self.draw.choice(good)

    def maybe(self, option: str, *good: str, chance: float = 0.3) -> list[str]:
        """Return an option with a value, or nothing."""
        return [option, self.value(*good)] if self.draw.random() < chance else []

    def flag(self, option: str, chance: float = 0.15) -> list[str]:
        """Return a flag, or nothing."""
        return [option] if self.draw.random() < chance else []

    def coin(self, chance: float) -> bool:
        """Return True with this chance."""
        return self.draw.random() < chance

    def odd_one(self) -> bool:
        """Return True one time in twenty."""
        return self.coin(0.05)

    def law(self, chance: float = 0.3) -> list[str]:
        """Return ``--law`` with a published law, a file or a changed file, or nothing."""
        if self.draw.random() >= chance:
            return []
        name = self.value(*LAWS)
        return ["--law", self.files(name) if name.endswith(".json") else name]

    def output(self) -> list[str]:
        """Return ``--json``, ``--csv`` or nothing."""
        return self.draw.choice([[], [], ["--json"], ["--csv"]])


def plan(g: Grammar) -> list[str]:
    """``loopscale plan``."""
    compute = g.draw.choice([
        ["--flops", g.value("5e21", "1e20", "1e22", "3e18")],
        ["--gpu-hours", g.value("1000", "50k"), "--device", g.value("h100", "a100")],
        ["--like", g.value("0.6B:8:1", "0.3B:1:1"), "--like-tokens", g.value("6T", "100B")],
        ["--gpus", g.value("8", "1"), "--device", g.value("h100"), "--days", g.value("14", "1")],
        ["--dollars", g.value("5000"), "--price", g.value("2.5"), "--device", g.value("h100")],
        ["--tokens", g.value("1T", "100B")],
    ])  # fmt: skip
    space = g.draw.choice([
        g.maybe("--rung", *RUNGS, "0.3B,1.0B"), g.maybe("--width", "512,1024", "256"), g.flag("--continuous"),
    ])  # fmt: skip
    memory = g.maybe("--memory", "3GB", "1GB", "8GiB", "500MB", chance=0.5)
    if memory and g.coin(0.5):
        memory += ["--context", g.value("8192", "32k"), *g.maybe("--batch", "4"), *g.maybe("--kv-bits", "8")]
        memory += g.maybe("--kept-passes", "2")
    return [
        "plan", *compute, *space, *memory, *g.maybe("--bits", "4", "int4", "bf16"),
        *g.maybe("--serve-tokens", "1B", "1T", chance=0.15), *g.maybe("--inference-flops", "2e9", "9e9", chance=0.2),
        *g.maybe("--experts", "8", "1,2,4", "1..16"), *g.maybe("--recurrence", "1..4", "2"), *g.law(),
        *g.maybe("--eps", "0.001"), *(g.maybe("--max-tokens", "10T") if compute[0] != "--tokens" else []),
        *g.maybe("--unique-tokens", "1T", chance=0.1), *g.maybe("--top", "3"),
        *g.output(), *g.flag("--extrapolate", 0.8), *g.maybe("--rule", "paper", "loss", chance=0.1),
        *g.maybe("--for", "phone", "laptop-16gb", chance=0.05),
        *(["--out", g.files.new(".json")] if g.odd_one() else []),
    ]  # fmt: skip


def predict(g: Grammar) -> list[str]:
    """``loopscale predict``."""
    model = g.draw.choice([
        ["--rung", g.value(*RUNGS)], ["--width", g.value("768", "256")], ["--config", g.files("config.json")],
    ])  # fmt: skip
    if g.odd_one():
        return ["predict", "--params", g.value("7e9", "1B"), "--tokens", "1T", "--law", g.value("chinchilla-2022")]
    if g.odd_one():
        return ["predict", "--check", g.files("registered.json"), "--loss", g.value("2.1", "3")]
    return [
        "predict", *model, g.draw.choice(["--tokens", "--tokens", "--flops"]), g.value("500B", "1T", "20e9", "5e21"),
        *(g.maybe("--experts", "8", "1", "2.5") if model[0] != "--config" else []),
        *g.maybe("--recurrence", "1", "2", "4"), *g.law(), *g.output(), *g.flag("--extrapolate", 0.4),
    ]  # fmt: skip


def profile(g: Grammar) -> list[str]:
    """``loopscale profile``."""
    kind = g.value("joint", "recurrence", "best-recurrence", "experts", "size")
    given = {"joint": ["--memory", g.value("1GB,3GB", "10GB"), "--bits", "4"]}.get(kind, [])
    return [
        "profile", kind, *given, *g.law(), *g.output(), *g.maybe("--rung", "0.3B", "0.6B,1.0B"),
        *g.maybe("--flops", "5e21", "1e20,1e21"), *g.maybe("--experts", "8", "1..4"), *g.maybe("--recurrence", "1..3"),
    ]  # fmt: skip


def matched(g: Grammar) -> list[str]:
    """``loopscale matched``."""
    one, two = g.value("0.3B:8:5", "0.6B:8:1", "1.0B:4:2"), g.value("0.6B:8:1", "0.3B:1:1", "1.6B:16:3")
    return ["matched", one, two, "--flops", g.value("5e21", "1e20"), *g.law(), *g.output(), *g.flag("--extrapolate")]


def count(g: Grammar) -> list[str]:
    """``loopscale count``."""
    model = g.draw.choice([
        ["--rung", g.value(*RUNGS)], ["--width", g.value("512", "1024")], [g.files("config.json", "architecture.json")],
        [g.files("config.json")], [g.files("model")],
    ])  # fmt: skip
    plain = model[0].startswith("--")
    return [
        "count", *model, *(g.maybe("--experts", "8", "16") if plain else []), *g.maybe("--bits", "4", "fp8"),
        *g.maybe("--context", "8192", "32768"), *g.maybe("--batch", "8"), *g.output(),
    ]  # fmt: skip


def laws(g: Grammar) -> list[str]:
    """``loopscale laws``, ``schema`` and ``presets``."""
    law = g.law(0.7)[1:]
    return g.draw.choice([
        ["laws", *law, *g.flag("--json"), *(g.maybe("--flops", "1e21,5e21") if law else [])],
        ["schema", *([g.value("law", "plan", "architecture", "train", "sweep", "suite")] if g.coin(0.8) else [])],
        ["presets", *([g.value("paper", "paper", "x")] if g.coin(0.5) else []), *g.flag("--json")],
    ])  # fmt: skip


def check(g: Grammar) -> list[str]:
    """``loopscale verify`` on every kind of file and folder."""
    small = (
        "law.json",
        "plan.json",
        "fit.json",
        "runs.csv",
        "results",
        "architecture.json",
        "runs.parquet",
        "next.json",
    )
    return [
        "verify",
        g.files(*small, *small, "run", "model", "tokens", "sweepdir/tiny"),
        *g.flag("--json"),
    ]


def table(g: Grammar, *names: str) -> list[str]:
    """Return a table of runs, good or changed, and how to read it."""
    return [
        g.files(*names), *g.maybe("--keep", "D/N >= 20", "N > 1e8", "loss < 10", chance=0.1),
        *g.flag("--best-of", 0.1), *g.maybe("--columns", "loss=loss", chance=0.05),
        *g.maybe("--units", "D=1", chance=0.05),
    ]  # fmt: skip


def fit(g: Grammar) -> list[str]:
    """``loopscale fit``."""
    form = [*g.maybe("--fix", "alpha=0.3", "E=1.7", chance=0.1), *g.maybe("--tie", "alpha=beta", chance=0.1)]
    form += [*g.maybe("--outer", "chinchilla", "joint-moe", chance=0.2), *g.maybe("--delta", "auto", "inf", chance=0.1)]
    runs = table(g, "dense.csv", "dense.csv", "dense.csv.gz", "dense.parquet", "runs.csv")
    out = ["--out", g.files.new(".json")] if g.odd_one() else []
    return ["fit", *runs, "--resamples", g.value("2"), "--starts", "2", *form, *out, *g.flag("--json")]


def backtest(g: Grammar) -> list[str]:
    """``loopscale backtest``."""
    hidden = g.draw.choice(
        [[], ["--decades", g.value("0.2", "0.3")], ["--hold-out", g.value("D>400B", "N>0.5B", "D>300B")]]
    )
    return ["backtest", *table(g, "dense.csv"), "--resamples", "2", *hidden, *g.output()]


def compare(g: Grammar) -> list[str]:
    """``loopscale compare``."""
    held = g.maybe("--hold-out", "R=4", "D>400B", chance=0.6)
    mapping = ["--mapping", g.value("power", "none", "bounded")]
    return ["compare", *table(g, "runs.csv"), "--folds", "0", "--resamples", "10", *held, *mapping, *g.output()]


def following(g: Grammar) -> list[str]:
    """``loopscale next``."""
    return [
        "next", *table(g, "runs.csv", "dense.csv"), "--budget", g.value("1e20", "1e21"), "--for", g.files("plan.json"),
        "--resamples", "0", *g.maybe("--goal", "choice", "predictions"), *g.maybe("--rung", "0.3B"),
        "--most", g.value("2"), *g.output(),
    ]  # fmt: skip


def forecast(g: Grammar) -> list[str]:
    """``loopscale forecast``: of larger runs, sealed ones, and a run in training."""
    if g.coin(0.3):
        log = g.files("run", "log.csv", "log.csv")
        rate = [
            *g.maybe("--schedule", "cosine", "wsd", "constant"),
            *g.maybe("--warmup", "2"),
            *g.maybe("--column", "x"),
        ]
        return ["forecast", log, "--running", *g.maybe("--steps", "400", "40", chance=0.7), *rate, *g.flag("--json")]
    if g.coin(0.2):
        return ["forecast", *table(g, "runs.csv"), "--check", g.files("sealed.json"), *g.flag("--json")]
    model = g.draw.choice([
        ["--flops", g.value("1e22", "1e21,1e23", "1e25")],
        ["--params", g.value("7e9", "1B"), "--tokens", g.value("2T")],
        ["--params", "2e9", "--loop-params", g.value("1e9"), "--recurrence", g.value("4"), "--tokens", g.value("400B")],
    ])  # fmt: skip
    out = g.draw.choice([[], [], ["--register", g.files.new(".json")], ["--figure", g.files.new(".svg")]])
    runs = table(g, "dense.csv", "runs.csv", "iso.csv") if g.coin(0.6) else [g.files("law.json", "fit.json")]
    return [
        "forecast", *runs, *model, *g.maybe("--experts", "8", "1"), *g.maybe("--level", "0.8", "0.99"), *g.output(),
        *g.maybe("--unique-tokens", "100B", chance=0.1), *g.flag("--extrapolate", 0.6), *g.flag("--verbose"), *out,
    ]  # fmt: skip


def gate(g: Grammar) -> list[str]:
    """``loopscale gate`` and ``seeds``."""
    if g.coin(0.2):
        odds = [*g.maybe("--power", "0.9"), *g.maybe("--level", "0.01")]
        return [
            "seeds",
            "--difference",
            g.value("0.01", "-0.2"),
            "--spread",
            g.value("0.0144"),
            *odds,
            *g.flag("--json"),
        ]
    against = g.files("iso.csv", "groups.csv", "dense.csv") if g.coin(0.7) else g.files("law.json", "fit.json")
    keep = [*g.maybe("--against-keep", "recipe == 'old'", "N > 1e8", chance=0.2), *g.maybe("--level", "0.8")]
    return ["gate", *table(g, "iso.csv", "dense.csv"), "--against", against, "--resamples", "2", *keep, *g.output()]


def downstream(g: Grammar) -> list[str]:
    """``loopscale downstream``."""
    at = g.draw.choice([["--at", g.value("2.6", "2.6,3")], ["--flops", g.value("1e22", "1e21,1e24")], []])
    loss = [*g.maybe("--task-loss", "nll"), *g.maybe("--loss", "loss", "nll", "x", chance=0.1)]
    chance = g.maybe("--chance", "0.25", "0.9", "1")
    return ["downstream", g.files("models.csv"), "--accuracy", g.value("acc"), *at, *loss, *chance, *g.flag("--json")]


def groups(g: Grammar) -> list[str]:
    """``loopscale fit --group``."""
    column = g.value("recipe", "recipe", "recipe", "E", "nothing")
    out = ["--out", g.files.new(".json")] if g.coin(0.3) else []
    return [
        "fit",
        *table(g, "groups.csv"),
        "--group",
        column,
        "--resamples",
        "2",
        "--starts",
        "2",
        *out,
        *g.flag("--json"),
    ]


def planned(g: Grammar) -> list[str]:
    """``loopscale plan`` with a training file, a schedule of passes or the cost of few bits."""
    more = [*(["--train", g.files.new(".toml")] if g.coin(0.5) else []), *g.flag("--grow", 0.4)]
    memory = ["--memory", g.value("3GB"), "--bits", g.value("int4", "3"), *g.maybe("--overhead", "500MB")]
    place = ["--device", g.value("h100", "a100"), *g.maybe("--gpus", "8", "64", chance=0.5)]
    return [
        "plan", "--flops", g.value("5e21", "1e20", "3e18", "1e25"), *more, *(place if g.coin(0.4) else []), *g.law(),
        *([*memory, *g.flag("--rounding", 0.5)] if g.coin(0.5) else []), *g.output(), *g.flag("--extrapolate", 0.7),
        *g.maybe("--recurrence", "1..4"), *g.maybe("--experts", "8"),
    ]  # fmt: skip


def lab(g: Grammar) -> list[str]:
    """``loopscale lab``: what needs no training, and a few steps of it."""
    small = ["--size", g.value("16"), "--steps", g.value("2", "3"), "--out", g.files.new("")]
    shape = [*g.maybe("--recurrence", "2", "1"), *g.maybe("--experts", "2"), *g.maybe("--difficulty", "2", "4")]
    shape += [*g.maybe("--layers", "2", chance=0.1), *g.flag("--supervise"), *g.flag("--fixed-recurrence")]
    return g.draw.choice([
        ["lab", g.value("s3", "z2", "hops", "addition", "tree", "reach", "recall", "facts"), *small, *shape],
        ["lab", "tasks", *g.flag("--json")], ["lab", "downstream", "--shipped", *g.flag("--law"), *g.flag("--json")],
        ["lab", "score", g.files("model", "run"), g.value("s3", "facts")],
        ["lab", "test-time", g.files("model", "run"), "--problems", g.value("2"), *g.maybe("--task", "s3", chance=0.7)],
    ])  # fmt: skip


def engines(g: Grammar) -> list[str]:
    """``loopscale convert``, ``export`` and ``conform`` on good and changed models."""
    folder = g.files("model", "model", "run")
    parts = [*g.maybe("--prelude", "1", "0"), *g.maybe("--coda", "1", "0"), *g.maybe("-R", "2", "1"),
             *g.maybe("--experts", "2"), *g.maybe("--noise", "0.1"),
             *(["--loop", "1", "--text", g.files("prompts.txt")] if g.coin(0.1) else [])]  # fmt: skip
    form = g.draw.choice(["unrolled", "gguf", "transformers", "mlx", "unrolled"])
    written = g.files.new(".gguf" if form == "gguf" else "")
    quant = g.maybe("--quant", "f16", "q8_0", "f32", "q4_0") if form == "gguf" else []
    checked = g.draw.choice([
        ["--engine", g.value("unrolled", "transformers")], ["--write", g.files.new(".json")],
        ["--golden", g.files("golden.json"), "--report", g.files("golden.json")],
        ["--golden", g.files("golden.json"), "--engine", "unrolled"],
    ])  # fmt: skip
    return g.draw.choice([
        ["convert", g.files("plain"), *parts, "--out", g.files.new("")],
        ["export", folder, "--to", form, *g.maybe("-R", "2", "1"), *quant, "--out", written],
        ["conform", folder, *checked, "--recurrence", g.value("1", "1,2"), "--prompts", g.files("short.txt"),
         *g.maybe("--tolerance", "0.1"), *g.flag("--json")],
    ])  # fmt: skip


def isoflop(g: Grammar) -> list[str]:
    """``loopscale isoflop``."""
    return ["isoflop", *table(g, "iso.csv", "iso.csv", "dense.csv"), *g.maybe("--level", "0.8"), *g.flag("--json")]


def report(g: Grammar) -> list[str]:
    """``loopscale report`` and ``figures``, of one figure each."""
    out = ["--out", g.files.new(g.draw.choice([".md", ".html"]))]
    only = g.value("joint-optimum", "recurrence-map", "routing", "training", "test-time", "results")
    return g.draw.choice([
        ["report", "plan", g.files("plan.json"), *out], ["report", "sweep", *table(g, "dense.csv"), *out],
        ["report", "evaluation", g.files("results.csv"), *out],
        ["figures", "--only", only, "--format", g.value("png", "svg"), "--out", g.files.new(""), *g.law(0.2),
         *(["--metrics", g.files("run/metrics.jsonl")] if g.coin(0.4) else []),
         *(["--results", g.files("results.csv")] if g.coin(0.4) else []),
         *(["--psi", g.files("psi.csv")] if g.coin(0.4) else []),
         *(["--test-time", g.files("test-time.csv")] if g.coin(0.4) else [])],
    ])  # fmt: skip


def reproduce(g: Grammar) -> list[str]:
    """``loopscale reproduce`` and ``demo --plan-only``."""
    if g.coin(0.2):
        return ["demo", "--plan-only", "--out", g.files.new("")]
    return ["reproduce", *g.maybe("--status", "exact", "different"), *g.output()]


SETTINGS = (
    "model.recurrence=2", "model.width=16", "model.experts=4", "run.tokens=256", "run.seed=3",
    "optimizer.learning_rate=0.01", "schedule.kind=constant", "schedule.kind=cosine", "run.batch=2", "data.context=8",
    "model.layers=3", "model.head_size=8", "run.accumulate=2", "run.async_checkpoints=true", "run.precision=fp32",
)  # fmt: skip


def settings(g: Grammar, chance: float) -> list[str]:
    """Return a few ``--set`` options; a value may be odd."""
    out: list[str] = []
    while g.coin(chance):
        name, _, value = g.draw.choice(SETTINGS).partition("=")
        out += ["--set", f"{name}={g.value(value)}"]
    return out


def train(g: Grammar) -> list[str]:
    """``loopscale train``: checks, estimates and short runs."""
    config = g.files("run.toml")
    mode = g.draw.choice([
        ["--check"], ["--check"], ["--estimate", "--gpus", g.value("1", "8"), "--device", g.value("h100", "a100")], [],
    ])  # fmt: skip
    out = [] if "--estimate" in mode else ["--out", g.files("run") if g.coin(0.1) else g.files.new("")]
    json_ = g.flag("--json") if mode != ["--check"] else []
    quick = [] if mode else ["--quiet", "--set", "run.tokens=256"]
    return ["train", config, *mode, *out, *quick, *settings(g, 0.4), *json_]


def sweep(g: Grammar) -> list[str]:
    """``loopscale sweep``: everything but ``run`` and endless forms."""
    file, own = f"{g.files('sweepdir')}/sweep.toml", f"{g.files.copy('sweepdir')}/sweep.toml"
    shipped = g.value("paper", "micro", "case-study", "paper-mini")
    return g.draw.choice([
        ["sweep", "plan", file, "--speed", g.value("5e9", "1e12"), *g.maybe("--workers", "4"), *g.output()],
        ["sweep", "plan", file, "--device", g.value("h100", "a100"), *g.maybe("--price", "2"), *g.output()],
        ["sweep", "plan", shipped, "--device", g.value("h100"), *g.output()],
        ["sweep", "status", file, *g.flag("--all"), *g.maybe("--price", "2.5"), *g.flag("--json")],
        ["sweep", "export", file, *g.flag("--best"), *(["--out", g.files.new(".csv")] if g.coin(0.5) else [])],
        ["sweep", "rebuild", own], ["sweep", "rebuild", file if file.startswith("mutant") else own],
        ["sweep", "watch", file, "--once", "--resamples", "2"],
        ["sweep", "extend", own, "--next", g.files("next.csv", "next.json")],
    ])  # fmt: skip


def model(g: Grammar) -> list[str]:
    """``loopscale generate``, ``routing`` and ``eval`` on good and changed models."""
    folder = g.files("model", "run", "model")
    return g.draw.choice([
        ["generate", folder, "--prompt", g.value("loop state", "a"), "--tokens", g.value("2", "3"),
         *g.maybe("--recurrence", "1..2", "3"), *g.maybe("--temperature", "0.7"), *g.flag("--json"),
         *g.maybe("--exit", "kl", "entropy", chance=0.1), *g.maybe("--threshold", "0.1")],
        ["routing", folder, "--data", g.files("prompts.txt"), *g.maybe("--recurrence", "2"), *g.maybe("--batch", "2"),
         *g.maybe("--context", "8", "16"), *g.output()],
        ["eval", folder, "--text", g.files("prompts.txt"), "--results", g.files.new(""),
         *g.maybe("--recurrence", "1..2"), *g.maybe("--batch", "4"), *g.maybe("--context", "8", "16"), *g.output(),
         *g.maybe("--tokens", "1B", chance=0.1), *g.maybe("--exit", "kl", chance=0.1)],
        ["eval", "--tasks", "paper", "--results", g.files("results"), *g.flag("--published"), *g.output()],
    ])  # fmt: skip


COMMANDS: dict[str, tuple[Callable[[Grammar], list[str]], float]] = {
    "plan": (plan, 26), "predict": (predict, 22), "profile": (profile, 3), "matched": (matched, 4),
    "count": (count, 10), "laws": (laws, 6), "verify": (check, 10), "fit": (fit, 4), "backtest": (backtest, 1),
    "compare": (compare, 1), "next": (following, 1.5), "isoflop": (isoflop, 2), "report": (report, 0.5),
    "reproduce": (reproduce, 0.1), "train": (train, 4), "sweep": (sweep, 5), "model": (model, 3),
    "forecast": (forecast, 3), "gate": (gate, 2), "downstream": (downstream, 2), "groups": (groups, 1),
    "planned": (planned, 3), "lab": (lab, 1), "engines": (engines, 2),
}  # fmt: skip
"""The grammar of each command, and how often it is drawn."""


class TooLongError(BaseException):
    """A command computes for too long; not an Exception, so that nothing of the command catches it."""


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Interrupt the block after so many seconds of computing."""

    def stop(*_: Any) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def refuse_constant(name: str) -> None:
    """Refuse NaN and infinities, which strict JSON does not have."""
    raise ValueError(f"{name} in JSON")


def call(argv: list[str]) -> str:
    """Run a command in this process; return works, refused, or what is wrong."""
    out, err = io.StringIO(), io.StringIO()
    try:
        # A new context of warnings: each trial shows those that a new process would.
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(),
            at_most(LONGEST),
        ):
            main(argv)
    except SystemExit as stop:
        return _verdict(argv, stop.code, out.getvalue(), err.getvalue())
    except TooLongError:
        return f"TOO LONG: more than {LONGEST:g} s"
    except Exception as error:
        return f"TRACEBACK {type(error).__name__}: {str(error)[:120]}"
    return _verdict(argv, 0, out.getvalue(), err.getvalue())


def _verdict(argv: list[str], code: Any, out: str, err: str) -> str:
    lines = err.strip().splitlines()
    if "RuntimeWarning" in err:  # numpy's, about values that nobody should have computed
        return f"WARNING {lines[:2]}"
    if code == 0 or (code == 1 and not err and argv[0] in ("verify", "conform")):
        if "--json" in argv and "schema" not in argv[0]:
            try:
                json.loads(out, parse_constant=refuse_constant)
            except ValueError as error:
                return f"NOT JSON: {error} {out[:80]!r}"
        return "works"
    if code == 2 and len(lines) == 1 and lines[0].startswith("loopscale"):
        return "refused"
    return f"EXIT {code} {lines[:3]}"


def trial(grammar: Grammar, chosen: tuple[str, ...] = ()) -> tuple[str, list[str], str]:
    """Draw a command, or one of those chosen, and run it; return its name, its arguments and the verdict."""
    names = chosen or tuple(COMMANDS)
    weights = [COMMANDS[name][1] for name in names]
    name = grammar.draw.choices(names, weights)[0]
    argv = [part.replace("\0", "�") for part in COMMANDS[name][0](grammar)]  # no shell can pass a zero byte
    return name, argv, call(argv)


def attack(
    folder: Path, trials: int, seed: int = 0, keep: Path | None = None, chosen: tuple[str, ...] = ()
) -> tuple[Counter[tuple[str, str]], list[tuple[list[str], str]]]:
    """Run generated commands; return the counts by command and verdict, and the bad trials."""
    draw = random.Random(seed)
    files = Files(folder, draw)
    grammar = Grammar(draw, files)
    verdicts, bad = Counter[tuple[str, str]](), []
    for number in range(trials):
        name, argv, verdict = trial(grammar, chosen)
        good = verdict in ("works", "refused")
        verdicts[name, verdict if good else "BAD"] += 1
        if not good:
            bad.append((argv, verdict))
            if keep is not None:
                _keep(files, keep / f"bad-{seed}-{number}", argv, verdict)
        files.clear()
    return verdicts, bad


def _keep(files: Files, where: Path, argv: list[str], verdict: str) -> None:
    """Copy what a bad trial used, to repeat it."""
    where.mkdir(parents=True, exist_ok=True)
    (where / "command.json").write_text(json.dumps({"argv": argv, "verdict": verdict}, indent=1))
    for path in files.made:
        if path.is_file():
            shutil.copy(path, where / path.name)
        elif path.is_dir():
            shutil.copytree(path, where / path.name, dirs_exist_ok=True)
