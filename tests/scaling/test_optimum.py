"""Compute-optimal allocation: closed form and search agree, exponents are the published ones, leverage is a budget."""

import json
from dataclasses import replace

import numpy as np
import pytest

from loopscale.core.errors import InputError
from loopscale.scaling import BILLIONS, RAW, Expression, ScalingLaw, costs, mapping, optimum, outer_law, published
from loopscale.scaling.optimum import allocations, compute_optimal, leverage
from loopscale.scaling.proportions import Proportions


def written(law):
    """The same Chinchilla law as an expression, which has no closed form here."""
    c = law.in_units(BILLIONS).coefficients
    values = {**c, "alpha": -c["alpha"], "beta": -c["beta"]}
    return ScalingLaw(Expression("c + A/N**alpha + B/D**beta"), mapping("none"), values, BILLIONS, law.counts)


def test_the_search_finds_the_closed_form():
    law = published("chinchilla-epoch-2024")
    closed, searched = compute_optimal(law, 5.76e23), compute_optimal(written(law), 5.76e23)
    assert searched.size == pytest.approx(closed.size, rel=1e-6)
    assert searched.loss == pytest.approx(closed.loss, rel=1e-12)
    assert searched.size_exponent == pytest.approx(closed.size_exponent, abs=1e-6)
    assert costs.train_flops(closed.size, closed.tokens) == pytest.approx(5.76e23)


def test_exponents_are_those_of_the_published_law():
    """Hoffmann et al. print a = 0.46 and b = 0.54 for approach 3, and Besiroglu et al. a = 0.513."""
    assert compute_optimal(published("chinchilla-2022"), 1e21).size_exponent == pytest.approx(0.28 / 0.62, abs=1e-9)
    refit = compute_optimal(published("chinchilla-epoch-2024"), 5.76e23)
    assert refit.size_exponent == pytest.approx(0.513, abs=0.001)
    assert 15 < refit.tokens / refit.size < 25  # about 20 tokens per parameter at Chinchilla's budget


def test_the_optimum_is_a_minimum_along_the_budget():
    law, design = published(), Proportions(experts=8, recurrence=3, loop_share=0.8, m=0.15)
    best = compute_optimal(law, 1e21, design)
    for factor in (0.8, 1.25):
        N = np.array(best.size * factor)
        D = np.asarray(costs.tokens_for(1e21, N * design.unroll()))
        assert law(design.points(N, D)) > best.loss
    assert best.size_exponent + best.token_exponent == pytest.approx(1)


def test_recurrence_enters_the_closed_form():
    law = published("iso-depth-2026")
    design = Proportions(recurrence=4, loop_share=0.7)
    best = compute_optimal(law, 1e19, design)
    slow = optimum._searched(law, 1e19, design)
    assert best.size == pytest.approx(slow, rel=1e-6)


def test_leverage_of_experts_is_the_budget_that_a_dense_model_would_need():
    law, experts = published("joint-moe-2025"), Proportions(experts=16)
    factor = leverage(law, 1e21, experts)
    assert factor > 1
    dense = compute_optimal(law, 1e21 * factor).loss
    assert dense == pytest.approx(compute_optimal(law, 1e21, experts).loss, rel=1e-9)
    assert leverage(law, 1e21, Proportions()) == pytest.approx(1, rel=1e-9)


def test_resampled_laws_give_intervals():
    law = published("chinchilla-epoch-2024")
    rows = np.tile(list(law.coefficients.values()), (5, 1))
    rows[:, 1] += np.linspace(-0.02, 0.02, 5)
    table = allocations(replace(law, resamples=rows), [1e20, 1e26])
    for row in table.records():
        assert row["size_low"] < row["size"] < row["size_high"]
        assert row["size_exponent_low"] < row["size_exponent"] < row["size_exponent_high"]
    assert list(table.columns["extrapolated"]) == ["", "size tokens"]


def test_a_law_without_an_optimum_says_so():
    for law in (published("routed-hash-2022"), replace(published("chinchilla-2022"), coefficients={
        **published("chinchilla-2022").coefficients, "alpha": 0.0,
    })):  # fmt: skip
        with pytest.raises(InputError, match="no minimum between few and many parameters"):
            compute_optimal(law, 1e21)


def test_kaplans_law_prefers_larger_models_than_chinchillas():
    kaplan = ScalingLaw(
        outer_law("kaplan"), mapping("none"),
        {"N_c": 6.4e13, "alpha_N": 0.076, "D_c": 1.8e13, "alpha_D": 0.103}, RAW, "without-embeddings",
    )  # fmt: skip
    assert (
        compute_optimal(kaplan, 1e21).size_exponent > compute_optimal(published("chinchilla-2022"), 1e21).size_exponent
    )


def test_the_command_prints_the_optimum_of_a_law(capsys):
    from loopscale.cli import main

    with pytest.raises(SystemExit):
        main(["laws", "chinchilla-epoch-2024", "--flops", "5.76e23,1e27", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert rows[0]["size"] == pytest.approx(7.2e10, rel=0.01)
    assert rows[1]["extrapolated"] == "size tokens"
    with pytest.raises(SystemExit) as stop:
        main(["laws", "--flops", "1e21"])
    assert stop.value.code == 2
