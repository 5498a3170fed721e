"""Every benchmark, one after the other: ``make bench``; or those named: ``python benchmarks/run.py train app``.

Each runs in a process of its own, so that none inherits another's memory, threads or settings, and a benchmark that
fails does not keep the others from running.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BENCHMARKS = {
    "plan": "plan_speed",
    "fit": "fit_speed",
    "next runs": "next_runs",
    "backtests": "backtests",
    "warnings": "warning_trials",
    "model": "model_speed",
    "decoding": "decoding_paths",
    "loss": "loss_speed",
    "data": "data_speed",
    "train": "train_speed",
    "sweep": "sweep_speed",
    "app": "app_speed",
    "journeys": "journeys",
}

OTHER_KERNELS = ("decoding", "train")
"""Benchmarks that run a second time with the kernels of a machine without AVX-512."""


def run(name: str, **environment: str) -> bool:
    """Run one benchmark; return whether it ended well."""
    print(f"== {', '.join([name, *(f'{key}={value}' for key, value in environment.items())])} ==", flush=True)
    script = Path(__file__).with_name(f"{BENCHMARKS[name]}.py")
    return subprocess.run([sys.executable, str(script)], env={**os.environ, **environment}).returncode == 0


if __name__ == "__main__":
    unknown = [name for name in sys.argv[1:] if name not in BENCHMARKS]
    if unknown:
        sys.exit(f"no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    failed = []
    for name in sys.argv[1:] or BENCHMARKS:
        ended_well = run(name)
        if name in OTHER_KERNELS:
            ended_well &= run(name, ATEN_CPU_CAPABILITY="avx2")
        if not ended_well:
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
