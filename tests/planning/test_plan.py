"""The planner: budgets, rules, reasons and certainty."""

import json
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopscale.architecture import (
    RUNGS,
    architecture_space,
    at_width,
    continuous_space,
    ladder_space,
    rung,
    width_space,
)
from loopscale.core.errors import InputError
from loopscale.planning import Budget, Plan, Rule, evaluate, plan, search
from loopscale.planning.compute import device_flops, flops_of
from loopscale.planning.predictions import predict
from loopscale.planning.profiles import joint_optimum, recurrence_map
from loopscale.scaling import ScalingLaw, published

LAW = published()


def resampled(count=20, spread=0.02, seed=0) -> ScalingLaw:
    """Return the paper's law with made-up resamples around it."""
    base = np.array(list(LAW.coefficients.values()))
    rows = base * (1 + spread * np.random.default_rng(seed).standard_normal((count, len(base))))
    return replace(LAW, resamples=rows)


def best_by_hand(law, flops, memory, bits, eps):
    """Choose with plain loops, straight from the rule's text."""
    loss, best = {}, None
    sizes, counts, passes = list(RUNGS), (1, 2, 4, 8, 16, 32), range(1, 11)
    for name in sizes:
        for E in counts:
            model = rung(name, experts=E)
            for R in passes:
                loss[name, E, R] = float(law(model.points(flops / model.train_flops_per_token(R), R)))
    for (name, E, R), value in loss.items():
        model = rung(name, experts=E)
        fits = (model.total + model.embedding) * bits / 8 <= memory
        pass_pays = R == 1 or loss[name, E, R - 1] - value >= eps
        experts_pay = E == 1 or loss[name, counts[counts.index(E) - 1], R] - value >= eps
        if fits and pass_pays and experts_pay and (best is None or value < loss[best]):
            best = (name, E, R)
    return best


@settings(max_examples=15)
@given(st.floats(19.5, 24), st.floats(8.3, 11), st.sampled_from([4, 8, 16]), st.sampled_from([0.0, 0.0037, 0.02]))
def test_the_choice_is_what_plain_loops_over_the_rule_find(log_flops, log_memory, bits, eps):
    flops, memory = 10**log_flops, 10**log_memory
    expected = best_by_hand(LAW, flops, memory, bits, eps)
    if expected is None:
        with pytest.raises(InputError, match="nothing fits"):
            plan(Budget(flops=flops, memory=memory, bits=bits), ladder_space(), eps=eps)
    else:
        budget = Budget(flops=flops, memory=memory, bits=bits)
        choice = plan(budget, ladder_space(), eps=eps, extrapolate=True).choice
        assert (choice.rung, choice.experts, choice.recurrence) == expected


def test_a_given_axis_is_not_judged_and_a_free_one_is():
    given_pass = plan(Budget(flops=5e21), ladder_space(["2.4B"], [8], [7])).choice
    assert given_pass.recurrence == 7
    free = plan(Budget(flops=5e21), ladder_space(["2.4B"], [8])).choice
    assert free.recurrence == 1


def test_a_gap_in_the_recurrences_asked_for_is_judged_against_the_pass_before():
    asked = search(Budget(flops=1.42e22), ladder_space(["0.3B"], [8], [1, 3, 5, 7]))
    assert asked.choice.recurrence == 5
    assert "pass 7" in next(each for each in asked.candidates() if each.recurrence == 7).verdict


def test_every_excluded_candidate_says_why():
    found = search(Budget(flops=5e21, memory=3e9, bits=4, inference_flops=3e9))
    verdicts = {(each.rung, each.experts, each.recurrence): each.verdict for each in found.candidates()}
    assert len(verdicts) == 300
    assert verdicts["1.0B", 8, 2] == "chosen"
    assert verdicts["1.0B", 16, 2] == "needs 5.23 GB of memory"
    assert verdicts["1.0B", 8, 3] == "costs 4.15B FLOPs per token"
    assert verdicts["1.0B", 8, 1] == "loss 0.0051 higher"
    assert verdicts["0.3B", 8, 8] == "pass 8 costs 0.0016 nats"
    assert all(verdicts.values())


def test_ranked_candidates_start_with_the_choice_and_rise_in_loss_among_the_admissible():
    found = search(Budget(flops=5e21, memory=3e9, bits=4))
    ranked = found.candidates()
    assert ranked[0] == found.choice
    admissible = [each.loss for each in ranked if each.verdict == "chosen" or each.verdict.startswith("loss")]
    assert admissible == sorted(admissible)
    assert found.lead == pytest.approx(admissible[1] - admissible[0])


def test_the_pareto_fronts_hold_no_beaten_design_and_end_in_the_choice():
    found = search(Budget(flops=5e21, memory=3e9, bits=4))
    memory = [(each.cost, each.loss) for each in found.front_rows("memory")]
    assert memory == sorted(memory)
    assert [loss for _, loss in memory] == sorted((loss for _, loss in memory), reverse=True)
    within = [loss for size, loss in memory if size <= 3e9]
    assert within[-1] == found.choice.loss
    assert found.front("inference")[-1] == found.chosen
    with pytest.raises(InputError, match="'memory' or 'inference'"):
        found.front("beauty")


