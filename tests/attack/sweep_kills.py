"""Kill workers, ranks and supervisors of sweeps: no observation is lost or doubled, and every loss is the same."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "sweep"))

from test_processes import GRID, LOCAL, RAY, SUBMITIT, disturb, losses

from loopscale.sweep.spec import read_sweep
from sweeps import write_sweep

BACKENDS = {"local": LOCAL, "ray": RAY, "submitit": SUBMITIT}
KINDS = {"worker": 6, "rank": 6, "supervisor": 3}
"""The most kills of each kind in one sweep of two runs, each of two processes."""


def attack(folder: Path, backend: str, kills: int, seed: int = 0) -> Counter[tuple[str, str]]:
    """Disturb one sweep after another until there were so many kills; finished sweeps are kept in a record."""
    record = folder / f"{backend}.json"
    counts = Counter(json.loads(record.read_text())) if record.is_file() else Counter[str]()
    grid = GRID.format(seeds="0")
    wanted = _undisturbed(folder / "quiet", grid)
    while sum(count for name, count in counts.items() if name != "sweeps") < kills:
        shutil.rmtree(folder / backend, ignore_errors=True)
        path = write_sweep(folder / backend, grid)
        killed = disturb(path, KINDS, BACKENDS[backend], seed=seed + counts["sweeps"])
        if losses(read_sweep(path).results) != wanted:
            shutil.copytree(folder / backend, folder / f"{backend}-different")
            return Counter({(f"sweep on {backend}", "DIFFERENT"): killed.total()})
        counts += Counter({**killed, "sweeps": 1})
        record.write_text(json.dumps(counts))
    return Counter({(f"{backend}: {kind}", "exact"): count for kind, count in counts.items()})


def _undisturbed(folder: Path, grid: str) -> dict[tuple[str, int], float]:
    """Return the losses of the same sweep that nobody disturbs, trained once."""
    path = folder / "sweep.toml"
    if not (folder / "done").is_file():
        path = write_sweep(folder, grid)
        assert not disturb(path, {}, LOCAL)
        (folder / "done").touch()
    return losses(read_sweep(path).results)
