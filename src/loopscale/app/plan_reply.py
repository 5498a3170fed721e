"""What the page shows of a plan, each number from the function that the command line uses."""

from __future__ import annotations

import shlex
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from loopscale.app.schemas import PlanRequest
from loopscale.architecture import RUNG_RECURRENCES, RUNGS, size_space
from loopscale.core.arrays import FloatArray
from loopscale.core.quantities import plain
from loopscale.core.tables import Table
from loopscale.planning import (
    FIELDS,
    Budget,
    Plan,
    Search,
    Space,
    budget_text,
    continuous_space,
    experts_map,
    isoflop_over_experts,
    isoflop_over_recurrence,
    isoflop_over_size,
    ladder_space,
    recurrence_map,
    train_file,
)
from loopscale.planning.grid import interval_kind
from loopscale.planning.profiles import outside_text
from loopscale.planning.text import (
    TRUST_TEXT,
    answer,
    capital,
    confidence,
    edge_text,
    front_band_text,
    interval_text,
    loosened,
    sentences,
    speed_text,
)
from loopscale.scaling import Trust

WIDTHS = np.geomspace(512, 4096, 41)
MOST_DESIGNS = 2_000
"""Points that a scatter of designs may have."""
SIZES_AROUND = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Sizes that a chart of a dense law shows, as multiples of the choice."""
MOST_LINES = 6
"""Sizes that a chart shows a line for: those around the choice."""


def plan_reply(
    found: Search, request: PlanRequest, verdict: str = "chosen", own: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return everything that the page shows of a plan."""
    planned = Plan.of(found, candidates=request.top)
    return {
        "plan": planned.to_dict(),
        "sentences": page_sentences(planned, sentences(planned)),
        "trust": page_trust(planned.trust),
        "limits": limits_used(planned),
        "memory": memory_parts(planned),
        "own": own,
        "copy": copied_texts(found, request),
        "verdict": verdict,
        "charts": chart_tables(found, request.charts, request.centre),
    }


def draft_reply(found: Search, request: PlanRequest) -> dict[str, Any]:
    """Return what must follow a control at every repaint while it is dragged: the answer, its trust and its charts."""
    planned = Plan.of(found, whole=False)
    texts = {
        "answer": answer(planned),
        "confidence": confidence(planned),
        "edge": edge_text(planned),
        "speed": speed_text(planned.choice, planned.budget.bandwidth),
    }
    return {
        "plan": {
            "law": planned.law,
            "budget": planned.budget.to_dict(),
            "choice": planned.choice.to_dict(),
            "interval": planned.interval,
            "lead": planned.lead,
            "agreement": planned.agreement,
        },
        "sentences": page_sentences(planned, texts),
        "trust": page_trust(planned.trust),
        "memory": memory_parts(planned),
        "charts": chart_tables(found, request.charts, request.centre),
    }


MEETS = "meets all limits"


def own_model(found: Search, one: Search, verdict: str, extrapolate: bool) -> dict[str, Any]:
    """Return the user's model beside the choice: its row of the table, and how its loss compares."""
    more = one.choice.loss - found.choice.loss
    row = {**one.choice.to_dict(), "verdict": verdict, "ruled_out_by": None, "own": True, "trust": one.trust.level}
    if one.trust.level == "beyond" and not extrapolate:
        return {**row, "loss": None, "verdict": "loss withheld: more than 10x beyond the law's data"}
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
        "config": train_file(found.choice, found.law.name, budget=found.budget),
        "law_file": "" if published else law,
    }


def _command(found: Search, request: PlanRequest, law: str) -> str:
    limits = found.budget.chosen()
    words = [f"{FIELDS[name].option} {FIELDS[name].amount.exact(value)}" for name, value in limits.items()]
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
    options: dict[str, Any] = {name: plain(value) for name, value in found.budget.chosen().items()}
    options |= {} if request.eps is None else {"eps": request.eps}
    options |= {"rule": "loss"} if request.rule == "loss" else {}
    options |= {"law": law}
    options |= {"extrapolate": True} if request.extrapolate else {}
    options |= {"allow_degenerate": True} if found.law.degenerate else {}
    arguments = [f"{name}={value!r}" for name, value in options.items()]
    imported = ""
    if (space := request.space(found.law)) is not None:
        kind = "continuous_space" if request.continuous else "ladder_space"
        parts = {} if request.rungs is None else {"rungs": request.rungs}
        parts |= {
            name: getattr(request, name) for name in ("experts", "recurrences") if name in request.model_fields_set
        }
        parts |= {"free": sorted(space.free)} if space.free else {}
        imported = f"from loopscale.planning import {kind}\n"
        arguments.insert(0, f"space={kind}({', '.join(f'{name}={value!r}' for name, value in parts.items())})")
    lines = "".join(f"    {argument},\n" for argument in arguments)
    return f"import loopscale as ls\n{imported}\nbest = ls.plan(\n{lines})\nprint(best)\n"


def chart_tables(found: Search, kinds: Iterable[str], centre: float | None = None) -> dict[str, dict[str, Any]]:
    """Return the columns of each chart by name; charts over compute are drawn around ``centre``, if it is given."""
    return {kind: dict(CHARTS[kind](found, centre or _flops(found)).columns) for kind in dict.fromkeys(kinds)}


def _over_recurrence(found: Search, _: float) -> Table:
    alone = found.grid.space.shape == (1, 1, 1)  # one given design, looped otherwise too
    space = _space(found, experts=[found.choice.experts], recurrences=list(RUNG_RECURRENCES) if alone else None)
    return isoflop_over_recurrence(found.law, [_flops(found)], space, found.grid.eps, _token_limits(found))


