"""Write an unrolled model as a GGUF file, which llama.cpp and the programs built on it run."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from loopscale.core.errors import InputError, require
from loopscale.model import llama_cpp

ARCHITECTURES = {
    "llama": "LLAMA",
    "mixtral": "LLAMA",
    "qwen2": "QWEN2",
    "qwen3": "QWEN3",
    "qwen3_moe": "QWEN3MOE",
    "olmoe": "OLMOE",
    "glm4_moe": "GLM4_MOE",
}
"""What llama.cpp calls a standard architecture."""

FORMATS = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0")
"""Formats of the matrices, which the ``gguf`` package can write; vectors and routers are always float32."""


def write_gguf(
    model: PreTrainedModel, tokenizer: Any, file: Path, dtype: str = "f16", packages: str | None = None
) -> None:
    """Write a plain model, as ``unroll`` returns it, with its tokenizer if llama.cpp has a form for that.

    Formats like q4_k_m are written by llama.cpp itself, from the npm package in the folder ``packages``.
    """
    gguf = require("gguf", "gguf", "GGUF")
    if dtype in llama_cpp.K_QUANTS:
        if packages is None:
            raise InputError(
                f"`quant` is {dtype!r}, which only llama.cpp can write; give `packages`, {llama_cpp.WHERE}"
            )
        with tempfile.TemporaryDirectory(dir=file.parent) as folder:
            whole = Path(folder) / "f32.gguf"
            write_gguf(model, tokenizer, whole, "f32")
            llama_cpp.quantise(whole, file, dtype, packages)
        return
    if dtype not in FORMATS:
        raise InputError(f"`quant` is {dtype!r}; choose from {', '.join((*FORMATS, *llama_cpp.K_QUANTS))}")
    config: Any = model.config
    arch = getattr(gguf.MODEL_ARCH, ARCHITECTURES[config.model_type])
    writer = gguf.GGUFWriter(file, gguf.MODEL_ARCH_NAMES[arch])
    _write_sizes(writer, config, gguf)
    _write_tokenizer(writer, tokenizer, config.vocab_size, gguf)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for name, tensor in _tensors(model, ARCHITECTURES[config.model_type] == "LLAMA"):
        written = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if written is None:
            raise InputError(f"llama.cpp has no tensor for {name!r}; export another form")
        if "_exps" in written and not written.endswith(".weight"):
            written += ".weight"
        is_router = name.endswith("mlp.gate.weight")
        values, kind = _in_format(tensor.float().numpy(), "f32" if is_router else dtype, gguf)
        writer.add_tensor(written, values, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _in_format(values: np.ndarray, dtype: str, gguf: Any) -> tuple[np.ndarray, Any]:
    """Return the values of a tensor in a format, or in float16 if its rows are no whole number of blocks."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    if values.ndim == 1 or dtype == "f32":
        return values, None
    kind = gguf.GGMLQuantizationType[dtype.upper()]
    if dtype == "f16" or values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0]:
        return values.astype(np.float16), None
    return gguf.quants.quantize(values, kind), kind


