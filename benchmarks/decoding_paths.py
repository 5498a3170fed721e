"""What the experts' paths for a single token and for few rows gain in greedy decoding, over the paths for many.

The same model runs with and without it in turn, on one thread; CPU time, so that other work on the machine matters
little. A path that gains less than 1.2x at width 256 or more is not worth its lines.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from transformers.utils import logging

from loopscale.model import experts, moe
from model_speed import VOCABULARY, ours
from timing import compare

WIDTHS, PROMPT, NEW, ROUNDS = (256, 512), 16, 32, 5


def generation(model: Any, batch: int, path: Callable[..., torch.Tensor], few_rows: int) -> Callable[[], None]:
    """Return greedy decoding with one path of the experts, and up to so many rows as few."""
    ids = torch.randint(VOCABULARY, (batch, PROMPT), generator=torch.Generator().manual_seed(0))
    options = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}

    def generate() -> None:
        chosen = moe.expert_ffn, experts.FEW_ROWS
        moe.expert_ffn, experts.FEW_ROWS = path, few_rows
        try:
            model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        finally:
            moe.expert_ffn, experts.FEW_ROWS = chosen

    return generate


def main() -> None:
    """Print the ratio at each width."""
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for width in WIDTHS:
        model = ours(width).eval()
        few, many = experts.FEW_ROWS, experts._without_gradients
        pairs = {
            "one token": (generation(model, 1, experts.expert_ffn, few), generation(model, 1, many, 0)),
            "few rows, batch 8": (generation(model, 8, many, few), generation(model, 8, many, 0)),
        }
        for name, both in pairs.items():
            label = f"experts of {name}, width {width}, {NEW} tokens, wanted 1.20"
            print(compare(label, *both, rounds=ROUNDS, clock=time.process_time), flush=True)


if __name__ == "__main__":
    main()
