"""Runs that the tests of many processes share; under torchrun, this file trains a list of them one after the other."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from loopscale.train.config import TrainConfig

WORDS = ("loop", "the", "state", "again", "and", "expert", "of", "a", "small", "model", "reads", "its", "own", "words")
STEPS, BATCH, CONTEXT = 50, 8, 16
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def write_text(folder: Path) -> Path:
    """Write a text of many documents, one file each, and return its folder."""
    draw = random.Random(0)
    folder.mkdir(parents=True)
    for place in range(60):
        text = " ".join(draw.choice(WORDS) for _ in range(60))
        (folder / f"{place}.txt").write_text(f"{place} {text}\n")
    return folder


def settings(text: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    """Return a run of fifty quick steps with four experts for each active one and two passes.

    The paper's eps of 1e-15 lets a gradient that is nothing but rounding move a weight by a whole step, so that two
    ways of adding up the same sums part soon; 1e-8 does not.
    """
    data: dict[str, Any] = {
        "model": {"width": 16, "layers": 4, "head_size": 8, "experts": 4, "recurrence": 2},
        "data": {"files": [str(text)], "context": CONTEXT, "validation": 0.2, "folder": str(text.parent / "tokens")},
        "optimizer": {"learning_rate": 0.01, "eps": 1e-8},
        "schedule": {"warmup_steps": 4},
        "run": {
            "tokens": STEPS * BATCH * CONTEXT,
            "batch": BATCH,
            "log_every": 1,
            "checkpoint_every": 0,
            "validation_sequences": 16,
        },
    }
    for name, values in sections.items():
        data.setdefault(name, {}).update(values)
    return data


def launch(processes: int, runs: list[dict[str, Any]], folder: Path) -> None:
    """Train runs on so many processes that torchrun starts; each says its ``config``, its ``out`` and where to stop."""
    listed = folder / f"runs-{processes}.json"
    listed.write_text(json.dumps(runs))
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", str(processes), __file__, str(listed)]
    code, _, said = finish(start(command, folder))
    assert code == 0, said[-6000:]


def start(command: list[str], folder: Path) -> subprocess.Popen[str]:
    """Start a command in ``folder``."""
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdout=pipe, stderr=pipe, text=True)


def finish(process: subprocess.Popen[str], timeout: float = 3600) -> tuple[int, str, str]:
    """Return a command's exit code and what it said; one that hangs is ended, with the processes that it started."""
    try:
        out, said = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun passes it on
        out, said = process.communicate()
    return process.returncode, out, said


def run(config: dict[str, Any], out: str, until: int | None = None) -> None:
    """Train a run to its end, or to a step with a checkpoint there."""
    from loopscale.train.trainer import Trainer, train

    if until is None:
        train(TrainConfig.from_dict(config), out)
        return
    trainer = Trainer(TrainConfig.from_dict(config), out)
    try:
        trainer.resume()
        trainer.train(until=until)
        trainer.save()
    finally:
        trainer.process.close()


def count_collectives(config: dict[str, Any], out: str) -> None:
    """Write how many gathers and reductions a step has at one pass and at four."""
    from torch.profiler import ProfilerActivity, profile

    from loopscale.train.step import gradients
    from loopscale.train.trainer import Trainer

    found = {}
    for passes in (1, 4):
        sections = config | {"model": config["model"] | {"recurrence": passes}}
        trainer = Trainer(TrainConfig.from_dict(sections), f"{out}-{passes}")
        trainer.model.train()
        part = trainer.batches.batch(0, rank=trainer.process.rank, ranks=trainer.process.ranks)
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            gradients(trainer.model, [part], trainer.process, document_mask=False)
        counts = {event.key: event.count for event in seen.key_averages()}
        found[passes] = {
            "gathered": counts.get("c10d::_allgather_base_", 0),
            "reduced": counts.get("c10d::_reduce_scatter_base_", 0),
        }
        rank = trainer.process.rank
        trainer.process.close()
    if rank == 0:
        Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    for each in json.loads(Path(sys.argv[1]).read_text()):
        if "counted" in each:
            count_collectives(each["counted"], each["out"])
        else:
            run(**each)
