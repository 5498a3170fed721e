"""The hf and vllm backends agree on the local suite. Run by ``make test-vllm`` in a separate environment.

It is a script and no test module: vLLM pins other versions than the rest of the tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

RECURRENCES = (1, 2, 4)


def scores(checkpoint: Path, results: Path, backend: str) -> dict[int, dict[str, float]]:
    """Return the scores with a backend, in a separate process, because vLLM changes the model's class."""
    asked = [sys.executable, "-m", "loopscale", "eval", str(checkpoint), "--tasks", "local", "--context", "128"]
    asked += ["--recurrence", ",".join(map(str, RECURRENCES)), "--dtype", "float32", "--backend", backend]
    done = subprocess.run([*asked, "--results", str(results), "--json"], stdout=subprocess.PIPE, text=True, check=True)
    rows = json.loads(done.stdout[done.stdout.index('{\n "kind"') :])["rows"]
    return {row["recurrence"]: {name: score["value"] for name, score in row["scores"].items()} for row in rows}


def main() -> int:
    """Train a small model, evaluate it with both backends, return how many scores differ."""
    import torch
    import trained

    torch.set_num_threads(1)
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        trained.train(home / "trained")
        ours, theirs = (scores(home / "trained", home / "results", backend) for backend in ("hf", "vllm"))
    for recurrence in RECURRENCES:
        for name, value in ours[recurrence].items():
            other = theirs[recurrence][name]
            same = abs(value - other) <= 1e-3 * max(1.0, abs(value))
            wrong += not same
            print(f"{'✓' if same else '✗'} {name}, R = {recurrence}: hf {value:.4f}, vllm {other:.4f}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
