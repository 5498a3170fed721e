"""The attacks at length: ``make attack``. It prints trials and failures by kind; the table is in docs/security.md.

python tests/attack/attack.py --commands 20000 --flips 200
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))

import flips
import fuzz
import numpy as np
from artefacts import make_files, make_folders

from loopscale.fit.data.public import simulate_sweep

CONFIG = """{"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
"num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": true,
"head_dim": 64}"""


def prepare(folder: Path) -> None:
    """Write the files that generated commands name."""
    make_files(folder)
    (folder / "config.json").write_text(CONFIG)
    dense = simulate_sweep(experts=(1,), recurrences=(1,), tokens=np.linspace(1e11, 5e11, 4).tolist())
    dense.to_csv(folder / "dense.csv")


def show(title: str, verdicts: Counter[tuple[str, str]], seconds: float) -> int:
    """Print a table of trials by kind and verdict; return how many were bad."""
    good = ("works", "refused", "found", "harmless")
    total = sum(verdicts.values())
    print(f"\n{title}: {total:,} trials in {seconds:.0f} s")
    for kind in sorted({kind for kind, _ in verdicts}):
        row = {verdict: count for (name, verdict), count in verdicts.items() if name == kind}
        print(f"  {kind:12} " + "  ".join(f"{verdict} {count:,}" for verdict, count in sorted(row.items())))
    bad = sum(count for (_, verdict), count in verdicts.items() if verdict not in good)
    print(f"  bad {bad}")
    return bad


def main() -> None:
    """Run the attacks that are asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--commands", type=int, default=20_000)
    parser.add_argument("--flips", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.chdir(folder)
        prepare(folder)
        start = time.monotonic()
        verdicts, trials = fuzz.attack(folder, options.commands, options.seed)
        bad += show("commands and files", verdicts, time.monotonic() - start)
        works = sum(count for (_, verdict), count in verdicts.items() if verdict == "works")
        print(f"  works: {works / max(options.commands, 1):.0%}")
        print(f"  most memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")
        for argv, verdict in trials[:20]:
            print(f"  {verdict}: loopscale {' '.join(map(repr, argv))[:300]}")
        if options.flips:
            bad += _flips(folder, options.flips, options.seed)
    sys.exit(1 if bad else 0)


def _flips(folder: Path, trials: int, seed: int) -> int:
    start = time.monotonic()
    verdicts = flips.attack(list(flips.json_files(folder)), trials, seed)
    make_folders(folder)
    verdicts += flips.attack(list(flips.folder_files(folder)), trials, seed)
    draw = random.Random(seed)
    for _ in range(trials):
        verdicts["database", flips.judge_sweep(folder / "tiny", folder / "copy", draw)] += 1
    return show("bit flips", verdicts, time.monotonic() - start)


if __name__ == "__main__":
    main()
