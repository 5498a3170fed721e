"""Pretrained models of other families become looped models that equal them at R = 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from loopscale.cli.verbs import main
from loopscale.core.errors import InputError
from loopscale.model.loading import load_model
from loopscale.model.retrofit import most_similar, retrofit

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": 0,
}
EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 6}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 16}
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True, "rms_norm_eps": 1e-3}),
    "llama-biased": ("llama", {"attention_bias": True, "head_dim": 10}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama-linear": ("llama", {"rope_parameters": LINEAR, "num_key_value_heads": 4}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-wide-window": ("mistral", {"sliding_window": 64}),
    "qwen2": ("qwen2", {"num_key_value_heads": 1}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 8, "rope_parameters": YARN}),
    "qwen3-tied-biased": ("qwen3", {"head_dim": 8, "tie_word_embeddings": True, "attention_bias": True}),
    "qwen3_moe": ("qwen3_moe", {**EXPERTS, "moe_intermediate_size": 20, "head_dim": 8}),
    "qwen3_moe-normed": ("qwen3_moe", {**EXPERTS, "moe_intermediate_size": 20, "norm_topk_prob": True, "head_dim": 6}),
    "olmoe": ("olmoe", EXPERTS),
    "olmoe-tied-normed": ("olmoe", {**EXPERTS, "norm_topk_prob": True, "tie_word_embeddings": True}),
    "mixtral": ("mixtral", EXPERTS),
    "mixtral-tied": ("mixtral", {**EXPERTS, "tie_word_embeddings": True, "num_key_value_heads": 4}),
}


def pretrained(kind: str, seed: int = 0, **fields: Any) -> PreTrainedModel:
    """Return a small model of another family with random weights, norms and biases."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SIZES, **fields}))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                weight.normal_(std=0.3)
    return model.eval()


