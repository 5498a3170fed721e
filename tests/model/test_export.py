"""A looped model written out as a plain one of a standard architecture."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from looped_models import WITHOUT_LOOPSCALE, model, tokens
from test_retrofit import MODELS, close, ids, logits, pretrained, run

from loopscale.core.errors import InputError
from loopscale.model.conformance import PROMPTS, compare, golden
from loopscale.model.engines import run_engine
from loopscale.model.export import unroll, write_program
from loopscale.model.gguf_file import FORMATS, write_gguf
from loopscale.model.llama_cpp import generated
from loopscale.model.loading import DEMO, load
from loopscale.model.mlx_folder import read_mlx, write_mlx
from loopscale.model.retrofit import retrofit

LOOPED: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("llama", {"num_experts": 1}),
    "untied": ("llama", {"num_experts": 1, "tie_word_embeddings": False}),
    "dense-biased": ("qwen2", {"num_experts": 1, "qkv_bias": True}),
    "dense-normed": ("qwen3", {"num_experts": 1, "qk_norm": "head"}),
    "experts": ("glm4_moe", {}),
    "shared-expert": ("glm4_moe", {"shared_expert_intermediate_size": 30, "routed_scaling_factor": 1.7}),
    "experts-normed": ("glm4_moe", {"qk_norm": "head", "qkv_bias": True, "norm_topk_prob": False}),
    "recipe": (
        "glm4_moe",
        {"pass_norms": True, "pass_attention": "low-rank", "pass_router": True, "balance": "pass", "exit_gate": True},
    ),
    "scaled": ("llama", {"num_experts": 1, "residual_scale": "1/sqrt(R)", "pass_attention": "full"}),
    "scaled-experts": ("glm4_moe", {"residual_scale": "1/R", "shared_expert_intermediate_size": 20}),
}


@pytest.mark.parametrize("recurrence", [1, 3, 4])
@pytest.mark.parametrize("name", LOOPED)
def test_an_unrolled_model_computes_the_same(name: str, recurrence: int) -> None:
    kind, changes = LOOPED[name]
    looped = model(dtype=torch.float32, **changes)
    plain = unroll(looped, recurrence)
    assert plain.config.model_type == kind
    assert plain.config.num_hidden_layers == 2 + 2 * recurrence
    close(logits(plain), logits(looped, recurrence=recurrence))


def test_a_saved_unrolled_model_loads_without_loopscale(tmp_path: Path) -> None:
    expected = {}
    for name in ("dense", "shared-expert"):
        looped = model(dtype=torch.float32, **LOOPED[name][1])
        unroll(looped, 4).save_pretrained(tmp_path / name)
        expected[name] = looped(tokens(2, 9), recurrence=4).logits.detach()
    torch.save(expected, tmp_path / "expected.pt")
    script = WITHOUT_LOOPSCALE + (
        f"ids, folder = torch.tensor({tokens(2, 9).tolist()!r}), {str(tmp_path)!r}\n"
        "for name, expected in torch.load(folder + '/expected.pt').items():\n"
        "    model = AutoModelForCausalLM.from_pretrained(folder + '/' + name).eval()\n"
        "    assert type(model).__module__.startswith('transformers.models.'), type(model)\n"
        "    worst = (model(ids).logits - expected).abs().max()\n"
        "    assert worst <= 1e-5 * max(1, expected.abs().max()), (name, worst)\n"
        "    assert model.generate(ids, max_new_tokens=3).shape == (2, 12)\n"
        "print('loaded')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "loaded", done.stderr[-2000:]


@pytest.mark.parametrize("name", MODELS)
def test_a_converted_model_returns_to_its_own_format(name: str) -> None:
    kind, fields = MODELS[name]
    original = pretrained(kind, **fields)
    back = unroll(retrofit(original, prelude=1, coda=1, recurrence=3), 1)
    assert back.config.model_type == ("llama" if kind == "mistral" else kind)
    theirs, ours = original.state_dict(), back.state_dict()
    assert theirs.keys() == ours.keys()
    assert all(torch.equal(theirs[key], ours[key]) for key in theirs)
    close(logits(back), logits(original))


@pytest.mark.parametrize("injection", ["add", "concat", "normed"])
def test_what_plain_layers_cannot_compute_is_refused(injection: str) -> None:
    with pytest.raises(InputError, match=f"injection is '{injection}': plain layers do not see"):
        unroll(model(dtype=torch.float32, injection=injection))


def test_parts_without_a_standard_form_are_refused() -> None:
    with pytest.raises(InputError, match="kept_passes and kept_window share a cache"):
        unroll(model(dtype=torch.float32, kept_passes=1))
    with pytest.raises(InputError, match="no standard architecture has dense layers with qk_norm 'full'"):
        unroll(model(dtype=torch.float32, num_experts=1, qk_norm="full"))
    with pytest.raises(InputError, match="the balancing bias of a softmax router is not zero"):
        unroll(model(dtype=torch.float32, router_score="softmax"))


def test_greedy_tokens_of_an_unrolled_model_are_the_same() -> None:
    looped = model(dtype=torch.float32)
    plain = unroll(looped, 2)
    ours = looped.generate(ids()[:1], max_new_tokens=12, recurrence=2, do_sample=False)
    assert torch.equal(plain.generate(ids()[:1], max_new_tokens=12, do_sample=False), ours)


def test_the_command_writes_the_demo_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("export", "demo", "--to", "unrolled", "-R", "2", "--out", str(tmp_path / "plain"))
    printed = capsys.readouterr().out
    assert "glm4_moe, 6 layers, R = 2" in printed
    assert "before the loop was written out" in printed
    assert (tmp_path / "plain" / "tokenizer.json").is_file()


@pytest.mark.parametrize("name", ["dense", "dense-biased", "dense-normed", "shared-expert"])
@pytest.mark.parametrize("dtype", ["f32", "q8_0"])
def test_a_gguf_file_holds_every_tensor_by_the_names_of_llama_cpp(name: str, dtype: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    plain = unroll(model(dtype=torch.float32, hidden_size=32, **LOOPED[name][1]), 2)
    write_gguf(plain, None, tmp_path / "model.gguf", dtype)
    reader = gguf.GGUFReader(tmp_path / "model.gguf")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert {key.split(".")[1] for key in tensors if key.startswith("blk.")} == {"0", "1", "2", "3", "4", "5"}
    embeddings = gguf.quants.dequantize(tensors["token_embd.weight"].data, tensors["token_embd.weight"].tensor_type)
    expected = plain.get_input_embeddings().weight.detach().numpy()
    assert abs(embeddings - expected).max() <= (0 if dtype == "f32" else 0.02)
    down = tensors["blk.1.ffn_down_exps.weight" if name == "shared-expert" else "blk.1.ffn_down.weight"]
    assert (
        down.n_elements
        == plain.get_parameter(
            "model.layers.1.mlp.experts.down_proj" if name == "shared-expert" else "model.layers.1.mlp.down_proj.weight"
        ).numel()
    )


@pytest.mark.parametrize("dtype", FORMATS)
def test_every_format_of_gguf_is_written_and_read_back(dtype: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    plain = unroll(model(dtype=torch.float32, hidden_size=32, **LOOPED["dense"][1]), 1)
    write_gguf(plain, None, tmp_path / "model.gguf", dtype)
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    written = tensors["blk.0.ffn_up.weight"]
    assert written.tensor_type.name.lower() == dtype
    read = torch.tensor(gguf.quants.dequantize(written.data, written.tensor_type))
    exact = plain.get_parameter("model.layers.0.mlp.up_proj.weight").detach()
    bits = {"f32": 0, "f16": 11, "bf16": 8}.get(dtype) or int(dtype[1])
    worst = 0 if dtype == "f32" else float(exact.abs().max()) * 2.0 ** (1 - bits)
    assert float((read - exact).abs().max()) <= 1.1 * worst


def test_a_format_that_cannot_be_written_is_refused_with_the_way_to_it(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    plain = unroll(model(dtype=torch.float32, num_experts=1), 1)
    for dtype, packages, said in (
        ("q9", None, "`quant` is 'q9'; choose from f32, f16"),
        ("q4_k_m", None, "'q4_k_m', which only llama.cpp can write; give `packages`, the folder where"),
        ("q4_k_m", str(tmp_path), "where there is no llama.cpp for this machine; give the folder where"),
    ):
        with pytest.raises(InputError, match=said):
            write_gguf(plain, None, tmp_path / "model.gguf", dtype, packages)
    assert not list(tmp_path.iterdir())


def test_models_that_llama_cpp_would_read_otherwise_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    softmax = {"router_score": "softmax", "hidden_size": 32}
    for changes, said in (
        ({"qk_norm": "head", "norm_topk_prob": False}, "no qwen3_moe with norm_topk_prob False"),
        ({"qk_norm": "full", "norm_topk_prob": True}, "no olmoe with norm_topk_prob True"),
        ({"qk_norm": "full", "norm_topk_prob": False}, "no olmoe with fewer heads of keys"),
    ):
        made = model(dtype=torch.float32, **softmax, **changes)
        for buffer in made.buffers():
            buffer.zero_()
        with pytest.raises(InputError, match=said):
            write_gguf(unroll(made, 1), None, tmp_path / "model.gguf", "f32")


LLAMA_CPP = os.environ.get("LOOPSCALE_NODE_LLAMA")
"""A folder where npm has installed node-llama-cpp and @node-llama-cpp/linux-x64."""


@pytest.mark.slow
@pytest.mark.skipif(LLAMA_CPP is None, reason="LOOPSCALE_NODE_LLAMA names no folder with node-llama-cpp")
@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("recurrence", [1, 2, 4])
def test_llama_cpp_generates_the_same_tokens(recurrence: int, dtype: str, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    looped, tokenizer = load(DEMO, dtype=torch.float32)
    write_gguf(unroll(looped, recurrence), tokenizer, tmp_path / "model.gguf", dtype)
    prompts = [tokenizer(text)["input_ids"] for text in PROMPTS]
    theirs = generated(tmp_path / "model.gguf", prompts, 24, str(LLAMA_CPP))
    how = {"max_new_tokens": 24, "min_new_tokens": 24, "do_sample": False, "recurrence": recurrence, "pad_token_id": 0}
    ours = [looped.generate(torch.tensor([ids]), **how)[0, len(ids) :].tolist() for ids in prompts]
    assert theirs == ours


@pytest.mark.slow
@pytest.mark.skipif(LLAMA_CPP is None, reason="LOOPSCALE_NODE_LLAMA names no folder with node-llama-cpp")
@pytest.mark.parametrize("dtype", ["q3_k_m", "q4_k_m", "q6_k"])
def test_llama_cpp_writes_its_own_formats(dtype: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    _, tokenizer = load(DEMO)
    sizes = {"num_experts": 1, "hidden_size": 256, "intermediate_size": 256, "vocab_size": len(tokenizer)}
    plain = unroll(model(dtype=torch.float32, **sizes), 2)
    write_gguf(plain, tokenizer, tmp_path / "model.gguf", dtype, LLAMA_CPP)
    assert [file.name for file in tmp_path.iterdir()] == ["model.gguf"]
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    written = tensors["blk.0.ffn_up.weight"]
    assert written.tensor_type.name == dtype[:4].upper()
    read = torch.tensor(gguf.quants.dequantize(written.data, written.tensor_type))
    exact = plain.get_parameter("model.layers.0.mlp.up_proj.weight").detach()
    assert float((read - exact).norm() / exact.norm()) < 2.0 ** (1 - int(dtype[1]))
    assert [len(tokens) for tokens in generated(tmp_path / "model.gguf", [[1, 2, 3]], 4, str(LLAMA_CPP))] == [4]


FAMILIES_OF_LLAMA_CPP: dict[str, dict[str, Any]] = {
    "llama": {"num_experts": 1, "qkv_bias": True, "output_bias": True},
    "qwen2": {"num_experts": 1, "qkv_bias": True},
    "qwen3": {"num_experts": 1, "qk_norm": "head"},
    "glm4_moe": {"shared_expert_intermediate_size": 32, "routed_scaling_factor": 1.7},
    "mixtral": {"router_score": "softmax"},
    "qwen3_moe": {"router_score": "softmax", "qk_norm": "head"},
    "olmoe": {"router_score": "softmax", "qk_norm": "full", "norm_topk_prob": False, "num_key_value_heads": 4},
}


@pytest.mark.slow
@pytest.mark.skipif(LLAMA_CPP is None, reason="LOOPSCALE_NODE_LLAMA names no folder with node-llama-cpp")
@pytest.mark.parametrize("kind", FAMILIES_OF_LLAMA_CPP)
def test_every_family_conforms_in_llama_cpp(kind: str) -> None:
    _, tokenizer = load(DEMO)
    sizes = {"hidden_size": 64, "head_dim": 16, "moe_intermediate_size": 32, "vocab_size": len(tokenizer)}
    made = model(dtype=torch.float32, **sizes, **FAMILIES_OF_LLAMA_CPP[kind])
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if name.endswith("proj.bias"):
                weight.normal_(std=0.2)
    if kind != "glm4_moe":
        for buffer in made.buffers():
            buffer.zero_()
    assert unroll(made, 2).config.model_type == kind
    expected = golden(made, [tokens(5, seed=seed).tolist() for seed in range(6)], (1, 2))
    assert not compare(expected, run_engine("llama.cpp", made, expected, tokenizer, LLAMA_CPP))


def test_a_program_of_torch_export_runs_where_only_torch_is_installed(tmp_path: Path) -> None:
    made = model(dtype=torch.float32, loop_layers=1)
    write_program(made, tmp_path / "model.pt2", 3)
    assert made.config._experts_implementation == "eager"  # what it was
    expected = made(tokens(3, 7), recurrence=3).logits.detach()
    torch.save(expected, tmp_path / "expected.pt")
    script = (
        f"import sys, torch\nids, folder = torch.tensor({tokens(3, 7).tolist()!r}), {str(tmp_path)!r}\n"
        "logits = torch.export.load(folder + '/model.pt2').module()(ids)\n"
        "expected = torch.load(folder + '/expected.pt')\n"
        "assert (logits - expected).abs().max() <= 1e-5 * max(1, expected.abs().max())\n"
        "assert not {'loopscale', 'transformers'} & set(sys.modules)\nprint('ran')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "ran", done.stderr[-2000:]


IN_MLX: dict[str, dict[str, Any]] = {
    "experts": {},
    "shared-expert": {"shared_expert_intermediate_size": 30, "routed_scaling_factor": 1.7},
    "dense": {"num_experts": 1, "tie_word_embeddings": False, "residual_scale": "1/R", "injection": "add"},
    "softmax": {"router_score": "softmax", "qk_norm": "full", "norm_topk_prob": False},
    "rotary": {
        "qk_norm": "head",
        "qkv_bias": True,
        "rope_parameters": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
}


@pytest.mark.parametrize("name", IN_MLX)
def test_mlx_computes_the_same_at_once_and_through_its_cache(name: str, tmp_path: Path) -> None:
    mx = pytest.importorskip("mlx.core")
    made = model(dtype=torch.float32, **IN_MLX[name])
    write_mlx(made, tmp_path)
    loaded = read_mlx(tmp_path)
    for recurrence in (1, 3):
        loaded.args.recurrence = recurrence
        expected = made(ids(), recurrence=recurrence).logits.detach()
        at_once = loaded(mx.array(ids().tolist()))
        cache = loaded.make_cache()
        assert len(cache) == made.config.slots(recurrence)
        parts = [loaded(mx.array(part.tolist()), cache) for part in ids().split(5, dim=1)]
        for logits_BTV in (at_once, mx.concatenate(parts, axis=1)):
            close(torch.tensor(logits_BTV.tolist()), expected)


def test_what_the_model_file_for_mlx_does_not_compute_is_refused(tmp_path: Path) -> None:
    for changes, said in (
        ({"pass_norms": True}, "passes with their own parts have no form"),
        ({"injection": "gated"}, "injection is 'gated': the model file for MLX has"),
        ({"kept_passes": 1}, "kept_passes and kept_window share a cache"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic rotary positions depend"),
    ):
        with pytest.raises(InputError, match=said):
            write_mlx(model(dtype=torch.float32, **changes), tmp_path / "model")
    assert not list(tmp_path.iterdir())
