"""The page plans by itself: its formulas come from Python, and it gives the answers that Python gives."""

import dataclasses
import math
import random
from typing import Any

import pytest
from engine import PLANNER, run_node

from loopscale.app.formulas import formulas
from loopscale.app.formulas.javascript import javascript
from loopscale.app.formulas.symbols import Symbol, SymbolicObject
from loopscale.architecture import RUNG_EXPERTS, RUNGS, extended_rungs, ladder_space
from loopscale.core.devices import DEVICES
from loopscale.core.errors import InputError
from loopscale.core.quantities import counted, decimals, format_bytes, format_count, format_power, fraction_of
from loopscale.planning import FIELDS, Budget, Plan, evaluate, search
from loopscale.planning.cluster import Cluster
from loopscale.planning.compute import device_flops
from loopscale.planning.design import design_at
from loopscale.planning.device_search import search_on
from loopscale.scaling import MAPPINGS, OUTER_LAWS, PUBLISHED, Counting, FittedRange, ScalingLaw, Units
from loopscale.scaling.trust import times

EXACT = 1e-12


def same(python: Any, page: Any) -> bool:
    """Whether two values are equal, numbers to within rounding; files write an infinite loss as none."""
    if python is None and page == "Infinity":
        return True
    if isinstance(python, dict):
        return python.keys() == page.keys() and all(same(value, page[name]) for name, value in python.items())
    if isinstance(python, list | tuple):
        return len(python) == len(page) and all(map(same, python, page))
    if isinstance(python, float | int) and not isinstance(python, bool) and isinstance(page, float | int):
        return math.isclose(python, page, rel_tol=EXACT, abs_tol=EXACT if abs(python) < 1 else 0)
    if isinstance(python, float) and not math.isfinite(python):
        return str(page) == {math.inf: "Infinity", -math.inf: "-Infinity"}.get(python, "NaN") or page is None
    return bool(python == page)


def differences(python: dict[str, Any], page: dict[str, Any]) -> dict[str, Any]:
    """What Python and the page say differently, by name."""
    return {name: (value, page.get(name)) for name, value in python.items() if not same(value, page.get(name))}


def random_law(rng: random.Random) -> ScalingLaw:
    """Any form with any coefficients that it allows."""
    outer, mapping = rng.choice(list(OUTER_LAWS.values())), rng.choice(list(MAPPINGS.values()))
    values = {}
    for term in (*outer.coefficients, *mapping.coefficients):
        near = (
            term.typical
            if term.typical is not None
            else {"A": 0.5, "B": 1.0, "c": 1.5, "E_max": 300.0}.get(term.name, 1.0)
        )
        values[term.name] = min(max(near * rng.uniform(0.7, 1.3), term.lower), term.upper)
    return ScalingLaw(
        outer, mapping, values, Units(1e9, 1e9), rng.choice(list(Counting)), name="random", rmse=0.004,
        fitted_range=FittedRange((2e8, 8e8), (1e11, 5e11), (1, 16), (1, 8)),
    )  # fmt: skip


def random_budget(rng: random.Random) -> dict[str, float]:
    """Limits as people may combine them."""
    limits: dict[str, float] = {"flops": 10 ** rng.uniform(19, 24.5), "bits": rng.choice([2, 4, 4.85, 8, 16])}
    often = lambda share: rng.random() < share  # noqa: E731
    if often(0.7):
        limits["memory"] = 10 ** rng.uniform(8.3, 11.5)
    if often(0.3):
        limits |= {"memory": 10 ** rng.uniform(8.3, 11.5)} | {
            "context": rng.choice([512, 8192, 131072]),
            "batch": rng.choice([1, 4]),
            "kv_bits": rng.choice([8, 16]),
        }
        limits |= rng.choice([{}, {"kept_passes": 1}, {"kept_window": 512}])
    if often(0.2):
        limits["serve_tokens"] = 10 ** rng.uniform(10, 13)
    if often(0.3):
        limits |= rng.choice([{"max_tokens": 10 ** rng.uniform(10, 13)}, {"tokens": 10 ** rng.uniform(10, 12)}])
    if often(0.15):
        limits["unique_tokens"] = 10 ** rng.uniform(10, 12)
    if often(0.3):
        limits["bandwidth"] = 10 ** rng.uniform(10, 12)
        if often(0.5):
            limits["min_speed"] = 10 ** rng.uniform(0, 2)
    if often(0.1):
        limits.setdefault("bandwidth", 1e11)
        limits["cache"] = 10 ** rng.uniform(7, 9.5)
    if often(0.15):
        limits["inference_flops"] = 10 ** rng.uniform(8.5, 11)
    if often(0.3):
        limits["real_flops"] = limits["flops"] * rng.uniform(0.5, 2)
        if often(0.7):
            del limits["flops"]
    return limits


