"""Every benchmark, one after the other: ``make bench``."""

from __future__ import annotations

import data_speed
import app_speed
import fit_speed
import model_speed
import next_runs
import plan_speed
import train_speed

BENCHMARKS = {
    "plan": plan_speed,
    "fit": fit_speed,
    "next runs": next_runs,
    "model": model_speed,
    "data": data_speed,
    "train": train_speed,
}

if __name__ == "__main__":
    for name, benchmark in BENCHMARKS.items():
    benchmarks = {
        "plan": plan_speed,
        "fit": fit_speed,
        "next runs": next_runs,
        "model": model_speed,
        "explorer": app_speed,
    }
    for name, benchmark in benchmarks.items():
        print(f"== {name} ==", flush=True)
        benchmark.main()
