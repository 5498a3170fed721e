"""Balance the experts without an auxiliary loss: a bias on the choice, updated after each step.

Shapes: R passes, L layers of a part, E experts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loopscale.errors import InputError
from loopscale.model.blocks import Block
from loopscale.model.forward import Trace
from loopscale.model.modeling import LoopedMoEForCausalLM, LoopedMoEModel
from loopscale.model.moe import MoELayer


@torch.no_grad()
def update_biases(model: LoopedMoEForCausalLM | LoopedMoEModel, counts: Trace, rate: float | None = None) -> None:
    """Move each router's bias by ``rate`` towards the experts that got fewer tokens than the mean.

    ``counts`` is the ``expert_counts`` that forward returned, summed over the batches of a step and over all processes;
    activation checkpointing does not count twice. One bias per layer uses the counts of all its passes together; with
    ``balance="pass"`` each pass has its own. The bias is kept centred, because only differences between experts
    matter.
    """
    base = model.model if isinstance(model, LoopedMoEForCausalLM) else model
    if not base.config.is_moe:
        raise InputError("this model has no experts to balance: num_experts is 1")
    step = base.config.bias_update_rate if rate is None else rate
    for part, counted_LE in ((base.prelude, counts.prelude), (base.coda, counts.coda)):
        for block, counts_E in zip(part, counted_LE, strict=True):
            _move(_bias(block), counts_E, step)
    for layer, block in enumerate(base.loop):
        _move_loop(_bias(block), counts.loop[:, layer], step)


def _move_loop(bias: Tensor, counts_RE: Tensor, step: float) -> None:
    if bias.dim() == 1:
        _move(bias, counts_RE.sum(0), step)
        return
    last = len(bias) - 1
    for row, bias_E in enumerate(bias):  # passes beyond the last row share it
        counts_E = counts_RE[last:].sum(0) if row == last else counts_RE[row : row + 1].sum(0)
        _move(bias_E, counts_E, step)


def _move(bias_E: Tensor, counts_E: Tensor, step: float) -> None:
    if not counts_E.sum():  # a pass that did not run has no counts
        return
    load_E = counts_E.to(bias_E)
    bias_E.add_(step * torch.sign(load_E.mean() - load_E))
    bias_E.sub_(bias_E.mean())


def _bias(block: torch.nn.Module) -> Tensor:
    assert isinstance(block, Block)
    assert isinstance(block.mlp, MoELayer)
    return block.mlp.router.bias_rows


def load_ratio(counts_E: Tensor) -> float:
    """Return the busiest expert's load over the mean: 1 is perfect balance."""
    return float(counts_E.max() / counts_E.double().mean())
