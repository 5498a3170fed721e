"""Real models: a Hugging Face ``config.json`` read and counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from loopscale.architecture.architecture import Architecture, PassParts
from loopscale.architecture.config_parts import (
    MOST_LAYERS,
    Block,
    ConfigFields,
    biased,
    dense,
    depth,
    divides,
    everywhere,
    grouped,
    late_windows,
    latent,
    mixture,
    sparse_steps,
    stack_of,
    switched_windows,
    unlooped,
    windows,
)
from loopscale.architecture.layers import (
    Attention,
    FeedForward,
    Layer,
    QKNorm,
)
from loopscale.core.errors import InputError, nearest, shown
from loopscale.core.files import read_json


def llama(c: ConfigFields) -> Architecture:
    """Llama and Granite."""
    block = FeedForward(c.size("intermediate_size"), bias=c.flag("mlp_bias"))
    return unlooped(c, biased(c, grouped(c)), everywhere(c, block))


def mistral(c: ConfigFields) -> Architecture:
    """Mistral and Phi-3: one window for all layers, if any."""
    return unlooped(c, grouped(c), dense(c), windows(c, lambda i: True))


def qwen2(c: ConfigFields) -> Architecture:
    """Qwen2: biased queries, keys and values."""
    return unlooped(c, replace(grouped(c), qkv_bias=True), dense(c), late_windows(c))


def qwen3(c: ConfigFields) -> Architecture:
    """Qwen3: queries and keys normalised per head."""
    attention = replace(biased(c, grouped(c)), qk_norm=QKNorm.HEAD)
    return unlooped(c, attention, dense(c), late_windows(c))


def olmo2(c: ConfigFields) -> Architecture:
    """OLMo 2: queries and keys normalised over their full width; two norms, after the blocks."""
    return unlooped(c, replace(biased(c, grouped(c)), qk_norm=QKNorm.FULL), dense(c))


def olmo3(c: ConfigFields) -> Architecture:
    """OLMo 3: OLMo 2 with three windowed layers to each full one."""
    attention = replace(biased(c, grouped(c)), qk_norm=QKNorm.FULL)
    return unlooped(c, attention, dense(c), windows(c, lambda i: (i + 1) % 4 != 0))


def gemma3(c: ConfigFields) -> Architecture:
    """Gemma 3: four norms a layer, queries and keys normalised per head, five windowed layers to each full one."""
    attention = replace(biased(c, grouped(c)), qk_norm=QKNorm.HEAD)
    period = c.size("sliding_window_pattern")
    return unlooped(c, attention, dense(c), windows(c, lambda i: (i + 1) % period != 0), norms=4)


def mixtral(c: ConfigFields) -> Architecture:
    """Mixtral: experts in every layer."""
    experts = mixture(c, c.size("intermediate_size"))
    return unlooped(c, grouped(c), everywhere(c, experts), windows(c, lambda i: True))


def olmoe(c: ConfigFields) -> Architecture:
    """OLMoE: experts in every layer, queries and keys normalised over their full width."""
    attention = replace(biased(c, grouped(c)), qk_norm=QKNorm.FULL)
    if attention.heads * attention.head_size != c.size("hidden_size"):
        raise c.wrong("head_dim", attention.head_size, "absent, or hidden_size / num_attention_heads, in this family")
    return unlooped(c, attention, everywhere(c, mixture(c, c.size("intermediate_size"))))


def qwen2_moe(c: ConfigFields) -> Architecture:
    """Qwen2-MoE: Qwen2's attention, routed experts, and one shared expert behind a gate."""
    shared = c.size("shared_expert_intermediate_size", least=0)
    attention = replace(grouped(c), qkv_bias=c.flag("qkv_bias"))
    blocks = sparse_steps(c, shared_hidden=shared, shared_gate=True)
    last = c.size("max_window_layers", least=0)
    return unlooped(c, attention, blocks, switched_windows(c, lambda i: i % 2 == 0 and i < last))


def qwen3_moe(c: ConfigFields) -> Architecture:
    """Qwen3-MoE: Qwen3's attention, and experts in all layers but those that the config sets apart."""
    attention = replace(biased(c, grouped(c)), qk_norm=QKNorm.HEAD)
    return unlooped(c, attention, sparse_steps(c), switched_windows(c, lambda i: True))


def gpt_oss(c: ConfigFields) -> Architecture:
    """gpt-oss: sinks, biases everywhere, and a window in every other layer."""
    experts = replace(mixture(c, c.size("intermediate_size")), bias=True, router_bias=True)
    attention = replace(biased(c, grouped(c)), sinks=True)
    return unlooped(c, attention, everywhere(c, experts), windows(c, lambda i: i % 2 == 0))