def test_the_kv_cache_counts_against_memory_and_looping_pays_for_each_pass():
    without = plan(Budget(flops=5e21, memory=1e9, bits=4)).choice
    with_cache = plan(Budget(flops=5e21, memory=1e9, bits=4, context=4096)).choice
    shared = plan(Budget(flops=5e21, memory=1e9, bits=4, context=4096, kept_passes=1)).choice
    assert without.recurrence == 2
    model = rung("1.0B", experts=2)
    assert model.kv_bytes(2, context=4096) + model.weight_bytes(4) > 1e9
    assert with_cache.weight_bytes + with_cache.kv_bytes <= 1e9
    assert with_cache.loss >= shared.loss >= without.loss
    assert shared.kv_bytes == model.kv_bytes(2, context=4096, kept_passes=1)


def test_serving_is_paid_from_the_same_compute_and_favours_cheaper_models():
    alone = plan(Budget(flops=5e21)).choice
    served = plan(Budget(flops=5e21, serve_tokens=1e12)).choice
    assert served.unrolled < alone.unrolled
    spent = served.train_flops + served.inference_flops * 1e12
    assert spent == pytest.approx(5e21, rel=1e-9)


def test_a_token_cap_leaves_compute_unspent_and_favours_larger_models():
    free = plan(Budget(flops=1e22), ladder_space()).choice
    capped = plan(Budget(flops=1e22, max_tokens=2e11), ladder_space()).choice
    assert capped.tokens == 2e11
    assert capped.train_flops < 1e22
    assert capped.unrolled > free.unrolled * 0.99


def test_given_tokens_make_compute_a_limit():
    loose = plan(Budget(tokens=3e11), ladder_space()).choice
    assert (loose.rung, loose.experts) == ("2.4B", 32)
    tight = plan(Budget(tokens=3e11, flops=2e21)).choice
    assert tight.train_flops <= 2e21
    assert tight.tokens == 3e11


def test_an_inference_cap_is_kept():
    assert plan(Budget(flops=5e21, inference_flops=1e9)).choice.inference_flops <= 1e9


def test_device_hours_and_reference_models_become_compute():
    assert device_flops(1000, "H100", 0.4) == 1000 * 3600 * 989e12 * 0.4
    assert flops_of(rung("0.6B", experts=8), 6e12) == 6 * 395366400 * 6e12
    assert flops_of(rung("0.3B"), 1e12, 3) == 6 * (173045760 + 2 * 138436608) * 1e12
    with pytest.raises(InputError, match="did you mean 'h100'"):
        device_flops(1, "h10", 0.4)
    with pytest.raises(InputError, match="is not above 0 and at most 1"):
        device_flops(1, "h100", 40)
    with pytest.raises(InputError, match=r"hours: '5e\+303' is too large to compute with; give at most 1e\+90"):
        device_flops(5000 / 1e-300, "a100")


def test_the_continuous_ladder_is_never_worse_than_its_rungs():
    for memory in (1e9, 3e9, 1e10):
        budget = Budget(flops=5e21, memory=memory, bits=4)
        rungs = plan(budget, ladder_space(), rule=Rule.LOSS).choice.loss
        assert plan(budget, continuous_space(), rule="loss").choice.loss <= rungs + 1e-3


def test_the_continuous_space_at_the_rungs_widths_is_the_ladder():
    widths = [float(each) for each in RUNGS.values()]
    budget = Budget(flops=5e21, memory=1e10, bits=4, context=2048)
    ladder, smooth = evaluate(LAW, ladder_space(), budget), evaluate(LAW, continuous_space(widths=widths), budget)
    np.testing.assert_allclose(smooth.loss_ZFSKP, ladder.loss_ZFSKP, rtol=1e-13)
    np.testing.assert_allclose(smooth.memory_SKP, ladder.memory_SKP, rtol=1e-13)


def test_other_widths_and_given_models_can_be_planned_for():
    wide = plan(Budget(flops=5e22), width_space([1024, 2048, 2560])).choice
    assert wide.rung.startswith("d")
    one = plan(Budget(flops=1.42e22), architecture_space([at_width(768, experts=8)])).choice
    assert one.recurrence == 5
    flat = replace(at_width(768), loop_block=(), name="flat")
    with pytest.raises(InputError, match="flat: this model has no loop block"):
        architecture_space([flat])


def test_resampled_laws_vote_and_their_votes_are_counted():
    found = plan(Budget(flops=5e21, memory=3e9, bits=4), law=resampled())
    shares = {vote.design: vote.share for vote in found.votes}
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares[found.choice.label] <= found.agreement <= 1
    assert found.choice.loss_low < found.choice.loss < found.choice.loss_high


