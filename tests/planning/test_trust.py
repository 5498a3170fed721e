"""How far a plan can be trusted, where its search ends, and what its limits cost."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopscale.architecture import continuous_space, ladder_space, rung
from loopscale.cli import main
from loopscale.core.errors import InputError
from loopscale.fitting import fit
from loopscale.planning import Budget, Plan, evaluate, plan, search
from loopscale.planning.matching import matched
from loopscale.planning.predictions import predict
from loopscale.planning.profiles import joint_optimum
from loopscale.planning.screen import plan_facts
from loopscale.scaling import (
    BILLIONS,
    PAPER,
    Counting,
    FittedRange,
    Frontier,
    Points,
    Proportions,
    ScalingLaw,
    Spread,
    find_law,
    mapping,
    outer_law,
    published,
    with_uncertainty,
)
from loopscale.scaling.trust import TRUST_LEVELS

LEVELS = list(TRUST_LEVELS)
LAW = published()
DENSE = ScalingLaw(
    outer_law("chinchilla"), mapping("none"), {"A": 0.4, "alpha": -0.35, "B": 2.1, "beta": -0.36, "c": 1.8}, BILLIONS,
    Counting.WITHOUT_EMBEDDINGS, name="dense", rmse=0.01,
    fitted_range=FittedRange((1e8, 1e10), (1e9, 1e12), (1, 1), (1, 1)),
)  # fmt: skip


def run(capsys, *argv: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(argv)
    return (stop.value.code or 0, *capsys.readouterr())


@pytest.fixture(scope="module")
def micro_law(tmp_path_factory):
    path = tmp_path_factory.mktemp("laws") / "micro.json"
    fit("micro", mapping="bounded", resamples=10).law.save(path)
    return path


def test_trust_is_graded_by_the_axis_that_lies_farthest_out():
    assert predict("1.0B", experts=8, recurrence=2, tokens="500B").trust.level == "inside"
    near = predict("1.0B", experts=8, recurrence=2, tokens="600B").trust
    assert near.level == "near"
    assert near.factors == {"size": 1.0, "tokens": pytest.approx(1.2), "experts": 1.0, "recurrence": 1.0}
    assert near.reasons[0] == "600B tokens is 1.2x past the fitted range (100B to 500B)"
    assert predict("1.0B", tokens="4T").trust.level == "far"
    assert predict("1.0B", tokens="6T", extrapolate=True).trust.level == "beyond"
    assert "12x below" in predict("1.0B", tokens="8B", extrapolate=True).trust.reasons[0]


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["active", "tokens", "experts", "recurrence"]), st.floats(-12, 12), st.floats(0, 6), st.data())
def test_trust_never_improves_as_a_point_moves_outward(axis, start, further, data):
    span = {
        "active": LAW.fitted_range.size,
        "tokens": LAW.fitted_range.tokens,
        "experts": (1, 16),
        "recurrence": (1, 8),
    }
    values = {name: data.draw(st.floats(float(low), float(high))) for name, (low, high) in span.items()}
    low, high = span[axis]
    outward = np.sign(start) or 1.0
    if axis in ("experts", "recurrence"):
        outward = 1.0  # there is nothing below one
    at = (high if outward > 0 else low) * np.exp(outward * abs(start))
    levels = []
    for value in (at, at * np.exp(outward * further)):
        point = values | {axis: value}
        trust = LAW.trust(Points(**point, loop=point["active"] / 2, total=point["active"] * point["experts"]))
        levels.append(LEVELS.index(trust.level))
    assert levels[1] >= levels[0]


def test_a_plan_far_beyond_the_micro_sweep_is_withheld(capsys, micro_law):
    budget = (
        "plan",
        "--flops",
        "5e21",
        "--memory",
        "3GB",
        "--bits",
        "4",
        "--law",
        str(micro_law),
        "--allow-degenerate",
    )
    code, out, err = run(capsys, *budget)
    assert (code, out) == (2, "")
    assert "no answer" in err
    assert "loopscale next" in err
    code, out, _ = run(capsys, *budget, "--extrapolate", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["trust"]["level"] == "beyond"
    assert found["trust"]["factors"]["size"] > 1000
    assert "more than 10x beyond" in found["sentences"]["answer"]


def test_a_degenerate_law_is_refused_until_it_is_asked_for(capsys, tmp_path):
    law = replace(find_law(), degenerate=("kappa1 ended on its bound",), note="fitted to 24 rows")
    law.save(tmp_path / "law.json")
    argv = ("--flops", "5e21", "--memory", "3GB", "--bits", "4", "--law", str(tmp_path / "law.json"))
    code, out, err = run(capsys, "plan", *argv)
    assert (code, out) == (2, "")
    assert "law looped-moe-2026 is degenerate: kappa1 ended on its bound" in err
    code, out, _ = run(capsys, "plan", *argv, "--allow-degenerate")
    assert code == 0
    assert "the law is degenerate: kappa1 ended on its bound" in " ".join(out.split())
    with pytest.raises(InputError, match="degenerate"):
        predict("1.0B", tokens="500B", law=law)


@pytest.mark.parametrize("optimum", PAPER["joint_optima"]["rows"], ids=lambda row: f"{row['memory'] / 1e9:g}GB")
def test_the_papers_optima_come_with_agreement_intervals_and_trust(optimum):
    found = plan(flops=PAPER["joint_optima"]["flops"], memory=optimum["memory"], bits=PAPER["joint_optima"]["bits"])
    assert (found.choice.rung, found.choice.experts, found.choice.recurrence) == (
        optimum["size"], optimum["experts"], optimum["recurrence"],
    )  # fmt: skip
    assert found.agreement >= 0.9
    assert found.trust.level in ("inside", "near")
    assert found.interval["low"] < found.choice.loss < found.interval["high"]
    assert "simulated" in found.interval["basis"]


@settings(max_examples=25, deadline=None)
@given(st.floats(19, 24), st.floats(0.2, 0.5), st.floats(0.2, 0.5))
def test_a_dense_law_is_planned_within_a_percent_of_its_closed_form(log_flops, alpha, beta):
    flops = 10**log_flops
    law = replace(DENSE, coefficients={**DENSE.coefficients, "alpha": -alpha, "beta": -beta})
    found = plan(flops=flops, law=law, extrapolate=True)
    c = law.coefficients
    ratio = (alpha * c["A"]) / (beta * c["B"])
    best = (ratio * (flops / 6e18) ** beta) ** (1 / (alpha + beta)) * 1e9
    assert found.choice.active == pytest.approx(best, rel=0.01)
    assert found.edge == ()


def test_the_ladder_goes_on_as_far_as_the_budget_asks():
    large = plan(flops=1e24, extrapolate=True)
    assert large.choice.active > 1e11
    assert not [edge for edge in large.edge if edge.axis == "size"]
    assert rung(large.choice.rung).active == large.choice.active
    small = plan(flops=5e21, memory="120MB", bits=4, extrapolate=True)
    assert small.choice.rung == "0.2B"


def test_an_edge_that_the_user_set_is_said():
    held = plan(Budget(flops=5e21), ladder_space(["0.3B", "0.6B"], [1, 8]))
    assert {(edge.axis, edge.value, edge.set_by) for edge in held.edge} >= {
        ("size", "0.6B", "you"), ("experts", 8, "you"),
    }  # fmt: skip
    assert "size 0.6B is the largest that you allowed" in held.to_dict()["sentences"]["edge"]
    assert plan(flops=5e21, memory="3GB", bits=4).edge == ()


def test_agreement_counts_designs_within_eps_as_the_same():
    found = plan(flops=5e21, memory="3GB", bits=4)
    fine = plan(Budget(flops=5e21, memory=3e9, bits=4), continuous_space(free=["size"]))
    assert found.agreement >= {vote.design: vote.share for vote in found.votes}[found.choice.label]
    assert fine.agreement > 0.9


@settings(max_examples=25, deadline=None)
@given(st.floats(20.5, 22.5), st.floats(8.5, 10.5), st.floats(1, 4), st.sampled_from(["memory", "inference_flops"]))
def test_relaxing_memory_or_inference_never_raises_the_chosen_loss(log_flops, log_limit, factor, limit):
    """Fewer candidates are ruled out, and whether a step pays does not depend on these limits."""
    budgets = [{"flops": 10**log_flops, "bits": 4, limit: 10**log_limit * scale} for scale in (1.0, factor)]
    try:
        tight, loose = (plan(Budget(**budget), ladder_space(), extrapolate=True).choice.loss for budget in budgets)
    except InputError:
        return  # nothing fits the tighter limit
    assert loose <= tight + 1e-12


@pytest.mark.parametrize(("eps", "rises"), [(None, False), (0.05, True)])
def test_more_compute_raises_the_chosen_loss_only_where_eps_is_large_and_then_by_less(eps, rises):
    """A doubling of experts may gain less with more compute; below eps it is refused, and the loss jumps up."""
    flops, memory = np.geomspace(1e18, 1e26, 600), np.geomspace(0.17e9, 60e9, 20)
    grid = evaluate(LAW, ladder_space(), Budget(flops=1.0, bits=4), flops=flops, eps=eps)
    picks = grid.optimum(memory)[0]
    chosen = np.take_along_axis(grid.loss_ZFSKP[0].reshape(len(flops), -1), np.maximum(picks, 0), axis=1)
    steps = np.diff(np.where(picks >= 0, chosen, np.nan), axis=0)
    assert (np.nanmax(steps) > 0) == rises
    assert np.nanmax(steps) < grid.eps


def test_prices_say_what_binds_and_what_it_would_buy():
    found = plan(flops=5e21, memory="3GB", bits=4, inference_flops=1e12)
    assert found.binding == ["memory", "flops"]
    doubled = plan(flops=5e21, memory="6GB", bits=4, inference_flops=1e12)
    assert found.sensitivities[0].saved == pytest.approx(found.choice.loss - doubled.choice.loss)
    better = found.next_best
    assert better.loss < found.choice.loss
    assert "GB of memory" in better.needs
    capped = plan(Budget(flops=1e22, max_tokens=2e11), ladder_space())
    assert capped.unspent_flops == pytest.approx(1e22 - capped.choice.train_flops)
    assert "stay unspent" in capped.to_dict()["sentences"]["prices"]


def test_repeated_tokens_count_for_less_and_say_so():
    endless = plan(flops=2e21, memory="3GB", bits=4)
    scarce = plan(flops=2e21, memory="3GB", bits=4, unique_tokens="50B")
    assert scarce.choice.loss > endless.choice.loss
    assert any("each token is seen" in reason for reason in scarce.trust.reasons)
    plenty = plan(flops=2e21, memory="3GB", bits=4, unique_tokens="100T")
    assert plenty.choice.loss == pytest.approx(endless.choice.loss, rel=1e-12)


def test_the_kv_policy_is_planned_with_its_memory():
    found = plan(flops=5e21, memory="3GB", bits=4, context="32k")
    rows = {row.policy: row for row in found.kv_policies}
    last, window, whole = rows["last pass"], rows["first pass plus a window of 512"], rows["all passes"]
    assert last.loss <= window.loss <= whole.loss == found.choice.loss
    model = rung("1.0B", experts=4)
    kept = plan(Budget(flops=5e21, memory=3e9, bits=4, context=32000, kept_window=512)).choice
    one, two = (float(model.kv_bytes(2, context=32000, kept_passes=passes)) for passes in (1, 2))
    assert kept.kv_bytes == pytest.approx(one + (two - one) * 512 / 32000)
    assert plan(flops=5e21, memory="3GB", bits=4).kv_policies == ()


def test_real_training_costs_stand_beside_6nd():
    found = plan(flops=5e21, memory="3GB", bits=4)
    real, model = found.real_train_flops, rung("1.0B", experts=8)
    per_token = model.real_train_flops_per_token(2, context=2048, padding=1.5)
    assert real["flops"] == pytest.approx(float(per_token) * found.choice.tokens)
    assert real["supervised"] > real["flops"] > found.choice.train_flops


def test_ones_own_models_are_candidates(capsys, tmp_path):
    paths = []
    for name, experts in (("0.3B", 8), ("1.0B", 8), ("1.6B", 1)):
        paths.append(str(tmp_path / f"{name}.json"))
        rung(name, experts=experts).save(paths[-1])
    code, out, _ = run(
        capsys, "plan", "--flops", "5e21", "--memory", "3GB", "--bits", "4", "--json", "--candidates", *paths
    )
    assert code == 0
    choice = json.loads(out)["choice"]
    assert (choice["rung"], choice["experts"], choice["recurrence"]) == ("1.0B", 8, 2)
    code, _, err = run(capsys, "plan", "--flops", "5e21", paths[0])
    assert code == 2
    assert "models follow --candidates" in err


def test_a_published_law_without_resamples_says_so_on_every_surface(capsys):
    told = predict(N=1e9, D=1e10, law="kaplan-2020")
    assert told.interval is None
    assert told.to_dict()["uncertainty"] == "not published"
    assert "uncertainty: not published" in told.trust.reasons
    assert "uncertainty: not published" in repr(told)
    code, out, _ = run(capsys, "predict", "--params", "1e9", "--tokens", "1e10", "--law", "kaplan-2020")
    assert code == 0
    assert "uncertainty: not published" in out
    planned = plan(flops=1e20, law="kaplan-2020", rule="loss")
    assert planned.to_dict()["uncertainty"] == "not published"
    assert "alone. Uncertainty: not published. Law" in planned.to_dict()["sentences"]["confidence"]
    assert "uncertainty: not published" in planned.trust.reasons
    assert "uncertainty: not published" in run(capsys, "laws", "kaplan-2020")[1]


def test_pareto_fronts_carry_their_bands_in_tables_figures_and_files(capsys):
    found = search(flops=5e21, memory="3GB", bits=4)
    planned = Plan.of(found)
    for cost in ("memory", "inference"):
        front = planned.pareto[cost]
        assert [row.design for row in front] == [found.design(int(flat)).label for flat in found.front(cost)]
        assert all(row.loss_low < row.loss < row.loss_high for row in front)
    assert (
        "90% band" in run(capsys, "plan", "--flops", "5e21", "--memory", "3GB", "--bits", "4", "--pareto", "memory")[1]
    )
    from loopscale.figures.reports.plan import draw_front, front_table

    axes = draw_front(front_table(planned, "memory"))
    assert "90% band of the loss" in [text.get_text() for text in axes.get_legend().get_texts()]


def test_a_fitted_law_gives_fronts_the_band_of_one_new_run():
    fitted = fit("micro", mapping="bounded", resamples=10)
    front = plan(flops=1e15, law=fitted, extrapolate=True).pareto["memory"]
    assert {row.interval for row in front} == {"predictive"}


def test_a_plan_says_where_the_runs_frontier_disagrees_with_the_law():
    """A sweep whose losses fall faster than its law: the frontier, not the law, has what the runs show."""
    law = replace(published("chinchilla-epoch-2024"), fitted=True, spread=Spread(0.004, 0.01, 1e21))
    loss = float(law(Points(np.sqrt(1e21 / 120), np.sqrt(1e21 / 120) * 20)))
    agreeing, below = (Frontier(1e21, ((share * loss, 0.05, 0.65),), 20) for share in (1.0, 0.9))
    same = plan(flops=1e21, law=replace(law, frontier=agreeing))
    assert same.frontier is None
    assert "frontier" not in plan_facts(same)
    other = plan(flops=1e21, law=replace(law, frontier=below))
    assert other.frontier is not None
    assert other.interval is not None
    assert other.frontier["loss"] < other.interval["low"]
    assert "disagrees with the law" in plan_facts(other)["frontier"]
    assert Plan.from_dict(other.to_dict()) == other


def test_more_than_ten_times_beyond_the_data_there_is_neither_interval_nor_agreement():
    """The same rule for a published law and for one of our own, in plans, tables and comparisons."""
    paper = with_uncertainty("looped-moe-2026")
    for law in (paper, replace(paper, fitted=True)):
        far = plan(flops=1e26, law=law, extrapolate=True)
        assert far.trust.level == "beyond"
        assert (far.interval, far.agreement, far.votes) == (None, None, ())
        near = plan(flops=5e21, law=law)
        assert near.interval is not None
        assert near.agreement is not None
    rows = list(joint_optimum(paper, [1e10, 1e14], Budget(flops=1e26, bits=16)).records())
    for row in rows:
        assert np.isnan(row["agreement"]) == np.isnan(row["loss_low"]) == (row["trust"] == "beyond")
    pair = matched("1.0B:8:2", "1.0B:1:1", 1e26, paper, extrapolate=True)
    assert pair.compute_interval is None
    assert all(row["low"] is None for row in pair.rows if row["trust"] == "beyond")


@pytest.mark.parametrize(("share", "named"), [(0.5, True), (0.85, False)])
def test_a_loop_of_another_share_than_in_the_laws_runs_is_named(share, named):
    models = Proportions(experts=1.0, recurrence=4.0, loop_share=share)
    law = replace(published().at_one_expert(), frontier=Frontier(1e21, ((2.5, 0.05, 0.6),), models=models))
    reasons = "; ".join(search(space=ladder_space(["0.6B"], [1], [4]), flops=3e20, law=law).trust.reasons)
    assert (
        f"the loop has 85% of the active parameters, but {share:.0%} in the runs behind the law" in reasons
    ) is named