def deepseek_v3(c: ConfigFields) -> Architecture:
    """DeepSeek-V3: latent attention, some dense layers first, then routed and shared experts.

    ``moe_layer_freq`` is honoured as in DeepSeek's own code; the class in transformers takes it for 1.
    """
    hidden, dense = c.size("moe_intermediate_size"), FeedForward(c.size("intermediate_size"))
    shared = (c.optional_size("n_shared_experts", least=0) or 0) * hidden
    experts = replace(mixture(c, hidden, ("n_routed_experts", "num_local_experts")), shared_hidden=shared)
    first, step = c.size("first_k_dense_replace", least=0), c.size("moe_layer_freq")
    blocks: list[Block] = [experts if i >= first and i % step == 0 else dense for i in range(depth(c))]
    return unlooped(c, latent(c), blocks)


def ouro(c: ConfigFields) -> Architecture:
    """Ouro: every layer loops; four norms a layer, and a gate that says when to leave."""
    once = unlooped(c, grouped(c), dense(c), late_windows(c), norms=4)
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
    divides(c, "n_heads", heads, "num_key_value_heads", kv_heads)
    divides(c, "n_embd", width, "n_heads", heads)
    attention = Attention(heads, kv_heads, width // heads, qk_bias=c.flag("qk_bias"))
    layer = Layer(attention, FeedForward(c.size("intermediate_size")), norms=4)
    return Architecture(
        width=width,
        vocabulary=c.size("padded_vocab_size", "vocab_size"),
        tied=c.flag("tie_embeddings"),
        prelude=stack_of(layer, c.size("n_layers_in_prelude", least=0, most=MOST_LAYERS)),
        loop_block=stack_of(layer, c.size("n_layers_in_recurrent_block", most=MOST_LAYERS)),
        coda=stack_of(layer, c.size("n_layers_in_coda", least=0, most=MOST_LAYERS)),
        recurrence=c.size("mean_recurrence"),
        injection=2 * width**2 + c.flag("bias") * width,
        other=width,
    )


def looped_moe(c: ConfigFields) -> Architecture:
    """Our own model: ladder-like layers before, in and after the loop."""
    width, experts = c.size("hidden_size"), c.size("num_experts")
    block: Block = FeedForward(c.size("intermediate_size"))
    if experts > 1:
        shared = c.size("shared_expert_intermediate_size", least=0)
        block = replace(mixture(c, c.size("moe_intermediate_size")), shared_hidden=shared)
    heads, kv_heads = c.size("num_attention_heads"), c.size("num_key_value_heads")
    divides(c, "num_attention_heads", heads, "num_key_value_heads", kv_heads)
    attention = Attention(
        heads,
        kv_heads,
        c.size("head_dim"),
        qkv_bias=c.flag("qkv_bias"),
        output_bias=c.flag("output_bias"),
        qk_norm=QKNorm(c.word("qk_norm", *(norm.value for norm in QKNorm))),
    )
    layer = Layer(attention, block)
    injections = {
        "none": 0,
        "add": 0,
        "concat": 2 * width**2,
        "gated": 2 * width**2 + width,
        "diagonal": 2 * width,
        "normed": width**2 + width,
    }
    depths = (c.size(f"{part}_layers", least=0, most=MOST_LAYERS) for part in ("prelude", "loop", "coda"))
    prelude, loop, coda = (stack_of(layer, depth) for depth in depths)
    return Architecture(
        width=width,
        vocabulary=c.size("vocab_size"),
        tied=c.flag("tie_word_embeddings"),
        prelude=prelude,
        loop_block=loop,
        coda=coda,
        recurrence=c.size("recurrence"),
        injection=injections[c.word("injection", *injections)],
        other=width,
        pass_parts=own_parts(c),
        gate=(width + 1) * c.flag("exit_gate"),
    )


def own_parts(c: ConfigFields) -> PassParts | None:
    """Return the parts that each pass of our own model has for itself."""
    norms, router = c.flag("pass_norms"), c.flag("pass_router")
    attention = c.word("pass_attention", "shared", "low-rank", "full")
    if not (norms or router or attention != "shared"):
        return None
    passes = c.optional_size("own_passes") or c.size("recurrence")
    rank = c.size("pass_attention_rank") if attention == "low-rank" else 0
    return PassParts(passes, norms, attention == "full", rank, router)


@dataclass(frozen=True)
class ConfigFamily:
    """How a config becomes an architecture, and what the family's class assumes where a field is absent."""

    build: Callable[[ConfigFields], Architecture]
    defaults: Mapping[str, Any] = field(default_factory=dict)


_PLAIN = {"tie_word_embeddings": False}
_BIAS = {**_PLAIN, "attention_bias": False}
_LATE = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
_SPARSE = {"decoder_sparse_step": 1}
_GEMMA = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262_208}
_HUGINN = {"injection_type": "linear", "block_class_name": "SandwichBlock"}

_LOOPED = {
    "injection": "none",
    "shared_expert_intermediate_size": 0,
    "qkv_bias": False,
    "output_bias": False,
    "qk_norm": "none",
    "tie_word_embeddings": True,
    "pass_norms": False,
    "pass_attention": "shared",
    "pass_attention_rank": 8,
    "pass_router": False,
    "exit_gate": False,
}

