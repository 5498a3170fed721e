"""Kill training at random moments, with checkpoints written in the background: the result is the same, bit for bit."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

from artefacts import make_text

STEPS, CONTEXT, BATCH = 120, 16, 4


def config_of(folder: Path) -> Any:
    """Return a tiny run whose every second step is a checkpoint, written while training continues."""
    from loopscale.train.config import TrainConfig

    if not (folder / "text").is_dir():
        make_text(folder)
    return TrainConfig.from_dict({
        "model": {"width": 16, "layers": 3, "head_size": 8, "experts": 2, "recurrence": 2},
        "data": {"files": [str(folder / "text")], "folder": str(folder / "tokens"), "context": CONTEXT,
                 "validation": 0.2},
        "schedule": {"warmup_steps": 4},
        "run": {"tokens": STEPS * BATCH * CONTEXT, "batch": BATCH, "log_every": 1, "checkpoint_every": 2,
                "validation_sequences": 8, "async_checkpoints": True},
    })  # fmt: skip


def outcome(run: Path) -> dict[str, Any]:
    """Return what must be equal: the losses of every step, the final loss and a checksum of the weights."""
    from loopscale.core.files import checksum

    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        "losses": [(row["step"], row["loss"]) for row in rows],
        "final": json.loads((run / "summary.json").read_text())["validation_loss"],
        "weights": checksum(run / "model" / "model.safetensors"),
    }


def train(config: Any, out: Path) -> None:
    """Train in a process of its own; one thread, as sums of several may round differently."""
    import torch

    from loopscale.train.trainer import train as run

    torch.set_num_threads(1)
    run(config, out)


def attack(folder: Path, kills: int, seed: int = 0) -> dict[str, int]:
    """Kill runs at random moments until there were so many kills; count those whose run ended exactly or not.

    A second call with the same folder continues: finished rounds are kept in ``kills.json``.
    """
    record = folder / "kills.json"
    counts = json.loads(record.read_text()) if record.is_file() else {"exact": 0, "DIFFERENT": 0, "rounds": 0}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["loopscale.train.trainer"])
    config, whole = config_of(folder), folder / "whole"
    child = context.Process(target=train, args=(config, whole))
    child.start()
    child.join()
    wanted = outcome(whole)
    draw = random.Random(seed + counts["rounds"])
    while counts["exact"] + counts["DIFFERENT"] < kills:
        out = folder / "killed"
        shutil.rmtree(out, ignore_errors=True)
        killed = _round(context, config, out, draw)
        verdict = "exact" if outcome(out) == wanted else "DIFFERENT"
        counts[verdict] += killed
        counts["rounds"] += 1
        record.write_text(json.dumps(counts))
        if verdict == "DIFFERENT":
            shutil.copytree(out, folder / f"different-{counts['rounds']}")
    return counts


def _round(context: Any, config: Any, out: Path, draw: random.Random) -> int:
    """Train one run to its end, killing it on the way; return how often it was killed."""
    killed = 0
    while True:
        child = context.Process(target=train, args=(config, out))
        child.start()
        _until_started(out, child)
        child.join(draw.uniform(0, 1.0))
        if child.exitcode is None:
            os.kill(child.pid, signal.SIGKILL)
            killed += 1
        child.join()
        if child.exitcode == 0:
            return killed
        assert child.exitcode == -signal.SIGKILL, f"training failed with code {child.exitcode}"


def _until_started(out: Path, child: Any) -> None:
    """Wait until training writes metrics: a kill before that shows nothing, and there may be many in a row."""
    before = _size(out / "metrics.jsonl")
    while child.exitcode is None and _size(out / "metrics.jsonl") == before:
        time.sleep(0.005)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return -1
