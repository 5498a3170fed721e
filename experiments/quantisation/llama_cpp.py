"""Loss of quantised GGUF files in llama.cpp at each recurrence, on held-out text: one line for each file.

    npm install node-llama-cpp @node-llama-cpp/linux-x64       # in FOLDER
    python experiments/quantisation/llama_cpp.py FOLDER

Differences are from float32 in Transformers, paired by sequence, ± one standard error.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from loopscale.model.export import unroll
from loopscale.model.gguf_file import write_gguf
from loopscale.model.loading import DEMO, load

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "demo"))
from held_out import sequences  # noqa: E402

FORMATS = ("f32", "f16", "q8_0", "q5_1", "q4_1", "q4_0")


def main() -> None:
    """Measure every format at every recurrence."""
    packages, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 24
    looped, tokenizer = load(DEMO, dtype=torch.float32)
    ids_ST = sequences(tokenizer, count)
    for R in (1, 2, 4):
        plain = unroll(looped, R)
        with torch.no_grad():
            exact_S = torch.stack([plain(ids[None], labels=ids[None]).loss for ids in ids_ST])
        print(f"R = {R}: {float(exact_S.mean()):.4f} in Transformers", flush=True)
        for dtype in FORMATS:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "model.gguf"
                write_gguf(plain, tokenizer, file, dtype)
                done = subprocess.run(
                    ["node", str(HERE / "llama_cpp_loss.mjs"), packages, str(file)],
                    input=json.dumps(ids_ST.tolist()), capture_output=True, text=True, check=True,
                )  # fmt: skip
                size = file.stat().st_size
            more_S = torch.tensor(json.loads(done.stdout.splitlines()[-1])) - exact_S
            error = float(more_S.std()) / count**0.5
            print(f"R = {R} {dtype}: {size:,} bytes, {float(more_S.mean()):+.4f} ± {error:.4f}", flush=True)


if __name__ == "__main__":
    main()