FAMILIES: Mapping[str, ConfigFamily] = {
    "llama": ConfigFamily(llama, {**_BIAS, "mlp_bias": False}),
    "granite": ConfigFamily(llama, {**_BIAS, "mlp_bias": False}),
    "mistral": ConfigFamily(mistral, {**_PLAIN, "num_key_value_heads": 8, "sliding_window": 4096}),
    "phi3": ConfigFamily(mistral, {**_PLAIN, "sliding_window": None}),
    "qwen2": ConfigFamily(qwen2, {**_PLAIN, **_LATE, "num_key_value_heads": 32}),
    "qwen3": ConfigFamily(qwen3, {**_BIAS, **_LATE, "num_key_value_heads": 32, "head_dim": 128}),
    "olmo2": ConfigFamily(olmo2, _BIAS),
    "olmo3": ConfigFamily(olmo3, {**_BIAS, "sliding_window": 4096}),
    "gemma3_text": ConfigFamily(
        gemma3, {**_BIAS, **_GEMMA, "tie_word_embeddings": True, "sliding_window": 4096, "sliding_window_pattern": 6}
    ),
    "mixtral": ConfigFamily(mixtral, {**_PLAIN, "num_key_value_heads": 8, "sliding_window": None}),
    "olmoe": ConfigFamily(olmoe, _BIAS),
    "qwen2_moe": ConfigFamily(qwen2_moe, {**_PLAIN, **_LATE, **_SPARSE, "num_key_value_heads": 16, "qkv_bias": True}),
    "qwen3_moe": ConfigFamily(qwen3_moe, {**_BIAS, **_LATE, **_SPARSE, "num_key_value_heads": 4}),
    "gpt_oss": ConfigFamily(
        gpt_oss,
        {**_PLAIN, "attention_bias": True, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128},
    ),
    "deepseek_v3": ConfigFamily(deepseek_v3, {**_BIAS, "q_lora_rank": 1536, "moe_layer_freq": 1}),
    "ouro": ConfigFamily(ouro, {**_PLAIN, **_LATE, "total_ut_steps": 4}),
    "looped_moe": ConfigFamily(looped_moe, _LOOPED),
    "huginn_raven": ConfigFamily(huginn, {**_HUGINN, "tie_embeddings": True, "qk_bias": True, "bias": False}),
}
"""By ``model_type``. Defaults are those of the class that transformers, or the family's own code, builds."""


MOST_BYTES = 2**24
"""Configs are smaller; reading a larger file would take long."""
MOST_PARAMETERS = 10**18


def read_config(path: str | Path) -> Architecture:
    """Return the architecture that a ``config.json``, or a folder with one, describes.

    It is named after the folder, or after the file where that is called otherwise.
    """
    file = _located(Path(path))
    name = file.absolute().parent.name if file.name == "config.json" else file.stem
    return _build(read_json(file), str(file), name)


def from_config(data: Mapping[str, Any], where: str = "config") -> Architecture:
    """Return the architecture that the fields of a config describe; ``where`` names their origin in errors.

    Fields that are absent mean what they mean to the family's own class. Of a model that also sees or hears only
    the language model is counted (its ``text_config``), and the name says so.
    """
    return _build(data, where, "")


def _build(data: object, where: str, name: str) -> Architecture:
    config = ConfigFields(data, where)
    inner = config.data.get("text_config")
    kind = config.data.get("model_type")
    if isinstance(inner, Mapping) and not (isinstance(kind, str) and kind in FAMILIES):
        tied = {key: value for key, value in config.data.items() if key == "tie_word_embeddings"}
        language = _of_family({**tied, **inner}, f"{where}: text_config")
        return replace(language, name=f"{name or language.name} (text)")
    architecture = _of_family(config.data, where)
    return replace(architecture, name=name or architecture.name)


def _of_family(data: Mapping[str, Any], where: str) -> Architecture:
    kind = ConfigFields(data, where).word("model_type")
    if kind not in FAMILIES:
        raise InputError(
            f"{where}: field 'model_type' is {shown(kind)}, which cannot be counted{nearest(kind[:80], FAMILIES)}; "
            f"it should be one of {', '.join(FAMILIES)}"
        )
    family = FAMILIES[kind]
    architecture = replace(family.build(ConfigFields(data, where, family.defaults)), name=kind)
    if architecture.parameters > MOST_PARAMETERS:
        raise InputError("its sizes multiply to more than 10^18 parameters", where=where, remedy="check its fields")
    return architecture


def _located(path: Path) -> Path:
    """Return the file to read; devices, pipes and files that are too large for a config are refused."""
    try:
        file = path / "config.json" if path.is_dir() else path
        if file.exists() and not file.is_file():
            raise InputError(f"{file}: not a file; give a config.json or the folder that holds it")
        if file.exists() and file.stat().st_size > MOST_BYTES:
            raise InputError(f"{file}: larger than {MOST_BYTES // 2**20} MB, which no model's config is")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    return file
