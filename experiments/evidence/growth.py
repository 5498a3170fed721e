"""Passes that grow during training: the delay with which the gain follows them."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from loopscale.core.arrays import FloatArray
from loopscale.fitting import load_table
from loopscale.fitting.data.looped import qlabs_geometry
from loopscale.scaling import Points, ScalingLaw
from loopscale.scaling.growth import PassSchedule, best_growth, scheduled_loss

RESAMPLES = 200
SEED = 0


class Growth:
    """Runs that grow from two passes to four, and a law of them whose curve over R is held."""

    def __init__(self, law: ScalingLaw) -> None:
        table = load_table("qlabs-growth")
        column = {name: np.array(values) for name, values in table.columns.items()}
        self.N, self.loop, self.D = (column[name].astype(float) / 1e9 for name in ("N_act", "N_loop", "D"))
        self.share, self.loss = column["grown"].astype(float), column["loss"].astype(float)
        self.series = np.array([run.rsplit("-rho", 1)[0] for run in column["run"]])
        c = law.coefficients
        self.first, self.last = (float(law.mapping.gain(c, passes, 1.0)) for passes in (2.0, 4.0))

    def predicted(self, values: FloatArray, rows: Any, credit: Any) -> FloatArray:
        """Return losses at c, ln A, alpha, ln B, beta and the coefficients of ``credit``."""
        c, log_A, alpha, log_B, beta, *rest = values
        gain = self.first + (self.last - self.first) * credit(rest, self.share[rows])
        N = self.N[rows] + gain * self.loop[rows]
        return np.asarray(c + np.exp(log_A) * N**alpha + np.exp(log_B) * self.D[rows] ** beta)

    def fitted(self, rows: Any, credit: Any, start: tuple[float, ...]) -> FloatArray:
        """Return the values that fit the rows best."""
        base = np.array([2.3, -1.1, -0.25, -0.87, -0.5, *start])
        result = least_squares(
            lambda values: np.log(self.predicted(values, rows, credit) / self.loss[rows]),
            base, loss="soft_l1", f_scale=0.002,
        )  # fmt: skip
        return np.asarray(result.x)


CREDITS = {
    "first passes": (lambda rest, share: 0.0 * share, ()),
    "token average": (lambda rest, share: share, ()),
    "last passes": (lambda rest, share: np.where(share > 0, 1.0, 0.0), ()),
    "delay": (lambda rest, share: -np.expm1(-share / np.exp(rest[0])), (-2.0,)),
}
"""What part of the change of gain a run is credited with, by the share of its tokens with the last passes."""


def growth(law: ScalingLaw) -> dict[str, Any]:
    """Return the error of each credit, left-out series included, and the delay with its interval."""
    runs, rows = Growth(law), None
    rows, records = np.arange(len(runs.loss)), []
    names = np.unique(runs.series)
    for name, (credit, start) in CREDITS.items():
        values = runs.fitted(rows, credit, start)
        errors = np.empty(len(rows))
        for series in names:
            out = np.flatnonzero(runs.series == series)
            kept = np.flatnonzero(runs.series != series)
            errors[out] = runs.predicted(runs.fitted(kept, credit, start), out, credit) - runs.loss[out]
        inside = runs.predicted(values, rows, credit) - runs.loss
        records.append({"credit": name, "coefficients": len(values), "rmse": _rms(inside), "left out": _rms(errors)})
    credit, start = CREDITS["delay"]
    random, drawn = np.random.default_rng(SEED), []
    for _ in range(RESAMPLES):
        chosen = np.concatenate([np.flatnonzero(runs.series == s) for s in random.choice(names, len(names))])
        drawn.append(float(np.exp(runs.fitted(chosen, credit, start)[-1])))
    low, high = np.percentile(drawn, [5, 95]).tolist()
    return {"credits": records, "delay": float(np.exp(runs.fitted(rows, credit, start)[-1])), "low": low, "high": high}


def best_shares(law: ScalingLaw) -> list[dict[str, Any]]:
    """Return the share of tokens with four passes that was best, by a parabola through each series, and by the law.

    Series in which the parabola has no minimum within the shares that were run are left out.
    """
    runs, records = Growth(law), []
    for series in np.unique(runs.series):
        rows = np.flatnonzero(runs.series == series)
        a, b, _ = np.polyfit(runs.share[rows], runs.loss[rows], 2)
        if a <= 0 or not 0 < -b / (2 * a) < runs.share.max():
            continue
        N, loop = runs.N[rows][0] * 1e9, runs.loop[rows][0] * 1e9
        # The source's compute includes the output head, as wide as the model.
        budget = 6 * (N + loop + _head(N)) * runs.D[rows][0] * 1e9
        shares = np.linspace(0.0, 0.4, 81)
        losses = []
        for share in shares:
            schedule = PassSchedule([[0, 2], [1 - share, 4]] if share else [[0, 2]])
            tokens = budget / (6 * (N + (schedule.mean - 1) * loop + _head(N)))
            losses.append(float(scheduled_loss(law, Points(N, tokens, loop=loop), schedule)))
        saved = runs.loss[rows][runs.share[rows] == 0][0] - np.polyval([a, b, _], -b / (2 * a))
        records.append(
            {
                "series": str(series), "measured": -b / (2 * a), "law": float(shares[int(np.argmin(losses))]),
                "saved": float(saved), "expected": losses[0] - min(losses),
            }
        )  # fmt: skip
    return records


def _head(N: float) -> float:
    """Return the parameters of the output head of the Q Labs model with N others."""
    widths = {qlabs_geometry(depth)["N_act"]: qlabs_geometry(depth)["N_embedding"] / 2 for depth in range(4, 20)}
    return widths[round(N)]


def _rms(errors: FloatArray) -> float:
    return float(np.sqrt(np.mean(errors**2)))


def schedules(law: ScalingLaw) -> list[dict[str, Any]]:
    """Return the best schedule of one growth step at several budgets for a model of compute-optimal size."""
    records = []
    budgets = ((1e8, 1.3e18), (2e8, 3.7e18), (3.4e8, 8.7e18), (5.5e8, 1.9e19))
    for (active, flops), passes in product(budgets, ((2, 4), (1, 2, 3, 4, 6))):
        choice = best_growth(law, active, 0.36 * active, flops, passes)
        records.append(
            {
                "N": active, "flops": flops, "passes": passes,
                "schedule": [list(stage) for stage in choice.schedule.stages],
                "tokens": choice.tokens, "loss": choice.loss, "fixed R": choice.fixed_passes,
                "saved": choice.fixed_loss - choice.loss,
            }
        )  # fmt: skip
    return records
