"""How fast a plan is: cold from the shell, and over many resampled laws and memory budgets at once."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from loopscale.architecture import RUNG_EXPERTS, RUNGS, ladder_space, rung
from loopscale.planning import Budget, evaluate
from loopscale.scaling import ScalingLaw, find_law, published
from timing import compare

LAWS, BUDGETS, FLOPS, BITS = 100, 50, 5e21, 4


def cold_plan() -> None:
    """Compare `loopscale plan` with the import of numpy and scipy.optimize, each in a fresh process."""
    command = [
        str(Path(sys.executable).with_name("loopscale")),
        "plan",
        "--flops",
        "5e21",
        "--memory",
        "3GB",
        "--bits",
        "4",
    ]
    imports = [sys.executable, "-c", "import numpy, scipy.optimize"]

    def run(argv: list[str]) -> None:
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)

    ratio = compare("cold", ours=lambda: run(imports), peer=lambda: run(command), rounds=9)
    print(
        f"loopscale plan, 300 candidates, cold: {ratio.median:.2f}x the time of importing numpy and scipy.optimize "
        f"({sorted(ratio.peer)[4]:.2f} s against {sorted(ratio.ours)[4]:.2f} s; wanted: under 1.0x)"
    )


def import_seconds(package: str) -> float:
    """Return how long a fresh process takes to import a package, as ``-X importtime`` measures it."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", f"import {package}"], check=True, capture_output=True, text=True
    )
    (line,) = [line for line in done.stderr.splitlines() if line.rpartition("|")[2].strip() == package]
    return int(line.split("|")[1]) / 1e6


def package_import(rounds: int = 9) -> None:
    """Compare ``import loopscale`` with ``import numpy``, each in a fresh process."""
    times = [(import_seconds("loopscale"), import_seconds("numpy")) for _ in range(rounds)]
    ratios = sorted(ours / peer for ours, peer in times)
    ours, peer = (min(side) * 1e3 for side in zip(*times, strict=True))
    print(
        f"import loopscale: {ratios[rounds // 2]:.3f}x the time of import numpy (rounds {ratios[0]:.3f}–"
        f"{ratios[-1]:.3f}x; at best {ours:.1f} ms against {peer:.1f} ms; wanted: under 0.5x)"
    )


def resampled_law() -> ScalingLaw:
    """Return the paper's law with made-up resamples, 1% around it."""
    law = published()
    base = np.array(list(law.coefficients.values()))
    return replace(law, resamples=base * (1 + 0.01 * np.random.default_rng(0).standard_normal((LAWS, len(base)))))


def vectorised(law: ScalingLaw, memory: np.ndarray) -> np.ndarray:
    """Choose for every law and budget with one evaluation."""
    return evaluate(law, ladder_space(), Budget(flops=FLOPS, bits=BITS)).optimum(memory)[1:, 0]


def python_loop(law: ScalingLaw, memory: np.ndarray) -> np.ndarray:
    """Choose the same with plain Python over laws, candidates and budgets, in bare floats."""
    assert law.resamples is not None
    assert law.rmse is not None
    models = [[_counts(name, E) for E in RUNG_EXPERTS] for name in RUNGS]
    bytes_ = [[(m.total + m.embedding) * BITS / 8 for m in row] for row in models]
    picks = np.empty((LAWS, len(memory)), dtype=int)
    for z, values in enumerate(law.resamples.tolist()):
        c = dict(zip(law.names, values, strict=True))
        loss = [[[_loss(c, m, R) for R in range(1, 11)] for m in row] for row in models]
        allowed = [
            (loss[s][k][p], bytes_[s][k], (s * 6 + k) * 10 + p)
            for s in range(5)
            for k in range(6)
            for p in range(10)
            if (p == 0 or loss[s][k][p - 1] - loss[s][k][p] >= law.rmse)
            and (k == 0 or loss[s][k - 1][p] - loss[s][k][p] >= law.rmse)
        ]
        for b, limit in enumerate(memory.tolist()):
            best = min(((value, flat) for value, size, flat in allowed if size <= limit), default=(math.inf, -1))
            picks[z, b] = best[1]
    return picks


class _Counts(NamedTuple):
    """A model's counts, taken once, so that the loop pays for arithmetic alone."""

    active: float
    loop: float
    total: float
    embedding: float
    experts: float


def _counts(name: str, experts: int) -> _Counts:
    model = rung(name, experts)
    return _Counts(model.active, model.loop, model.total, model.embedding, experts)


def _loss(c: dict[str, float], model: _Counts, R: int) -> float:
    D = FLOPS / (6 * (model.active + (R - 1) * model.loop)) / 1e9
    height = (model.active / model.total) ** -c["theta"]
    gain = c["kappa1"] * height * (1 - math.exp(-(R - 1) / (c["kappa2"] * height)))
    N = (model.active + gain * model.loop) / 1e9
    offset = 1 / (1 / c["E_start"] - 1 / c["E_max"])
    x = math.log(1 / (1 / (model.experts - 1 + offset) + 1 / c["E_max"]))
    size = c["A"] * math.exp(c["delta"] * x) * N ** (c["alpha"] + c["gamma"] * x)
    return size + c["B"] * math.exp(c["omega"] * x) * D ** (c["beta"] + c["zeta"] * x) + c["c"]


def many_laws() -> None:
    """Compare one vectorised evaluation with loops, on equal answers."""
    law, memory = resampled_law(), np.geomspace(0.2e9, 30e9, BUDGETS)
    same = np.array_equal(vectorised(law, memory), python_loop(law, memory))
    print(f"plan over {LAWS} resampled laws x {BUDGETS} memory budgets x 300 candidates (answers equal: {same})")
    plans = compare(
        "  against a loop over laws, budgets and candidates, a plan at a time (bare floats, 1 budget in 10, scaled)",
        ours=lambda: vectorised(law, memory),
        peer=lambda: [python_loop(law, memory[b : b + 1]) for b in range(0, BUDGETS, 10)],
        rounds=5,
    )
    plans = replace(plans, peer=[10 * seconds for seconds in plans.peer])
    print(f"{plans} (wanted: 50x or more)")
    hoisted = compare(
        "  against the same loop with each loss computed once for all budgets",
        ours=lambda: vectorised(law, memory),
        peer=lambda: python_loop(law, memory),
        rounds=5,
    )
    print(hoisted)


def all_at_once() -> None:
    """Compare 100 laws and 50 budgets at once with one law and one budget."""
    law, memory, space, budget = (
        find_law(),
        np.geomspace(0.2e9, 30e9, BUDGETS),
        ladder_space(),
        Budget(flops=FLOPS, bits=BITS),
    )
    ratio = compare(
        "all at once",
        ours=lambda: evaluate(published(), space, budget).optimum(memory[:1]),
        peer=lambda: evaluate(law, space, budget).optimum(memory),
        rounds=15,
    )
    print(
        f"300 candidates x {LAWS} laws x {BUDGETS} budgets: {ratio.median:.1f}x the time of one law and one budget "
        "(wanted: under 10x)"
    )


def main() -> None:
    """Print every ratio."""
    package_import()
    cold_plan()
    many_laws()
    all_at_once()


if __name__ == "__main__":
    main()
