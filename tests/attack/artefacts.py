"""One small file or folder of every kind that loopscale writes and reads back."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np

import loopscale as ls
from loopscale.architecture import rung
from loopscale.choosing import Goal, Target, next_runs
from loopscale.cli import main
from loopscale.core.files import write_json
from loopscale.evaluate.store import Key, Result, Score
from loopscale.fitting.data.public import simulate_sweep
from loopscale.scaling import published
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


CONFIG = """{"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
"num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": true,
"head_dim": 64}"""
RESULTS = """model,recurrence,task,metric,value,stderr,training_flops
a,1,arc,acc,0.31,0.01,1e19
a,2,arc,acc,0.33,0.01,1e19
b,1,arc,acc,0.35,0.01,2e19
b,2,arc,acc,0.36,,2e19
"""
PSI = "experts,recurrence,psi,spread\n8,1,1,0\n8,2,1.7,0.1\n8,4,2.9,0.2\n"
MODELS = "loss,nll,acc,flops\n" + "".join(
    f"{3.6 - 0.15 * k:.3f},{2.2 - 0.13 * k:.3f},{0.26 + 0.004 * k * k + 0.01 * k:.4f},{10 ** (18 + k / 2):.4g}\n"
    for k in range(12)
)
LOG = "step,loss,lr\n" + "".join(
    f"{k},{3 + 4 / (k + 1) ** 0.4:.5f},{0.001 * (1 - k / 400):.6f}\n" for k in range(1, 200, 3)
)
TEST_TIME = "recurrence,loss,stderr\n1,3.4,0.01\n2,3.2,0.01\n3,3.1,0.01\n"


def make_tables(folder: Path) -> None:
    """Write the tables and other files that generated commands name."""
    import gzip

    from pyarrow import csv, parquet

    (folder / "config.json").write_text(CONFIG)
    dense = simulate_sweep(experts=(1,), recurrences=(1,), tokens=np.linspace(1e11, 5e11, 4).tolist())
    dense.to_csv(folder / "dense.csv")
    (folder / "dense.csv.gz").write_bytes(gzip.compress((folder / "dense.csv").read_bytes()))
    for name in ("dense", "runs"):
        parquet.write_table(csv.read_csv(folder / f"{name}.csv"), folder / f"{name}.parquet")
    (folder / "iso.csv").write_text(isoflop_table())
    tables = {"results": RESULTS, "psi": PSI, "test-time": TEST_TIME, "models": MODELS, "log": LOG}
    tables["groups"] = two_recipes((folder / "iso.csv").read_text())
    for name, text in tables.items():
        (folder / f"{name}.csv").write_text(text)
    (folder / "short.txt").write_text("loop\nsmall\n")
    (folder / "prompts.txt").write_text("loop state expert\nsmall model\n" * 6)
    predict = ["predict", "--rung", "0.3B", "--tokens", "500B", "--register", str(folder / "registered.json")]
    assert run(*predict) == 0
    seal = ["forecast", str(folder / "runs.csv"), "--flops", "1e23", "--extrapolate", "--register"]
    assert run(*seal, str(folder / "sealed.json")) == 0
    fit = ls.fit(folder / "runs.csv", resamples=2)
    target = Target.of_file(folder / "plan.json", fit.observations.counts, Goal.CHOICE)
    chosen = next_runs(fit, 1e21, target, most=2)
    write_json(folder / "next.json", chosen.to_dict())
    (folder / "next.csv").write_text(chosen.table().csv())


def isoflop_table() -> str:
    """Return losses along three budgets, each a parabola over the size."""
    rows = ["N,D,loss"]
    for flops in (1e19, 1e20, 1e21):
        best = (flops / 120) ** 0.5
        for factor in (0.3, 0.5, 0.8, 1.2, 2.0, 3.0):
            size = best * factor
            tokens = flops / (6 * size)
            rows.append(f"{size:.6g},{tokens:.6g},{1.7 + 400 / size**0.34 + 410 / tokens**0.28:.6g}")
    return "\n".join(rows) + "\n"


def two_recipes(table: str) -> str:
    """Return the rows of a table twice, the second time with a lower loss and under another name."""
    head, *rows = table.split()
    better = [",".join([*row.split(",")[:-1], f"{float(row.split(',')[-1]) - 0.02:.6g}"]) for row in rows]
    lines = [f"{head},recipe", *(f"{row},old" for row in rows), *(f"{row},new" for row in better)]
    return "\n".join(lines) + "\n"


def make_result(path: Path) -> None:
    """Write one result of an evaluation."""
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
    assert run("sweep", "run", "sweep.toml", "--workers", "1", "--quiet") == 0


def make_sweep_folder(folder: Path) -> None:
    """Put a finished sweep with its text and tokens into a folder of its own, and a model beside it."""
    whole = folder / "sweepdir"
    whole.mkdir()
    for name in ("sweep.toml", "text", "tokens", "tiny"):
        source = folder / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, whole / name)
    shutil.copytree(folder / "run" / "model", folder / "model")
    assert run("export", "model", "--to", "unrolled", "-R", "1", "--out", "plain") == 0
    assert run("conform", "model", "--recurrence", "1,2", "--prompts", "short.txt", "--write", "golden.json") == 0