def test_one_vectorised_evaluation_equals_a_loop_over_laws_and_budgets():
    law = resampled(count=6)
    memory = np.geomspace(0.5e9, 2e10, 7)
    grid = evaluate(law, ladder_space(), Budget(flops=5e21, bits=4))
    picks = grid.optimum(memory)
    for row, coefficients in enumerate(law.resamples, start=1):
        one = replace(LAW, coefficients=dict(zip(LAW.names, coefficients, strict=True)))
        for column, limit in enumerate(memory):
            assert picks[row, 0, column] == search(Budget(flops=5e21, memory=limit, bits=4), law=one).chosen


def test_maps_carry_agreement_where_the_law_has_resamples():
    flops = [1e21, 1e22]
    assert all(np.isnan(recurrence_map(LAW, flops).columns["agreement"]))
    shares = np.array(recurrence_map(resampled(), flops).columns["agreement"])
    assert np.all((shares >= 0) & (shares <= 1))
    table = joint_optimum(resampled(), [1e6, 3e9], Budget(flops=5e21, bits=4))
    assert table.columns["rung"] == ["", "1.0B"]


def test_a_saved_plan_is_strict_json_with_the_contract_keys(tmp_path):
    plan(Budget(flops=5e21, memory=3e9, bits=4)).save(tmp_path / "plan.json")
    data = json.loads((tmp_path / "plan.json").read_text())
    assert data["kind"] == "plan"
    wanted = {"rung", "active", "experts", "recurrence", "tokens", "loss", "weight_bytes", "train_flops"}
    assert wanted <= set(data["choice"])
    assert data["choice"]["weight_bytes"] == 2708848640
    assert data["candidates"][0] == data["choice"]


def test_a_loaded_plan_is_a_frozen_record_that_searches_nothing(tmp_path, monkeypatch):
    made = plan(Budget(flops=5e21, memory=3e9, bits=4))
    made.save(tmp_path / "plan.json")
    for name in ("searching.evaluate", "searching.best_design", "sensitivity.best_design"):
        monkeypatch.delattr(f"loopscale.planning.{name}")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded == made
    assert loaded.to_dict() == made.to_dict()
    for name in ("binding", "trained", "schedule", "cluster"):
        assert getattr(loaded, name) == getattr(made, name)
    assert repr(loaded) == repr(made)
    assert loaded.train_file() == made.train_file()
    with pytest.raises(FrozenInstanceError):
        loaded.choice = made.rivals[0]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: plan(Budget(flops=5e21, memory=1e6, bits=4)), "smallest candidate, 0.1B dense R=1, needs 30.1 MB"),
        (lambda: plan(Budget(flops=5e21, inference_flops=1e3), ladder_space()), "needs 346M FLOPs"),
        (lambda: plan(Budget(flops=1e18, serve_tokens=1e15)), "leaves no compute to train"),
        (lambda: plan(Budget(flops=1e18, tokens=1e12), ladder_space()), r"needs 1.04e21 FLOPs"),
        (lambda: Budget(), "give training compute"),
        (lambda: Budget(flops=-1.0), "flops: '-1.0' is not a positive number"),
        (lambda: Budget(flops=float("nan")), "flops: nan is not finite"),
        (lambda: Budget(flops=1e21, bits=0.1), "between 1 and 64 bits"),
        (lambda: Budget(tokens=1e9, max_tokens=1e9), "not both"),
        (lambda: plan(Budget(flops=1e21), eps=-1.0), "eps is -1.0"),
        (lambda: plan(Budget(flops=1e21), law=published("chinchilla-2022")), "states no RMSE"),
        (lambda: ladder_space(experts=[]), "experts"),
        (lambda: ladder_space(recurrences=[0]), "recurrence"),
        (lambda: ladder_space(["3B"]), "not on the ladder"),
        (lambda: ladder_space(experts=[1.3]), "whole number of routed experts"),
    ],
)
def test_impossible_plans_say_what_would_do(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()


def test_a_law_without_recurrence_or_experts_finds_no_use_for_them():
    choice = plan(Budget(flops=5e21), law=published("chinchilla-epoch-2024")).choice
    assert (choice.experts, choice.recurrence) == (1, 1)


def test_laws_that_count_embeddings_are_given_them():
    model, law = rung("1.0B", experts=4), published("joint-moe-2025")
    found = predict(model, 3e11, 1, law)
    by_hand = law(model.points(3e11, 1, law.counts))
    assert found.loss == pytest.approx(float(by_hand))
    grid = evaluate(law, ladder_space(["1.0B"], [4], [1]), Budget(tokens=3e11), eps=0.0)
    assert grid.loss_ZFSKP.item() == pytest.approx(found.loss, rel=1e-14)
    assert found.design.active == model.active


def test_a_prediction_names_the_axes_it_extrapolates():
    assert predict(rung("1.0B", experts=8), 5e11, 2).design.extrapolated == ()
    assert predict(rung("2.4B", experts=32), 1e12, 9).design.extrapolated == ("size", "tokens", "experts", "recurrence")
    assert predict(rung("0.3B"), 3e9, 4, published("iso-depth-2026")).largest_multiplier is None
