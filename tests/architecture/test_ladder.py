"""The ladder, its rules between the rungs, and the real costs beside the paper's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopscale.architecture import RUNGS, at_width, continuous, rung, rung_name, width_for_active
from loopscale.core.errors import InputError


@pytest.mark.parametrize("name", RUNGS)
@pytest.mark.parametrize("experts", [1, 2, 8, 32])
def test_counts_follow_the_papers_formulas(name, experts):
    d, layers = RUNGS[name], rung(name).layers
    attention, ffn, norms = 2 * d * d + 2 * d * 256, 12 * d * d, 2 * d
    model = rung(name, experts=experts)
    assert model.active == layers * (attention + ffn + norms)
    assert model.loop == (layers - 4) * (attention + ffn + norms)
    assert model.total == layers * (attention + norms + experts * ffn)
    assert model.embedding == 202_048 * d
    assert model.norms == layers * norms
    assert model.router == (layers * 2 * experts * d if experts > 1 else 0)
    assert model.parameters == model.total + model.embedding + model.router + d


@given(st.sampled_from(list(RUNGS)), st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([1, 2, 4, 8]))
def test_how_experts_are_split_changes_nothing_but_the_router(name, experts, k):
    one, other = rung(name, experts, 2), rung(name, experts, k)
    assert (one.active, one.loop, one.total, one.m) == (other.active, other.loop, other.total, other.m)
    assert other.experts == experts


@given(st.floats(200.0, 5000.0), st.floats(1.0, 64.0))
def test_the_continuous_ladder_rises_with_width_and_experts(width, experts):
    here, wider, more = continuous(width, experts), continuous(width * 1.01, experts), continuous(width, experts * 1.01)
    assert wider.active > here.active > here.loop
    assert wider.total > here.total
    assert more.total > here.total
    assert more.active == here.active


@given(st.floats(6, 12))
def test_a_size_is_found_again_from_its_active_count(log_active):
    width = width_for_active(10**log_active)
    assert continuous(width, 1).active == pytest.approx(10**log_active, rel=1e-9)


def test_other_widths_follow_the_rule_and_other_depths_are_taken():
    assert at_width(2048).layers == 50
    assert at_width(2048, 30).layers == 30
    assert at_width(1280).active == rung("1.0B").active


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: rung("0.4B"), "choose from 0.3B, 0.6B, 1.0B, 1.6B, 2.4B"),
        (lambda: rung("1.0B", experts=0.5), "experts .E. is 0.5"),
        (lambda: rung("1.0B", experts=1.3), "whole number of routed experts"),
        (lambda: rung("1.0B", experts=2, active_experts=0), "active experts .k. is 0"),
        (lambda: rung("1.0B", experts=2, active_experts=3), "do not divide"),
        (lambda: at_width(100), "multiple of 256"),
        (lambda: at_width(1024, 3), "no room for the prelude"),
        (lambda: continuous(-1.0, 1), "widths above zero"),
        (lambda: rung("0.3B").unrolled(0), "recurrence is 0"),
    ],
)
def test_impossible_models_are_refused(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()


@pytest.mark.parametrize("text", ["1.0B", "1B", "1", "1.0", " 1.0b "])
def test_a_rung_may_be_written_in_several_ways(text):
    assert rung_name(text) == "1.0B"


def test_real_flops_add_head_scores_routers_and_supervision():
    model, d, R, context = rung("0.3B", experts=8), 768, 5, 2048
    per_layer = 2 * (2 * d * d + 2 * d * 256 + 12 * d * d + 16 * d)
    scores = 4 * d * (context + 1) / 2
    head = 2 * d * 202_048
    forward = (4 + 16 * R) * (per_layer + scores) + head
    assert model.real_train_flops_per_token(R, context=context) == pytest.approx(3 * forward)
    supervised = forward + (R - 1) * (2 * (per_layer + scores) + head)
    assert model.real_train_flops_per_token(R, context=context, per_loop_supervision=True) == pytest.approx(
        3 * supervised
    )
    decode = (4 + 16 * R) * (per_layer + 4 * d * context) + head
    assert model.real_inference_flops_per_token(R, context=context) == pytest.approx(decode)


def test_the_kv_cache_has_a_slot_for_each_pass_and_layer_unless_shared():
    model, per_slot = rung("0.3B", experts=8), 2 * 4 * 64 * 4096 * 2
    assert model.kv_bytes(5, context=4096) == (4 + 16 * 5) * per_slot
    assert model.kv_bytes(5, context=4096, kept_passes=1) == 20 * per_slot
    assert model.kv_bytes(5, context=4096, kept_passes=3) == (4 + 48) * per_slot
    assert model.kv_bytes(2, context=4096, kept_passes=3) == (4 + 32) * per_slot
    assert model.kv_bytes(1, context=4096, batch=8, bits=8) == 20 * per_slot * 4


def test_weight_memory_is_the_papers_and_the_built_models_beside_it():
    model = rung("1.0B", experts=8)
    assert model.weight_bytes(4) == (model.total + model.embedding) / 2
    assert model.weight_bytes(4, routers=True) == model.parameters / 2


def test_costs_take_arrays_of_recurrences():
    model = rung("0.6B", experts=4)
    R = np.array([1, 2, 3])
    assert model.unrolled(R).tolist() == [model.active + (r - 1) * model.loop for r in R]
    assert model.points(1e11, R).shape == (3,)
