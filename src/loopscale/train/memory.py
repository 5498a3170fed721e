"""The memory of activations: what a block stores for backward, and how many blocks fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from loopscale.core.errors import InputError
from loopscale.model import LoopedMoEConfig, LoopedMoEForCausalLM
from loopscale.model.blocks import Block, SlotAttention, rotary
from loopscale.model.experts import device_kernels
from loopscale.train.config import TrainConfig


def recompute_blocks(model: LoopedMoEForCausalLM, config: TrainConfig, ranks: int, dtype: torch.dtype) -> float:
    """Let a model recompute the block calls that [run] asks for in backward; return the share that is stored.

    These are all of them, or as many as do not fit in the memory for activations of one of ``ranks`` processes.
    """
    run, calls = config.run, 0
    if not run.recomputes:
        return 1.0
    if run.activation_memory is not None:
        sequences = run.batch // run.parts // ranks
        calls = stored_blocks(model.config, sequences, config.data.context, dtype, run.activation_memory)
    model.gradient_checkpointing_enable()
    model.model.stored_calls = calls
    return calls / block_calls(model.config)


def stored_blocks(config: LoopedMoEConfig, sequences: int, context: int, dtype: torch.dtype, memory: float) -> int:
    """Return how many block calls can keep their activations in ``memory`` bytes; the others are recomputed.

    The size of a block's activations is measured on one block of fake tensors.
    """
    stored, recomputed = block_bytes(config, sequences, context, dtype)
    calls = block_calls(config)
    # Recomputing a block stores its activations for a moment.
    needed = calls * recomputed + stored
    if memory < needed:
        raise InputError(
            f"[run]: field 'activation_memory' is {memory / 1e9:.3g} GB, but {sequences} sequences of {context} tokens "
            f"need {needed / 1e9:.3g} GB when every block is recomputed; raise 'accumulate', or allow more"
        )
    return min(calls, int((memory - needed) // max(1, stored - recomputed)))


def block_calls(config: LoopedMoEConfig) -> int:
    """Return how many times a block runs in one training forward."""
    readouts = config.recurrence if config.reads_every_pass else 1
    return config.prelude_layers + config.recurrence * config.loop_layers + readouts * config.coda_layers


def lone_block(
    config: LoopedMoEConfig, sequences: int, context: int
) -> tuple[Block, Tensor, Callable[[], tuple[Tensor, Any, Any]]]:
    """Return a block for measurements, an input, and a function that runs the block on it in training.

    Both have the default dtype; the weights have the initial values of PyTorch's layers, or none.
    """
    # A model sets its attention when it is built; a block alone would take the plain one, which keeps every score.
    config = deepcopy(config)
    config._attn_implementation = config._attn_implementation or "sdpa"
    block, attention = Block(config).train(), SlotAttention(config, 0)
    x_BTD = torch.randn(sequences, context, config.hidden_size, requires_grad=True)
    angles = rotary(torch.arange(context).unsqueeze(0), config, x_BTD.dtype)

    def run() -> tuple[Tensor, Any, Any]:
        result: tuple[Tensor, Any, Any] = block(
            x_BTD, attention=attention, angles=angles, attention_mask=None, tally=config.is_moe
        )
        return result

    return block, x_BTD, run


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def block_bytes(config: LoopedMoEConfig, sequences: int, context: int, dtype: torch.dtype) -> tuple[int, int]:
    """Return the bytes that one block call stores for backward, and those of its input, which recomputing needs.

    Measured in bf16, the only type that torch's grouped products have fake tensors for, and scaled to ``dtype``.
    """
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:  # also not as a view
            sizes[storage._cdata] = storage.nbytes()
        return tensor

    with FakeTensorMode(), device_kernels(), _default_dtype(torch.bfloat16):
        block, x_BTD, run = lone_block(config, sequences, context)
        weights = {weight.untyped_storage()._cdata for weight in block.parameters()}
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            result = run()  # kept to the end: storages that are freed share addresses with later ones
    del result
    scale = dtype.itemsize // torch.bfloat16.itemsize
    return sum(sizes.values()) * scale, x_BTD.untyped_storage().nbytes() * scale
