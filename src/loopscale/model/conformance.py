"""Whether an engine computes the looped model: a file of golden outputs, and what differs from it at which pass.

An engine reads a prompt into its cache but for the last token, and then that token alone. What it reports of that step
is compared with what this model computes: the experts and the cache slot of every (pass, layer), the logits of every
pass, and the greedy tokens that follow. A report may leave parts out: llama.cpp tells its tokens only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, cast

import torch

from loopscale.core.errors import InputError
from loopscale.core.files import read_json
from loopscale.core.schemas import parse
from loopscale.model.conformance_file import KIND, VERSION, ConformanceFile
from loopscale.model.exit import Exit
from loopscale.model.model import LoopedMoEForCausalLM

PROMPTS = (
    *("The state of", "My fellow citizens", "It is", "War with", "Congress", "In the year"),
    *("Our commerce", "The people", "Peace", "I recommend", "Trade and", "We must"),
)
NEW, TOP = 8, 16
"""Greedy tokens of a prompt, and likeliest tokens whose logits are compared."""
EXITS = (("kl", 0.02), ("argmax", 0.5))
"""Criteria of early exit whose passes are compared, by name and threshold."""


@dataclass(frozen=True)
class Deviation:
    """One thing that an engine computes otherwise."""

    what: str
    """ "experts", "cache slot", "logits", "exit" or "tokens"."""
    prompt: int
    recurrence: int
    part: str
    """ "prelude", "loop" or "coda"; empty where it does not apply."""
    pass_index: int | None
    """From 1; None where it does not apply."""
    layer: int | None
    size: float
    """Largest absolute difference; for choices how many of them differ."""

    def __str__(self) -> str:
        where = [f"R = {self.recurrence}"]
        where += [f"pass {self.pass_index}"] if self.pass_index is not None else []
        where += [f"{self.part} layer {self.layer}"] if self.layer is not None else []
        return f"{self.what} at {', '.join(where)}, prompt {self.prompt}: {self.size:.2g}"


def golden(model: LoopedMoEForCausalLM, prompts: Sequence[Sequence[int]], recurrences: Sequence[int]) -> dict[str, Any]:
    """Return what the model computes in float32, in the form that ``compare`` and engines use."""
    check_prompts(model, prompts)
    return report(model, prompts, recurrences, (observe(model, ids, R) for R in recurrences for ids in prompts))


def check_prompts(model: LoopedMoEForCausalLM, prompts: Sequence[Sequence[int]]) -> None:
    """Refuse prompts that the model cannot read, or not continue."""
    for ids in prompts:
        if len(ids) < 2 or len(ids) + NEW - 1 > model.config.max_position_embeddings:
            raise InputError(
                f"a prompt of {len(ids)} tokens: golden prompts have 2 or more, and room for {NEW} new ones; give "
                f"prompts of 2 to {model.config.max_position_embeddings - NEW + 1} tokens"
            )
        if max(ids) >= model.config.vocab_size:
            raise InputError(f"a prompt has token {max(ids)}; the model's tokens are below {model.config.vocab_size}")


def report(
    model: LoopedMoEForCausalLM,
    prompts: Sequence[Sequence[int]],
    recurrences: Sequence[int],
    observations: Iterable[dict[str, Any]],
) -> dict[str, Any]:
    """Return a report: what was observed of each prompt, at each recurrence in turn."""
    sizes = {name: getattr(model.config, name) for name in ("prelude_layers", "loop_layers", "coda_layers")}
    runs = [
        {"prompt": index, "recurrence": R, **observed}
        for (R, index), observed in zip(product(recurrences, range(len(prompts))), observations, strict=True)
    ]
    return {"kind": KIND, "schema": VERSION, "sizes": sizes, "prompts": [list(ids) for ids in prompts], "runs": runs}


def read_golden(file: str | Path) -> dict[str, Any]:
    """Read a golden file, or an engine's report, which has the same form."""
    data = read_json(file)
    parse(ConformanceFile, data, str(file))
    return cast(dict[str, Any], data)


