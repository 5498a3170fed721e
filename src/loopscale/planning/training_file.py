"""From a design to a training file: the model as it was planned, with settings for the devices that train it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from loopscale.architecture import extended_rungs, rung
from loopscale.core.devices import UTILISATION
from loopscale.core.errors import InputError
from loopscale.core.quantities import format_bytes, format_count
from loopscale.planning.budget import Budget, budget_text
from loopscale.planning.cluster import Cluster, batch_for
from loopscale.planning.design import Design, sizes_text
from loopscale.planning.recipes import CONTEXT, PAPER_RECIPE
from loopscale.scaling import PUBLISHED

TEXTS = "texts/"
"""The folder of text that a training file names until its user names another."""


def built_as(design: Design) -> tuple[str, str]:
    """Return the rung that a design is built as, and a note where that is only the nearest size."""
    ladder = extended_rungs()
    if design.rung in ladder:
        return design.rung, ""
    name = min(ladder, key=lambda known: abs(math.log(rung(known).active / design.active)))
    built, wanted = format_count(float(rung(name).active)), format_count(design.active)
    return name, f"the nearest size that can be built: {built} active parameters, not the {wanted} of the plan"


def train_config(
    design: Design,
    law: str | None = None,
    cluster: Cluster | None = None,
    schedule: Sequence[tuple[float, int]] = (),
) -> dict[str, dict[str, Any]]:
    """Return the sections of a training file for a design, whose passes may follow a ``schedule``.

    The settings of a step are "auto": the run chooses them for the devices that it finds, as the estimate does.
    """
    cluster = cluster or Cluster()
    batch = batch_for(design.tokens, cluster.devices)
    steps = max(1, round(design.tokens / batch / CONTEXT))
    run: dict[str, Any] = {"tokens": round(design.tokens), "batch": batch, "accumulate": "auto"}
    if law in PUBLISHED:
        run["law"] = law
    return {
        "recipe": {"name": "paper"},
        "model": _model(design),
        "data": {"files": [TEXTS], "tokenizer": f"train:{_vocabulary(design)}", "context": CONTEXT},
        "schedule": {"warmup_steps": min(PAPER_RECIPE["schedule"]["warmup_steps"], steps // 20)}
        | ({"recurrence": [list(stage) for stage in schedule]} if schedule else {}),
        "run": run,
        "resources": {"gpus": cluster.devices, "device": cluster.device}
        | ({} if cluster.utilisation == UTILISATION else {"utilisation": cluster.utilisation}),
    }


def _vocabulary(design: Design) -> int:
    try:
        return design.architecture().vocabulary
    except InputError:
        return rung(built_as(design)[0]).vocabulary


def _model(design: Design) -> dict[str, Any]:
    model: dict[str, Any] = {}
    if design.width is not None and design.layers is not None and design.rung == f"d{design.width:g}x{design.layers:g}":
        model |= {"width": int(design.width), "layers": int(design.layers), "edge_layers": 2, "head_size": 64}
        model |= {"kv_heads": 4}
    else:
        model["rung"] = built_as(design)[0]
    model |= {"experts": math.ceil(design.experts), "recurrence": design.recurrence}
    if design.experts > 1 and design.experts_active != 2 and design.rung in extended_rungs():
        model["active_experts"] = int(design.experts_active)
    return model | {"vocab_size": _vocabulary(design)}


def train_file(
    design: Design,
    law: str | None = None,
    cluster: Cluster | None = None,
    budget: Budget | None = None,
    schedule: Sequence[tuple[float, int]] = (),
) -> str:
    """Return a design as a training file, with what it was planned for and what it takes in comments."""
    cluster = cluster or Cluster()
    sections = train_config(design, law, cluster, schedule)
    _, nearest_note = built_as(design) if "rung" in sections["model"] else ("", "")
    rate, base = (PAPER_RECIPE["optimizer"][name] for name in ("learning_rate", "base_width"))
    width = rung(sections["model"]["rung"]).width if "rung" in sections["model"] else sections["model"]["width"]
    peak = rate / design.recurrence ** PAPER_RECIPE["optimizer"]["recurrence_rule"]
    notes = {
        "recipe": f"learning rate by its rule: {peak:.3g} for embeddings, {peak * base / width:.3g} in hidden layers",
        "model": nearest_note,
        "files": "your text: .txt, .jsonl or .parquet",
        "tokenizer": "or the folder of a tokenizer of at most so many tokens",
        "tokens": format_count(design.tokens),
        "batch": f"{format_count(sections['run']['batch'] * CONTEXT)} tokens a step",
        "accumulate": "chosen for the devices when the run starts",
        "law": "forecasts the final loss",
        "resources": "what --check and --estimate count with; training uses the devices that it finds",
    }
    lines = [f"# {line}" for line in _header(design, law, cluster, budget)]
    for section, values in sections.items():
        lines += ["", f"[{section}]", *([f"# {notes[section]}"] if notes.get(section) else [])]
        for name, value in values.items():
            text = f"{name} = {json.dumps(value)}"
            lines.append(f"{text:<36}  # {notes[name]}" if name in notes else text)
    return "\n".join(lines) + "\n"


def _header(design: Design, law: str | None, cluster: Cluster, budget: Budget | None) -> list[str]:
    cost = cluster.cost(design)
    lines = [] if cost.memory is None else [sizes_text(design.architecture(), design.recurrence)]
    if budget is not None:
        lines.append(f"planned for: {budget_text(budget)}")
    lines.append(f"predicted loss {design.loss:.4f}" + ("" if law is None else f" by {law}"))
    if cost.memory is None:
        return lines
    where = f"{cluster.devices} {cluster.device}"
    if cost.fits:
        share = f"{cluster.utilisation:.0%} of listed rates"
        lines.append(f"on {where}: {format_bytes(cost.memory)} each, {cost.days:.3g} days at {share}")
        lines.append(f"  with {cost.layout}")
    else:
        lines.append(
            f"does not fit on {where}: {format_bytes(cost.memory)} each at least, {format_bytes(cost.usable)} usable; "
            "use more devices, or larger ones"
        )
    return lines