def random_task(rng: random.Random) -> dict[str, Any]:
    """A published law, a budget and the options of a plan."""
    law = rng.choice([*PUBLISHED, *["looped-moe-2026"] * 10])
    options: dict[str, Any] = {"rule": "loss"} if rng.random() < 0.1 else {}
    if not options and (PUBLISHED[law].eps is None or rng.random() < 0.1):
        options["eps"] = 0.003
    if law == "looped-moe-2026" and rng.random() < 0.3:
        options["rungs"] = rng.sample(list(RUNGS), 2)
        options["recurrences"] = rng.choice([[1], [1, 2, 4], [2, 8]])
    task = {"law": law, "limits": random_budget(rng), "options": options}
    if rng.random() < 0.4:
        for name in ("flops", "real_flops"):
            task["limits"].pop(name, None)
        gpus = rng.choice([1, 6, 8, 64, 100])
        days, share = round(10 ** rng.uniform(-1, 2), 3), rng.choice(["40%", "0.33"])
        task["devices"] = {"gpus": gpus, "days": days, "device": rng.choice(list(DEVICES)), "utilisation": share}
    return task


def test_a_thousand_random_laws_designs_and_budgets_give_the_numbers_of_python():
    rng = random.Random(1)
    tasks, expected = [], []
    for _ in range(1000):
        law, limits = random_law(rng), random_budget(rng)
        if not law.outer.uses_unique:
            limits.pop("unique_tokens", None)
        space = ([rng.choice(list(extended_rungs())[:12])], [rng.choice(RUNG_EXPERTS)], [rng.randint(1, 12)])
        grid = evaluate(law, ladder_space(*space), Budget(**limits), resamples=False)
        design = design_at(grid, 0, 0).to_dict()
        expected.append({name: design[name] for name in design if name not in ("loss_low", "loss_high", "verdict")})
        tasks.append({"law": law.to_dict(), "limits": limits, "space": space})
    code = """
    return tasks.map(({ law: file, limits, space: [rungs, experts, recurrences] }) => {
      const law = { ...preparedLaw(file), onlyExperts: null, onlyRecurrence: null };
      const space = spaceOf(law, { rungs, experts, recurrences });
      return designAt(evaluate(law, space, budgetOf(limits), { eps: law.eps, rule: "paper" }), 0, 0);
    });"""
    found = run_node(code, tasks, *PLANNER)
    for task, python, page in zip(tasks, expected, found, strict=True):
        assert not differences(python, page), task


PLAN = """
const laws = {};
return tasks.map(({ law, limits, options, devices }) => {
  laws[law] ??= preparedLaw(DATA.laws[law]);
  try {
    const asked = devices && devicesOf({ ...devices, gpus: String(devices.gpus) });
    const found = asked ? searchOn(asked, laws[law], limits, options) : search(laws[law], limits, options);
    const agreed = found.agreement();
    const { flat, effective_parameters, memory, ...choice } = found.choice;
    return {
      choice, days: found.training.days, fits: found.training.fits, trust: found.trust,
      interval: found.interval, agreement: agreed && agreed.share,
      votes: agreed && agreed.votes.map(({ design, share }) => ({ design, share })), lead: found.lead,
      tied: found.tiedSizes,
      unspent_flops: found.unspent, supervised: found.real && found.real.supervised,
      rivals: found.rivals().map(({ label, verdict }) => [label, verdict]),
      sensitivities: found.sensitivities().map(({ limit, design, saved }) => [limit, design.label, saved]),
      next_best: found.nextBest && [found.nextBest.label, found.nextBest.verdict], edge: found.edges,
    };
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    return { refused: error.problem };
  }
});"""


