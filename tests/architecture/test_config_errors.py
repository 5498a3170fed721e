"""Whatever a config.json holds, it is read or refused in one sentence that names the file and the field."""

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published_configs import CONFIGS

from loopscale.architecture import Architecture, from_config, read_config
from loopscale.core.errors import InputError

LLAMA = CONFIGS["Llama-3-8B"]


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ([], "c.json: found [] where an object with named fields was expected"),
        ({}, "c.json: field 'model_type' is missing; it should be text"),
        ({"model_type": 3}, "c.json: field 'model_type' is 3; it should be text"),
        ({"model_type": "qwen3moe"}, "'qwen3moe', which cannot be counted (did you mean 'qwen3_moe'?); it should"),
        ({"model_type": "llama"}, "c.json: field 'intermediate_size' is missing; it should be a whole"),
        (LLAMA | {"hidden_size": "4096"}, "field 'hidden_size' is '4096'; it should be a whole number, 1 or more"),
        (LLAMA | {"hidden_size": True}, "field 'hidden_size' is True; it should be a whole number, 1 or more"),
        (LLAMA | {"hidden_size": 4096.0}, "field 'hidden_size' is 4096.0; it should be a whole number, 1 or more"),
        (LLAMA | {"hidden_size": math.nan}, "field 'hidden_size' is nan; it should be a whole number, 1 or more"),
        (LLAMA | {"vocab_size": 0}, "field 'vocab_size' is 0; it should be a whole number, 1 or more"),
        (LLAMA | {"head_dim": -1}, "field 'head_dim' is -1; it should be a whole number, 1 or more"),
        (LLAMA | {"hidden_size": 10**400}, "is a number of more than 30 digits; it should be at most 1000000000000"),
        (LLAMA | {"num_hidden_layers": 10**9}, "'num_hidden_layers' is 1000000000; it should be at most 10000"),
        (LLAMA | {"hidden_size": 10**12}, "c.json: its sizes multiply to more than 10^18 parameters"),
        (LLAMA | {"hidden_size": 4097}, "'hidden_size' is 4097; it should be a multiple of 'num_attention_heads', 32"),
        (LLAMA | {"num_key_value_heads": 5}, "is 32; it should be a multiple of 'num_key_value_heads', 5"),
        (LLAMA | {"tie_word_embeddings": "no"}, "'tie_word_embeddings' is 'no'; it should be true or false"),
        (CONFIGS["Mixtral-8x7B"] | {"num_experts_per_tok": 9}, "is 9; it should be at most the number of experts, 8"),
        (CONFIGS["OLMoE-1B-7B"] | {"head_dim": 64}, "'head_dim' is 64; it should be absent, or hidden_size /"),
        (CONFIGS["gpt-oss-20b"] | {"layer_types": ["x"] * 24}, "is 'x'; it should be a list of 'sliding_attention'"),
        (CONFIGS["gpt-oss-20b"] | {"layer_types": ["x"]}, "is ['x']; it should be one entry for each of the 24"),
        (CONFIGS["Qwen3-30B-A3B"] | {"mlp_only_layers": ["x"]}, "is 'x'; it should be a list of layer numbers"),
        (CONFIGS["Huginn-0125"] | {"injection_type": "add"}, "'injection_type' is 'add'; it should be 'linear'"),
    ],
)  # fmt: skip
def test_a_bad_config_is_refused_with_the_field_and_what_would_do(config, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.json").write_text(json.dumps(config))
    with pytest.raises(InputError) as refused:
        read_config("c.json")
    assert sentence in str(refused.value)
    assert str(refused.value).startswith("c.json: ")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "not JSON"),
        (b'{"model_type": ', "not JSON"),
        (b"\xff\xfe\x00", "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": ' * 100_000, "nested too deeply"),
        (b'{"hidden_size": ' + b"9" * 10_000 + b"}", "cannot be read"),
        (b" " * (2**24 + 1), "larger than 16 MB"),
    ],
    ids=["empty", "cut off", "bytes", "deep lists", "deep objects", "long number", "huge"],
)
def test_a_file_that_is_no_config_is_refused_by_name(content, sentence, tmp_path):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(InputError, match=sentence) as refused:
        read_config(tmp_path)
    assert str(tmp_path / "config.json") in str(refused.value)


def test_what_is_not_there_or_not_a_file_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none.json", "a\0b", "x" * 5000):
        with pytest.raises(InputError):
            read_config(path)
    with pytest.raises(InputError, match="not a file"):
        read_config("/dev/zero")


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(-2, 70) | st.floats() | st.text(max_size=8)
    | st.sampled_from([10**12, 10**40, -(10**400), 2**63, math.nan, math.inf, "8", "full_attention", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
KEYS = sorted(
    {key for config in CONFIGS.values() for key in config}
    | {"text_config", "layer_types", "sliding_window", "use_sliding_window", "max_window_layers", "qkv_bias", "bias"}
    | {"tie_word_embeddings", "attention_bias", "mlp_bias", "sliding_window_pattern", "padded_vocab_size"}
)


@settings(max_examples=600)
@given(
    good=st.sampled_from(list(CONFIGS.values())),
    dropped=st.sets(st.sampled_from(KEYS), max_size=3),
    replaced=st.dictionaries(st.sampled_from(KEYS), JUNK, max_size=3),
)
def test_junk_in_a_config_gives_one_clear_sentence_or_a_model_that_can_be_costed(good, dropped, replaced):
    config = {key: value for key, value in good.items() if key not in dropped} | replaced
    model = model_or_sentence(config)
    if isinstance(model, str):
        assert model.startswith("here.json: ")
        assert "\n" not in model
        assert len(model) < 500
        return
    assert type(model.parameters) is int
    assert 0 < model.loop + model.active <= 2 * model.total < 2 * model.parameters
    costs = [model.kv_bytes(context=8), model.weight_bytes(4), model.real_inference_flops_per_token(context=8)]
    assert all(math.isfinite(each) for each in costs)
    assert Architecture.from_dict(model.to_dict()) == model


def model_or_sentence(config: dict[str, Any]) -> Architecture | str:
    try:
        return from_config(config, "here.json")
    except InputError as refused:
        return str(refused)


@settings(max_examples=100)
@given(JUNK)
def test_any_json_value_that_is_no_config_is_refused(value):
    with pytest.raises(InputError):
        from_config(value)
