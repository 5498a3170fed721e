"""Loss and expert-path diversity by test-time recurrence of the sweeps' models: ``python passes.py RESULTS...``.

RESULTS are the folders of the sweeps' results. Takes the kept models of the longest D that were trained with R = 4 and
seed 0, and writes passes.csv beside this file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from loopscale.core.tables import Table
from loopscale.model.loading import load_model
from loopscale.model.psi import path_diversity
from loopscale.train.config import TrainConfig
from loopscale.train.data.batches import Batches
from loopscale.train.data.stores import open_tokens

HERE = Path(__file__).parent
MOST, SEQUENCES, BATCH = 8, 256, 8


def measured(folder: Path) -> list[dict[str, float | str]]:
    """Return a row for each recurrence of one model."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    config = TrainConfig.from_dict(summary["config"])
    store = open_tokens(config, progress=False)
    batches = Batches(store, split="validation", batch=BATCH, context=config.data.context, seed=0, shuffle=False)
    parts = [torch.from_numpy(batches.batch(step).ids) for step in range(SEQUENCES // BATCH)]
    model = load_model(folder / "model").eval()
    psi = path_diversity(model, ((ids, torch.ones_like(ids)) for ids in parts), MOST).table().records()
    with torch.no_grad():
        losses = [
            sum(float(model(ids, labels=ids, recurrence=R).loss) for ids in parts) / len(parts)
            for R in range(1, MOST + 1)
        ]
    run = {"run": summary["run"], "width": summary["width"], "experts": summary["experts"], "seed": summary["seed"]}
    return [
        {**run, "recurrence": row["recurrence"], "loss": loss, "psi": row["psi"], "spread": row["std_prompts"]}
        for row, loss in zip(psi, losses, strict=True)
    ]


def main(results: list[Path]) -> None:
    """Measure the models of one seed."""
    torch.set_num_threads(1)
    folders = [folder for each in results for folder in sorted(each.glob("runs/*-R4-s0*/D600064"))]
    rows = [row for folder in folders if (folder / "model").is_dir() for row in measured(folder)]
    Table.from_records(rows).save(HERE / "passes.csv")


if __name__ == "__main__":
    main([Path(folder) for folder in sys.argv[1:]])
