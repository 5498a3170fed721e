"""What the page shows of a plan, each number from the function that the command line uses."""

from __future__ import annotations

import math
import shlex
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from loopscale.app.schemas import PlanRequest
from loopscale.architecture import RUNG_RECURRENCES, RUNGS, extended_rungs, rung, size_space
from loopscale.core.arrays import FloatArray
from loopscale.core.quantities import format_bytes, format_count, format_power, parse_bytes, parse_count, plain
from loopscale.core.tables import Table
from loopscale.planning import (
    Budget,
    Plan,
    Space,
    continuous_space,
    experts_map,
    generation_rate,
    isoflop_over_experts,
    isoflop_over_recurrence,
    isoflop_over_size,
    ladder_space,
    recurrence_map,
)
from loopscale.planning.grid import interval_kind
from loopscale.planning.profiles import outside_text
from loopscale.planning.text import (
    LIMITS,
    TRUST_TEXT,
    answer,
    budget_text,
    capital,
    confidence,
    edge_text,
    front_band_text,
    interval_text,
)

WIDTHS = np.geomspace(512, 4096, 41)
MOST_DESIGNS = 2_000
"""Points that a scatter of designs may have."""
SIZES_AROUND = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Sizes that a chart of a dense law shows, as multiples of the choice."""
MOST_LINES = 6
"""Sizes that a chart shows a line for: those around the choice."""


def plan_reply(
    planned: Plan, request: PlanRequest, verdict: str = "chosen", own: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return everything that the page shows of a plan."""
    document = planned.to_dict(request.top)
    return {
        "plan": document,
        "sentences": page_sentences(planned, document["sentences"]),
        "trust": page_trust(planned),
        "levels": trust_levels(planned, request.top),
        "limits": limits_used(planned),
        "memory": memory_parts(planned),
        "speed": asdict(generation_rate(planned, request.where)),
        "own": own,
        "copy": copied_texts(planned, request),
        "verdict": verdict,
        "charts": chart_tables(planned, request.charts, request.centre),
    }


def draft_reply(planned: Plan, request: PlanRequest) -> dict[str, Any]:
    """Return what must follow a control at every repaint while it is dragged: the answer, its trust and its charts."""
    sentences = {"answer": answer(planned), "confidence": confidence(planned), "edge": edge_text(planned)}
    return {
        "plan": {
            "law": planned.law.name,
            "budget": planned.budget.to_dict(),
            "choice": planned.choice.to_dict(),
            "interval": planned.interval,
            "lead": planned.lead,
            "agreement": planned.agreement,
        },
        "sentences": page_sentences(planned, sentences),
        "trust": page_trust(planned),
        "memory": memory_parts(planned),
        "speed": asdict(generation_rate(planned, request.where)),
        "charts": chart_tables(planned, request.charts, request.centre),
    }


MEETS = "meets all limits"


def own_model(planned: Plan, one: Plan, request: PlanRequest, verdict: str) -> dict[str, Any]:
    """Return the user's model beside the choice: its row of the table, its trust, and how its loss compares."""
    trust, more = page_trust(one), one.choice.loss - planned.choice.loss
    row = {**one.choice.to_dict(), "verdict": verdict, "ruled_out_by": None, "trust": trust}
    if trust["level"] == "beyond" and not request.extrapolate:
        return {**row, "loss": None, "verdict": "loss withheld: more than 10x beyond the law's data"}
    if verdict != MEETS:
        return {**row, "ruled_out_by": "limits"}
    return {**row, "verdict": f"loss {abs(more):.4f} {'higher' if more >= 0 else 'lower'}"}


def page_sentences(planned: Plan, sentences: Mapping[str, str]) -> dict[str, str]:
    """Return the plan in sentences, as the command line prints them, with its budget and interval."""
    return {
        **sentences,
        "budget": f"{capital(budget_text(planned.budget))}.",
        "interval": f"{capital(interval_text(planned.interval, planned.uncertainty))}.",
        "bands": f"{front_band_text(interval_kind(planned.law), planned.uncertainty)}.",
    }


