"""Numbers of the paper's unpublished sweep, judged by what the same analysis gives on simulated sweeps.

A simulated sweep follows the law with the printed coefficients and has the printed RMSE as independent noise. The
numbers of many such sweeps ship beside this file; ``experiments/reproduction/simulate.py`` writes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from loopscale.architecture import RUNGS, rung
from loopscale.cli.reproduction.line import Line
from loopscale.planning import Budget
from loopscale.planning.profiles import joint_optimum
from loopscale.scaling import PAPER, published, with_uncertainty

STORED = Path(__file__).with_name("simulated.json")


def simulated_numbers(seed: int) -> dict[str, float]:
    """Return every number of the paper's analyses on one simulated sweep, by name."""
    from loopscale.fitting import fit, simulate_sweep

    sweep = simulate_sweep(seed=seed)
    fitted = fit(sweep, outer="joint-moe", mapping="sparsity-conditional", resamples=0)
    numbers: dict[str, float] = {f"coefficient {name}": value for name, value in fitted.law.coefficients.items()}
    assert fitted.law.rmse is not None
    numbers["RMSE, sparsity-conditional"] = fitted.law.rmse
    two = fit(sweep, outer="joint-moe", mapping="two-exponents", resamples=0).law.rmse
    assert two is not None
    numbers["RMSE, two-exponents"] = two
    for scheme in ("paper", "runs"):
        law = fitted.resample(PAPER["intervals"]["refits"], scheme=scheme, seed=seed).law
        numbers |= {f"{name}, {scheme}": value for name, value in _interval_ends(law).items()}
        numbers |= {f"{name}, {scheme}": value for name, value in _optimum_ends(law).items()}
    return {name: float(f"{value:.5g}") for name, value in (numbers | _held_out_errors(seed)).items()}


def _interval_ends(law: Any) -> dict[str, float]:
    ends: dict[str, float] = {}
    for name in PAPER["intervals"]["values"]:
        low, high = np.percentile(law.resamples[:, law.names.index(name)], [5, 95])
        ends |= {f"{name} low": low, f"{name} high": high, f"{name} width": high - low}
    return ends


def _optimum_ends(law: Any) -> dict[str, float]:
    table = PAPER["joint_optima"]
    budget, memory = Budget(flops=table["flops"], bits=table["bits"]), [row["memory"] for row in table["rows"]]
    ends = {}
    for row in joint_optimum(law, memory, budget).records():
        for axis in ("active", "experts", "recurrence"):
            for end in ("low", "high"):
                ends[f"optimum {row['memory'] / 1e9:g} GB {axis} {end}"] = row[f"{axis}_{end}"]
    return ends


def _held_out_errors(seed: int) -> dict[str, float]:
    from loopscale.fitting import simulate_sweep
    from loopscale.fitting.compare import compare
    from loopscale.fitting.data.public import SWEEP_EXPERTS

    errors: dict[str, float] = {}
    for key, outer, law, experts in (
        ("held_out_moe", "joint-moe", published(), SWEEP_EXPERTS),
        ("held_out_dense", "chinchilla", published().at_one_expert(), (1,)),
    ):
        table = PAPER[key]
        plain = simulate_sweep(law, seed=seed, experts=experts)
        longer = simulate_sweep(law, seed=seed, experts=experts, recurrences=(1, 2, 3, 4, 6, 8, 16))
        for part in table["slices"]:
            data = longer if part == "R=16" else plain
            result = compare(data, [part], outer=outer, mappings=table["mappings"], folds=0, count=10)
            errors |= {f"{key} {part} {name}": result.score(part, name).rmse for name in table["mappings"]}
    return errors


@lru_cache
def stored() -> dict[str, list[float]]:
    """Return the numbers of the simulated sweeps by name, one for each seed."""
    content: dict[str, list[float]] = json.loads(STORED.read_text(encoding="utf-8"))["numbers"]
    return content


def sweeps() -> int:
    """Return how many sweeps were simulated."""
    return len(next(iter(stored().values())))


def _range(name: str) -> tuple[float, float, float]:
    """Return the 5th, 50th and 95th percentile over the simulated sweeps, each a value that some sweep has."""
    low, middle, high = np.percentile(stored()[name], [5, 50, 95], method="nearest")
    return float(low), float(middle), float(high)


def _judged(where: str, what: str, printed: float, name: str, note: str = "") -> Line:
    low, middle, high = _range(name)
    text = f"median of {sweeps()} simulated sweeps, 90% of them {low:.4g} to {high:.4g}"
    return Line(where, what, printed, middle, f"{text}{note}", low=low, high=high)