def _write_sizes(writer: Any, config: Any, gguf: Any) -> None:
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_rope_dimension_count(head_dim)
    _write_rope(writer, config.rope_parameters, gguf)
    if config.model_type not in ("llama", "qwen2", "qwen3"):
        hidden = getattr(config, "moe_intermediate_size", config.intermediate_size)
        writer.add_expert_count(config.num_local_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(hidden)
    if config.model_type == "glm4_moe":
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_expert_shared_feed_forward_length(config.n_shared_experts * hidden)
        writer.add_leading_dense_block_count(0)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_nextn_predict_layers(0)
    elif getattr(config, "norm_topk_prob", None) is not None:
        # llama.cpp divides Qwen3-MoE's gates by their sum and not OLMoE's; the file cannot change that.
        normalised = config.model_type == "qwen3_moe"
        if config.norm_topk_prob != normalised:
            raise InputError(
                f"llama.cpp has no {config.model_type} with norm_topk_prob {config.norm_topk_prob}; export another form"
            )
        if config.model_type == "olmoe" and config.num_key_value_heads != heads:
            raise InputError("llama.cpp has no olmoe with fewer heads of keys than of queries; export another form")


def _write_rope(writer: Any, rope: dict[str, Any], gguf: Any) -> None:
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif rope["rope_type"] != "default":
        raise InputError(
            f"GGUF files are written with default or linear rotary positions, not {rope['rope_type']!r}; export "
            "another form"
        )


def _tensors(model: PreTrainedModel, is_llama: bool) -> Iterator[tuple[str, Tensor]]:
    """Yield the model's tensors as llama.cpp holds them: separate gates, and Llama's rotary pairs side by side."""
    config: Any = model.config
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings and config.model_type != "olmoe":
            continue  # llama.cpp takes the embeddings, but not in OLMoE
        if is_llama and ".q_proj." in name:
            yield name, _interleaved(tensor, config.num_attention_heads)
        elif is_llama and ".k_proj." in name:
            yield name, _interleaved(tensor, config.num_key_value_heads)
        elif name.endswith("experts.gate_up_proj"):
            gate_EHD, up_EHD = tensor.chunk(2, dim=1)
            yield name.replace("gate_up_proj", "gate_proj"), gate_EHD
            yield name.replace("gate_up_proj", "up_proj"), up_EHD
        else:
            yield name.replace("e_score_correction_bias", "e_score_correction.bias"), tensor
    if config.model_type == "glm4_moe" and not config.attention_bias:
        # Zeros: llama.cpp 0.5.0 loads the file without them too, earlier versions were not tried.
        for name, tensor in model.state_dict().items():
            if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")):
                yield name.replace(".weight", ".bias"), tensor.new_zeros(len(tensor))


def _interleaved(tensor: Tensor, heads: int) -> Tensor:
    """Return rows in the order that rotates neighbours, where Transformers rotates the two halves of a head."""
    return tensor.view(heads, 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def _write_tokenizer(writer: Any, tokenizer: Any, vocabulary: int, gguf: Any) -> None:
    """Write a byte-level BPE; of another tokenizer only the number of tokens, so that the file runs on token ids."""
    data = json.loads(tokenizer.backend_tokenizer.to_str()) if hasattr(tokenizer, "backend_tokenizer") else {}
    kind = pre_tokenizer(data)
    if kind is None:
        writer.add_tokenizer_model("no_vocab")
        return
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(kind)
    special = {token["id"]: token["content"] for token in data["added_tokens"]}
    tokens = {index: token for token, index in data["model"]["vocab"].items()} | special
    types = gguf.TokenType
    writer.add_token_list([tokens.get(index, f"[unused{index}]") for index in range(vocabulary)])
    writer.add_token_types([
        types.CONTROL if index in special else types.NORMAL if index in tokens else types.UNUSED
        for index in range(vocabulary)
    ])  # fmt: skip
    merges = data["model"]["merges"]
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in merges])
    writer.add_add_bos_token(False)
    for name in ("bos", "eos", "pad"):
        index = getattr(tokenizer, f"{name}_token_id")
        if index is not None:
            getattr(writer, f"add_{name}_token_id")(index)


def pre_tokenizer(data: dict[str, Any]) -> str | None:
    """Return llama.cpp's name for how a byte-level BPE splits text into words; None for a form that it may not have."""
    split = data.get("pre_tokenizer") or {}
    parts = split.get("pretokenizers", [split])
    if data.get("normalizer") is not None or data.get("model", {}).get("type") != "BPE":
        return None
    digits = parts[:-1]
    last = parts[-1]
    if last.get("type") != "ByteLevel" or not last.get("use_regex", True) or last.get("add_prefix_space"):
        return None
    if not digits:
        return "gpt-2"
    one_by_one = len(digits) == 1 and digits[0].get("type") == "Digits" and digits[0].get("individual_digits")
    return "smollm" if one_by_one else None
