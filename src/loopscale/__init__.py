"""Design, predict, train and evaluate looped Mixture-of-Experts language models.

    import loopscale as ls

    fit = ls.fit("runs.csv")                                  # a law from your sweep, with intervals
    ls.forecast("runs.csv", flops="1e21,1e23")                # what larger runs will reach
    best = ls.plan(flops="5e21", memory="3GB", bits="int4")   # the best design under budgets
    ls.predict("1.0B", experts=8, recurrence=2, tokens="500B")

Names load when they are first used: importing the package imports neither numpy nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.3.0.dev0"

_HOMES = {
    "Architecture": "loopscale.architecture:Architecture",
    "Budget": "loopscale.planning:Budget",
    "Expression": "loopscale.scaling:Expression",
    "Fit": "loopscale.fitting:Fit",
    "LoopscaleError": "loopscale.core.errors:LoopscaleError",
    "NextRuns": "loopscale.choosing:NextRuns",
    "Observations": "loopscale.fitting:Observations",
    "Plan": "loopscale.planning:Plan",
    "ScalingLaw": "loopscale.scaling:ScalingLaw",
    "fit": "loopscale.fitting:fit",
    "forecast": "loopscale.fitting:forecast",
    "gate": "loopscale.fitting.variants:gate",
    "laws": "loopscale.scaling:laws",
    "load": "loopscale.saved:load",
    "next": "loopscale.choosing:next_runs",
    "plan": "loopscale.planning:plan",
    "predict": "loopscale.planning.predictions:predict",
    "rung": "loopscale.architecture:rung",
}
"""Where each name of the front door lives."""

__all__ = ["__version__", *sorted(_HOMES)]

if TYPE_CHECKING:
    from loopscale.architecture import Architecture as Architecture
    from loopscale.architecture import rung as rung
    from loopscale.choosing import NextRuns as NextRuns
    from loopscale.choosing import next_runs as next  # noqa: A004, F401
    from loopscale.core.errors import LoopscaleError as LoopscaleError
    from loopscale.fitting import Fit as Fit
    from loopscale.fitting import Observations as Observations
    from loopscale.fitting import fit as fit
    from loopscale.fitting import forecast as forecast
    from loopscale.fitting.variants import gate as gate
    from loopscale.planning import Budget as Budget
    from loopscale.planning import Plan as Plan
    from loopscale.planning import plan as plan
    from loopscale.planning.predictions import predict as predict
    from loopscale.saved import load as load
    from loopscale.scaling import Expression as Expression
    from loopscale.scaling import ScalingLaw as ScalingLaw
    from loopscale.scaling import laws as laws


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'loopscale' has no attribute {name!r}")
    from pkgutil import resolve_name

    return resolve_name(_HOMES[name])


def __dir__() -> list[str]:
    return sorted(__all__)
