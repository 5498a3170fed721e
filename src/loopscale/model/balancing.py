"""Balance the experts without an auxiliary loss: a bias on the choice, updated after each step.

Shapes: R passes, L layers of a part, E experts, P passes with a bias of their own.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional
from transformers import TrainerCallback

from loopscale.core.errors import InputError
from loopscale.model.blocks import Block
from loopscale.model.model import LoopedMoEForCausalLM, LoopedMoEModel
from loopscale.model.moe import MoELayer
from loopscale.model.outputs import Trace


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
        raise InputError("this model has no experts to balance: num_experts is 1; leave the balancing out")
    step = base.config.bias_update_rate if rate is None else rate
    for part, counts_RLE in (
        (base.prelude, counts.prelude[None]),
        (base.loop, counts.loop),
        (base.coda, counts.coda[None]),
    ):
        for layer, block in enumerate(part):
            assert isinstance(block, Block)
            assert isinstance(block.mlp, MoELayer)
            bias = block.mlp.router.bias_rows
            _move(bias.view(-1, bias.shape[-1]), counts_RLE[:, layer], step)


def _move(bias_PE: Tensor, counts_RE: Tensor, step: float) -> None:
    """Move each row of a router's bias by the loads of its pass; the last row is that of all later passes."""
    last = len(bias_PE) - 1
    for row, bias_E in enumerate(bias_PE):
        load_E = counts_RE[row : None if row == last else row + 1].sum(0).to(bias_E)
        # A pass that did not run has no counts, all signs are zero and the bias is centred already.
        bias_E.add_(step * torch.sign(load_E.mean() - load_E))
        bias_E.sub_(bias_E.mean())


def load_ratio(counts_E: Tensor) -> float:
    """Return the busiest expert's load over the mean: 1 is perfect balance."""
    return float(counts_E.max() / counts_E.double().mean())


class BalanceCallback(TrainerCallback):
    """Balance the experts under Hugging Face's trainer: ``Trainer(model, callbacks=[BalanceCallback(model)])``.

    It adds up the loads of every forward in training mode, over gradient accumulation and over processes, and updates
    the biases once for each step of the optimiser. Any other loop can use ``start``, ``update`` and ``stop``.
    """

    def __init__(self, model: LoopedMoEForCausalLM | LoopedMoEModel, rate: float | None = None) -> None:
        self.model, self.rate = model, rate
        self.counts: Trace | None = None
        self._handle: Any = None

    def start(self) -> None:
        """Collect the loads of every training forward from now on."""
        if self._handle is None:
            self._handle = self.model.register_forward_hook(self._collect)

    def stop(self) -> None:
        """Collect no more."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def update(self) -> None:
        """Update the biases from the loads since the last update, summed over all processes."""
        if self.counts is None:
            return
        if dist.is_available() and dist.is_initialized():
            for counts in self.counts:
                dist.all_reduce(counts)
        update_biases(self.model, self.counts, self.rate)
        self.counts = None

    def _collect(self, module: torch.nn.Module, inputs: Any, out: Any) -> None:
        if not module.training or out.expert_counts is None:
            return
        # With random recurrence the batches of a step may run different numbers of passes.
        self.counts = out.expert_counts if self.counts is None else _add(self.counts, out.expert_counts)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start with the training loop."""
        self.start()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Update after the optimiser."""
        self.update()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop with the training loop."""
        self.stop()


def _add(one: Trace, other: Trace) -> Trace:
    """Return the sum of two steps' loads, of which one may have run more passes."""
    passes = max(len(one.loop), len(other.loop))
    loops = [functional.pad(trace.loop, (0, 0, 0, 0, 0, passes - len(trace.loop))) for trace in (one, other)]
    return Trace(one.prelude + other.prelude, loops[0] + loops[1], one.coda + other.coda)
