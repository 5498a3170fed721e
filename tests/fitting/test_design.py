"""Which runs to train next: the design's arithmetic, its choices, and what they bring in simulation."""

import json
from dataclasses import replace

import numpy as np
import pytest
from plain import fit

from design_trials import simulate_design
from loopscale.architecture import RUNGS, at_width, rung
from loopscale.choosing import Goal, Target, ladder_candidates, next_runs, pairs_needed, run_candidates
from loopscale.core.errors import InputError
from loopscale.fitting import Noise
from loopscale.fitting.data.public import simulate_sweep
from loopscale.planning import Budget, Plan, plan
from loopscale.scaling import Counting, Points, published

NOISE = Noise(0.0017, 0.0)


@pytest.fixture(scope="module")
def small():
    """A law of the full form, fitted to a small sweep."""
    sweep = simulate_sweep(rungs=("0.3B", "0.6B"), experts=(1, 4, 16), recurrences=(1, 2, 4), tokens=(1e11, 3e11))
    return fit(sweep, outer="joint-moe", mapping="sparsity-conditional")


@pytest.fixture(scope="module")
def at_the_optimum():
    return Target(rung("1.0B", 8).points(np.array([5.886e11]), 2), Goal.PREDICTIONS)


def exact_standard_error(found, points, target, noise, bounds):
    """Compute the target's standard error from scratch: all rows at once, no updates."""
    law, precision = found.law, np.diag([12 / (high - low) ** 2 for low, high in bounds])
    for rows in points:
        loss, gradient = law.value_and_gradient(rows)
        scaled = gradient / loss[:, None]
        precision = precision + scaled.T @ scaled / noise.new_run_variance
    forms = target.rows(law.value_and_gradient(target.points)[1])
    return np.sqrt(np.mean(np.einsum("qp,pr,qr->q", forms, np.linalg.inv(precision), forms)))


def test_rank_one_updates_end_where_the_whole_matrix_does(small, at_the_optimum):
    design = next_runs(small, 3e21, at_the_optimum, noise=NOISE, growth=0.0)
    models = [rung(run.model, run.experts) for run in design.runs]
    new = [m.points(np.array([r.tokens]), r.recurrence) for m, r in zip(models, design.runs, strict=True)]
    bounds = [(term.lower, term.upper) for term in small.law.terms]
    old = small.observations.points
    assert design.before == pytest.approx(exact_standard_error(small, [old], at_the_optimum, NOISE, bounds), rel=1e-4)
    assert design.after == pytest.approx(
        exact_standard_error(small, [old, *new], at_the_optimum, NOISE, bounds), rel=1e-4
    )


def test_a_single_run_is_the_best_of_all(small, at_the_optimum):
    pool = ladder_candidates(small, rungs=("0.3B", "1.0B"), experts=(1, 8), recurrences=(1, 3))
    design = next_runs(small, 1e23, at_the_optimum, candidates=pool, noise=NOISE, most=1, growth=0.0)
    bounds = [(term.lower, term.upper) for term in small.law.terms]
    after = [
        exact_standard_error(
            small, [small.observations.points, pool.where(np.array([i])).points], at_the_optimum, NOISE, bounds
        )
        for i in range(len(pool))
    ]
    assert design.after == pytest.approx(min(after), rel=1e-4)


def test_each_run_lowers_the_standard_error_and_the_budget_holds(small, at_the_optimum):
    design = next_runs(small, 2e21, at_the_optimum)
    errors = [design.before, *(run.standard_error for run in design.runs)]
    assert np.all(np.diff(errors) < 0)
    assert design.after == errors[-1] < 0.6 * design.before
    assert design.flops == pytest.approx(design.runs[-1].cumulative_flops)
    assert design.flops <= 2e21
    runs = [(run.model, run.experts, run.recurrence, run.tokens) for run in design.runs]
    assert len(set(runs)) == len(runs)


def test_a_runs_cost_is_the_papers(small, at_the_optimum):
    for run in next_runs(small, 1e21, at_the_optimum, most=5).runs:
        expected = rung(run.model, run.experts).train_flops_per_token(run.recurrence) * run.tokens
        assert run.flops == pytest.approx(expected)


def test_most_limits_the_number_of_runs(small, at_the_optimum):
    assert len(next_runs(small, 1e23, at_the_optimum, most=3).runs) == 3


def test_thousands_of_candidates_are_searched(small, at_the_optimum):
    pool = ladder_candidates(
        small,
        rungs=tuple(RUNGS),
        recurrences=tuple(range(1, 11)),
        tokens=np.geomspace(1e11, 1e12, 12).tolist(),
        ratio=(1, 1e5),
    )
    assert len(pool) == 3600
    design = next_runs(small, 1e22, at_the_optimum, candidates=pool)
    assert design.after < 0.5 * design.before