def python_plan(task: dict[str, Any]) -> dict[str, Any]:
    """The same facts from Python."""
    options = dict(task["options"])
    space = None
    if "rungs" in options:
        space = ladder_space(options.pop("rungs"), recurrences=options.pop("recurrences"), free=["experts"])
    given = task.get("devices")
    cluster = (
        Cluster(given["device"], given["gpus"], fraction_of(given["utilisation"], "share")) if given else Cluster()
    )

    asked = {"extrapolate": True, **options, **task["limits"]}
    try:
        if given:
            real = device_flops(given["gpus"] * given["days"] * 24, cluster.device, cluster.utilisation)
            found = search_on(cluster, None, space, task["law"], real_flops=real, **asked)
        else:
            found = search(None, space, task["law"], **asked)
        plan = Plan.of(found, cluster=cluster)
    except InputError as error:
        return {"refused": error.problem}
    choice = plan.choice.to_dict()
    trust = plan.trust.to_dict()
    own = len(trust["reasons"]) - len(plan.edge) - 1 - any("each token" in reason for reason in trust["reasons"])
    return {
        "choice": {name: choice[name] for name in choice if name not in ("loss_low", "loss_high")},
        "days": plan.devices.days,
        "fits": plan.devices.fits,
        "trust": {**trust, "reasons": trust["reasons"][:own], "extrapolated": choice["extrapolated"]},
        "interval": plan.interval,
        "agreement": plan.agreement,
        "votes": None if plan.agreement is None else [dataclasses.asdict(vote) for vote in plan.votes],
        "lead": plan.lead,
        "tied": plan.tied_sizes and list(plan.tied_sizes),
        "unspent_flops": plan.unspent_flops,
        "supervised": plan.real_train_flops and plan.real_train_flops["supervised"],
        "rivals": [[rival.label, rival.verdict] for rival in plan.rivals],
        "sensitivities": [[row.limit, row.design, row.saved] for row in plan.sensitivities],
        "next_best": plan.next_best and [plan.next_best.design, plan.next_best.needs],
        "edge": [dataclasses.asdict(edge) for edge in plan.edge],
    }


def check_scenarios(count: int, seed: int) -> None:
    rng = random.Random(seed)
    tasks = [random_task(rng) for _ in range(count)]
    for task, page in zip(tasks, run_node(PLAN, tasks, *PLANNER), strict=True):
        python = python_plan(task)
        assert not differences(python, page), task


def test_random_plans_have_the_same_choice_costs_trust_interval_and_reasons():
    check_scenarios(40, seed=2)


@pytest.mark.slow
def test_many_random_plans_are_the_same():
    check_scenarios(400, seed=3)


MAP = """
const law = preparedLaw(DATA.laws[DATA.law]);
return tasks.map(({ limits, axis, computes, memories, options }) => {
  const rows = [...mapRows(law, limits, { ...options, space: mapSpace(law, options) }, axis, computes, memories)];
  return computes.flatMap((compute, i) => memories.map((memory, j) => {
    const cell = rows[i][j];
    const shown = cell && [cell.name, cell.E, cell.R, cell.loss, cell.level];
    try {
      const found = search(law, { ...limits, [axis]: compute, memory }, options);
      const { rung, experts, recurrence, loss } = found.choice;
      return [shown, [rung, experts, recurrence, loss, found.trust.level]];
    } catch (error) {
      if (!(error instanceof Refusal)) throw error;
      return [shown, null];
    }
  }));
});"""


