"""Laws: the loss of every outer law, what looping adds by every mapping, and the size where the two meet."""

from __future__ import annotations

from loopscale.app.formulas.inputs import DESIGN, Symbol, SymbolicObject, design
from loopscale.app.formulas.javascript import function, javascript, table
from loopscale.scaling import MAPPINGS, OUTER_LAWS, OuterLaw
from loopscale.scaling.extensions import Repeated
from loopscale.scaling.form import effective


def outer_laws() -> dict[str, OuterLaw]:
    """Return the outer laws, and each with repeated tokens: a plan with unique tokens extends the law it is given."""
    laws = dict(OUTER_LAWS)
    for law in OUTER_LAWS.values():
        if not law.uses_unique:
            repeated = Repeated(law)
            laws.setdefault(repeated.name, repeated)
    return laws


def law_formulas() -> str:
    """Return FORMS and GAINS by name, and ``effective``: what JavaScript's ``lossAt`` joins."""
    N, R, m = Symbol.named("N", 1.0), Symbol.named("R", 3.0), Symbol.named("m", 0.5)
    c, x = SymbolicObject("c", DESIGN), design()
    forms = {name: javascript("", law.loss_at(c, N, x), "c, N, x") for name, law in outer_laws().items()}
    gains = {name: javascript("", mapping.gain(c, R, m), "c, R, m") for name, mapping in MAPPINGS.items()}
    worth = effective(*(Symbol.named(name) for name in ("active", "loop", "gain")))
    return table("FORMS", forms) + table("GAINS", gains) + function("effective", worth, "active, loop, gain")
