"""The formulas of plans as JavaScript, traced from the Python functions that define them: see the README."""

from __future__ import annotations


def formulas() -> str:
    """Return the JavaScript module of every formula."""
    from loopscale.app.formulas.designs import design_formulas
    from loopscale.app.formulas.javascript import ROUNDING
    from loopscale.app.formulas.laws import law_formulas
    from loopscale.app.formulas.limits import limit_formulas
    from loopscale.app.formulas.training import training_formulas
    from loopscale.app.formulas.trust import trust_formulas

    parts = (law_formulas, design_formulas, training_formulas, trust_formulas, limit_formulas)
    return ROUNDING + "".join(part() for part in parts)
