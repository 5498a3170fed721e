"""Under torchrun: train two steps and print the peak memory of every process, beyond that of a tiny run."""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path

import torch

from loopscale.train.config import TrainConfig
from loopscale.train.data.stores import open_tokens
from loopscale.train.parallel.process import this_process
from loopscale.train.trainer import Trainer


def status(name: str) -> int:
    """Return a field of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def main(config_file: str, out: str) -> None:
    """Measure building a model, and then two steps."""
    torch.set_num_threads(1)
    config = TrainConfig.from_dict(json.loads(Path(config_file).read_text()))
    open_tokens(config, progress=False)
    process = this_process(config)
    process.total(torch.zeros(1))  # connects the processes, which takes buffers of its own
    tiny = config.changed(model={"width": 64, "layers": 4})
    Trainer(tiny, f"{out}-tiny", process=process).train(until=2)  # loads the libraries, and makes their buffers
    gc.collect()
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    trainer = Trainer(config, out, process=process)
    built = status("VmHWM") - before
    trainer.train(until=2)
    peak = status("VmHWM") - before
    Path(f"{out}-{os.environ['RANK']}.json").write_text(json.dumps({"built": built, "peak": peak}))
    process.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
