"""What sets each family of models apart: how its config becomes an architecture.

Every count follows the family's own modeling code, so that ``Architecture.parameters`` is the total of the built
model. Buffers (DeepSeek's balancing bias, rotary tables) and multi-token-prediction modules are not part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from loopscale.architecture import config_parts as part
from loopscale.architecture.architecture import Architecture
from loopscale.architecture.config_fields import ConfigFields
from loopscale.architecture.layers import Attention, FeedForward, Layer, QKNorm


def llama(c: ConfigFields) -> Architecture:
    """Llama and Granite."""
    block = FeedForward(c.size("intermediate_size"), bias=c.flag("mlp_bias"))
    return part.plain(c, part.biased(c, part.grouped(c)), part.everywhere(c, block))


def mistral(c: ConfigFields) -> Architecture:
    """Mistral and Phi-3: one window for all layers, if any."""
    return part.plain(c, part.grouped(c), part.dense(c), part.windows(c, lambda i: True))


def qwen2(c: ConfigFields) -> Architecture:
    """Qwen2: biased queries, keys and values."""
    return part.plain(c, replace(part.grouped(c), qkv_bias=True), part.dense(c), part.late_windows(c))


def qwen3(c: ConfigFields) -> Architecture:
    """Qwen3: queries and keys normalised per head."""
    attention = replace(part.biased(c, part.grouped(c)), qk_norm=QKNorm.HEAD)
    return part.plain(c, attention, part.dense(c), part.late_windows(c))


def olmo2(c: ConfigFields) -> Architecture:
    """OLMo 2: queries and keys normalised over their full width; two norms, after the blocks."""
    return part.plain(c, replace(part.biased(c, part.grouped(c)), qk_norm=QKNorm.FULL), part.dense(c))


def olmo3(c: ConfigFields) -> Architecture:
    """OLMo 3: OLMo 2 with three windowed layers to each full one."""
    attention = replace(part.biased(c, part.grouped(c)), qk_norm=QKNorm.FULL)
    return part.plain(c, attention, part.dense(c), part.windows(c, lambda i: (i + 1) % 4 != 0))


def gemma3(c: ConfigFields) -> Architecture:
    """Gemma 3: four norms a layer, queries and keys normalised per head, five windowed layers to each full one."""
    attention = replace(part.biased(c, part.grouped(c)), qk_norm=QKNorm.HEAD)
    period = c.size("sliding_window_pattern")
    return part.plain(c, attention, part.dense(c), part.windows(c, lambda i: (i + 1) % period != 0), norms=4)


def mixtral(c: ConfigFields) -> Architecture:
    """Mixtral: experts in every layer."""
    mixture = part.mixture(c, c.size("intermediate_size"))
    return part.plain(c, part.grouped(c), part.everywhere(c, mixture), part.windows(c, lambda i: True))


def olmoe(c: ConfigFields) -> Architecture:
    """OLMoE: experts in every layer, queries and keys normalised over their full width."""
    attention = replace(part.biased(c, part.grouped(c)), qk_norm=QKNorm.FULL)
    if attention.heads * attention.head_size != c.size("hidden_size"):
        raise c.wrong("head_dim", attention.head_size, "absent, or hidden_size / num_attention_heads, in this family")
    return part.plain(c, attention, part.everywhere(c, part.mixture(c, c.size("intermediate_size"))))


def qwen2_moe(c: ConfigFields) -> Architecture:
    """Qwen2-MoE: Qwen2's attention, routed experts, and one shared expert behind a gate."""
    shared = c.size("shared_expert_intermediate_size", least=0)
    attention = replace(part.grouped(c), qkv_bias=c.flag("qkv_bias"))
    blocks = part.sparse_steps(c, shared_hidden=shared, shared_gate=True)
    last = c.size("max_window_layers", least=0)
    return part.plain(c, attention, blocks, part.switched_windows(c, lambda i: i % 2 == 0 and i < last))