def page_trust(planned: Plan) -> dict[str, Any]:
    """Return the trust banner: its level, a description of it, and the reasons."""
    trust = planned.trust
    if trust is None:
        return {"level": "unknown", "title": "Unknown: the law states no range that it was fitted on", "reasons": []}
    return {
        "level": trust.level,
        "title": capital(TRUST_TEXT[trust.level]),
        "reasons": list(trust.reasons),
    }


def trust_levels(planned: Plan, top: int) -> dict[str, str]:
    """Return the level of trust in the loss of every design that the page's tables list, by its label."""
    rows = [planned.choice, *planned.rivals(), *planned.candidates(top)]
    return {row.label: level for row, level in zip(rows, planned.trust_levels(rows), strict=True)}


def limits_used(planned: Plan) -> list[dict[str, Any]]:
    """Return each limit that can bind: how much of it is used, and what twice as much would buy."""
    choice, budget = planned.choice, planned.budget
    used = {
        "flops": choice.train_flops + choice.inference_flops * budget.serve_tokens,
        "memory": choice.weight_bytes + choice.kv_bytes,
        "inference_flops": choice.inference_flops,
        "max_tokens": choice.tokens,
    }
    rows = []
    for row in planned.sensitivities:
        name, saved = row["limit"], row["saved"]
        cap, binding = getattr(budget, name), name in planned.binding
        text = f"loss {saved:.4f} lower, with {row['design']}; trust: {row['trust']}" if binding else "no lower loss"
        rows.append(
            {
                "name": name,
                "label": LIMITS[name][0],
                "used": used[name],
                "cap": cap,
                "share": used[name] / cap,
                "binding": binding,
                "saved": saved,
                "text": text,
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


def _exact(write: Callable[[float], str], read: Callable[[str], float]) -> Callable[[float], str]:
    """Return how a value is written in a command: as people write it where that is the same number, else in full."""

    def written(value: float) -> str:
        text = write(value).replace(" ", "")
        return text if read(text) == value else f"{value:.17g}"

    return written


_COUNT = _exact(format_count, lambda text: parse_count(text, "count"))
OPTIONS = {
    "flops": ("--flops", _exact(format_power, float)),
    "tokens": ("--tokens", _COUNT),
    "max_tokens": ("--max-tokens", _COUNT),
    "memory": ("--memory", _exact(format_bytes, lambda text: parse_bytes(text, "memory"))),
    "bits": ("--bits", _exact("{:g}".format, float)),
    "context": ("--context", "{:.0f}".format),
    "batch": ("--batch", "{:.0f}".format),
    "kv_bits": ("--kv-bits", _exact("{:g}".format, float)),
    "kept_passes": ("--kept-passes", "{:.0f}".format),
    "inference_flops": ("--inference-flops", _COUNT),
    "serve_tokens": ("--serve-tokens", _COUNT),
}
"""The option of `loopscale plan` for each limit, and how its value is written."""
DEFAULTS = {"batch": 1, "kv_bits": 16, "serve_tokens": 0}
CACHE = ("context", "batch", "kv_bits", "kept_passes")
"""Limits that only count against a limit on memory."""


def copied_texts(planned: Plan, request: PlanRequest) -> dict[str, str]:
    """Return the plan as a command, as Python, and its choice as a training file."""
    limits = planned.budget.to_dict()
    given = {name: value for name, value in limits.items() if value and DEFAULTS.get(name) != value}
    if "memory" not in given:
        given = {name: value for name, value in given.items() if name not in CACHE}
    published = isinstance(request.law, str) and not request.law.startswith("own-")
    law = str(request.law) if published else f"{planned.law_name}.json"
    return {
        "command": _command(planned, request, given, law),
        "python": _python(planned, request, given, law),
        "config": _training_file(planned),
        "law_file": "" if published else law,
    }


def _command(planned: Plan, request: PlanRequest, given: Mapping[str, float], law: str) -> str:
    words = [f"{OPTIONS[name][0]} {OPTIONS[name][1](value)}" for name, value in given.items()]
    words += [f"--rung {','.join(request.rungs)}"] if request.rungs else []
    words += ["--continuous"] if request.continuous else []
    chosen = request.model_fields_set
    words += [f"--experts {','.join(f'{E:g}' for E in request.experts)}"] if "experts" in chosen else []
    words += [f"--recurrence {','.join(map(str, request.recurrences))}"] if "recurrences" in chosen else []
    words += [f"--eps {request.eps!r}"] if request.eps is not None else []
    words += ["--rule loss"] if request.rule == "loss" else []
    words += [f"--law {shlex.quote(law)}"]
    words += ["--extrapolate"] if request.extrapolate else []
    words += ["--allow-degenerate"] if planned.law.degenerate else []
    return f"loopscale plan {' '.join(words)}"


def _python(planned: Plan, request: PlanRequest, given: Mapping[str, float], law: str) -> str:
    options: dict[str, Any] = {name: plain(value) for name, value in given.items()}
    options |= {} if request.eps is None else {"eps": request.eps}
    options |= {"rule": "loss"} if request.rule == "loss" else {}
    options |= {"law": law}
    options |= {"extrapolate": True} if request.extrapolate else {}
    options |= {"allow_degenerate": True} if planned.law.degenerate else {}
    arguments = [f"{name}={value!r}" for name, value in options.items()]
    imported = ""
    if (space := request.space()) is not None:
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


def _training_file(planned: Plan) -> str:
    """Return the choice as a training file; a size that cannot be built gives way to the nearest rung."""
    choice, ladder = planned.choice, extended_rungs()
    size, note = choice.rung, ""
    if size not in ladder:
        size = min(ladder, key=lambda name: abs(math.log(rung(name).active / choice.active)))
        built, wanted = format_count(float(rung(size).active)), format_count(choice.active)
        note = f"# the nearest size that can be built: {built} active parameters, not the {wanted} of the plan\n"
    return (
        f'[model]\n{note}rung = "{size}"\nexperts = {choice.experts:g}\nrecurrence = {choice.recurrence}\n\n'
        '[data]\nfiles = ["texts/"]        # your text: .txt, .jsonl or .parquet\ntokenizer = "train:32768"\n'
        f'context = 2048\n\n[run]\ntokens = "{format_count(choice.tokens)}"\n'
    )


def chart_tables(planned: Plan, kinds: Iterable[str], centre: float | None = None) -> dict[str, dict[str, Any]]:
    """Return the columns of each chart by name; charts over compute are drawn around ``centre``, if it is given."""
    return {kind: dict(CHARTS[kind](planned, centre or _flops(planned)).columns) for kind in dict.fromkeys(kinds)}


def _over_recurrence(planned: Plan, _: float) -> Table:
    alone = planned.grid is not None and planned.grid.space.shape == (1, 1, 1)  # one given design, looped otherwise too
    space = _space(planned, experts=[planned.choice.experts], recurrences=list(RUNG_RECURRENCES) if alone else None)
    return isoflop_over_recurrence(planned.law, [_flops(planned)], space, planned.eps, _token_limits(planned))


def _over_experts(planned: Plan, _: float) -> Table:
    space = _space(planned, recurrences=[planned.choice.recurrence])
    return isoflop_over_experts(planned.law, [_flops(planned)], space, planned.eps, _token_limits(planned))


def _over_size(planned: Plan, _: float) -> Table:
    passes = sorted({1, 2, 4, planned.choice.recurrence})
    own = [planned.choice.width] if planned.choice.width else []
    widths = np.unique(np.append(WIDTHS, own))
    flops, limits = [_flops(planned)], _token_limits(planned)
    return isoflop_over_size(planned.law, flops, [planned.choice.experts], passes, widths, limits)


def _best_recurrence(planned: Plan, centre: float) -> Table:
    space = _space(planned, experts=[planned.choice.experts])
    budget = replace(_token_limits(planned), flops=centre)
    key = (
        "R",
        id(planned.law),
        centre,
        space.names,
        planned.choice.experts,
        tuple(space.recurrences),
        planned.eps,
        budget,
    )
    return _CACHE.get(
        key, planned.law, lambda: recurrence_map(planned.law, _around(centre), space, planned.eps, budget)
    )


def _best_experts(planned: Plan, _: float) -> Table:
    passes = sorted({1, 2, 4, planned.choice.recurrence})
    assert planned.grid is not None
    space, needed = _space(planned, recurrences=passes), planned.grid.memory_SKP
    memory = np.geomspace(needed.min() * 0.9, needed.max() * 1.1, 80)
    budget = replace(planned.budget, memory=None)
    key = ("E", id(planned.law), memory[0], memory[-1], space.names, tuple(passes), planned.eps, budget)
    return _CACHE.get(key, planned.law, lambda: experts_map(planned.law, memory, budget, space, planned.eps))


def _over_compute(planned: Plan, centre: float) -> Table:
    choice = planned.choice
    one = _space(planned, sizes=[choice.rung], experts=[choice.experts], recurrences=[choice.recurrence])
    return isoflop_over_recurrence(planned.law, _around(centre), one, planned.eps, _token_limits(planned))


def _designs(planned: Plan, _: float) -> Table:
    grid, designs = planned.grid, planned.designs().columns
    flat = np.flatnonzero(np.isfinite(grid.loss_ZFSKP[0, 0]).ravel())
    shown = np.logical_or.reduce([designs["on_memory_front"], designs["on_inference_front"], designs["chosen"]])
    ends = {end: np.full(len(flat), None) for end in ("loss_low", "loss_high")}
    for column, values in zip(ends.values(), planned.bands(flat[shown]), strict=True):
        column[shown] = values  # the band is drawn along the line alone
    table = Table({
        **designs,
        "extrapolated": outside_text(grid)[0].ravel()[flat].tolist(),
        "trust": grid.trust_FSKP[0].ravel()[flat].tolist(),
        **{name: column.tolist() for name, column in ends.items()},
        "interval": [interval_kind(planned.law)] * len(flat),
    })  # fmt: skip
    if len(table) <= MOST_DESIGNS:
        return table
    kept = np.flatnonzero(shown).tolist()
    return Table({name: [column[k] for k in kept] for name, column in table.columns.items()})


CHARTS: dict[str, Callable[[Plan, float], Table]] = {
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
    planned: Plan,
    sizes: list[str] | None = None,
    experts: list[float] | None = None,
    recurrences: list[int] | None = None,
) -> Space:
    """Return the part of the plan's space that a chart shows; a continuous or bare one has the ladder's rungs."""
    assert planned.grid is not None
    space = planned.grid.space
    experts = experts or sorted(set(space.experts.ravel().tolist()))
    passes = recurrences or space.recurrences.tolist()
    if space.kind == "models":  # the user's model, as it is
        return replace(space, recurrences=np.array(passes if space.loop.any() else [1]))
    if space.kind == "sizes":  # of a dense law
        return size_space(planned.choice.active * np.array([1.0] if sizes else SIZES_AROUND))
    if space.kind == "ladder":
        return ladder_space(sizes or _near(space.names, planned.choice.rung), experts, passes)
    if sizes is not None and planned.choice.width:
        return continuous_space(experts, passes, widths=[planned.choice.width])
    return ladder_space(tuple(RUNGS), experts, passes)


def _near(names: tuple[str, ...], chosen: str) -> list[str]:
    """Return the sizes around the choice, as many as a chart shows."""
    first = max(0, min(names.index(chosen) - MOST_LINES // 2, len(names) - MOST_LINES))
    return list(names[first : first + MOST_LINES])


def _flops(planned: Plan) -> float:
    """Return the compute that charts are drawn at: the budget's, or what the choice takes for its tokens."""
    return planned.budget.flops or planned.choice.train_flops


def _around(flops: float) -> FloatArray:
    return flops * np.geomspace(1e-2, 1e2, 25)


def _token_limits(planned: Plan) -> Budget:
    """Return what limits the tokens besides compute: how many are available, and serving."""
    return replace(planned.budget, flops=_flops(planned), tokens=None)
