"""The formulas of plans as JavaScript, traced from the functions that the command line and Python use.

The idea: a function of Python is called with symbols instead of numbers (``trace.Symbol``), and what it computes with
them is written down as JavaScript. ``Fake`` is an object whose attributes are such symbols: ``Fake("x").active`` is
written as ``x.active``. Python's code is not changed and none of its globals are replaced: laws, grids, jobs and limits
get fakes where they take designs, budgets and devices.

A function is traced along one path. Where it has an ``if``, the values in ``EXAMPLES`` decide it, so they are those of
the general case; what has several paths, such as a step of training, is traced once for each and chosen in JavaScript.

Every traced function takes ``x``, one design, and ``b``, the budget, as plain objects; a law's take its coefficients
``c`` too. To add a formula, call it with fakes below and give it a name; ``planner.js`` has the search around them, and
``tests/app/test_engine.py`` compares both with Python.
"""

from __future__ import annotations

from typing import Any

from loopscale.app.trace import RINT, javascript
from loopscale.app.trace import Fake as _Fake
from loopscale.app.trace import Symbol as _Symbol
from loopscale.architecture import Architecture, at_width
from loopscale.architecture.ladder import between_rungs
from loopscale.planning import FIELDS, design, limits
from loopscale.planning import grid as _grid_module
from loopscale.planning.cluster import sequences_of
from loopscale.planning.job import REDUCES, Layout, TrainingJob, expected_days
from loopscale.planning.limits import Limit
from loopscale.planning.recipes import CAPACITY, CONTEXT, padding
from loopscale.planning.step_memory import Activations
from loopscale.scaling import MAPPINGS, OUTER_LAWS, Points, ScalingLaw, costs
from loopscale.scaling.extensions import Repeated
from loopscale.scaling.form import effective
from loopscale.scaling.trust import FittedRange, Spread

# Symbols stand where the functions expect numbers and arrays.
Fake: Any = _Fake
Symbol: Any = _Symbol
grid: Any = _grid_module
_range: Any = FittedRange
_spread: Any = Spread
_law: Any = ScalingLaw
_points: Any = Points

COUNTS = ("active", "loop", "total", "embedding", "parameters", "layers")
"""What a design takes from its architecture."""
EXAMPLES = {
    "width": 1280.0, "E": 8.0, "R": 3.0, "D": 300.0, "U": 100.0, "N": 1.0, "tail": 0.3, "flops": 5e21, "memory": 3e9,
    "real_flops": 8e21, "context": 8192.0, "kept_window": 512.0, "serve_tokens": 1e9, "active": 8e8, "loop": 6e8,
    "total": 4e9, "embedding": 3e8, "devices": 8.0, "sequences": 384.0, "tokens": 3e11,
    "max_tokens": 4e11, "bits": 4.0, "real": 9e9, "head": 3e8,
}  # fmt: skip
"""Values for which formulas take their general path."""


def formulas() -> str:
    """Return the JavaScript of every formula."""
    return "".join([RINT, _laws(), _architectures(), _costs(), _jobs(), _trust(), _limits()])


def _table(name: str, functions: dict[str, str]) -> str:
    rows = "".join(f"  {key!r}: {text}" for key, text in functions.items())
    return f"export const {name} = {{\n{rows.replace(chr(10) + '}' + chr(10), chr(10) + '},' + chr(10))}}};\n"


def _laws() -> str:
    laws = dict(OUTER_LAWS)
    for law in list(OUTER_LAWS.values()):  # a plan with unique tokens extends the law that it is given
        if not law.uses_unique:
            repeated = Repeated(law)
            laws.setdefault(repeated.name, repeated)
    x = Fake("x", EXAMPLES)
    forms = {
        name: javascript("", law.loss_at(Fake("c"), Symbol.named("N", 1.0), x), "c, N, x") for name, law in laws.items()
    }
    gains = {
        name: javascript(
            "", mapping.gain(Fake("c", EXAMPLES), Symbol.named("R", 3.0), Symbol.named("m", 0.5)), "c, R, m"
        )
        for name, mapping in MAPPINGS.items()
    }
    worth = effective(*(Symbol.named(name) for name in ("active", "loop", "gain")))
    return (
        _table("FORMS", forms)
        + _table("GAINS", gains)
        + f"export {javascript('effective', worth, 'active, loop, gain')}"
    )


def _architectures() -> str:
    """Trace the counts and costs of the ladder's models: dense ones, mixtures, and those between its rungs."""
    width, E = Symbol.named("x.width", EXAMPLES["width"]), Symbol.named("x.E", EXAMPLES["E"])
    models = {
        "dense": at_width(width, experts=1),
        "mixture": at_width(width, experts=E),
        "between": between_rungs(width, E),
    }
    parts = {
        kind: "{\n" + "".join(f"    {name}: {_body(value)},\n" for name, value in _model(model).items()) + "  }"
        for kind, model in models.items()
    }
    rows = "".join(f"  {kind}: {text},\n" for kind, text in parts.items())
    return f"export const ARCHITECTURES = {{\n{rows}}};\n"


