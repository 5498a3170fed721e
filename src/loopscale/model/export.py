"""Write a looped model as a plain one of a standard architecture, with the loop written out at a fixed R.

The result needs none of our code. Passes become separate layers, so it is as large as its unrolled depth; parts
that a pass has for itself (norms, adapters, routers, biases) go into the layers of that pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from loopscale.core.errors import InputError, require
from loopscale.model.blocks import Block, LowRank
from loopscale.model.config import LoopedMoEConfig
from loopscale.model.families import FAMILIES, to_theirs
from loopscale.model.forward import resolve_recurrence
from loopscale.model.loading import quiet
from loopscale.model.model import LoopedMoEForCausalLM
from loopscale.model.moe import MoELayer


@torch.no_grad()
def unroll(model: LoopedMoEForCausalLM, recurrence: int | None = None) -> PreTrainedModel:
    """Return a model of a standard architecture that computes what this one does with ``recurrence`` passes.

    It is Llama, Qwen2 or Qwen3 for dense layers and GLM4-MoE, Mixtral, Qwen3-MoE or OLMoE for experts, whichever has
    the same parts. A gate for early exit is left out.
    """
    config = model.config
    R = resolve_recurrence(recurrence, None, config)
    check_writable(model, "a model with the loop written out")
    if config.injection != "none":
        raise InputError(
            f"injection is {config.injection!r}: plain layers do not see the loop's input again; keep the model in its "
            "own form, or for 'add' write it `--to mlx`"
        )
    layers = [to_theirs(block, config) for block in unrolled_blocks(model, R)]
    written = _standard_config(config, len(layers))
    if written.model_type == "glm4_moe":
        layers = [_with_shared_expert(layer, config) for layer in layers]
    elif config.is_moe:
        for layer in layers:
            if layer.pop("mlp.gate.e_score_correction_bias").any():
                raise InputError(
                    "the balancing bias of a softmax router is not zero, and no standard architecture has both; keep "
                    "the model in its own form"
                )
    state = {f"model.layers.{i}.{name}": tensor for i, layer in enumerate(layers) for name, tensor in layer.items()}
    for name in ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"):
        if name != "lm_head.weight" or not config.tie_word_embeddings:
            state[name] = model.get_parameter(name)
    with torch.device("meta"):
        plain: PreTrainedModel = AutoModelForCausalLM.from_config(written, dtype=model.dtype)  # type: ignore[no-untyped-call]
    # Copies, because a file holds a tensor once: layers of two passes may not be one tensor.
    copies = {name: tensor.clone() for name, tensor in state.items()}
    missing, unexpected = plain.load_state_dict(copies, strict=False, assign=True)
    plain.tie_weights()
    assert not unexpected, unexpected
    assert set(missing) <= {"lm_head.weight"}, missing
    base: Any = plain.model
    base.rotary_emb = type(base.rotary_emb)(plain.config)  # a model built on the meta device lacks its frequencies
    if model.generation_config is not None:
        settings: dict[str, Any] = model.generation_config.to_dict()
        own = ("recurrence", "transformers_version")
        settings = {key: value for key, value in settings.items() if key not in own}
        plain.generation_config = type(model.generation_config).from_dict(settings)
    plain.eval()  # type: ignore[no-untyped-call]
    return plain


class _LogitsOnly(nn.Module):
    """Token ids (batch, length) to logits with a fixed number of passes, without a cache."""

    def __init__(self, model: LoopedMoEForCausalLM, recurrence: int | None) -> None:
        super().__init__()
        self.model, self.recurrence = model, resolve_recurrence(recurrence, None, model.config)

    def forward(self, input_ids: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=input_ids, use_cache=False, recurrence=self.recurrence).logits
        return logits

    @property
    def example(self) -> tuple[tuple[Tensor], dict[str, Any]]:
        """An input to trace with, and the sizes that may differ from it."""
        most = self.model.config.max_position_embeddings
        sizes = {"input_ids": {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=most)}}
        return (torch.zeros(2, min(8, most), dtype=torch.long),), sizes


def write_onnx(model: LoopedMoEForCausalLM, file: Path, recurrence: int | None = None) -> None:
    """Write an ONNX graph from token ids (batch, length) to logits with ``recurrence`` passes, without a cache."""
    require("onnxscript", "onnx", "ONNX")
    graph = _LogitsOnly(model, recurrence).eval()
    inputs, sizes = graph.example
    with warnings.catch_warnings(), quiet():
        warnings.simplefilter("ignore")  # about packages that this model does not use
        torch.onnx.export(
            graph, inputs, str(file), dynamic_shapes=sizes, dynamo=True, verbose=False,
            input_names=["input_ids"], output_names=["logits"], external_data=False,
        )  # fmt: skip


def write_program(model: LoopedMoEForCausalLM, file: Path, recurrence: int | None = None) -> None:
    """Write the same as a program of ``torch.export``, which ``torch.export.load`` reads where only torch is installed.

    ExecuTorch and AOTInductor compile such programs.
    """
    graph = _LogitsOnly(model, recurrence).eval()
    inputs, sizes = graph.example
    before = model.config._experts_implementation
    # Transformers' grouped product on a CPU is a custom operation, which torch alone could not load.
    model.set_experts_implementation("batched_mm")
    try:
        with torch.no_grad(), warnings.catch_warnings(), quiet():
            warnings.simplefilter("ignore")
            program = torch.export.export(graph, inputs, dynamic_shapes=sizes)
            torch.export.save(program, file)
    finally:
        model.set_experts_implementation(before)


def check_writable(model: LoopedMoEForCausalLM, form: str) -> None:
    """Refuse what no other form of the model has: packed weights, and a cache that passes share."""
    config = model.config
    if model.packed_bits is not None:
        raise InputError(
            f"the weights are packed into {model.packed_bits} bits, which cannot be written; load the model again"
        )
    if config.kept_passes is not None or config.kept_window is not None:
        raise InputError(
            f"kept_passes and kept_window share a cache between passes, which {form} does not; set both to None"
        )


def _standard_config(config: LoopedMoEConfig, layers: int) -> Any:
    """Return the config of the first standard architecture that has the same layers."""
    for family in FAMILIES.values():
        fields = family.write(config, layers)
        if fields is not None:
            if family.model_type == "glm4_moe":
                fields["n_shared_experts"] = _shared_experts(config)
            return AutoConfig.for_model(family.model_type, **fields)
    parts = f"qk_norm {config.qk_norm!r}, qkv_bias {config.qkv_bias}, output_bias {config.output_bias}"
    kind = f"{config.router_score} experts" if config.is_moe else "dense layers"
    raise InputError(f"no standard architecture has {kind} with {parts}; keep the model in its own form")


def _shared_experts(config: LoopedMoEConfig) -> int:
    """Return the shared experts of GLM4-MoE, which has at least one, in units of a routed expert's width."""
    return max(1, -(-config.shared_expert_intermediate_size // config.moe_intermediate_size))


def _with_shared_expert(layer: dict[str, Tensor], config: LoopedMoEConfig) -> dict[str, Tensor]:
    """Fill the shared expert up to a whole number of experts with zeros, which add nothing."""
    wide, width = _shared_experts(config) * config.moe_intermediate_size, config.hidden_size
    like = layer["mlp.gate.weight"]
    for name in ("gate_proj", "up_proj", "down_proj"):
        key = f"mlp.shared_experts.{name}.weight"
        is_down = name == "down_proj"
        weight = layer.get(key, like.new_zeros((width, 0) if is_down else (0, width)))
        missing = wide - weight.shape[1 if is_down else 0]
        layer[key] = functional.pad(weight, (0, missing) if is_down else (0, 0, 0, missing))
    return layer


def unrolled_blocks(model: LoopedMoEForCausalLM, recurrence: int) -> Iterator[dict[str, Tensor]]:
    """Yield the tensors of each layer in the order in which a forward runs them."""
    base = model.model
    scale = model.config.branch_scale(recurrence)
    for block in base.prelude:
        yield block_tensors(block)
    for pass_index in range(recurrence):
        for block in base.loop:
            yield block_tensors(block, pass_index, scale)
    for block in base.coda:
        yield block_tensors(block)


def block_tensors(block: nn.Module, pass_index: int = 0, scale: float = 1.0) -> dict[str, Tensor]:
    """Return a block's tensors at a pass, with what it adds to the state scaled."""
    assert isinstance(block, Block)
    own = {name: tensor for name, tensor in block.state_dict().items() if not name.startswith("later.")}
    for name in ("input_layernorm", "post_attention_layernorm", "qkv_proj", "o_proj"):
        part = block._part(name, pass_index)
        if isinstance(part, LowRank):
            own[f"{name}.weight"] = own[f"{name}.weight"] + part.up @ part.down
        else:
            own[f"{name}.weight"] = part.weight
    if isinstance(block.mlp, MoELayer):
        router = block.mlp.router
        own = {name: tensor for name, tensor in own.items() if not name.startswith("mlp.router.")}
        own["mlp.router.weight"] = router.weight_of(pass_index)
        own["mlp.router.e_score_correction_bias"] = router.bias(pass_index)
    if scale != 1:
        for name in own:
            if name.startswith("o_proj.") or "down_proj" in name:
                own[name] = own[name] * scale
    return own
