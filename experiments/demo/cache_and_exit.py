"""KV policies and early exit of the demo model: ``python experiments/demo/cache_and_exit.py``.

Loss of each way to keep keys and values, read token by token in float32 at R = 4 on held-out text, and its cost, paired
by sequence. Then early exit in a batch against decoding one by one: tokens and passes.
"""

from __future__ import annotations

from typing import Any

import torch
from held_out import CONTEXT, sequences
from transformers import PreTrainedTokenizerBase

from loopscale.evaluate.losses import cache_losses, pass_losses
from loopscale.model import Exit, LoopedMoEForCausalLM
from loopscale.model.loading import DEMO, load

RECURRENCE = 4
SEQUENCES = 96
POLICIES = ("passes:4", "passes:1", "window:64", "window:16", "window:1")
PROMPTS, NEW = 24, 32
EXITS = (("kl", 0.002), ("kl", 0.01), ("kl", 0.05), ("argmax", 0.5), ("state", 0.1), ("state", 0.3))


def policies(model: LoopedMoEForCausalLM, ids: torch.Tensor) -> None:
    """Print the loss of every policy, with its cost and its memory, and of every recurrence."""
    batch = [(ids, torch.full((len(ids),), CONTEXT))]
    shape = model.config.to_architecture()
    for kv in POLICIES:
        found = cache_losses(model, batch, RECURRENCE, kv, lambda done: None)
        kind, _, count = kv.partition(":")
        kept = shape.kv_bytes(RECURRENCE, CONTEXT, **{f"kept_{kind}": int(count)})
        memory = kept / shape.kv_bytes(RECURRENCE, CONTEXT)
        loss, cost = found.sums.mean(), found.cost.mean()
        print(f"{kv}: {loss.value:.4f}, {cost.value:+.4f} ± {cost.stderr:.4f}, memory {memory:.2f}", flush=True)
    for one in pass_losses(model, batch, RECURRENCE, lambda done: None):
        print(f"every pass, R = {one.recurrence}: {one.sums.mean().value:.4f}", flush=True)


def exits(model: LoopedMoEForCausalLM, tokenizer: PreTrainedTokenizerBase) -> None:
    """Print passes computed in a batch, used by its tokens and of a batch that stays whole; tokens must be equal."""
    prompts = sequences(tokenizer, PROMPTS)[:, :NEW]

    def decode(rows: torch.Tensor, rule: Exit | None = None) -> Any:
        settings = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "return_dict_in_generate": True}
        return model.generate(rows, attention_mask=torch.ones_like(rows), recurrence=RECURRENCE, exit=rule, **settings)

    plain = decode(prompts).sequences
    for criterion, threshold in EXITS:
        rule = Exit(criterion, threshold)
        together, alone = decode(prompts, rule), [decode(row[None], rule) for row in prompts]
        same = sum(torch.equal(each.sequences[0], row) for each, row in zip(alone, together.sequences, strict=True))
        used = int(together.passes.sum())
        whole = int(together.passes.max(0).values.sum()) * PROMPTS
        full = float((together.sequences == plain)[:, NEW:].float().mean())
        print(
            f"{criterion} {threshold}: {int(together.executed.sum())} passes computed, {used} used by the tokens, "
            f"{whole} without leaving the batch, mean {used / NEW / PROMPTS:.2f}; {same} of {PROMPTS} sequences as "
            f"one by one, {full:.0%} of the tokens those of R = {RECURRENCE}",
            flush=True,
        )


def main() -> None:
    """Measure both."""
    torch.set_num_threads(1)
    model, tokenizer = load(DEMO, dtype=torch.float32)
    policies(model, sequences(tokenizer, SEQUENCES))
    exits(model, tokenizer)


if __name__ == "__main__":
    main()
