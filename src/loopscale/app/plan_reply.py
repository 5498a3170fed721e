"""What the page shows of a plan, each number from the function that the command line uses."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from loopscale.app.schemas import PlanRequest
from loopscale.core.quantities import plain
from loopscale.core.text import capital
from loopscale.planning import FIELDS, Plan, Search, budget_text
from loopscale.planning.intervals import front_band_text, interval_text
from loopscale.planning.text import (
    TRUST_TEXT,
    loosened,
    sentences,
)
from loopscale.planning.training_file import train_file
from loopscale.scaling import Trust


def plan_reply(
    found: Search, request: PlanRequest, verdict: str = "chosen", own: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return everything that the page shows of a plan."""
    planned = Plan.of(found, candidates=request.top, cluster=request.cluster())
    return {
        "plan": planned.to_dict(),
        "sentences": page_sentences(planned, sentences(planned)),
        "trust": page_trust(planned.trust),
        "limits": limits_used(planned),
        "memory": memory_parts(planned),
        "own": own,
        "copy": copied_texts(found, request),
        "verdict": verdict,
    }


MEETS = "meets all limits"


def own_model(found: Search, one: Search, verdict: str, extrapolate: bool) -> dict[str, Any]:
    """Return the user's model beside the choice: its row of the table, and how its loss compares."""
    more = one.choice.loss - found.choice.loss
    row = {**one.choice.to_dict(), "verdict": verdict, "ruled_out_by": None, "own": True, "trust": one.trust.level}
    if one.trust.level == "beyond" and not extrapolate:
        return {**row, "loss": None, "verdict": "no loss: more than 10x beyond the law's data"}
    if verdict != MEETS:
        return {**row, "ruled_out_by": "limits"}
    return {**row, "verdict": f"loss {abs(more):.4f} {'higher' if more >= 0 else 'lower'}"}


def page_sentences(planned: Plan, texts: Mapping[str, str]) -> dict[str, str]:
    """Return the plan in sentences, as the command line prints them, with its budget and interval."""
    kind = None if planned.interval is None else str(planned.interval["kind"])
    return {
        **texts,
        "budget": f"{capital(budget_text(planned.budget))}.",
        "interval": f"{capital(interval_text(planned.interval, planned.uncertainty))}.",
        "bands": f"{front_band_text(kind, planned.uncertainty)}.",
    }


def page_trust(trust: Trust) -> dict[str, Any]:
    """Return the trust banner: its level, a description of it, and the reasons."""
    return {"level": trust.level, "title": capital(TRUST_TEXT[trust.level]), "reasons": list(trust.reasons)}


def limits_used(planned: Plan) -> list[dict[str, Any]]:
    """Return each limit that can bind: how much of it is used, and what a looser one would buy."""
    rows = []
    for row in planned.sensitivities:
        field = FIELDS[row.limit]
        bought = f"loss {row.saved:.4f} lower, with {row.design}; trust: {row.trust}" if row.binds else "no lower loss"
        rows.append(
            {
                "name": row.limit,
                "label": field.label,
                "used": f"{field.amount.write(row.used)} of {field.amount.write(row.cap)}",
                "share": row.share,
                "binding": row.binds,
                "saved": row.saved,
                "looser": loosened(row),
                "text": bought,
            }
        )
    return rows


def memory_parts(planned: Plan) -> dict[str, float | None]:
    """Return the bytes of the choice: weights, embeddings and KV cache, and the limit."""
    choice = planned.choice
    stored = choice.total + choice.embedding
    embeddings = choice.weight_bytes * choice.embedding / stored if stored else 0.0
    return {
        "weights": choice.weight_bytes - embeddings,
        "embeddings": embeddings,
        "cache": choice.kv_bytes,
        "limit": planned.budget.memory,
    }


