"""Every benchmark, one after the other: ``make bench``; or those named: ``python benchmarks/run.py train app``."""

from __future__ import annotations

import sys
from importlib import import_module

BENCHMARKS = {
    "plan": "plan_speed",
    "fit": "fit_speed",
    "next runs": "next_runs",
    "backtests": "backtests",
    "warnings": "warning_trials",
    "model": "model_speed",
    "data": "data_speed",
    "train": "train_speed",
    "sweep": "sweep_speed",
    "app": "app_speed",
    "journeys": "journeys",
}

if __name__ == "__main__":
    for name in sys.argv[1:] or BENCHMARKS:
        print(f"== {name} ==", flush=True)
        import_module(BENCHMARKS[name]).main()