def test_every_cell_of_the_map_is_the_design_that_a_search_finds():
    rng = random.Random(5)
    tasks = []
    for limits in (
        {},
        {"bits": 8, "context": 8192},
        {"max_tokens": 3e11},
        {"unique_tokens": 5e10},
        {"serve_tokens": 1e12},
    ):
        for axis in ("flops", "real_flops"):
            places = {
                "computes": sorted(10 ** rng.uniform(17, 26) for _ in range(5)),
                "memories": sorted(10 ** rng.uniform(7.5, 11.5) for _ in range(6)),
            }
            options = rng.choice([{}, {"rungs": ["0.6B", "1.0B"]}, {"rule": "loss"}])
            tasks.append({"limits": {"bits": 4, **limits}, "axis": axis, "options": options, **places})
    cells = [cell for task in run_node(MAP, tasks, *PLANNER) for cell in task]
    assert len(cells) == 300
    assert sum(found is not None for _, found in cells) > 100
    for shown, found in cells:
        assert shown == found


def test_numbers_are_written_and_read_as_python_writes_and_reads_them():
    rng = random.Random(4)
    values = [0.0, 1.25, 12.5, 999.5, 1000, 8192, 1e15, 9.995e11] + [10 ** rng.uniform(-6, 24) for _ in range(400)]
    found = run_node(
        "return tasks.map((v) => [count(v), power(v), bytes(v), times(1 + (v % 1e9)), decimals(v), fixed(v, 4)]);",
        values,
        "quantities.js",
    )
    expected = [
        [format_count(v), format_power(v), format_bytes(v), times(1 + v % 1e9), decimals(v), f"{v:.4f}"] for v in values
    ]
    assert [row[:5] for row in found] == [row[:5] for row in expected]
    assert [row[5] for row, v in zip(found, values, strict=True) if v < 1e6] == [
        row[5] for row, v in zip(expected, values, strict=True) if v < 1e6
    ]
    texts = {
        "flops": ["5e21", "1.5 e21", "6T", "5e21 FLOPs"], "memory": ["3GB", "3 GiB", "512MB", "1e9"],
        "bits": ["4", "int4", "bf16", "q4_k_m"], "context": ["8k", "32768", "1M"], "tokens": ["300B"],
        "bandwidth": ["51.2 GB/s", "1TB"],
    }  # fmt: skip
    asked = [(name, text) for name, all_of_it in texts.items() for text in all_of_it]
    read = run_node(
        "return tasks.map(([n, t]) => parse(DATA.fields.find((f) => f.name === n), t));", asked, "quantities.js"
    )
    own = {"1.5 e21": "1.5e21", "5e21 FLOPs": "5e21"}  # the page forgives these
    assert read == [FIELDS[name].read(own.get(text, text)) for name, text in asked]


def test_one_of_a_thing_is_written_without_an_s():
    tasks = [[number, noun] for number in (0, 1, 2, 2400) for noun in ("run", "row", "loss")]
    found = run_node("return tasks.map(([number, noun]) => counted(number, noun));", tasks, "quantities.js")
    assert found == [counted(number, noun) for number, noun in tasks]


def test_a_traced_formula_shares_what_it_uses_twice_and_keeps_both_branches():
    x = SymbolicObject("x")
    text = javascript("f", (x.a + x.b) ** 2 + (x.a + x.b))
    assert text.count("x.a + x.b") == 1
    assert "Math" not in text


def test_an_operation_without_javascript_is_refused_at_once():
    import numpy as np

    with pytest.raises(NotImplementedError, match="arctan"):
        np.arctan(Symbol.named("x"))


def test_every_limit_mapping_and_form_has_its_formula():
    text = formulas()
    for name in (*OUTER_LAWS, *MAPPINGS):
        assert f"'{name}': function" in text
    for name, field in FIELDS.items():
        if field.need is not None:
            assert f"field: '{name}'" in text
