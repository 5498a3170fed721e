"""Sealed forecasts: written with a date and a hash before runs are trained, and scored against those runs later."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from loopscale.core.errors import InputError
from loopscale.core.quantities import format_power
from loopscale.core.sealed import seal, unseal
from loopscale.core.text import text_table
from loopscale.fitting.data.observations import Observations
from loopscale.fitting.forecasting import Forecasts
from loopscale.fitting.held_out import score_intervals
from loopscale.scaling import ScalingLaw, with_repetition
from loopscale.scaling.variables import check_variables

KIND = "registered-forecast"
SHOWN = 10
"""Runs that a check lists."""


def register_forecasts(result: Forecasts, path: str | Path) -> None:
    """Seal forecasts with the law that made them, so that any later run can be scored."""
    seal(path, KIND, {**{k: v for k, v in result.to_dict().items() if k != "kind"}, "with": result.law.to_dict()})


def check_forecasts(path: str | Path, runs: Observations, level: float = 0.9) -> dict[str, Any]:
    """Score a sealed forecast against later runs: those with more compute than any run it was made from."""
    content = unseal(path, KIND, "loopscale forecast --register")
    law = ScalingLaw.from_dict(content.get("with"), f"{path}: with")
    if law.spread is None:
        raise InputError(f"{path}: its law has no predictive interval")
    later = runs.where(runs.points.train_flops > law.spread.frontier * (1 + 1e-9))
    if not len(later):
        raise InputError(
            f"no run has more than the {format_power(law.spread.frontier)} FLOPs that the forecast was made from",
            where=runs.source,
        )
    check_variables(law, later.points.experts, later.points.recurrence)
    law = law if later.points.unique_tokens is None else with_repetition(law)
    new_run = law.forecast(later.points, level)
    inside = (new_run.low <= later.loss) & (later.loss <= new_run.high)
    scores = score_intervals(later.loss, new_run.loss, new_run.low, new_run.high, level)
    rows = [
        {"run": str(later.run[k]), "flops": float(later.points.train_flops[k]), "params": float(later.points.active[k]),
         "tokens": float(later.points.tokens[k]), "loss": float(new_run.loss[k]), "low": float(new_run.low[k]),
         "high": float(new_run.high[k]), "measured": float(later.loss[k]), "inside": bool(inside[k])}
        for k in np.argsort(-later.points.train_flops, kind="stable").tolist()
    ]  # fmt: skip
    return {
        "kind": "forecast-check",
        "date": content["date"],
        "level": level,
        "covered": sum(row["inside"] for row in rows),
        "runs": rows,
        "bias": scores.bias,
        "score": scores.interval_score,
    }


def check_text(checked: Mapping[str, Any]) -> str:
    """Return a scored forecast for the terminal."""
    rows = checked["runs"]
    lines = [
        f"{checked['covered']} of {len(rows)} later runs are inside the {checked['level']:.0%} interval; "
        f"bias {checked['bias']:+.2%}.", f"Registered {checked['date']}.", "",
    ]  # fmt: skip
    cells = [(row["run"][:24], f"{row['flops']:.3g}", f"{row['loss']:.3f}", f"{row['low']:.3f} to {row['high']:.3f}",
              f"{row['measured']:.3f}", "yes" if row["inside"] else "NO") for row in rows[:SHOWN]]  # fmt: skip
    lines.append(text_table(("run", "FLOPs", "forecast", "interval", "measured", "inside"), cells, left=("run",)))
    if len(rows) > SHOWN:
        lines.append(f"{len(rows) - SHOWN} more: --json")
    return "\n".join(lines)
