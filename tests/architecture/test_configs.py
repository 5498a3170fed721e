"""A config.json is counted exactly: against the real classes, published totals and real caches."""

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from published_configs import CONFIGS
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from loopscale.architecture import FAMILIES, Architecture, Layer, MixtureOfExperts, from_config, read_config, rung

OWN_CODE = {"ouro", "huginn_raven", "looped_moe"}
"""Families whose code ships with their weights, not with transformers."""
LIBRARY = [name for name, config in CONFIGS.items() if config["model_type"] not in OWN_CODE]
SLIDING = ["mistral", "phi3", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "gpt_oss", "olmo3", "gemma3_text"]


def real_config(config: dict[str, Any]) -> Any:
    return AutoConfig.for_model(**{"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0, **config})


def real_model(config: dict[str, Any], device: str = "meta") -> torch.nn.Module:
    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(real_config(config))


def weights(model: torch.nn.Module) -> int:
    return sum(each.numel() for each in model.parameters())  # tied weights come once


def layers(architecture: Architecture) -> list[Layer]:
    return [stack.layer for stack in architecture.prelude for _ in range(stack.count)]


# --- the real classes ---------------------------------------------------------------------------------------------


def test_every_family_has_a_published_model_here():
    assert {config["model_type"] for config in CONFIGS.values()} == set(FAMILIES)


@pytest.mark.parametrize("name", LIBRARY)
def test_a_published_model_has_the_parameters_of_its_real_class(name):
    assert from_config(CONFIGS[name]).parameters == weights(real_model(CONFIGS[name]))


@pytest.mark.parametrize("name", LIBRARY)
def test_a_config_that_transformers_saved_reads_the_same(name, tmp_path):
    real_config(CONFIGS[name]).save_pretrained(tmp_path / name)
    read, expected = read_config(tmp_path / name), from_config(CONFIGS[name])
    assert read.name == name
    assert (read.parameters, read.active, layers(read)) == (expected.parameters, expected.active, layers(expected))


@st.composite
def small_config(draw: st.DrawFn, model_type: str) -> dict[str, Any]:
    """A small config of the family; any family may carry the fields of any other, which it should ignore."""
    kv_heads, count = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    heads = kv_heads * draw(st.integers(1, 3))
    experts = draw(st.integers(2, 6))
    size = st.integers(1, 40)
    config = {
        "hidden_size": heads * draw(st.sampled_from([4, 8, 10])),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "num_hidden_layers": count,
        "num_experts_per_tok": draw(st.integers(1, experts)),
        **{
            name: draw(size)
            for name in ("vocab_size", "intermediate_size", "moe_intermediate_size", "kv_lora_rank", "v_head_dim")
        },
        **{name: draw(st.integers(1, 4)) * 2 for name in ("qk_nope_head_dim", "qk_rope_head_dim")},
        "q_lora_rank": draw(st.none() | size),
        "shared_expert_intermediate_size": draw(size),
        "n_shared_experts": draw(st.integers(0, 2)),
        "first_k_dense_replace": draw(st.integers(0, 6)),
        "decoder_sparse_step": draw(st.integers(1, 3)),
        "mlp_only_layers": draw(st.lists(st.integers(0, 5), max_size=3)),
        EXPERTS.get(model_type, "num_experts"): experts,
        **draw(st.fixed_dictionaries({}, optional={name: st.booleans() for name in FLAGS})),
    }
    if model_type != "olmoe" and (model_type in ("gpt_oss", "gemma3_text") or draw(st.booleans())):
        config["head_dim"] = draw(st.integers(1, 6)) * 2
    if model_type in ("llama", "granite", "phi3", "olmo2", "olmo3", "olmoe") and draw(st.booleans()):
        del config["num_key_value_heads"]
    return {**config, "model_type": model_type}


FLAGS = ("tie_word_embeddings", "attention_bias", "mlp_bias", "qkv_bias")
EXPERTS = {"deepseek_v3": "n_routed_experts", "mixtral": "num_local_experts", "gpt_oss": "num_local_experts"}


@pytest.mark.parametrize("model_type", [each for each in FAMILIES if each not in OWN_CODE])
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")  # no shared experts
@settings(max_examples=12)
@given(data=st.data())
def test_any_small_config_has_the_parameters_of_its_real_class(model_type, data):
    config = data.draw(small_config(model_type))
    assert from_config(config).parameters == weights(real_model(config))


@pytest.mark.parametrize(
    ("model_type", "absent"),
    [
        ("mistral", "num_key_value_heads"),
        ("qwen2", "num_key_value_heads"),
        ("qwen3", "head_dim"),
        ("qwen3", "num_key_value_heads"),
        ("mixtral", "num_key_value_heads"),
        ("qwen3_moe", "num_key_value_heads"),
        ("qwen3_moe", "head_dim"),
        ("gpt_oss", "head_dim"),
        ("gpt_oss", "num_key_value_heads"),
        ("gpt_oss", "attention_bias"),
        ("deepseek_v3", "q_lora_rank"),
        ("gemma3_text", "head_dim"),
        ("gemma3_text", "vocab_size"),
        ("gemma3_text", "num_attention_heads"),
    ],
)
def test_an_absent_field_means_what_the_real_class_takes_it_for(model_type, absent):
    config = next(dict(each) for each in CONFIGS.values() if each["model_type"] == model_type)
    config |= {"num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 4}
    if absent == "num_attention_heads":
        config |= {"hidden_size": 1024}
    del config[absent]
    assert from_config(config).parameters == weights(real_model(config))


# --- published numbers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("Llama-3-8B", 8_030_261_248),
        ("Mistral-7B-v0.1", 7_241_732_096),
        ("Qwen2.5-0.5B", 494_032_768),
        ("Qwen3-8B", 8_190_735_360),
        ("Gemma-3-1B", 999_885_952),
        ("Mixtral-8x7B", 46_702_792_704),
        ("OLMoE-1B-7B", 6_919_161_856),
        ("Qwen3-30B-A3B", 30_532_122_624),
        ("gpt-oss-20b", 20_914_757_184),
        ("DeepSeek-V3", 671_026_404_352),
        ("Ouro-1.4B", 1_434_652_673),
        ("Ouro-2.6B", 2_667_974_657),
        ("Huginn-0125", 3_564_976_800),
    ],
)
def test_totals_are_those_of_the_published_weights(name, parameters):
    assert from_config(CONFIGS[name]).parameters == parameters


@pytest.mark.parametrize(
    ("name", "total", "active", "tables", "digits"),
    [
        ("Mixtral-8x7B", 46.7, 12.9, 2, 1),
        ("OLMoE-1B-7B", 6.9, 1.3, 2, 1),
        ("Qwen1.5-MoE-A2.7B", 14.3, 2.7, 2, 1),
        ("DeepSeek-V3", 671, 37, 1, 0),  # their active count leaves the input embedding out
        ("gpt-oss-20b", 20.9, 3.6, 1, 1),  # so does theirs, as the model card says
    ],
)
def test_total_and_active_round_to_the_published_digits(name, total, active, tables, digits):
    model = from_config(CONFIGS[name])
    used = model.active + model.router + model.other + tables * model.vocabulary * model.width
    assert (round(model.parameters / 1e9, digits), round(used / 1e9, digits)) == (total, active)


def test_qwen3_30b_prints_3_3_active_of_30_5_with_the_second_digit_cut_off():
    model = from_config(CONFIGS["Qwen3-30B-A3B"])
    used = model.active + model.router + model.other + model.embedding
    assert (round(model.parameters / 1e9, 1), math.floor(used / 1e8) / 10) == (30.5, 3.3)
    assert round((model.parameters - model.embedding) / 1e9, 1) == 29.9


def test_the_laws_counts_leave_out_embeddings_and_routers():
    model = from_config(CONFIGS["Mixtral-8x7B"])
    assert model.total == model.parameters - 2 * 32000 * 4096 - 32 * 8 * 4096 - 4096
    assert model.total - model.active == 32 * 6 * 3 * 4096 * 14336
    assert (model.experts, model.loop) == (4, 0)


# --- looped models, from their own code ---------------------------------------------------------------------------


def test_ouro_holds_the_tensors_of_its_own_code_and_loops_all_layers():
    config = CONFIGS["Ouro-1.4B"]
    layer = [(2048, 2048)] * 4 + [(5632, 2048)] * 2 + [(2048, 5632)] + [(2048,)] * 4
    gate, final_norm, tables = [(1, 2048), (1,)], [(2048,)], [(49152, 2048)] * 2
    model = from_config(config)
    assert model.parameters == sum(map(math.prod, 24 * layer + gate + final_norm + tables))
    assert (model.layers, model.recurrence) == (24, 4)
    assert model.loop == model.active == model.total
    assert model.unrolled() == 4 * model.active


def test_ouro_caches_keys_and_values_of_every_pass():
    model = from_config(CONFIGS["Ouro-1.4B"])
    assert model.kv_bytes(context=1000) == 4 * 24 * 2 * 2048 * 1000 * 2
    assert model.kv_bytes(1, context=1000) == 24 * 2 * 2048 * 1000 * 2


def test_our_own_config_is_the_papers_rung():
    read, expected = from_config(CONFIGS["LoopMoE-A0.3B-1.3B"]), rung("0.3B", experts=8)
    assert (read.parameters, read.active, read.loop, read.total) == (
        expected.parameters, expected.active, expected.loop, expected.total,
    )  # fmt: skip
    assert (read.recurrence, read.experts) == (5, 8)


def huginn_layer(width: int, heads: int, kv_heads: int, hidden: int, qk_bias: bool) -> list[Any]:
    size = width // heads
    layer = [((heads + 2 * kv_heads) * size, width), (width, width), (2 * hidden, width), (width, hidden)]
    return layer + [(width,)] * 4 + ([(2, 1, heads, size)] if qk_bias else [])


def test_huginn_holds_the_tensors_of_its_own_code_and_loops_its_core():
    model = from_config(CONFIGS["Huginn-0125"])
    layer = huginn_layer(5280, 55, 55, 17920, qk_bias=True)
    adapter, final_norm, table = [(5280, 2 * 5280)], [(5280,)], [(65536, 5280)]
    assert model.parameters == sum(map(math.prod, 8 * layer + adapter + final_norm + table))
    assert model.loop == sum(map(math.prod, 4 * layer + adapter))
    assert (model.layers, model.recurrence) == (8, 32)


def test_huginn_prints_3_5_b_in_all_with_1_5_b_outside_the_loop_and_1_5_b_within():
    model = from_config(CONFIGS["Huginn-0125"])
    parts = [model.parameters, model.active - model.loop, model.loop - model.injection]
    assert [math.floor(each / 1e8) / 10 for each in parts] == [3.5, 1.5, 1.5]


@settings(max_examples=30)
@given(
    kv_heads=st.integers(1, 4), groups=st.integers(1, 3), size=st.integers(1, 8), hidden=st.integers(1, 50),
    parts=st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(0, 3)), qk_bias=st.booleans(),
    bias=st.booleans(), tied=st.booleans(),
)  # fmt: skip
def test_any_huginn_holds_the_tensors_of_its_own_code(kv_heads, groups, size, hidden, parts, qk_bias, bias, tied):
    heads = kv_heads * groups
    width = heads * size
    prelude, core, coda = parts
    model = from_config({
        "model_type": "huginn_raven", "n_embd": width, "n_heads": heads, "num_key_value_heads": kv_heads,
        "intermediate_size": hidden, "vocab_size": 30, "padded_vocab_size": 32, "n_layers_in_prelude": prelude,
        "n_layers_in_recurrent_block": core, "n_layers_in_coda": coda, "mean_recurrence": 3, "qk_bias": qk_bias,
        "bias": bias, "tie_embeddings": tied,
    })  # fmt: skip
    layer = huginn_layer(width, heads, kv_heads, hidden, qk_bias)
    rest = [(width, 2 * width), (width,)] + [(32, width)] * (1 if tied else 2) + [(width,)] * bias
    assert model.parameters == sum(map(math.prod, sum(parts) * layer + rest))


