"""A looped model written out as a plain one of a standard architecture."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from looped_models import WITHOUT_LOOPSCALE, model, tokens
from test_retrofit import MODELS, close, ids, logits, pretrained

from loopscale.core.errors import InputError
from loopscale.model.export import unroll
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
        "ids, folder = torch.tensor(%r), %r\n"
        "for name, expected in torch.load(folder + '/expected.pt').items():\n"
        "    model = AutoModelForCausalLM.from_pretrained(folder + '/' + name).eval()\n"
        "    assert type(model).__module__.startswith('transformers.models.'), type(model)\n"
        "    worst = (model(ids).logits - expected).abs().max()\n"
        "    assert worst <= 1e-5 * max(1, expected.abs().max()), (name, worst)\n"
        "    assert model.generate(ids, max_new_tokens=3).shape == (2, 12)\n"
        "print('loaded')\n"
    ) % (tokens(2, 9).tolist(), str(tmp_path))
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