def _body(value: Any) -> str:
    return javascript("", value, "x, b").replace("\n", "\n    ").rstrip()


def _model(model: Architecture) -> dict[str, Any]:
    R, b = Symbol.named("x.R", EXAMPLES["R"]), Fake("b", EXAMPLES)
    cache = {"context": b.context, "bits": b.kv_bits}
    return {
        **{name: getattr(model, name) for name in COUNTS},
        "head": model.vocabulary * model.width,
        "real": model.real_train_flops_per_token(R, context=CONTEXT, padding=padding(model, CAPACITY)),
        "supervised": model.real_train_flops_per_token(
            R, context=CONTEXT, per_loop_supervision=True, padding=padding(model, CAPACITY)
        ),
        "kv_bytes": model.kv_bytes(
            R, batch=b.batch, kept_passes=b.kept_passes, kept_window=b.kept_window, **cache
        ),
        "kv_of_one": model.kv_bytes(R, batch=1, kept_passes=None, **cache),
    }  # fmt: skip


def _grid(*, too_little: bool = False, **budget: Any) -> Any:
    """Return the grid of one symbolic design under a symbolic budget; ``budget`` sets fields of that.

    What a space looks up by model is an input of the design, which ``_model`` traces from the architecture.
    """
    x = Fake("x", EXAMPLES | ({"tokens": 0.5} if too_little else {}))
    space = Fake(
        "x", EXAMPLES, models=(), shape=(), recurrences=x.R, overheads={},
        unrolled=lambda *_: costs.unrolled(x.active, x.loop, x.R),
        output_head=lambda: x.head, real_train_flops=lambda *_, **__: x.real,
        kv_bytes=lambda **options: x.kv_bytes if "kept_window" in options else x.kv_of_one,
    )  # fmt: skip
    made = grid.Grid(
        law=Fake("law"), space=space, budget=Fake("b", EXAMPLES, **budget), eps=0.0, rule=grid.Rule.PAPER,
        flops=Symbol.named("b.flops", EXAMPLES["flops"]), tokens_FSKP=x.tokens, loss_ZFSKP=x.loss,
        pass_gain_ZFSKP=x.pass_gain, expert_gain_ZFSKP=x.expert_gain,
    )  # fmt: skip
    if "kept_passes" not in budget:  # what is read depends on it: an input, except where it is traced itself
        made.__dict__["bytes_read_SKP"] = x.bytes_per_token
    return made


def _costs() -> str:
    one, shared = _grid(kept_passes=None), _grid(kept_passes=Symbol.named("b.kept_passes"))
    traced = {
        "unrolled": one.space.unrolled(),
        "tokens": grid._matched_tokens(one.space, one.space.recurrences, _grid(tokens=None).budget, one.flops),
        "weight_bytes": one.weight_bytes_SK,
        "memory": one.memory_SKP,
        "inference_flops": one.inference_SKP,
        "bytes_read": one.bytes_read_SKP,
        "bytes_read_shared": shared.bytes_read_SKP,
        "train_flops": one.train_flops_FSKP,
        "real_flops": one.real_flops_FSKP,
    }
    return _table("COSTS", {name: javascript("", value, "x, b") for name, value in traced.items()})


def _jobs() -> str:
    """Trace what a step of training costs on devices, for each way of sharing it, and how long a run takes.

    A formula is traced along one path, so there is one for each: dense or not, gradients reduced by step, pass or
    block, batches in one part or several, one pass or several.
    """
    job, device = Fake("job", EXAMPLES), Fake("device", {"memory": 8e10})
    width, E = Symbol.named("x.width", EXAMPLES["width"]), Symbol.named("x.E", EXAMPLES["E"])
    functions = {}
    for kind, model in {"dense": at_width(width, experts=1), "mixture": at_width(width, experts=E)}.items():
        for reduce in REDUCES:
            for parts in (1, Symbol.named("layout.accumulate", 2.0)):
                for passes in (1.0, 3.0):
                    one = TrainingJob(
                        model, Symbol.named("x.R", passes), job.sequences * job.devices, CONTEXT, job.devices, device,
                        padding=padding(model, CAPACITY),
                    )  # fmt: skip
                    layout = Layout(parts, Symbol.named("layout.replicas"), reduce, Symbol.named("layout.stored", 0.5))
                    cost = one.cost(layout)
                    activations = Activations.of(one, parts)
                    key = f"{kind} {reduce} {'one' if parts == 1 else 'parts'} {'once' if passes == 1 else 'looped'}"
                    functions[key] = javascript("", {
                        "memory": cost.memory, "flops": cost.flops, "compute": cost.compute_seconds,
                        "traffic": cost.traffic_seconds, "communication": cost.communication_seconds,
                        "plain": one.flops_per_token(), "calls": one.calls, "block": activations.block,
                        "kept": activations.inputs, "tokens": one.step_tokens,
                    }, "x, job, device, layout")  # fmt: skip
    tokens, devices = Symbol.named("tokens", EXAMPLES["tokens"]), Symbol.named("devices", 8)
    step, steps, share = (Symbol.named(name) for name in ("step", "steps", "utilisation"))
    return "".join(
        [
            _table("JOBS", functions),
            f"export {javascript('sequencesOf', sequences_of(tokens, devices), 'tokens, devices')}",
            f"export {javascript('usableOf', TrainingJob.usable_of(device), 'device')}",
            f"export {javascript('expectedDays', expected_days(step, steps, share), 'step, steps, utilisation')}",
        ]
    )


