"""The formulas of plans as JavaScript, traced from the Python functions that define them.

How it works: a Python function is called with symbols instead of numbers. Every operation on a symbol returns a larger
symbol, so the result is the whole expression, and ``javascript.py`` writes that as a function. The README has an
example, the rules for formulas, and what to do when one cannot be traced.
"""

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
