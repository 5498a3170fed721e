"""Write the model of ``loopscale generate demo`` into the package, in bfloat16 and without its code.

loopscale train examples/demo.toml --out demo
python experiments/demo/export.py demo/model
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from loopscale.model import loading


def export(checkpoint: str, target: Path) -> int:
    """Save model and tokenizer to ``target``; return the size of the weights in bytes."""
    model, tokenizer = loading.load(checkpoint, dtype=torch.bfloat16)
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    for code in target.glob("*.py"):  # the package has the classes itself
        code.unlink()
    config = json.loads((target / "config.json").read_text())
    config.pop("auto_map", None)
    (target / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    return (target / "model.safetensors").stat().st_size


if __name__ == "__main__":
    size = export(sys.argv[1], loading.DEMO)
    print(f"{loading.DEMO}: {size / 1e6:.2f} MB of weights")
