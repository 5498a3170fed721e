"""The prior of the general mapping's curve, learnt by one rule; each laboratory is tested on a prior without it.

kappa2: the mean and the standard deviation of ln kappa2 over the sweeps and the paper's dense value. tail: centred at
the exponential bound; its width is the root mean square of the sweeps' upper 90% ends, over 1.645. Both are rounded to
two digits. Variants of a recipe (hyper-connections, gradients cut) do not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from loopscale.fitting import load_public
from loopscale.fitting.compare import compare
from loopscale.scaling import published
from loopscale.scaling.coefficients import Prior
from loopscale.scaling.general import CURVE, TAIL

VARIANTS = ("hyper-connections", "BPTT cut")
TESTS = {"Iso-Depth": ("isodepth", "R=8"), "Q Labs": ("qlabs-loops", "R=6")}
"""For each laboratory that is left out, its sweep and the passes that are held out."""


def learnt(records: list[dict[str, Any]], without: str) -> tuple[Prior, Prior]:
    """Return the priors of kappa2 and tail from every sweep but those of the laboratory ``without``."""
    used = [
        row
        for row in records
        if not row["sweep"].startswith(without) and not any(name in row["sweep"] for name in VARIANTS)
    ]
    curves = np.log([published().coefficients["kappa2"], *(row["kappa2"] for row in used)])
    width = float(np.sqrt(np.mean([row["high"] ** 2 for row in used]))) / 1.645
    source = f"other sweeps than {without}"
    kappa2 = Prior(_rounded(np.exp(curves.mean())), _rounded(curves.std(ddof=1)), source)
    return kappa2, Prior(0.0, _rounded(width), source)


def held_out(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the held-out RMSE of the general mapping on each laboratory, under a prior that has not seen it."""
    rows = []
    for without, (sweep, part) in TESTS.items():
        kappa2, tail = learnt(records, without)
        with _using(kappa2, tail):
            score = compare(load_public(sweep), [part], outer="chinchilla", mappings=("general",)).score(
                part, "general"
            )
        rows.append({"without": without, "sweep": sweep, "held out": part, "kappa2": kappa2, "tail": tail,
                     "rmse": score.rmse})  # fmt: skip
    return rows


@contextmanager
def _using(kappa2: Prior, tail: Prior) -> Iterator[None]:
    before = CURVE.prior, TAIL.prior
    _set(kappa2, tail)
    try:
        yield
    finally:
        _set(*before)


def _set(kappa2: Prior | None, tail: Prior | None) -> None:
    object.__setattr__(CURVE, "prior", kappa2)
    object.__setattr__(TAIL, "prior", tail)


def _rounded(value: float) -> float:
    return float(f"{value:.2g}")
