"""Every benchmark, one after the other: ``make bench``."""

from __future__ import annotations

import fit_speed
import model_speed
import next_runs
import plan_speed
import sweep_speed

if __name__ == "__main__":
    for name, benchmark in (
        ("plan", plan_speed),
        ("fit", fit_speed),
        ("next runs", next_runs),
        ("model", model_speed),
        ("sweep", sweep_speed),
    ):
        print(f"== {name} ==", flush=True)
        benchmark.main()