def test_other_models_than_the_ladders_will_do(small, at_the_optimum):
    models = [at_width(512, experts=E) for E in (1, 8)]
    pool = run_candidates(models, (1, 2, 4), (1e11, 2e11), small.observations.counts)
    design = next_runs(small, 1e21, at_the_optimum, candidates=pool)
    assert {run.model for run in design.runs} == {models[0].name}


def test_a_choice_shrinks_the_difference_and_not_the_level(small):
    points = Points(*(np.array(each) for each in zip(*(_row("1.0B", 8, R) for R in (2, 3)), strict=True)))
    by_level = next_runs(small, 2e21, Target(points, Goal.PREDICTIONS), noise=NOISE, growth=0.0)
    by_choice = next_runs(small, 2e21, Target(points, Goal.CHOICE), noise=NOISE, growth=0.0)
    assert by_choice.before < by_level.before
    assert [run.recurrence for run in by_choice.runs] != [run.recurrence for run in by_level.runs]
    assert np.mean([run.recurrence for run in by_choice.runs]) > np.mean([run.recurrence for run in by_level.runs])


def test_fixed_coefficients_bring_no_doubt(at_the_optimum):
    sweep = simulate_sweep(rungs=("0.3B", "0.6B"), experts=(1, 4, 16), recurrences=(1, 2, 4), tokens=(1e11, 3e11))
    law = published()
    held = fit(sweep, fixed={name: law.coefficients[name] for name in law.names if name not in ("c", "kappa1")})
    design = next_runs(held, 1e21, at_the_optimum, noise=NOISE, growth=0.0)
    assert design.before < 0.002


def test_what_one_size_cannot_tell_is_wide_but_finite_and_other_sizes_are_asked_for(small, at_the_optimum):
    one_size = simulate_sweep(rungs=("0.3B",), experts=(1, 4, 16), recurrences=(1, 2, 4), tokens=(1e11, 3e11))
    design = next_runs(replace(small, observations=one_size), 5e21, at_the_optimum, noise=NOISE)
    assert 0.05 < design.before < 100
    assert design.after < 0.2 * design.before
    assert any(run.model != "0.3B" for run in design.runs[:10])


def test_the_shift_that_a_runs_rows_share_is_accounted_for(small, at_the_optimum):
    shared = next_runs(small, 1e21, at_the_optimum, noise=Noise(0.001, 0.002), most=1)
    apart = replace(small.observations, run=np.array([str(i) for i in range(len(small.observations))]))
    alone = next_runs(replace(small, observations=apart), 1e21, at_the_optimum, noise=Noise(0.001, 0.002), most=1)
    assert shared.before != pytest.approx(alone.before, rel=0.01)


def test_noise_is_split_into_runs_and_observations():
    sweep = simulate_sweep(noise=0.002, run_noise=0.004)
    found = Noise.of(fit(sweep))
    level = sweep.loss.mean()
    assert found.observation * level == pytest.approx(0.002, rel=0.1)
    assert found.run * level == pytest.approx(0.004, rel=0.25)


def test_without_run_effects_none_are_found():
    found = Noise.of(fit(simulate_sweep(noise=0.0037)))
    assert found.run < 0.3 * found.observation


def test_resampled_laws_are_averaged_over(small, at_the_optimum):
    drawn = np.array([[value * (1 + 0.01 * z) for value in small.law.coefficients.values()] for z in (-1, 1)])
    doubted = replace(small, resamples=drawn)
    assert next_runs(small, 1e21, at_the_optimum, most=1).laws == 1
    assert next_runs(doubted, 1e21, at_the_optimum, most=1).laws == 3


def test_a_plan_gives_its_choice_and_the_rivals_that_no_limit_rules_out():
    made = plan(Budget(flops=5e21, memory=3e9, bits=4))
    target = Target.of_plan(made, Counting.WITHOUT_EMBEDDINGS)
    assert target.goal is Goal.CHOICE
    assert (target.points.active[0], target.points.experts[0], target.points.recurrence[0]) == (
        rung("1.0B").active, 8, 2,
    )  # fmt: skip
    assert target.points.shape == (7,)
    total = target.points.total + np.array([_embedding(N) for N in target.points.active])
    assert np.all(total / 2 <= 3e9)


def test_a_plan_is_counted_as_the_law_counts():
    made = plan(Budget(flops=5e21, memory=3e9, bits=4))
    plain = Target.of_plan(made, Counting.WITHOUT_EMBEDDINGS).points
    whole = Target.of_plan(made, Counting.WITH_EMBEDDINGS).points
    np.testing.assert_allclose(whole.active - plain.active, [_embedding(N) for N in plain.active])


def test_the_doubt_about_a_plan_shrinks(small):
    made = plan(Budget(flops=5e21, memory=3e9, bits=4), law=small.law, allow_degenerate=True)
    design = next_runs(small, 2e21, Target.of_plan(made, small.law.counts))
    assert design.law_after < 0.75 * design.law_before
    assert design.after < design.before
    assert "of the loss differences to the rivals once" in " ".join(str(design).split())
    assert len(design.table()) == len(design.runs)
    assert json.loads(json.dumps(design.to_dict()))["runs"][0]["flops"] == design.runs[0].flops