# --- layers in order, windows and caches --------------------------------------------------------------------------


def test_deepseek_v3_starts_with_three_dense_layers():
    dense, routed = from_config(CONFIGS["DeepSeek-V3"]).prelude
    assert (dense.count, dense.layer.feed_forward.hidden) == (3, 18432)
    assert (routed.count, routed.layer.feed_forward.routed, routed.layer.feed_forward.shared_hidden) == (58, 256, 2048)


def test_deepseek_moe_layer_freq_leaves_layers_dense_as_in_its_own_code():
    model = from_config({**CONFIGS["DeepSeek-V3"], "num_hidden_layers": 8, "moe_layer_freq": 2})
    assert [isinstance(each.feed_forward, MixtureOfExperts) for each in layers(model)] == [False] * 4 + [
        True, False, True, False,
    ]  # fmt: skip


def test_qwen3_moe_keeps_the_layers_that_the_config_sets_apart_dense():
    model = from_config(
        {**CONFIGS["Qwen3-30B-A3B"], "num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    )
    assert [isinstance(each.feed_forward, MixtureOfExperts) for each in layers(model)] == [
        False, True, False, False, False, True,
    ]  # fmt: skip


WINDOWS = {"num_hidden_layers": 7, "sliding_window": 6, "use_sliding_window": True, "max_window_layers": 3}
TYPES = {"layer_types": ["full_attention", "sliding_attention"] * 3 + ["full_attention"]}


@pytest.mark.parametrize("extra", [{}, TYPES], ids=["by rule", "by layer_types"])
@pytest.mark.parametrize("model_type", SLIDING)
def test_windows_lie_where_the_real_cache_has_them(model_type, extra):
    config = next(each for each in CONFIGS.values() if each["model_type"] == model_type) | WINDOWS | extra
    real = DynamicCache(config=real_config(config)).layers
    windows = [each.attention.window for each in layers(from_config(config))]
    assert windows == [each.sliding_window if each.is_sliding else None for each in real]


TINY = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3, "vocab_size": 50}
TINY_MODELS = {
    "llama": {"intermediate_size": 16},
    "qwen3_moe": {
        "intermediate_size": 16, "moe_intermediate_size": 8, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 16,
    },
    "gpt_oss": {
        "intermediate_size": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 6,
    },
    "deepseek_v3": {
        "intermediate_size": 16, "moe_intermediate_size": 8, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "n_shared_experts": 1, "first_k_dense_replace": 1, "q_lora_rank": 8, "kv_lora_rank": 8, "v_head_dim": 6,
        "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "num_key_value_heads": 4, "n_group": 1, "topk_group": 1,
    },
}  # fmt: skip


def tiny(model_type: str) -> dict[str, Any]:
    return {**TINY, **TINY_MODELS[model_type], "model_type": model_type}


def real_cache_bytes(config: dict[str, Any], batch: int, context: int) -> int:
    model = real_model(config, "cpu").eval()
    with torch.no_grad():
        cache = model(torch.zeros(batch, context, dtype=torch.long), use_cache=True).past_key_values
    return sum(each.nbytes for layer in cache.layers for each in (layer.keys, layer.values))


@pytest.mark.parametrize("model_type", ["llama", "qwen3_moe", "deepseek_v3"])
def test_kv_bytes_are_those_of_a_real_cache(model_type):
    model = from_config(tiny(model_type))
    assert model.kv_bytes(context=11, batch=2, bits=32) == real_cache_bytes(tiny(model_type), batch=2, context=11)


def test_a_windowed_layer_keeps_its_window_and_transformers_one_position_less():
    model = from_config(tiny("gpt_oss"))
    one = 2 * 2 * 16 * 4
    assert [each.attention.window for each in layers(model)] == [6, None, 6]
    assert model.kv_bytes(context=11, bits=32) == (6 + 11 + 6) * one
    assert real_cache_bytes(tiny("gpt_oss"), batch=1, context=11) == (5 + 11 + 5) * one


def test_deepseek_keeps_the_compressed_state_and_not_its_keys_and_values():
    assert from_config(tiny("deepseek_v3")).kv_bytes(context=11, bits=32) == 3 * (8 + 4) * 11 * 4


# --- files and nested configs -------------------------------------------------------------------------------------


def test_the_language_part_of_a_larger_model_is_read_and_named_so(tmp_path):
    folder = tmp_path / "Gemma-3-4B"
    folder.mkdir()
    text = {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
        "sliding_window": 1024,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text, "vision_config": {}}))
    model = read_config(folder)
    assert model.name == "Gemma-3-4B (text)"
    assert model.parameters == weights(real_model(text)) == 3_880_263_168


def test_a_file_of_another_name_names_the_model(tmp_path):
    (tmp_path / "my-llama.json").write_text(json.dumps(CONFIGS["Llama-3-8B"]))
    assert read_config(str(tmp_path / "my-llama.json")).name == "my-llama"
    assert from_config(CONFIGS["Llama-3-8B"]).name == "llama"
