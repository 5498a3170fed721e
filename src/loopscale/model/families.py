"""Standard architectures that hold the same layers as ours: their configs and the names of their tensors.

``retrofit`` reads them and ``export`` writes them. All of them name the parts of a layer alike, so a family is no more
than a few facts about its config.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from loopscale.core.errors import InputError
from loopscale.model.config import LoopedMoEConfig

SAME = (
    *("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size"),
    *("max_position_embeddings", "rms_norm_eps", "initializer_range", "tie_word_embeddings"),
    *("pad_token_id", "bos_token_id", "eos_token_id"),
)
"""Fields that every family and our config have under one name."""

JOINED = {
    "qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.shared_expert.gate_up_proj": ("mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"),
}
"""Projections of ours that are several of theirs, one below the other."""

RENAMED = {
    "o_proj": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "mlp.router": "mlp.gate",
    "mlp.shared_expert.down_proj": "mlp.shared_experts.down_proj",
}
"""Modules of a layer by our names and theirs; all others have the same."""


@dataclass(frozen=True)
class Family:
    """One standard architecture. Facts that a config states are the name of its field, others are the value."""

    model_type: str
    qkv_bias: str | bool = False
    output_bias: str | bool = False
    qk_norm: str = "none"
    """ "none", "head" or "full"; a family that has the choice names its field in ``norm_switch``."""
    norm_switch: str | None = None
    router: str | None = None
    """The score of experts; None for dense layers."""
    experts: str = "num_experts"
    expert_size: str = "moe_intermediate_size"
    norm_topk_prob: str | bool = "norm_topk_prob"
    fixed: tuple[tuple[str, Any], ...] = ()
    """Fields with the one value that our layers have; null and absent fields have it too."""

    def read(self, config: Any) -> dict[str, Any]:
        """Return our config's fields for one of the family's."""
        heads = config.num_attention_heads
        fields = {name: getattr(config, name, None) for name in SAME}
        fields["head_dim"] = fields["head_dim"] or config.hidden_size // heads
        fields["num_key_value_heads"] = fields["num_key_value_heads"] or heads
        fields["rope_parameters"] = dict(config.rope_parameters)
        fields["qkv_bias"] = _stated(self.qkv_bias, config)
        fields["output_bias"] = _stated(self.output_bias, config)
        has_norm = self.norm_switch is None or getattr(config, self.norm_switch)
        fields["qk_norm"] = self.qk_norm if has_norm else "none"
        if self.router is None:
            return fields
        hidden = getattr(config, self.expert_size)
        fields |= {
            "num_experts": getattr(config, self.experts),
            "num_experts_per_tok": config.num_experts_per_tok,
            "moe_intermediate_size": hidden,
            "norm_topk_prob": _stated(self.norm_topk_prob, config),
            "router_score": self.router,
            "routed_scaling_factor": getattr(config, "routed_scaling_factor", 1.0),
            "shared_expert_intermediate_size": hidden * getattr(config, "n_shared_experts", 0),
        }
        return fields

    def write(self, config: LoopedMoEConfig, layers: int) -> dict[str, Any] | None:
        """Return the family's fields for layers of ours, or None if it cannot hold them."""
        if self.router != (config.router_score if config.is_moe else None):
            return None
        fields: dict[str, Any] = {name: getattr(config, name) for name in SAME}
        fields["num_hidden_layers"] = layers
        fields["rope_parameters"] = {**(config.rope_parameters or {}), "partial_rotary_factor": 1.0}
        switches: list[tuple[str | bool, bool]] = [
            (self.qkv_bias, config.qkv_bias),
            (self.output_bias, config.output_bias),
        ]
        if config.is_moe:
            fields |= {
                self.experts: config.num_experts,
                "num_experts_per_tok": config.num_experts_per_tok,
                self.expert_size: config.moe_intermediate_size,
                "routed_scaling_factor": config.routed_scaling_factor,
            }
            switches.append((self.norm_topk_prob, config.norm_topk_prob))
            if self.router == "softmax" and (
                config.routed_scaling_factor != 1 or config.shared_expert_intermediate_size
            ):
                return None
        if self.norm_switch is not None and config.qk_norm in ("none", self.qk_norm):
            fields[self.norm_switch] = config.qk_norm != "none"
        elif config.qk_norm != self.qk_norm:
            return None
        for where, value in switches:
            if isinstance(where, bool):
                if where != value:
                    return None
            elif fields.setdefault(where, value) != value:  # one field for two switches of ours
                return None
        if self.model_type == "olmoe" and config.head_dim * config.num_attention_heads != config.hidden_size:
            return None
        return {**fields, **dict(self.fixed)}


def _stated(fact: str | bool, config: Any) -> bool:
    return fact if isinstance(fact, bool) else bool(getattr(config, fact))


_BIASES: Mapping[str, Any] = {"qkv_bias": "attention_bias", "output_bias": "attention_bias"}
_NO_WINDOW = ("sliding_window", None)
_GROUPS = (("n_group", 1), ("topk_group", 1), ("first_k_dense_replace", 0), ("num_mtp_layers", 0))