def coefficients() -> Iterator[Line]:
    """Yield the coefficients and RMSEs: circular, as the simulated sweeps are drawn from them."""
    table, law = PAPER["coefficients"], with_uncertainty("looped-moe-2026")
    assert law.resamples is not None
    for name, printed in table["values"].items():
        low, middle, high = _range(f"coefficient {name}")
        note = f"median refit of {sweeps()} simulated sweeps, 90% of them {low:.4g} to {high:.4g}"
        yield Line(table["where"], f"coefficient {name}", printed, middle, note, circular=True)
    for mapping, key in (("sparsity-conditional", "rmse"), ("two-exponents", "two_exponents_rmse")):
        low, middle, high = _range(f"RMSE, {mapping}")
        note = f"the noise of the simulation is the printed RMSE; 90% of refits {low:.4g} to {high:.4g}"
        yield Line(table["where"], f"RMSE, {mapping} mapping", table[key], middle, note, circular=True)


def intervals() -> Iterator[Line]:
    """Yield the printed intervals, by the paper's scheme with ours beside: ends are circular, widths are not."""
    table = PAPER["intervals"]
    for name, (low, high) in table["values"].items():
        for end, printed in (("low", low), ("high", high)):
            own = _range(f"{name} {end}, runs")[1]
            note = f"the paper's 90% subsets; whole runs resampled: {own:.4g}"
            ours = _range(f"{name} {end}, paper")[1]
            yield Line(table["where"], f"{name}, {end} end of the 90% interval", printed, ours, note, circular=True)
        own = _range(f"{name} width, runs")[1]
        what, beside = f"{name}, width of the 90% interval", f"; whole runs resampled: {own:.4f}"
        yield _judged(table["where"], what, round(high - low, 4), f"{name} width, paper", beside)


def joint_optima() -> Iterator[Line]:
    """Yield the joint optimum at three memories, and the ends of its intervals by the paper's scheme."""
    table = PAPER["joint_optima"]
    budget, memory = Budget(flops=table["flops"], bits=table["bits"]), [row["memory"] for row in table["rows"]]
    names = {float(rung(name).active): name for name in RUNGS}
    for printed, ours in zip(table["rows"], joint_optimum(published(), memory, budget).records(), strict=True):
        for axis, column in {"size": "rung", "experts": "experts", "recurrence": "recurrence"}.items():
            what = f"joint optimum at {printed['memory'] / 1e9:g} GB: {axis}"
            yield Line(table["where"], what, printed[axis], ours[column])
            for end in ("low", "high"):
                key = f"optimum {printed['memory'] / 1e9:g} GB {'active' if axis == 'size' else axis} {end}"
                low, middle, high = _range(f"{key}, paper")
                own = _range(f"{key}, runs")[1]
                spans: list[Any] = [low, middle, high, own]
                if axis == "size":
                    spans = [_named(names, value) for value in spans]
                note = f"the paper's 90% subsets of {sweeps()} simulated sweeps; whole runs resampled: {spans[3]}"
                yield Line(table["where"], f"{what}, {end} end", printed[axis], spans[1], note,
                           low=spans[0], high=spans[2])  # fmt: skip


def _named(names: dict[float, str], active: float) -> str:
    return names[min(names, key=lambda known: abs(known - active))]


def held_out() -> Iterator[Line]:
    """Yield the errors on held-out runs, and whether the order of the mappings comes out."""
    why = "; a simulated sweep departs from the law by independent noise alone"
    for key in ("held_out_moe", "held_out_dense"):
        table, dense = PAPER[key], "dense, " if "dense" in key else ""
        for part, printed in zip(table["slices"], table["rmse"], strict=True):
            for mapping, value in zip(table["mappings"], printed, strict=True):
                what = f"held-out {part}, {dense}{mapping}: RMSE"
                yield _judged(table["where"], what, value, f"{key} {part} {mapping}", why)
            errors = np.array([stored()[f"{key} {part} {mapping}"] for mapping in table["mappings"]])
            order = np.argsort(printed)
            same = int(np.sum(np.all(np.diff(errors[order], axis=0) > 0, axis=0)))
            what = f"held-out {part}, {dense}order of the mappings"
            yield Line(table["where"], what, " < ".join(table["mappings"][k] for k in order),
                       f"in {same} of {errors.shape[1]} simulated sweeps", "a claim of the table, on simulated sweeps",
                       holds=same, cases=errors.shape[1])  # fmt: skip
            best = int(np.sum(np.argmin(errors, axis=0) == int(np.argmin(printed))))
            what = f"held-out {part}, {dense}lowest error: {table['mappings'][int(np.argmin(printed))]}"
            yield Line(table["where"], what, "lowest", f"in {best} of {errors.shape[1]} simulated sweeps",
                       "a claim of the table, on simulated sweeps", holds=best, cases=errors.shape[1])  # fmt: skip