def qwen3_moe(c: ConfigFields) -> Architecture:
    """Qwen3-MoE: Qwen3's attention, and experts in all layers but those that the config sets apart."""
    attention = replace(part.biased(c, part.grouped(c)), qk_norm=QKNorm.HEAD)
    return part.plain(c, attention, part.sparse_steps(c), part.switched_windows(c, lambda i: True))


def gpt_oss(c: ConfigFields) -> Architecture:
    """gpt-oss: sinks, biases everywhere, and a window in every other layer."""
    mixture = replace(part.mixture(c, c.size("intermediate_size")), bias=True, router_bias=True)
    attention = replace(part.biased(c, part.grouped(c)), sinks=True)
    return part.plain(c, attention, part.everywhere(c, mixture), part.windows(c, lambda i: i % 2 == 0))


def deepseek_v3(c: ConfigFields) -> Architecture:
    """DeepSeek-V3: latent attention, some dense layers first, then routed and shared experts.

    ``moe_layer_freq`` is honoured as in DeepSeek's own code; the class in transformers takes it for 1.
    """
    hidden, dense = c.size("moe_intermediate_size"), FeedForward(c.size("intermediate_size"))
    shared = (c.optional_size("n_shared_experts", least=0) or 0) * hidden
    mixture = replace(part.mixture(c, hidden, ("n_routed_experts", "num_local_experts")), shared_hidden=shared)
    first, step = c.size("first_k_dense_replace", least=0), c.size("moe_layer_freq")
    blocks: list[part.Block] = [mixture if i >= first and i % step == 0 else dense for i in range(part.depth(c))]
    return part.plain(c, part.latent(c), blocks)


def ouro(c: ConfigFields) -> Architecture:
    """Ouro: every layer loops; four norms a layer, and a gate that says when to leave."""
    once = part.plain(c, part.grouped(c), part.dense(c), part.late_windows(c), norms=4)
    gate = once.width + 1
    passes = c.size("total_ut_steps")
    return replace(once, prelude=(), loop_block=once.prelude, recurrence=passes, other=once.other + gate)


def huginn(c: ConfigFields) -> Architecture:
    """Huginn: sandwich layers before, in and after the loop, and a linear adapter that feeds the input back in.

    Models retrofitted from others may keep this model type with two norms a layer instead of four, which their
    config does not say; they hold ``2 d_m`` weights a layer fewer than counted here.
    """
    c.word("injection_type", "linear")
    c.word("block_class_name", "SandwichBlock")
    width, heads = c.size("n_embd", "hidden_size"), c.size("n_heads", "num_attention_heads")
    kv_heads = c.optional_size("num_key_value_heads") or heads
    part.divides(c, "n_heads", heads, "num_key_value_heads", kv_heads)
    part.divides(c, "n_embd", width, "n_heads", heads)
    attention = Attention(heads, kv_heads, width // heads, qk_bias=c.flag("qk_bias"))
    layer = Layer(attention, FeedForward(c.size("intermediate_size")), norms=4)
    return Architecture(
        width=width,
        vocabulary=c.size("padded_vocab_size", "vocab_size"),
        tied=c.flag("tie_embeddings"),
        prelude=part.stack_of(layer, c.size("n_layers_in_prelude", least=0, most=part.MOST_LAYERS)),
        loop_block=part.stack_of(layer, c.size("n_layers_in_recurrent_block", most=part.MOST_LAYERS)),
        coda=part.stack_of(layer, c.size("n_layers_in_coda", least=0, most=part.MOST_LAYERS)),
        recurrence=c.size("mean_recurrence"),
        injection=2 * width**2 + c.flag("bias") * width,
        other=width,
    )


def looped_moe(c: ConfigFields) -> Architecture:
    """Our own model: ladder-like layers before, in and after the loop."""
    width, experts = c.size("hidden_size"), c.size("num_experts")
    block: part.Block = FeedForward(c.size("intermediate_size"))
    if experts > 1:
        shared = c.size("shared_expert_intermediate_size", least=0)
        block = replace(part.mixture(c, c.size("moe_intermediate_size")), shared_hidden=shared)
    heads, kv_heads = c.size("num_attention_heads"), c.size("num_key_value_heads")
    part.divides(c, "num_attention_heads", heads, "num_key_value_heads", kv_heads)
    layer = Layer(Attention(heads, kv_heads, c.size("head_dim")), block)
    depths = (c.size(f"{each}_layers", least=0, most=part.MOST_LAYERS) for each in ("prelude", "loop", "coda"))
    prelude, loop, coda = (part.stack_of(layer, depth) for depth in depths)
    return Architecture(
        width=width,
        vocabulary=c.size("vocab_size"),
        tied=c.flag("tie_word_embeddings"),
        prelude=prelude,
        loop_block=loop,
        coda=coda,
        recurrence=c.size("recurrence"),
        injection=2 * width**2 if c.word("injection", "none", "add", "concat") == "concat" else 0,
        other=width,
    )


@dataclass(frozen=True)
class Family:
    """How a config becomes an architecture, and what the family's class assumes where a field is absent."""

    build: Callable[[ConfigFields], Architecture]
    defaults: Mapping[str, Any] = field(default_factory=dict)


_PLAIN = {"tie_word_embeddings": False}
_BIAS = {**_PLAIN, "attention_bias": False}
_LATE = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
_SPARSE = {"decoder_sparse_step": 1}
_GEMMA = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262_208}
_HUGINN = {"injection_type": "linear", "block_class_name": "SandwichBlock"}

