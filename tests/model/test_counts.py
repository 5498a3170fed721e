"""The built model and ``Architecture`` agree to the parameter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from looped_models import config

from loopscale.architecture import RUNG_EXPERTS, RUNGS, Architecture, Attention, FeedForward, Layer, Stack, rung
from loopscale.core.errors import InputError
from loopscale.model import LoopedMoEConfig, LoopedMoEForCausalLM


def parameters(made: LoopedMoEConfig) -> int:
    with torch.device("meta"):
        return sum(weight.numel() for weight in LoopedMoEForCausalLM(made).parameters())


@pytest.mark.parametrize("name", RUNGS)
def test_every_rung_at_every_expert_count_has_the_parameters_that_architecture_counts(name: str) -> None:
    for experts in RUNG_EXPERTS:
        architecture = rung(name, experts=experts)
        made = LoopedMoEConfig.from_architecture(architecture, recurrence=5)
        assert parameters(made) == architecture.parameters
        assert made.to_architecture().total == architecture.total
        assert made.to_architecture().loop == architecture.loop


def test_the_largest_rung_with_32_experts_builds_on_the_meta_device() -> None:
    assert parameters(LoopedMoEConfig.from_architecture(rung("2.4B", experts=32), recurrence=10)) > 50e9


@settings(max_examples=30)
@given(
    depths=st.tuples(*[st.integers(0, 2)] * 3).filter(any),
    heads=st.sampled_from([(2, 1), (4, 2), (3, 3)]),
    experts=st.integers(1, 5),
    hidden=st.integers(1, 9),
    shared=st.integers(0, 3),
    tied=st.booleans(),
    injection=st.sampled_from(["none", "add", "concat", "gated", "diagonal", "normed"]),
    biases=st.tuples(st.booleans(), st.booleans()),
    qk_norm=st.sampled_from(["none", "head", "full"]),
)
def test_any_small_shape_has_the_parameters_that_architecture_counts(
    depths: tuple[int, int, int],
    heads: tuple[int, int],
    experts: int,
    hidden: int,
    shared: int,
    tied: bool,
    injection: str,
    biases: tuple[bool, bool],
    qk_norm: str,
) -> None:
    made = config(
        **dict(zip(("prelude_layers", "loop_layers", "coda_layers"), depths, strict=True)),
        recurrence=2 if depths[1] else 1,
        num_attention_heads=heads[0],
        num_key_value_heads=heads[1],
        num_experts=experts,
        num_experts_per_tok=min(2, experts),
        norm_topk_prob=experts > 1,
        moe_intermediate_size=hidden,
        intermediate_size=hidden,
        shared_expert_intermediate_size=shared,
        tie_word_embeddings=tied,
        injection=injection,
        qkv_bias=biases[0],
        output_bias=biases[1],
        qk_norm=qk_norm,
    )
    assert parameters(made) == made.to_architecture().parameters
    again = LoopedMoEConfig.from_architecture(made.to_architecture(), injection=injection)
    assert again.to_architecture() == made.to_architecture()


def test_the_config_states_the_unrolled_depth_and_follows_the_recurrence() -> None:
    made = LoopedMoEConfig.from_architecture(rung("0.3B", experts=8), recurrence=5)
    assert made.num_hidden_layers == 2 + 5 * 16 + 2
    made.recurrence = 1
    assert made.num_hidden_layers == made.to_dict()["num_hidden_layers"] == 20


def test_an_unrolled_depth_sets_the_recurrence_that_has_it() -> None:
    made = config()  # 1 + 2 R + 1 layers
    made.num_hidden_layers = 10
    assert (made.recurrence, made.num_hidden_layers) == (4, 10)
    for wrong in (0, 2, 5):
        with pytest.raises(InputError, match=f"num_hidden_layers is {wrong}; it follows from the other fields"):
            made.num_hidden_layers = wrong
    assert made.recurrence == 4
    flat = config(loop_layers=0, recurrence=1)
    flat.num_hidden_layers = 2
    assert flat.num_hidden_layers == 2


def test_an_architecture_with_parts_that_the_model_lacks_is_refused() -> None:
    layer = Layer(Attention(2, 1, 8, sinks=True), FeedForward(12))
    with_sinks = Architecture(16, 50, True, (Stack(layer, 2),), other=16, name="sinks")
    with pytest.raises(InputError, match="sinks: this model has no form for all its parts"):
        LoopedMoEConfig.from_architecture(with_sinks)
    mixed = replace(with_sinks, coda=(Stack(Layer(Attention(2, 1, 8), FeedForward(12)), 1),))
    with pytest.raises(InputError, match="its layers differ"):
        LoopedMoEConfig.from_architecture(mixed)