def ids() -> torch.Tensor:
    return torch.randint(61, (2, 17), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def logits(model: Any, **options: Any) -> torch.Tensor:
    out: torch.Tensor = model(input_ids=ids(), **options).logits
    return out


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Check that logits agree to 1e-5 of their size, in float32."""
    assert (actual - expected).abs().max() <= 1e-5 * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("name", MODELS)
def test_a_converted_model_equals_the_original_at_one_pass(name: str) -> None:
    kind, fields = MODELS[name]
    original = pretrained(kind, **fields)
    looped = retrofit(original, prelude=1, coda=1, recurrence=3)
    expected = logits(original)
    close(logits(looped, recurrence=1), expected)
    assert (logits(looped) - expected).abs().max() > 1e-2  # three passes are another function
    assert looped.config.recurrence == 3
    assert looped.config.to_architecture().parameters == sum(weight.numel() for weight in looped.parameters())
    assert looped.config.to_architecture().parameters == sum(weight.numel() for weight in original.parameters())


@pytest.mark.parametrize("name", ["llama-tied", "qwen2", "qwen3"])
def test_copied_experts_equal_the_dense_block_at_the_start(name: str) -> None:
    kind, fields = MODELS[name]
    original = pretrained(kind, **fields)
    looped = retrofit(original, prelude=1, coda=1, recurrence=3, experts=3)
    assert (looped.config.num_experts, looped.config.num_experts_per_tok) == (6, 2)
    close(logits(looped, recurrence=1), logits(original))
    close(logits(looped), logits(retrofit(original, prelude=1, coda=1, recurrence=3)))


def test_noise_makes_the_copies_differ_a_little() -> None:
    original = pretrained("llama")
    looped = retrofit(original, prelude=1, coda=1, recurrence=1, experts=2, noise=0.01)
    down_EDH = looped.model.loop[0].mlp.experts.down_proj.detach()
    assert 0.005 < float((down_EDH[0] - down_EDH[1]).std() / down_EDH[0].std()) < 0.03
    apart = (logits(looped) - logits(original)).abs().max()
    assert 1e-4 < apart < 0.5 * logits(original).abs().max()
    with pytest.raises(InputError, match="`noise` makes copied experts differ; give `experts` too"):
        retrofit(original, prelude=1, coda=1, recurrence=1, noise=0.01)


def test_new_experts_get_gradients_that_differ() -> None:
    looped = retrofit(pretrained("llama"), prelude=1, coda=1, recurrence=2, experts=2).train()
    looped(input_ids=ids(), labels=ids()).loss.backward()
    gradient_EDH = looped.model.loop[0].mlp.experts.down_proj.grad
    assert (gradient_EDH[0] - gradient_EDH[1]).abs().max() > 0
    assert looped.model.loop[0].mlp.router.weight.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("kind", "fields", "sentence"),
    [
        ("gemma2", {"head_dim": 6}, "a 'gemma2' model has layers of another form than ours .norms before and after"),
        ("olmo2", {}, "norms after attention and feed-forward"),
        ("gpt2", {}, "a 'gpt2' model has layers of another form than ours; known are llama, mistral"),
        ("mistral", {"sliding_window": 8}, "attention windows of 8 tokens .to use no more tokens than that"),
        ("llama", {"mlp_bias": True}, "mlp_bias True"),
        ("llama", {"hidden_act": "gelu"}, "activation 'gelu'"),
        ("olmoe", {**EXPERTS, "clip_qkv": 8.0}, "clip_qkv 8.0"),
        ("qwen3_moe", {**EXPERTS, "mlp_only_layers": [0], "head_dim": 8}, r"mlp_only_layers \[0\]"),
    ],
)
def test_what_our_layers_lack_is_named(kind: str, fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        retrofit(pretrained(kind, **fields), prelude=1, coda=1, recurrence=2)


def test_sizes_that_leave_no_loop_are_refused() -> None:
    with pytest.raises(InputError, match="`prelude` 2 and `coda` 2 leave no layer to loop; it has 4 layers"):
        retrofit(pretrained("llama"), prelude=2, coda=2, recurrence=2)
    with pytest.raises(InputError, match="`experts` is for dense models"):
        retrofit(pretrained("mixtral", **EXPERTS), prelude=1, coda=1, recurrence=2, experts=2)
    with pytest.raises(InputError, match="`active_experts` is 1; copies are exact with 2 or more"):
        retrofit(pretrained("llama"), prelude=1, coda=1, recurrence=2, experts=2, active_experts=1)


def test_the_command_converts_a_folder_and_export_writes_it_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    original = pretrained("qwen3", head_dim=8)
    original.save_pretrained(tmp_path / "original")
    run(
        "convert",
        str(tmp_path / "original"),
        "--prelude",
        "1",
        "--coda",
        "1",
        "-R",
        "2",
        "--out",
        str(tmp_path / "new"),
    )
    printed = capsys.readouterr().out
    assert "1 + 2 x 2 + 1 layers" in printed
    assert "no tokenizer found" in printed
    close(logits(load_model(tmp_path / "new"), recurrence=1), logits(original))
    with pytest.raises(SystemExit):
        run("convert", str(tmp_path / "original"), "--out", str(tmp_path / "new"))
    assert "name a new folder" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run("convert", str(tmp_path / "nothing"), "--out", str(tmp_path / "other"))
    assert "no such folder" in capsys.readouterr().err


def run(*argv: str) -> None:
    """Run a command that ends well."""
    with pytest.raises(SystemExit) as ended:
        main(argv)
    if ended.value.code:
        raise SystemExit(ended.value.code)


def test_the_loop_is_chosen_where_layers_change_the_states_least(tmp_path: Path) -> None:
    original = pretrained("llama", num_hidden_layers=6)
    with torch.no_grad():
        for layer in (3, 4):  # they do nearly nothing
            original.model.layers[layer].self_attn.o_proj.weight.mul_(1e-3)
            original.model.layers[layer].mlp.down_proj.weight.mul_(1e-3)
    before, distances = most_similar(original, ids(), 2)
    assert before == 3
    assert len(distances) == 4
    with pytest.raises(InputError, match="`loop` is 7; it should be from 1 to the model's 6 layers"):
        most_similar(original, ids(), 7)
    disturbed = [
        float((logits(retrofit(original, start, 4 - start, 2), recurrence=2) - logits(original)).abs().max())
        for start in range(4)
    ]
    assert disturbed.index(min(disturbed)) == before