FAMILIES: Mapping[str, Family] = {
    family.model_type: family
    for family in (
        Family("llama", **_BIASES, fixed=(("mlp_bias", False),)),
        Family("mistral", fixed=(_NO_WINDOW,)),
        Family("qwen2", qkv_bias=True, fixed=(("use_sliding_window", False),)),
        Family("qwen3", **_BIASES, qk_norm="head", fixed=(("use_sliding_window", False),)),
        Family("mixtral", router="softmax", experts="num_local_experts", expert_size="intermediate_size",
               norm_topk_prob=True, fixed=(_NO_WINDOW,)),
        Family("qwen3_moe", **_BIASES, qk_norm="head", router="softmax",
               fixed=(("use_sliding_window", False), ("decoder_sparse_step", 1), ("mlp_only_layers", []))),
        Family("olmoe", **_BIASES, qk_norm="full", router="softmax", expert_size="intermediate_size",
               fixed=(("clip_qkv", None),)),
        Family("glm4_moe", qkv_bias="attention_bias", qk_norm="head", norm_switch="use_qk_norm", router="sigmoid",
               experts="n_routed_experts", fixed=_GROUPS),
    )
}  # fmt: skip
"""By ``model_type``; export takes the first that holds the model."""

UNLIKE = {
    "olmo2": "norms after attention and feed-forward",
    "olmo3": "norms after attention and feed-forward",
    "gemma2": "norms before and after each block",
    "gemma3_text": "norms before and after each block",
    "ouro": "norms before and after each block",
    "gpt_oss": "attention sinks and biases of experts",
    "deepseek_v2": "latent attention",
    "deepseek_v3": "latent attention",
    "qwen2_moe": "a gate on the shared expert",
    "phi3": "other tensor names; save it as Llama",
    "granite": "multipliers of embeddings, attention and residuals",
}
"""What well-known families have that ours has no form for."""


def find_family(config: Any, where: str) -> Family:
    """Return the family of a config; what our layers have no form for is refused by name."""
    kind = config.model_type
    if kind not in FAMILIES:
        missing = f" ({UNLIKE[kind]})" if kind in UNLIKE else ""
        raise InputError(
            f"{where}: a {kind!r} model has layers of another form than ours{missing}; known are {', '.join(FAMILIES)}"
        )
    family = FAMILIES[kind]
    problems = list(_problems(family, config))
    if problems:
        raise InputError(
            f"{where}: this {kind!r} model has {', and '.join(problems)}, which our layers have no form for; choose "
            "another model"
        )
    return family


def _problems(family: Family, config: Any) -> Iterator[str]:
    if config.hidden_act != "silu":
        yield f"activation {config.hidden_act!r} (ours is silu)"
    window = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None) or ["sliding_attention" if window else "full_attention"]
    if window and "sliding_attention" in types and window < config.max_position_embeddings:
        yield (
            f"attention windows of {window} tokens (to use no more tokens than that, set sliding_window to null and "
            f"max_position_embeddings to {window} in its config.json)"
        )
    partial = (config.rope_parameters or {}).get("partial_rotary_factor", 1.0)
    if partial != 1:
        yield f"rotary positions on {partial:g} of each head"
    for name, value in family.fixed:
        if name not in ("sliding_window", "use_sliding_window") and (getattr(config, name, None) or value) != value:
            yield f"{name} {getattr(config, name)!r}"


def to_ours(layer: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of one of our blocks from those of a standard layer."""
    names = {theirs: ours for ours, theirs in RENAMED.items()}
    parts = {part: (ours, index) for ours, several in JOINED.items() for index, part in enumerate(several)}
    out: dict[str, Tensor] = {}
    joined: dict[str, dict[int, Tensor]] = {}
    for name, tensor in layer.items():
        module, last = _split(name)
        if module in parts:
            ours, index = parts[module]
            joined.setdefault(ours + last, {})[index] = tensor
        else:
            out[names.get(module, module) + last] = tensor
    return out | {name: torch.cat([several[index] for index in sorted(several)]) for name, several in joined.items()}


def to_theirs(block: Mapping[str, Tensor], config: LoopedMoEConfig) -> dict[str, Tensor]:
    """Return the tensors of a standard layer from those of one of our blocks."""
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    rows: Callable[[str, Tensor], list[int]] = lambda module, tensor: (  # noqa: E731
        [queries, keys, keys] if module == "qkv_proj" else [len(tensor) // 2] * 2
    )
    out: dict[str, Tensor] = {}
    for name, tensor in block.items():
        module, last = _split(name)
        if module in JOINED:
            pieces = torch.split(tensor, rows(module, tensor))
            out |= {part + last: piece for part, piece in zip(JOINED[module], pieces, strict=True)}
        else:
            out[RENAMED.get(module, module) + last] = tensor
    return out


def _split(name: str) -> tuple[str, str]:
    """Return a tensor's module and the rest of its name, with the dot."""
    module, dot, last = name.rpartition(".")
    return module, dot + last
