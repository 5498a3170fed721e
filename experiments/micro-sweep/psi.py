"""Expert-path diversity of small looped MoEs trained as the micro-sweep's are: ``python psi.py OUT_FOLDER``.

Trains one model for each E (width 32, R = 4, 800k tokens) and writes psi.csv beside this file.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from loopscale.core.tables import Table
from loopscale.model.loading import load_model
from loopscale.model.psi import path_diversity
from loopscale.sweep.spec import read_sweep
from loopscale.train.data.batches import Batches
from loopscale.train.data.stores import open_tokens
from loopscale.train.trainer import train

HERE = Path(__file__).parent
MOST = 8
EXPERTS = (2, 4, 8)


def main(out: Path) -> None:
    """Train, measure, write."""
    torch.set_num_threads(1)
    rows = []
    for run in read_sweep("micro").runs:
        cell = run.cell
        if (cell.size, cell.recurrence, cell.seed) != ("d32", 4, 0) or cell.experts not in EXPERTS:
            continue
        config = run.config.changed(run={"tokens": 800_000, "compile": False})
        train(config, out / run.key, progress=True)
        store = open_tokens(config, progress=False)
        batches = Batches(store, split="validation", batch=8, context=128, seed=0, shuffle=False)
        parts = [torch.from_numpy(batches.batch(step).ids) for step in range(32)]
        found = path_diversity(
            load_model(out / run.key / "model"), ((ids, torch.ones_like(ids)) for ids in parts), MOST
        )
        rows += [
            {"experts": cell.experts, "recurrence": row["recurrence"], "psi": row["psi"], "spread": row["std_prompts"]}
            for row in found.table().records()
        ]
    rows.sort(key=lambda row: (row["experts"], row["recurrence"]))
    Table.from_records(rows).save(HERE / "psi.csv")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