@torch.no_grad()
def observe(model: LoopedMoEForCausalLM, ids: Sequence[int], recurrence: int) -> dict[str, Any]:
    """Return what the looped model computes of a prompt's last token, with the others in the cache."""
    ids_1T = torch.tensor([list(ids)])
    cache = model(ids_1T[:, :-1], recurrence=recurrence, use_cache=True).past_key_values
    out = model(
        ids_1T[:, -1:], recurrence=recurrence, past_key_values=cache, output_passes=True,
        output_routing=model.config.is_moe,
    )  # fmt: skip
    observed: dict[str, Any] = {"logits": [top_logits(logits[0, -1]) for logits in out.pass_logits]}
    observed["slots"] = cache_slots(model, recurrence, ((slot.keys, slot.values) for slot in cache.layers))
    if out.routing is not None:
        observed["experts"] = [
            {"part": part, "pass": pass_index, "layer": layer, "ids": sorted(chosen[0, -1].tolist())}
            for (part, pass_index, layer), chosen in zip(
                slot_places(model, recurrence, all_passes=True),
                (*out.routing.prelude, *out.routing.loop.flatten(0, 1), *out.routing.coda),
                strict=True,
            )
        ]
    observed["exits"] = [
        {"criterion": criterion, "threshold": threshold,
         "passes": int(model(ids_1T, recurrence=recurrence, exit=Exit(criterion, threshold)).passes[0, -1])}
        for criterion, threshold in EXITS
    ]  # fmt: skip
    observed["tokens"], observed["margins"] = greedy(lambda so_far: model(so_far, recurrence=recurrence).logits, ids)
    return observed


def slot_places(
    model: LoopedMoEForCausalLM, recurrence: int, all_passes: bool = False
) -> Iterator[tuple[str, int | None, int]]:
    """Yield part, pass (from 1) and layer of each cache slot, or of each unrolled layer."""
    config = model.config
    for layer in range(config.prelude_layers):
        yield "prelude", None, layer
    for pass_index in range(recurrence if all_passes else config.kept(recurrence)):
        for layer in range(config.loop_layers):
            yield "loop", pass_index + 1, layer
    for layer in range(config.coda_layers):
        yield "coda", None, layer


def top_logits(logits_V: torch.Tensor) -> dict[str, list[float]]:
    """Return the likeliest tokens and their logits."""
    best = logits_V.float().topk(min(TOP, len(logits_V)))
    return {"ids": best.indices.tolist(), "values": best.values.tolist()}


def cache_slots(
    model: LoopedMoEForCausalLM, R: int, states: Iterable[tuple[torch.Tensor, torch.Tensor]]
) -> list[dict[str, Any]]:
    """Return the newest position of each cache slot in its first head, from the keys and values (B, heads, T, size)."""
    return [
        {"part": part, "pass": pass_index, "layer": layer,
         "keys": keys[0, 0, -1].float().tolist(), "values": values[0, 0, -1].float().tolist()}
        for (part, pass_index, layer), (keys, values) in zip(slot_places(model, R), states, strict=True)
    ]  # fmt: skip


def greedy(logits: Callable[[torch.Tensor], torch.Tensor], ids: Sequence[int]) -> tuple[list[int], list[float]]:
    """Return greedy tokens, and by how much each led the second."""
    so_far, margins = torch.tensor([list(ids)]), []
    for _ in range(NEW):
        best = logits(so_far)[0, -1].float().topk(2)
        margins.append(float(best.values[0] - best.values[1]))
        so_far = torch.cat((so_far, best.indices[None, :1]), dim=1)
    return so_far[0, len(ids) :].tolist(), margins


