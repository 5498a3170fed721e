"""Memory and time of the output head with its loss: in chunks, by torch's ``linear_cross_entropy``, and whole.

Each form runs forward and backward once, in a process of its own: its peak beyond the inputs is what it needs. The
vocabulary is the paper's, the width is small, so that logits are what takes memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.modules.linear_cross_entropy_options import LinearCrossEntropyOptions

from loopscale.model.losses import chunked_cross_entropy
from timing import peak_memory

VOCABULARY, TOKENS, WIDTH, ROUNDS = 202_048, 2_048, 64, 3


def torchs(hidden: Tensor, weight: Tensor, labels: Tensor, scale: Tensor) -> Tensor:
    """Return torch's loss in chunks of its own choice; its mean has the same scale for every row."""
    return functional.linear_cross_entropy(hidden, weight, labels, options=LinearCrossEntropyOptions())


def whole(hidden: Tensor, weight: Tensor, labels: Tensor, scale: Tensor) -> Tensor:
    """Return the loss from the logits of all rows."""
    logits = functional.linear(hidden, weight).float()
    return (functional.cross_entropy(logits, labels, reduction="none") * scale).sum()


FORMS = {"chunked": chunked_cross_entropy, "torch": torchs, "whole": whole}


def run(form: str, passes: int, gradients: str | None = None) -> dict[str, float]:
    """Compute one loss with its gradients; return the bytes and the CPU seconds that it took.

    ``gradients`` is a file to save them in.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = TOKENS * passes
    weight = (torch.randn(VOCABULARY, WIDTH) * 0.02).requires_grad_()
    hidden = torch.randn(rows, WIDTH, requires_grad=True)
    labels, scale = torch.randint(0, VOCABULARY, (rows,)), torch.full((rows,), 1 / rows)
    before, start = peak_memory(), time.process_time()
    FORMS[form](hidden, weight, labels, scale).backward()
    seconds = time.process_time() - start
    needed = peak_memory() - before
    if gradients is not None:
        torch.save((hidden.grad, weight.grad), gradients)
    return {"bytes": needed, "seconds": seconds}


def in_a_process(form: str, passes: int, *more: str) -> dict[str, float]:
    """Do the same in a new process."""
    command = [sys.executable, __file__, form, str(passes), *more]
    result: dict[str, float] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return result


def apart(form: str, passes: int) -> dict[str, float]:
    """Return the medians of some processes."""
    runs = [in_a_process(form, passes) for _ in range(ROUNDS)]
    return {key: sorted(run[key] for run in runs)[ROUNDS // 2] for key in runs[0]}


def main() -> None:
    """Print memory and time of every form, and the ratios."""
    print(f"output head and loss, vocabulary {VOCABULARY:,}, {TOKENS:,} tokens, width {WIDTH}, median of {ROUNDS}")
    found = {(form, passes): apart(form, passes) for form, passes in (("chunked", 1), ("torch", 1), ("whole", 1))}
    found["chunked", 5] = apart("chunked", 5)
    for (form, passes), result in found.items():
        supervised = f", {passes} supervised passes" if passes > 1 else ""
        print(f"  {form}{supervised}: {result['bytes'] / 1e6:,.0f} MB, {result['seconds']:.1f} s of CPU")
    chunked, theirs, whole = (found[form, 1] for form in ("chunked", "torch", "whole"))
    print(
        f"  memory of the whole logits over chunked: {whole['bytes'] / chunked['bytes']:.1f}x (wanted: 8x); torch's "
        f"linear_cross_entropy over chunked: memory {theirs['bytes'] / chunked['bytes']:.2f}x, "
        f"time {theirs['seconds'] / chunked['seconds']:.2f}x",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("form", nargs="?", choices=FORMS)
    parser.add_argument("passes", nargs="?", type=int, default=1)
    parser.add_argument("gradients", nargs="?")
    given = parser.parse_args()
    if given.form is None:
        main()
    else:
        print(json.dumps(run(given.form, given.passes, given.gradients)))