def _trust() -> str:
    """Trace how far a value lies outside a range, and the predictive interval of a law."""
    span = Fake("x", axis=(Symbol.named("low", 1.0), Symbol.named("high", 2.0)))
    span.outside = lambda axis, value: _range.outside(span, axis, value)
    value = Symbol.named("value", 3.0)
    x = Fake("x", EXAMPLES)
    spread = Fake("spread")
    spread.decades = lambda points: _spread.decades(spread, points)
    spread.variance = lambda decades: _spread.variance(spread, decades)
    law: Any = _FakeLaw(
        "x", spread=spread, resampled=lambda _: x.resampled, decades_outside=lambda _: x.decades_outside
    )
    law.deviation = lambda points: _law.deviation(law, points)
    low, high = _law.predictive_interval(law, x)
    return "".join(
        [
            f"export {javascript('rangeFactor', _range.factor(span, 'axis', value), 'low, high, value')}",
            f"export {javascript('rangeOutside', _range.outside(span, 'axis', value), 'low, high, value')}",
            f"export {javascript('predictiveLow', low, 'x, spread')}",
            f"export {javascript('predictiveHigh', high, 'x, spread')}",
            f"export {javascript('activeRatio', _points.m.fget(x))}",
        ]
    )


class _FakeLaw(_Fake):
    def __call__(self, _: Any) -> Any:
        return self.loss


def _limits() -> str:
    """Trace every limit: when it holds, what a design needs of it, and the sentences about it."""
    rows = [_limit_row(formula) for formula in (*limits.FORMULAS, *_own())]
    gains = {"gains": 0.5, "costs": -0.5, "neither": design.NO_GAIN / 2}
    steps = {name: design._too_little(Symbol.named("gain", gain)) for name, gain in gains.items()}
    return f"export const LIMITS = [\n{''.join(rows)}];\nexport const STEPS = {steps!r};\n"


def _own() -> list[Any]:
    """Return the limits that a field of the budget states by itself, as functions of a grid."""

    def formula(name: str) -> Any:
        return lambda one: next((limit for limit in limits._own_limits(one) if limit.field == name), None)

    return [formula(name) for name, field in FIELDS.items() if field.need is not None]


def _absent(formula: Any, **budget: Any) -> bool:
    return formula(_grid(**budget)) is None and formula(_grid(**budget, too_little=True)) is None


def _limit_row(formula: Any) -> str:
    free = formula(_grid(tokens=None)) or formula(_grid(tokens=None, too_little=True))
    limit: Limit = free or formula(_grid())
    state = {"tokens": None} if free else {}
    needed = [
        name
        for name, field in FIELDS.items()
        if field.default is None and name not in state and _absent(formula, **(state | {name: None}))
    ]
    forbidden = ["tokens"] if free and formula(_grid()) is None else []
    without_flops = formula(_grid(tokens=None, too_little=True, flops=None)) if free else None
    other = without_flops.field if without_flops is not None else limit.field
    need = Symbol.named("need", 2.0)
    texts = {name: getattr(limit, name) for name in ("excluded", "empty", "closest", "unit")}
    lines = [
        f"field: {limit.field!r}",
        f"otherwise: {other!r}",  # the field where no paper's compute is given
        f"needs: {needed!r}",
        f"forbids: {forbidden!r}",
        *(f"{name}: {text!r}" for name, text in texts.items()),
        f"need: {_body(limit.need)}",
        f"cap: {_body(limit.cap)}",
        f"amount: {javascript('', limit.amount(need), 'need').rstrip()}" if limit.amount is not float else "",
    ]
    return "  {\n" + "".join(f"    {line},\n" for line in lines if line) + "  },\n"
