"""Write what the paper's analyses give on simulated sweeps: src/loopscale/cli/reproduction/simulated.json.

python experiments/reproduction/simulate.py [SWEEPS]    # 40 by default, about two seconds each
"""

import json
import sys

from loopscale.cli.reproduction.simulated import STORED, simulated_numbers

sweeps = int(sys.argv[1]) if len(sys.argv) > 1 else 40
found: dict[str, list[float]] = {}
for seed in range(sweeps):
    for name, value in simulated_numbers(seed).items():
        found.setdefault(name, []).append(value)
    print(f"sweep {seed + 1} of {sweeps}", flush=True)
rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(values)}" for name, values in found.items())
STORED.write_text(f'{{\n "sweeps": {sweeps},\n "numbers": {{\n{rows}\n }}\n}}\n', encoding="utf-8")