def _over_experts(found: Search, _: float) -> Table:
    space = _space(found, recurrences=[found.choice.recurrence])
    return isoflop_over_experts(found.law, [_flops(found)], space, found.grid.eps, _token_limits(found))


def _over_size(found: Search, _: float) -> Table:
    passes = sorted({1, 2, 4, found.choice.recurrence})
    own = [found.choice.width] if found.choice.width else []
    widths = np.unique(np.append(WIDTHS, own))
    flops, limits = [_flops(found)], _token_limits(found)
    return isoflop_over_size(found.law, flops, [found.choice.experts], passes, widths, limits)


def _best_recurrence(found: Search, centre: float) -> Table:
    space = _space(found, experts=[found.choice.experts])
    budget = replace(_token_limits(found), flops=centre)
    key = (
        "R",
        id(found.law),
        centre,
        space.names,
        found.choice.experts,
        tuple(space.recurrences),
        found.grid.eps,
        budget,
    )
    return _CACHE.get(key, found.law, lambda: recurrence_map(found.law, _around(centre), space, found.grid.eps, budget))


def _best_experts(found: Search, _: float) -> Table:
    passes = sorted({1, 2, 4, found.choice.recurrence})
    space, needed = _space(found, recurrences=passes), found.grid.memory_SKP
    memory = np.geomspace(needed.min() * 0.9, needed.max() * 1.1, 80)
    budget = replace(found.budget, memory=None)
    key = ("E", id(found.law), memory[0], memory[-1], space.names, tuple(passes), found.grid.eps, budget)
    return _CACHE.get(key, found.law, lambda: experts_map(found.law, memory, budget, space, found.grid.eps))


def _over_compute(found: Search, centre: float) -> Table:
    choice = found.choice
    one = _space(found, sizes=[choice.rung], experts=[choice.experts], recurrences=[choice.recurrence])
    return isoflop_over_recurrence(found.law, _around(centre), one, found.grid.eps, _token_limits(found))


def _designs(found: Search, _: float) -> Table:
    grid, designs = found.grid, found.designs().columns
    flat = np.flatnonzero(np.isfinite(grid.loss_ZFSKP[0, 0]).ravel())
    shown = np.logical_or.reduce([designs["on_memory_front"], designs["on_inference_front"], designs["chosen"]])
    ends = {end: np.full(len(flat), None) for end in ("loss_low", "loss_high")}
    for column, values in zip(ends.values(), found.bands(flat[shown]), strict=True):
        column[shown] = values  # the band is drawn along the line alone
    table = Table({
        **designs,
        "extrapolated": outside_text(grid)[0].ravel()[flat].tolist(),
        "trust": grid.trust_FSKP[0].ravel()[flat].tolist(),
        **{name: column.tolist() for name, column in ends.items()},
        "interval": [interval_kind(found.law)] * len(flat),
    })  # fmt: skip
    if len(table) <= MOST_DESIGNS:
        return table
    kept = np.flatnonzero(shown).tolist()
    return Table({name: [column[k] for k in kept] for name, column in table.columns.items()})


CHARTS: dict[str, Callable[[Search, float], Table]] = {
    "recurrence": _over_recurrence,
    "experts": _over_experts,
    "size": _over_size,
    "best-recurrence": _best_recurrence,
    "best-experts": _best_experts,
    "compute": _over_compute,
    "designs": _designs,
}


class _Cache:
    """The latest maps: while a control is dragged, those that do not depend on it stay the same."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, tuple[object, Table]] = OrderedDict()

    def get(self, key: Hashable, law: object, compute: Callable[[], Table]) -> Table:
        """Return the map; the law is kept with it, so that its id stays its own."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][1]
        table = compute()
        with self._lock:
            self._kept[key] = (law, table)
            while len(self._kept) > self._size:
                self._kept.popitem(last=False)
        return table


_CACHE = _Cache(16)


def _space(
    found: Search,
    sizes: list[str] | None = None,
    experts: list[float] | None = None,
    recurrences: list[int] | None = None,
) -> Space:
    """Return the part of the plan's space that a chart shows; a continuous or bare one has the ladder's rungs."""
    space = found.grid.space
    experts = experts or sorted(set(space.experts.ravel().tolist()))
    passes = recurrences or space.recurrences.tolist()
    if space.kind == "models":  # the user's model, as it is
        return replace(space, recurrences=np.array(passes if space.loop.any() else [1]))
    if space.kind == "sizes":  # of a dense law
        return size_space(found.choice.active * np.array([1.0] if sizes else SIZES_AROUND))
    if space.kind == "ladder":
        return ladder_space(sizes or _near(space.names, found.choice.rung), experts, passes)
    if sizes is not None and found.choice.width:
        return continuous_space(experts, passes, widths=[found.choice.width])
    return ladder_space(tuple(RUNGS), experts, passes)


def _near(names: tuple[str, ...], chosen: str) -> list[str]:
    """Return the sizes around the choice, as many as a chart shows."""
    first = max(0, min(names.index(chosen) - MOST_LINES // 2, len(names) - MOST_LINES))
    return list(names[first : first + MOST_LINES])


def _flops(found: Search) -> float:
    """Return the compute that charts are drawn at: the budget's, or what the choice takes for its tokens."""
    return found.budget.flops or found.choice.train_flops


def _around(flops: float) -> FloatArray:
    return flops * np.geomspace(1e-2, 1e2, 25)


def _token_limits(found: Search) -> Budget:
    """Return what limits the tokens besides compute: how many are available, and serving."""
    return replace(found.budget, flops=_flops(found), real_flops=None, tokens=None)
