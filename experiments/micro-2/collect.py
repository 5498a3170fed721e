"""One table of every run of the second micro-sweep, failed ones included: ``python collect.py RESULTS``.

RESULTS is the folder with the sweep files of the stages and their results. Writes ``micro-2.csv`` of the package.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from results import STAGES

from loopscale.core.tables import Table
from loopscale.fitting.data.public import MICRO_2
from loopscale.sweep.spec import Run, read_sweep
from loopscale.sweep.store import Store


def recipe(run: Run) -> str:
    """Return what a run changes in the plain loop."""
    changed = [f"{name.partition('.')[2]}={value}" for name, value in run.cell.settings if name.startswith("model.")]
    return ", ".join(changed) or "plain"


def rows(file: Path, stage: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each point that is finished, and one for each run that failed."""
    sweep = read_sweep(file)
    with Store(sweep.results) as store:
        states = {state.key: state for state in store.runs()}
        facts = {(key, tokens): values for key, tokens, _, values in store.observations()}
    for run in sweep.runs:
        for tokens in run.points:
            if (run.key, tokens) in facts:
                yield _row(run, stage, "done", "", facts[run.key, tokens])
        if states[run.key].state == "failed":
            yield _row(run, stage, "failed", (states[run.key].error or "").strip().splitlines()[-1], {})


def _row(run: Run, stage: str, state: str, error: str, facts: dict[str, Any]) -> dict[str, Any]:
    model = run.config.model.config(vocabulary=257, context=run.config.data.context).to_architecture()
    return {
        "run": f"{stage}-{run.key}",
        "N_act (raw)": facts.get("active", model.active),
        "E": run.cell.experts,
        "R": run.cell.recurrence,
        "N_loop (raw)": facts.get("loop", model.loop),
        "N_total (raw)": facts.get("total", model.total),
        "D (raw)": facts.get("tokens", max(run.points)),
        "loss": facts.get("validation_loss", ""),
        "finished": state == "done",
        "size": run.cell.size,
        "seed": run.cell.seed,
        "width": run.config.model.width,
        "layers": run.config.model.layers,
        "learning_rate": run.config.optimizer.learning_rate,
        "training_flops": facts.get("training_flops", ""),
        "real_training_flops": facts.get("real_training_flops", ""),
        "stage": stage,
        "recipe": recipe(run),
        "state": state,
        "error": error,
    }


def main(folder: Path) -> None:
    """Write the table and say how many runs are missing."""
    listed: list[dict[str, Any]] = []
    for stage, name in STAGES.items():
        file = folder / f"{name}.toml"
        if not file.is_file():
            continue
        found = list(rows(file, stage)) if (folder / name).is_dir() else []
        planned = len(read_sweep(file).runs)
        print(f"{name}: {len({row['run'] for row in found})} of {planned} runs have results")
        listed += found
    Table.from_records(listed).save(MICRO_2)
    print(f"{len(listed)} rows of {len({row['run'] for row in listed})} runs are in {MICRO_2.name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
