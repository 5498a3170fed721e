"""Design, predict, train and evaluate looped Mixture-of-Experts language models.

    import loopscale as ls

    fit = ls.fit("runs.csv")                                  # a law from your sweep, with intervals
    best = ls.plan(flops="5e21", memory="3GB", bits="int4")   # the best design under budgets
    ls.predict("1.0B", experts=8, recurrence=2, tokens="500B")

Names load when they are first used: importing the package imports neither numpy nor torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_HOMES = {
    "Architecture": "loopscale.architecture",
    "Budget": "loopscale.plan",
    "Fit": "loopscale.fit",
    "Law": "loopscale.laws",
    "LoopscaleError": "loopscale.errors",
    "NextRuns": "loopscale.next",
    "Observations": "loopscale.fit",
    "Plan": "loopscale.plan",
    "ScalingLaw": "loopscale.laws",
    "load": "loopscale.files",
    "predict": "loopscale.plan",
    "rung": "loopscale.architecture",
}
"""Where each name of the front door lives. ``fit``, ``laws``, ``next`` and ``plan`` are packages that can be called."""

_CALLABLE = ("fit", "laws", "next", "plan")

__all__ = ["__version__", *sorted(_HOMES), *_CALLABLE]

if TYPE_CHECKING:
    from loopscale.architecture import Architecture as Architecture
    from loopscale.architecture import rung as rung
    from loopscale.errors import LoopscaleError as LoopscaleError
    from loopscale.files import load as load
    from loopscale.fit import Fit as Fit
    from loopscale.fit import Observations as Observations
    from loopscale.fit import fit as fit
    from loopscale.laws import Law as Law
    from loopscale.laws import ScalingLaw as ScalingLaw
    from loopscale.laws import laws as laws
    from loopscale.next import NextRuns as NextRuns
    from loopscale.next import next_runs as next  # noqa: A004, F401
    from loopscale.plan import Budget as Budget
    from loopscale.plan import Plan as Plan
    from loopscale.plan import plan as plan  # type: ignore[no-redef]
    from loopscale.plan import predict as predict  # type: ignore[no-redef]


def __getattr__(name: str) -> Any:
    if name in _CALLABLE:
        return import_module(f"loopscale.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'loopscale' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


class CallableModule(ModuleType):
    """A package that is also a function, so that ``ls.fit(...)`` and ``loopscale.fit.Observations`` both work."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["__main_function__"](*args, **kwargs)


def make_callable(package: str, function: Any) -> None:
    """Let ``package``, called, run ``function``; its signature is the function's."""
    from inspect import signature

    module = sys.modules[package]
    module.__class__ = CallableModule
    module.__dict__["__main_function__"] = function
    module.__dict__["__signature__"] = signature(function)
