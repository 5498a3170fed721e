"""Training on devices: what a step costs for every way of sharing it, and how long a run takes.

A formula is traced along one path, so there is one for each: a dense model or a mixture, gradients reduced by step,
pass or block, the batch in one part or several, one pass or several. ``cluster.js`` chooses among them by these names.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from loopscale.app.formulas.designs import models
from loopscale.app.formulas.inputs import DESIGN, Symbol, SymbolicObject, symbol
from loopscale.app.formulas.javascript import function, javascript, table
from loopscale.architecture import Architecture
from loopscale.planning.cluster import sequences_of
from loopscale.planning.compute import flops_of_hours, hours_of_flops
from loopscale.planning.job import TrainingJob, expected_days, step_seconds
from loopscale.planning.layouts import REDUCES, Layout
from loopscale.planning.recipes import CAPACITY, CONTEXT, padding
from loopscale.planning.step_memory import Activations

PARTS = {"one": 1, "parts": Symbol.named("layout.accumulate", 2.0)}
PASSES = {"once": Symbol.named("x.R", 1.0), "looped": Symbol.named("x.R", 3.0)}
DEVICE: Any = SymbolicObject("device", {"memory": 8e10})


def training_formulas() -> str:
    """Return JOBS by kind, and the functions of a whole run."""
    built = {kind: model for kind, model in models().items() if kind != "between"}  # others have no training job
    jobs = {
        f"{kind} {reduce} {parts} {passes}": javascript(
            "", _step(built[kind], reduce, PARTS[parts], PASSES[passes]), "x, job, device, layout"
        )
        for kind, reduce, parts, passes in product(built, REDUCES, PARTS, PASSES)
    }
    tokens, devices = symbol("tokens"), symbol("devices")
    step, steps, share, hours, flops, rate, compute, traffic, communication = (
        Symbol.named(name)
        for name in ("step", "steps", "utilisation", "hours", "flops", "rate", "compute", "traffic", "communication")
    )
    return "".join(
        [
            table("JOBS", jobs),
            function("sequencesOf", sequences_of(tokens, devices), "tokens, devices"),
            function("usableOf", TrainingJob.usable_of(DEVICE), "device"),
            function(
                "stepSeconds", step_seconds(compute, traffic, communication), "{ compute, traffic, communication }"
            ),
            function("expectedDays", expected_days(step, steps, share), "step, steps, utilisation"),
            function("flopsOfHours", flops_of_hours(hours, rate, share), "hours, rate, utilisation"),
            function("hoursOfFlops", hours_of_flops(flops, rate, share), "flops, rate, utilisation"),
        ]
    )


def _step(model: Architecture, reduce: str, parts: Any, passes: Any) -> dict[str, Any]:
    """Return what one device needs for a step, by the names that ``cluster.js`` uses."""
    asked = SymbolicObject("job", DESIGN)
    job = TrainingJob(
        model, passes, asked.sequences * asked.devices, CONTEXT, asked.devices, DEVICE, padding=padding(model, CAPACITY)
    )
    cost = job.cost(Layout(parts, Symbol.named("layout.replicas"), reduce, Symbol.named("layout.stored", 0.5)))
    activations = Activations.of(job, parts)
    return {
        "memory": cost.memory,
        "flops": cost.flops,
        "compute": cost.compute_seconds,
        "traffic": cost.traffic_seconds,
        "communication": cost.communication_seconds,
        "plain": job.flops_per_token(),
        "calls": job.calls,
        "block": activations.block,
        "kept": activations.inputs,
        "tokens": job.step_tokens,
    }