@pytest.mark.parametrize(
    ("change", "words"),
    [({"choice": None}, "plan.json: choice: found None"),
     ({"choice": {"rung": "1.0B"}}, "plan.json: choice: field 'width' is missing"),
     ({"lead": "x"}, "field 'lead' is 'x'; it should be a number")],
)  # fmt: skip
def test_a_file_that_is_not_a_plan_is_refused(change, words, tmp_path):
    content = plan(Budget(flops=5e21)).to_dict() | change
    (tmp_path / "plan.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=words):
        Target.of_file(tmp_path / "plan.json", Counting.WITHOUT_EMBEDDINGS)


def test_a_choice_without_rivals_is_refused(at_the_optimum):
    with pytest.raises(InputError, match="for a choice two or more"):
        Target(at_the_optimum.points, Goal.CHOICE)
    alone = Plan.from_dict(plan(Budget(flops=5e21)).to_dict() | {"rivals": [], "candidates": []})
    with pytest.raises(InputError, match="no rival of its choice"):
        Target.of_plan(alone, Counting.WITHOUT_EMBEDDINGS)


@pytest.mark.parametrize("budget", [0.0, -1.0, float("nan"), float("inf")])
def test_a_budget_that_is_none_is_refused(small, at_the_optimum, budget):
    with pytest.raises(InputError, match="`budget` is"):
        next_runs(small, budget, at_the_optimum)


def test_a_budget_too_small_names_the_cheapest_run(small, at_the_optimum):
    with pytest.raises(InputError, match=r"affords no run; the cheapest candidate, 0.3B E=1 R=1 D=50B, costs 5.19e19"):
        next_runs(small, 1e18, at_the_optimum)


def test_too_few_rows_to_see_the_noise_are_refused(at_the_optimum):
    few = simulate_sweep(rungs=("0.3B", "0.6B"), experts=(1, 4), recurrences=(1, 2), tokens=(1e11,))
    found = fit(simulate_sweep(rungs=("0.3B", "0.6B"), experts=(1, 4), recurrences=(1, 2), tokens=(1e11, 2e11, 3e11)))
    with pytest.raises(InputError, match=r"8 rows leave no residual for \d+ coefficients; give the noise"):
        Noise.of(replace(found, observations=few))


@pytest.mark.parametrize(("one", "run"), [(0.0, 0.0), (-1.0, 0.0), (0.001, -0.1), (float("nan"), 0.0)])
def test_noise_that_cannot_be_is_refused(one, run):
    with pytest.raises(InputError, match="noise is"):
        Noise(one, run)


@pytest.mark.slow
@pytest.mark.parametrize("goal", Goal)
def test_chosen_runs_beat_random_runs_and_a_grid_where_the_form_is_known_to_be_right(goal):
    trials = [each for seed in range(8) for each in simulate_design(seed, goal=goal, growth=0.0)]
    error = {name: np.sqrt(np.mean([t.error**2 for t in trials if t.strategy == name])) for name in _strategies(trials)}
    spent = {name: max(t.flops for t in trials if t.strategy == name) for name in _strategies(trials)}
    assert max(spent.values()) <= spent["grid"] * (1 + 1e-9)
    assert error["next_runs"] < 0.8 * error["random"]
    assert error["next_runs"] < error["grid"]


def _strategies(trials):
    return list(dict.fromkeys(each.strategy for each in trials))


def _row(name, experts, recurrence):
    p = rung(name, experts).points(5e11, recurrence)
    return [float(each) for each in (p.active, p.tokens, p.recurrence, p.experts, p.loop, p.total)]


def _embedding(active):
    return next(
        rung(name).embedding for name in ("0.3B", "0.6B", "1.0B", "1.6B", "2.4B") if rung(name).active == active
    )


def test_pairs_of_seeds_reach_the_power_that_was_asked_for():
    effect, pairs = 0.01 / 0.0144, pairs_needed(0.01, 0.0144)
    random = np.random.default_rng(0)
    t = [sample.mean() / sample.std(ddof=1) * pairs**0.5 for sample in random.normal(effect, 1, (4000, pairs))]
    found = np.mean(np.abs(t) > 2.101)  # the 97.5% point of t with 18 degrees of freedom
    assert pairs == 19
    assert found == pytest.approx(0.8, abs=0.03)
    assert pairs_needed(0.02, 0.0144) < pairs < pairs_needed(0.01, 0.02)


def test_impossible_differences_of_recipes_are_refused():
    with pytest.raises(InputError, match="`difference` is 0"):
        pairs_needed(0.0, 0.01)
    with pytest.raises(InputError, match="`power` is 1"):
        pairs_needed(0.01, 0.01, power=1.0)
    with pytest.raises(InputError, match="needs over"):
        pairs_needed(1e-9, 1.0)
