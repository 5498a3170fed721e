# Copyright 2026 the loopscale authors. Licensed under the Apache License, Version 2.0.
"""What the fields of a config may be, alone and together; a broken rule is refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard

from .errors import InputError

if TYPE_CHECKING:
    from .config import LoopedMoEConfig

MOST_LAYERS = 4_096
"""Most layers of a part and most passes; more would fill the memory before any weight is read."""

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3")
"""Scalings of rotary positions, as Transformers defines them."""

CHOICES: dict[str, tuple[str | None, ...]] = {
    "dispatch": ("dropless", "drop-and-pad"),
    "balance": ("layer", "pass"),
    "injection": ("none", "add", "concat", "gated", "diagonal", "normed"),
    "residual_scale": ("none", "1/sqrt(R)", "1/R"),
    "pass_attention": ("shared", "low-rank", "full"),
    "random_recurrence": (None, "uniform", "poisson"),
    "qk_norm": ("none", "head", "full"),
    "router_score": ("sigmoid", "softmax"),
}
"""Fields with a few values."""

LEAST: dict[str, int] = {
    **dict.fromkeys(("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"), 1),
    **dict.fromkeys(("num_experts", "num_experts_per_tok", "max_position_embeddings"), 1),
    **dict.fromkeys(("intermediate_size", "moe_intermediate_size", "pass_attention_rank"), 1),
    **dict.fromkeys(("prelude_layers", "loop_layers", "coda_layers", "shared_expert_intermediate_size"), 0),
}
"""Fields that are whole numbers, with the smallest."""

OPTIONAL = ("backprop_passes", "kept_passes", "kept_window", "bias_passes", "own_passes")
"""Fields that are whole numbers of 1 or more, or None."""

Rule = tuple[Callable[["LoopedMoEConfig"], Any], str]
"""When a config breaks a rule, and the sentence for it, in which ``c`` is the config."""

RULES: tuple[Rule, ...] = (
    (
        lambda c: not c.slots(1),
        "the model has no layers; give prelude_layers, loop_layers or coda_layers some",
    ),
    (
        lambda c: c.num_attention_heads % c.num_key_value_heads,
        "num_attention_heads {c.num_attention_heads} is no multiple of num_key_value_heads {c.num_key_value_heads}",
    ),
    (
        lambda c: c.head_dim % 2,
        "head_dim is {c.head_dim}; rotary positions need an even number",
    ),
    (
        lambda c: (c.rope_parameters or {}).get("rope_type") not in ROPE_TYPES,
        "rope_parameters has rope_type {c.rope_parameters[rope_type]!r}; it should be "
        + " or ".join(map(repr, ROPE_TYPES)),
    ),
    (
        lambda c: c.is_moe and c.num_experts_per_tok > c.num_experts,
        "num_experts_per_tok is {c.num_experts_per_tok}, more than the {c.num_experts} experts there are",
    ),
    (
        lambda c: c.is_moe and c.num_experts_per_tok == 1 and c.norm_topk_prob,
        "num_experts_per_tok is 1 with norm_topk_prob: the one gate divided by itself is always 1, so the router would "
        "get no gradient; use 2 or more, or norm_topk_prob=False",
    ),
    (
        lambda c: c.is_moe and not c.capacity_factor > 0,
        "capacity_factor is {c.capacity_factor}; it should be above zero",
    ),
    (
        lambda c: c.pass_router and not c.is_moe,
        "pass_router is true, but num_experts is 1: there is no router",
    ),
    (
        lambda c: c.pass_attention == "full" and (c.qkv_bias or c.output_bias),
        "pass_attention is 'full' with qkv_bias or output_bias: the projections of later passes have no biases; use "
        "'low-rank' or 'shared'",
    ),
    (
        lambda c: c.kept_passes is not None and c.kept_window is not None,
        "kept_passes and kept_window are both set; choose one",
    ),
    (
        lambda c: c.backprop_passes is not None and c.injection == "none",
        "backprop_passes is {c.backprop_passes} with injection 'none': the prelude would get no gradient, as the first "
        "passes are its only way to the loss; choose an injection",
    ),
    (
        lambda c: c.exit_gate and (c.loop_loss_weights is not None or not c.loop_layers),
        "exit_gate needs a loop block, and weighs the losses of passes itself: leave out loop_loss_weights",
    ),
    (
        lambda c: not c.exit_entropy_coef >= 0,
        "exit_entropy_coef is {c.exit_entropy_coef}; it should be zero or more",
    ),
    (
        lambda c: (
            c.loop_loss_weights is not None
            and (not c.loop_loss_weights or min(c.loop_loss_weights) < 0 or not sum(c.loop_loss_weights) > 0)
        ),
        "loop_loss_weights is {c.loop_loss_weights}; it should hold weights of zero or more, not all zero",
    ),
    (
        lambda c: c.recurrence > 1 and not c.loop_layers,
        "recurrence is {c.recurrence} but loop_layers is 0: there is nothing to repeat",
    ),
)


def check(config: LoopedMoEConfig) -> None:
    """Refuse sizes and options that no model can have."""
    for name, least in LEAST.items():
        value = getattr(config, name)
        if not is_whole(value) or value < least:
            raise InputError(f"config: {name} is {value!r}; it should be a whole number, {least} or more")
    for name in ("prelude_layers", "loop_layers", "coda_layers", "recurrence"):
        if getattr(config, name) > MOST_LAYERS:
            raise InputError(f"config: {name} is {getattr(config, name)}; it should be at most {MOST_LAYERS}")
    for name, choices in CHOICES.items():
        value = getattr(config, name)
        if value not in choices:
            known = " or ".join(repr(choice) for choice in choices if choice is not None)
            raise InputError(f"config: {name} is {value!r}; it should be {known}")
    for name in OPTIONAL:
        value = getattr(config, name)
        if value is not None and (not is_whole(value) or value < 1):
            raise InputError(f"config: {name} is {value!r}; it should be a whole number, 1 or more, or None")
    for is_broken, sentence in RULES:
        if is_broken(config):
            raise InputError("config: " + sentence.format(c=config))


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)
