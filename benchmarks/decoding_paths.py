"""What the experts' path for a single token gains in greedy decoding, over the path for many tokens.

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


def generation(model: Any, ids: torch.Tensor, path: Callable[..., torch.Tensor]) -> Callable[[], None]:
    """Return greedy decoding with one path of the experts."""
    options = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "pad_token_id": 0}

    def generate() -> None:
        chosen, moe.expert_ffn = moe.expert_ffn, path
        try:
            model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        finally:
            moe.expert_ffn = chosen

    return generate


def main() -> None:
    """Print the ratio at each width."""
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for width in WIDTHS:
        model = ours(width).eval()
        ids = torch.randint(VOCABULARY, (1, PROMPT), generator=torch.Generator().manual_seed(0))
        both = (generation(model, ids, path) for path in (experts.expert_ffn, experts._without_gradients))
        name = f"experts of one token, width {width}, {NEW} tokens, wanted 1.20"
        print(compare(name, *both, rounds=ROUNDS, clock=time.process_time), flush=True)


if __name__ == "__main__":
    main()