def copied_texts(found: Search, request: PlanRequest) -> dict[str, str]:
    """Return the plan as a command, as Python, and its choice as a training file."""
    published = isinstance(request.law, str) and not request.law.startswith("own-")
    law = str(request.law) if published else f"{found.law.name}.json"
    return {
        "command": _command(found, request, law),
        "python": _python(found, request, law),
        "config": train_file(found.choice, found.law.name, request.cluster(), found.budget),
        "law_file": "" if published else law,
    }


def _limits(found: Search, request: PlanRequest) -> list[tuple[str, float]]:
    """Return the limits of a plan; the compute of devices is stated by them."""
    return [pair for pair in found.budget.chosen().items() if pair[0] != "real_flops" or request.gpus is None]


def _devices(request: PlanRequest) -> dict[str, Any]:
    """Return the devices as the request names them."""
    cluster = request.cluster()
    if cluster is None:
        return {}
    days = None if request.days is None else plain(request.days)
    stated = {"gpus": request.gpus, "device": cluster.device, "days": days, "utilisation": request.utilisation}
    return {name: value for name, value in stated.items() if value is not None}


def _command(found: Search, request: PlanRequest, law: str) -> str:
    words = [f"--{name} {value}" for name, value in _devices(request).items()]
    words += [f"{FIELDS[name].option} {FIELDS[name].amount.exact(value)}" for name, value in _limits(found, request)]
    words += [f"--rung {','.join(request.rungs)}"] if request.rungs else []
    words += ["--continuous"] if request.continuous else []
    chosen = request.model_fields_set
    words += [f"--experts {','.join(f'{E:g}' for E in request.experts)}"] if "experts" in chosen else []
    words += [f"--recurrence {','.join(map(str, request.recurrences))}"] if "recurrences" in chosen else []
    words += [f"--eps {request.eps!r}"] if request.eps is not None else []
    words += ["--rule loss"] if request.rule == "loss" else []
    words += [f"--law {shlex.quote(law)}"]
    words += ["--extrapolate"] if request.extrapolate else []
    words += ["--allow-degenerate"] if found.law.degenerate else []
    return f"loopscale plan {' '.join(words)}"


def _python(found: Search, request: PlanRequest, law: str) -> str:
    limits = {name: _written(name, value) for name, value in _limits(found, request)}
    options: dict[str, Any] = limits | _devices(request)
    options |= {} if request.eps is None else {"eps": request.eps}
    options |= {"rule": "loss"} if request.rule == "loss" else {}
    options |= {"law": law}
    options |= {"extrapolate": True} if request.extrapolate else {}
    options |= {"allow_degenerate": True} if found.law.degenerate else {}
    arguments = [f"{name}={_literal(value)}" for name, value in options.items()]
    imported = ""
    if (space := request.space(found.law)) is not None:
        kind = "continuous_space" if request.continuous else "ladder_space"
        parts: dict[str, Any] = {} if request.rungs is None else {"rungs": request.rungs}
        parts |= {
            name: [plain(value) for value in getattr(request, name)]
            for name in ("experts", "recurrences")
            if name in request.model_fields_set
        }
        parts |= {"free": sorted(space.free)} if space.free else {}
        imported = f"from loopscale.architecture import {kind}\n"
        arguments.insert(0, f"space={kind}({', '.join(f'{name}={value!r}' for name, value in parts.items())})")
    lines = "".join(f"    {argument},\n" for argument in arguments)
    return f"import loopscale as ls\n{imported}\nbest = ls.plan(\n{lines})\nprint(best)\n"


def _written(name: str, value: float) -> float | str:
    """Return a limit as people write it in Python: bytes as text with their unit."""
    amount = FIELDS[name].amount
    return amount.exact(value) if amount.name.startswith("BYTES") else plain(value)


def _literal(value: Any) -> str:
    """Write a value as a person would in Python: compute as 5e21."""
    large = isinstance(value, int | float) and not isinstance(value, bool) and value >= 1e15
    return repr(float(value)).replace("e+", "e") if large else repr(value)
