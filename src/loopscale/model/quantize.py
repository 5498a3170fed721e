"""Quantise a model in memory, with torchao.

Shapes: E experts, O rows and I columns of a matrix.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from loopscale.core.errors import InputError, require
from loopscale.model.model import LoopedMoEForCausalLM
from loopscale.model.moe import Experts

GROUP = 32
"""Weights that share a scale in 4 bits; torchao's kernel for CPUs also takes 64 and 128."""


def quantize(model: LoopedMoEForCausalLM, bits: int = 8) -> LoopedMoEForCausalLM:
    """Quantise the weights of attention and experts in place with torchao, to 8 or 4 bits; return the model.

    Embeddings, output head, routers and norms keep their format. 8 bits have a scale for each row of a matrix. 4 bits
    have one for each 32 weights of a row and need a CPU. The packed model cannot be saved.
    """
    if bits not in (8, 4):
        raise InputError(f"bits is {bits!r}; torchao quantises to 8 or 4 bits here")
    if model.packed_bits is not None:
        raise InputError(f"the weights are in {model.packed_bits} bits already; load the model again")
    torchao = require("torchao.quantization", "quant", "quantisation")

    # All of them before any is replaced, so that a refusal leaves the model as it was.
    replaced: list[tuple[nn.Module, str, nn.Module | nn.Parameter]] = []
    for name, module in model.named_modules():
        if isinstance(module, Experts):
            for projection in ("gate_up_proj", "down_proj"):
                weight_EOI = getattr(module, projection)
                if bits == 8:
                    replaced.append((module, projection, _eight_bits(weight_EOI, torchao)))
                else:
                    matrices = [_four_bits(weight_OI, f"{name}.{projection}") for weight_OI in weight_EOI]
                    replaced.append((module, projection, nn.ParameterList(matrices)))
        elif isinstance(module, nn.Linear) and module is not model.lm_head:
            weight_OI = module.weight
            packed = _eight_bits(weight_OI, torchao) if bits == 8 else _four_bits(weight_OI, name)
            replaced.append((module, "weight", packed))
    for module, attribute, weight in replaced:
        delattr(module, attribute)
        setattr(module, attribute, weight)
    model.packed_bits = bits
    return model


def _eight_bits(weight: Tensor, torchao: Any) -> nn.Parameter:
    """Return whole numbers with a scale for each row; of experts, for each row of each."""
    quantized: Tensor = torchao.Int8Tensor.from_hp(weight.detach(), granularity=torchao.PerRow())
    return nn.Parameter(quantized, requires_grad=False)


def _four_bits(weight_OI: Tensor, name: str) -> nn.Parameter:
    """Return the packed form of a matrix that the CPU kernel multiplies by."""
    outputs, inputs = weight_OI.shape
    if outputs % 16 or inputs % GROUP:
        raise InputError(
            f"{name}: 4 bits need a multiple of 16 rows and of {GROUP} columns, and it is {outputs} x {inputs}; "
            "quantise to 8 bits"
        )
    int4 = require("torchao.prototype.quantization.int4.int4_opaque_tensor", "quant", "quantisation to 4 bits")
    packed: Tensor = int4.Int4OpaqueTensor.from_hp(weight_OI.detach(), [1, GROUP])
    return nn.Parameter(packed, requires_grad=False)
