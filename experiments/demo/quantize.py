"""Loss of the demo model in float32, 8 bits and 4 bits at every recurrence: ``python experiments/demo/quantize.py``.

The text is held out; differences are paired by sequence.
"""

from __future__ import annotations

import torch
from held_out import sequences

from loopscale.model import LoopedMoEForCausalLM
from loopscale.model.loading import DEMO, load
from loopscale.model.quantize import quantize

RECURRENCES = (1, 2, 3, 4)


def size(weight: torch.Tensor) -> int:
    """Return a weight's bytes; a quantised one consists of several tensors."""
    names = [*getattr(weight, "tensor_data_names", ()), *getattr(weight, "optional_tensor_data_names", ())]
    parts = [part for name in names if isinstance(part := getattr(weight, name), torch.Tensor)]
    return sum(map(size, parts)) if parts else weight.numel() * weight.element_size()


@torch.no_grad()
def losses(model: LoopedMoEForCausalLM, ids: torch.Tensor, recurrence: int) -> torch.Tensor:
    """Return the loss of each sequence."""
    return torch.stack([model(row[None], labels=row[None], recurrence=recurrence).loss for row in ids])


def main() -> None:
    """Print bytes of weights, losses, and differences from float32 paired by sequence, with standard errors."""
    torch.set_num_threads(1)
    plain, tokenizer = load(DEMO, dtype=torch.float32)
    ids = sequences(tokenizer, 64)
    reference = {R: losses(plain, ids, R) for R in RECURRENCES}
    for bits in (32, 8, 4):
        model = plain if bits == 32 else quantize(load(DEMO, dtype=torch.float32)[0], bits)
        experts = sum(size(weight) for name, weight in model.named_parameters() if ".experts." in name)
        print(f"{bits} bits: {sum(map(size, model.parameters())):,} bytes, {experts:,} of them experts")
        for R in RECURRENCES:
            loss = losses(model, ids, R)
            change = loss - reference[R]
            print(
                f"  R = {R}: {loss.mean():.4f}, {change.mean():+.4f} ± {change.std() / len(change) ** 0.5:.4f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