_LOOPED = {"injection": "none", "shared_expert_intermediate_size": 0, "tie_word_embeddings": True}

FAMILIES: Mapping[str, Family] = {
    "llama": Family(llama, {**_BIAS, "mlp_bias": False}),
    "granite": Family(llama, {**_BIAS, "mlp_bias": False}),
    "mistral": Family(mistral, {**_PLAIN, "num_key_value_heads": 8, "sliding_window": 4096}),
    "phi3": Family(mistral, {**_PLAIN, "sliding_window": None}),
    "qwen2": Family(qwen2, {**_PLAIN, **_LATE, "num_key_value_heads": 32}),
    "qwen3": Family(qwen3, {**_BIAS, **_LATE, "num_key_value_heads": 32, "head_dim": 128}),
    "olmo2": Family(olmo2, _BIAS),
    "olmo3": Family(olmo3, {**_BIAS, "sliding_window": 4096}),
    "gemma3_text": Family(
        gemma3, {**_BIAS, **_GEMMA, "tie_word_embeddings": True, "sliding_window": 4096, "sliding_window_pattern": 6}
    ),
    "mixtral": Family(mixtral, {**_PLAIN, "num_key_value_heads": 8, "sliding_window": None}),
    "olmoe": Family(olmoe, _BIAS),
    "qwen2_moe": Family(qwen2_moe, {**_PLAIN, **_LATE, **_SPARSE, "num_key_value_heads": 16, "qkv_bias": True}),
    "qwen3_moe": Family(qwen3_moe, {**_BIAS, **_LATE, **_SPARSE, "num_key_value_heads": 4}),
    "gpt_oss": Family(
        gpt_oss,
        {**_PLAIN, "attention_bias": True, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128},
    ),
    "deepseek_v3": Family(deepseek_v3, {**_BIAS, "q_lora_rank": 1536, "moe_layer_freq": 1}),
    "ouro": Family(ouro, {**_PLAIN, **_LATE, "total_ut_steps": 4}),
    "looped_moe": Family(looped_moe, _LOOPED),
    "huginn_raven": Family(huginn, {**_HUGINN, "tie_embeddings": True, "qk_bias": True, "bias": False}),
}
"""By ``model_type``. Defaults are those of the class that transformers, or the family's own code, builds."""
