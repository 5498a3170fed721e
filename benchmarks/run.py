"""Every benchmark, one after the other: ``make bench``; or those named: ``python benchmarks/run.py train app``."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
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

if __name__ == "__main__":
    unknown = [name for name in sys.argv[1:] if name not in BENCHMARKS]
    if unknown:
        sys.exit(f"no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    for name in sys.argv[1:] or BENCHMARKS:
        print(f"== {name} ==", flush=True)
        import_module(BENCHMARKS[name]).main()
        if name in OTHER_KERNELS:
            print(f"== {name}, ATEN_CPU_CAPABILITY=avx2 ==", flush=True)
            script = Path(__file__).with_name(f"{BENCHMARKS[name]}.py")
            subprocess.run([sys.executable, str(script)], env={**os.environ, "ATEN_CPU_CAPABILITY": "avx2"}, check=True)