def compare(expected: dict[str, Any], reported: dict[str, Any], tolerance: float = 1e-3) -> list[Deviation]:
    """Return what differs, in the order of computation; an empty list means that the engine conforms.

    ``tolerance`` is relative to the largest number compared. A token may differ where the second was as near.
    """
    runs = {(run["prompt"], run["recurrence"]): run for run in expected["runs"]}
    deviations: list[Deviation] = []
    for run in reported["runs"]:
        key = run["prompt"], run["recurrence"]
        if key not in runs:
            raise InputError(
                f"the report has prompt {key[0]} at R = {key[1]}, which the golden file has not; "
                "compare reports of the same prompts and recurrences"
            )
        deviations += _compare_run(runs[key], run, tolerance)
    return deviations


def _compare_run(ours: dict[str, Any], theirs: dict[str, Any], tolerance: float) -> Iterator[Deviation]:
    at = {"prompt": theirs["prompt"], "recurrence": theirs["recurrence"]}
    for what, field in (("experts", "experts"), ("cache slot", "slots")):
        places = {_place(entry): entry for entry in theirs.get(field, ())}
        for entry in ours.get(field, ()) if field in theirs else ():
            part, pass_index, layer = _place(entry)
            if size := _layer_apart(entry, places.get((part, pass_index, layer)), tolerance):
                yield Deviation(what, **at, part=part, pass_index=pass_index, layer=layer, size=size)
    for index, (mine, other) in enumerate(zip(ours.get("logits", ()), theirs.get("logits", ()), strict=False)):
        if mine is not None and other is not None and (size := _logits_apart(mine, other, tolerance)):
            yield Deviation("logits", **at, part="", pass_index=index + 1, layer=None, size=size)
    for mine, other in zip(ours.get("exits", ()), theirs.get("exits", ()), strict=False):
        if size := abs(mine["passes"] - other["passes"]):
            yield Deviation("exit", **at, part="", pass_index=mine["passes"], layer=None, size=size)
    pairs = list(zip(ours.get("tokens", ()), theirs.get("tokens", ()), strict=False))
    wrong = [position for position, (mine, other) in enumerate(pairs) if mine != other]
    # What follows another token is another text, so the first one decides; a near tie may go either way.
    if wrong and not any(margin <= tolerance for margin in ours.get("margins", ())[wrong[0] : wrong[0] + 1]):
        yield Deviation("tokens", **at, part="", pass_index=None, layer=None, size=len(wrong))


def _place(entry: dict[str, Any]) -> tuple[str, int | None, int]:
    return entry["part"], entry["pass"], entry["layer"]


def _layer_apart(ours: dict[str, Any], theirs: dict[str, Any] | None, tolerance: float) -> float:
    """Return how many experts differ, or by how much the cache slot does; a layer that is missing is infinitely far."""
    if theirs is None:
        return float("inf")
    if "ids" in ours:
        return float(len(set(ours["ids"]) - set(theirs["ids"])))
    return max(_apart(ours[name], theirs[name], tolerance) for name in ("keys", "values"))


def _logits_apart(ours: dict[str, Any], theirs: dict[str, Any], tolerance: float) -> float:
    """Return the largest difference of the likeliest tokens' logits, or zero if it is within the tolerance."""
    mine, values = (dict(zip(side["ids"], side["values"], strict=True)) for side in (ours, theirs))
    likeliest = ours["ids"][: TOP // 2]  # further down another token may be listed by rounding
    shared = [token for token in likeliest if token in values]
    size = _apart([mine[token] for token in shared], [values[token] for token in shared], tolerance)
    if len(shared) < len(likeliest):
        size = max(size, abs(ours["values"][0] - theirs["values"][0]), tolerance)
    return size


def _apart(ours: Sequence[float], theirs: Sequence[float], tolerance: float) -> float:
    """Return the largest difference, or zero if it is within the tolerance."""
    if len(ours) != len(theirs):
        return float("inf")
    largest = max((abs(a - b) for a, b in zip(ours, theirs, strict=True)), default=0.0)
    return largest if not largest <= tolerance * max(1.0, *(abs(a) for a in ours)) else 0.0
