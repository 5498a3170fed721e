"""The paper's claims under its own law: limits, findings and what the downstream claims are in terms of loss.

Findings are tested with one inequality: along the axis that a finding names, the quantity never moves the other way
(monotone, not strict). The note says in how many cases it moves at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from loopscale.architecture import RUNG_EXPERTS, RUNGS, ladder_space, rung
from loopscale.cli.reproduction.line import Line, claim, number
from loopscale.planning import Budget, evaluate
from loopscale.planning.profiles import experts_map, joint_optimum, recurrence_map
from loopscale.scaling import PAPER, Points, costs, published

LIMITS = "Equations and propositions"
FINDINGS = "Findings of Section experiments, as never the opposite"


def reduced_forms() -> Iterator[Line]:
    """Yield the limits of the mapping and the reduced forms, on random points: they must be equal up to rounding."""
    law, draw = published(), np.random.default_rng(0)
    count = 500
    active = 10 ** draw.uniform(7.5, 9.5, count)
    loop, D = active * draw.uniform(0.2, 0.95, count), 10 ** draw.uniform(9.5, 12.5, count)
    E, R = draw.uniform(1, 64, count), draw.uniform(1, 16, count)
    total, one = active * draw.uniform(1, 20, count), np.ones(count)
    c, mapping = law.coefficients, law.mapping
    dense, expected = law.at_one_expert(), {}
    dense_points = Points(active, D, R, one, loop, active)
    expected["R = 1 gives N_eff = N_act"] = (mapping.gain(c, one, active / total), 0 * one)
    expected["m = 1 gives the dense bounded mapping"] = (
        mapping.gain(c, R, one), c["kappa1"] * (1 - np.exp(-(R - 1) / c["kappa2"])))  # fmt: skip
    m = active / total
    expected["R to infinity gives kappa1 m^-theta"] = (mapping.gain(c, 1e6 * one, m), c["kappa1"] * m ** -c["theta"])
    slope = c["kappa1"] / c["kappa2"]
    expected["m to 0 gives kappa1 / kappa2 (R - 1)"] = (mapping.gain(c, R, 1e-30 * one), slope * (R - 1))
    expected["E = 1 gives the dense loop law"] = (law(dense_points), dense(dense_points))
    once = Points(active, D, one, one, loop, active)
    unlooped = Points(active, D, one, one, 0 * loop, active)
    expected["R = 1 gives the law without loops"] = (
        law(Points(active, D, one, E, loop, total)), law(Points(active, D, one, E, 0 * loop, total)))  # fmt: skip
    expected["E = 1 and R = 1 give Chinchilla's law"] = (law(once), dense(unlooped))
    for what, (ours, wanted) in expected.items():
        close = np.isclose(ours, wanted, rtol=1e-8, atol=1e-12)
        yield claim(LIMITS, what, "holds", int(close.sum()), count)
    model = rung("1.0B", 8)
    unrolled = float(model.unrolled(3))
    yield Line(LIMITS, "training compute is 6 N_unroll D, per token of 1.0B at R = 3",
               6 * float(model.active + 2 * model.loop), float(costs.train_flops(unrolled, 1.0)))  # fmt: skip
    yield Line(LIMITS, "inference compute is 2 N_unroll, of 1.0B at R = 3", 2 * unrolled,
               float(model.inference_flops_per_token(3)))  # fmt: skip


def findings() -> Iterator[Line]:
    """Yield the findings, each counted over a grid of cases."""
    law, flops = published(), np.geomspace(1e20, 1e24, 81)
    limits = np.array([
        [float(law.largest_multiplier(rung(name, experts=E).points(3e11, 2))) for E in RUNG_EXPERTS] for name in RUNGS
    ])  # fmt: skip
    yield _monotone("sparsity raises the bound of looping's gain", np.diff(limits, axis=1))
    passes = np.arange(1, 17)
    gains = np.array(
        [law.multiplier(rung(name, experts=E).points(3e11, passes)) for name in RUNGS for E in RUNG_EXPERTS]
    )
    yield _monotone("more passes raise the multiplier", np.diff(gains, axis=1))
    yield _monotone("each pass adds less than the one before", -np.diff(gains, n=2, axis=1))
    best = np.array(recurrence_map(law, flops, ladder_space()).columns["best_recurrence"]).reshape(len(flops), 5, 6)
    yield _monotone("more compute raises R* at a fixed size and E", np.diff(best, axis=0))
    yield _monotone("a smaller model has a higher R* at fixed compute and E", -np.diff(best, axis=1))
    note = "fails at small compute, where a dense model already wants one pass more than E = 8"
    yield _monotone("greater sparsity raises R* (E = 8 against 1)", best[..., 3] - best[..., 0], note)
    grid = evaluate(law, ladder_space(), Budget(flops=1.0), flops=flops)
    yield _monotone("more experts lower the IsoFLOP frontier", -np.diff(grid.loss_ZFSKP[0].min(axis=(1, 3)), axis=1))
    pair = evaluate(law, ladder_space(experts=(1, 8), recurrences=(1, 2)), Budget(flops=1.0),
                    flops=np.array([5e20, 1e21])).loss_ZFSKP[0]  # fmt: skip
    yield _monotone("R = 2 at 1e21 FLOPs is below R = 1 at 5e20 (E = 1 and 8)", pair[0, :, :, 0] - pair[1, :, :, 1])
    yield from _of_memory()


def _of_memory() -> Iterator[Line]:
    law, budget, memory = published(), Budget(flops=5e21, bits=4), np.geomspace(0.17e9, 60e9, 300)
    steps, above = [], []
    for name in RUNGS:
        table = experts_map(law, memory, budget, ladder_space([name]))
        E = np.nan_to_num(np.array(table.columns["best_experts"], float)).reshape(len(memory), -1)
        steps.append(np.diff(E, axis=0))
        above.append(E[:, 3] - E[:, 0])
    yield _monotone("more memory raises E* of a fixed size", np.array(steps))
    yield _monotone("higher recurrence raises E* of a fixed size (R = 4 against 1)", np.array(above))
    free = experts_map(law, memory, budget, ladder_space(recurrences=(1, 4)))
    E = np.array(free.columns["best_experts"], float).reshape(len(memory), 2)
    usable = np.isfinite(E).all(axis=1)
    yield _monotone("higher recurrence raises E* with the size free (R = 4 against 1)", E[usable, 1] - E[usable, 0])
    note = "each new size starts with few experts, so E* falls where a larger model begins to fit"
    yield _monotone("more memory raises E* with the size free, at R = 1", np.diff(E[usable, 0]), note)
    joint = joint_optimum(law, memory, budget)
    R = np.array([value for value in joint.columns["recurrence"] if value])
    moves = np.diff(R)
    note = (
        f"along 300 memories R* falls {int((moves < 0).sum())} times and rises {int((moves > 0).sum())} times; "
        "at the paper's 1, 3 and 10 GB it is 2, 2 and 1, as printed"
    )
    yield _monotone("more memory lowers the joint R*", -moves[moves != 0], note)


def _monotone(what: str, moves: Any, note: str = "") -> Line:
    moves = np.asarray(moves)
    holds, strict = int((moves >= 0).sum()), int((moves > 0).sum())
    counted = f"strictly in {strict}"
    return claim(FINDINGS, what, "holds", holds, moves.size, f"{note}; {counted}" if note else counted)


def claims() -> Iterator[Line]:
    """Yield the downstream claims: ratios that follow from sizes, and what each is in terms of loss under the law."""
    table, law = PAPER["claims"], published()
    where = table["where"]
    small, middle, large = (rung(name) for name in ("0.3B", "0.6B", "1.0B"))
    ratio = (large.active + large.embedding) / (small.active + small.embedding)
    yield number(where, "active-parameter efficiency of sparsity, about", table["active_efficiency"], ratio, 0)
    halves = (rung("0.6B", 8).total + middle.embedding) / (rung("0.3B", 8).total + small.embedding)
    yield number(where, "total-parameter efficiency of recurrence, about", table["total_efficiency"], halves, 0)

    def loss(name: str, E: float, R: int, flops: float) -> float:
        model = rung(name, E)
        return float(law(model.points(flops / (6 * float(model.unrolled(R))), R)))

    dense = loss("1.0B", 1, 1, 5e20)
    for E in (2, 4, 8, 16):
        mine = loss("0.3B", E, 1, 5e20)
        verdict = "better" if table["experts_that_suffice"] <= E else "not better"
        yield Line(where, f"0.3B with E = {E} against dense 1.0B at 5e20 FLOPs, as loss", verdict,
                   "better" if mine < dense else "not better",
                   f"{mine:.3f} against {dense:.3f}; the paper says it of scores")  # fmt: skip
    for first, second, least in (
        ("0.3B", "0.6B", table["passes_for_0.6B"]),
        ("0.6B", "1.0B", table["passes_for_1.0B"]),
    ):
        lowest = min(loss(first, 8, R, 1e21) for R in range(1, 11))
        note = (
            f"in loss no R does it: {lowest:.3f} at best against {loss(second, 8, 1, 1e21):.3f}, so this is a claim "
            "about reasoning scores only"
        )
        yield Line(
            where,
            f"{first} with R >= {least} matches {second} on Reasoning at 1e21 FLOPs, E = 8",
            "matches",
            None,
            note,
        )
    flops = np.geomspace(5e20, 5e21, 7)
    cases = [(name, R, budget) for name in ("0.3B", "0.6B", "1.0B") for R in (2, 3, 4, 6) for budget in flops]
    lost = [(name, R, budget) for name, R, budget in cases if loss(name, 8, R, budget) >= loss(name, 1, 1, budget)]
    exceptions = ", ".join(f"{name} at R = {R} on {budget:.0e} FLOPs" for name, R, budget in lost) or "nowhere"
    note = f"the paper says it of scores; in loss not for {exceptions}"
    yield claim(where, "E = 8 with R > 1 beats dense R = 1 at equal compute, as loss", "consistently",
                len(cases) - len(lost), len(cases), note)  # fmt: skip
    rows = PAPER["downstream"]["rows"]
    reasoning = {(row["model"], row["recurrence"]): float(np.mean(row["scores"][:2])) for row in rows}
    reference = reasoning[rows[0]["model"], 1]
    for R in table["passes_that_match"]:
        mine = reasoning[rows[-1]["model"], R]
        note = f"means of printed BBH and GSM8K: {mine:.2f} against {reference:.2f}"
        what = f"LoopMoE at R = {R} matches the larger MoE on Reasoning"
        yield claim(where, what, "matches", int(mine >= reference), 1, note)
    trails = [row["overall"] < rows[0]["overall"] for row in rows[1:]]
    yield claim(where, "LoopMoE trails the larger MoE on Overall at every R", "trails", sum(trails), len(trails))
    rises = np.diff([row["overall"] for row in rows[1:]])
    yield claim(where, "Overall rises with test-time R", "rises", int((rises >= 0).sum()), rises.size)
    observed = 3 * 5 * 6 * 12
    yield claim(where, "more than 1,000 observations", "more than 1,000", int(observed > 1000), 1,
                f"the sweep simulated here has {observed}, 90 runs at 12 lengths; the paper gives no more")  # fmt: skip
