"""Whether an engine computes the looped model: a file of golden outputs, and what differs from it at which pass.

An engine reads a prompt into its cache but for the last token, and then that token alone. What it reports of that step
is compared with what this model computes: the experts and the cache slot of every (pass, layer), the logits of every
pass, and the greedy tokens that follow. A report may leave parts out: llama.cpp tells its tokens only.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch

from loopscale.core.errors import InputError, require
from loopscale.core.files import check_version, read_json, write_json
from loopscale.model.exit import Exit
from loopscale.model.export import unroll, write_onnx
from loopscale.model.gguf_file import write_gguf
from loopscale.model.model import LoopedMoEForCausalLM

KIND, VERSION = "conformance", 1
PROMPTS = (
    *("The state of", "My fellow citizens", "It is", "War with", "Congress", "In the year"),
    *("Our commerce", "The people", "Peace", "I recommend", "Trade and", "We must"),
)
NEW, TOP = 8, 16
"""Greedy tokens of a prompt, and likeliest tokens whose logits are compared."""
EXITS = (("kl", 0.02), ("argmax", 0.5))
"""Criteria of early exit whose passes are compared, by name and threshold."""


@dataclass(frozen=True)
class Difference:
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
    """Return what the model computes in float32, in the form that :func:`compare` and engines use."""
    for ids in prompts:
        if len(ids) < 2 or len(ids) + NEW - 1 > model.config.max_position_embeddings:
            raise InputError(
                f"a prompt of {len(ids)} tokens: golden prompts have 2 or more, and room for {NEW} new ones"
            )
    runs = [
        {"prompt": index, "recurrence": R, **observe(model, ids, R)}
        for R in recurrences
        for index, ids in enumerate(prompts)
    ]
    return {**_head(model, prompts), "runs": runs}


def _head(model: LoopedMoEForCausalLM, prompts: Sequence[Sequence[int]]) -> dict[str, Any]:
    sizes = {name: getattr(model.config, name) for name in ("prelude_layers", "loop_layers", "coda_layers")}
    return {"kind": KIND, "schema": VERSION, "sizes": sizes, "prompts": [list(ids) for ids in prompts]}


def read_golden(file: str | Path) -> dict[str, Any]:
    """Read a golden file, or an engine's report, which has the same form."""
    return check_version(read_json(file), str(file), KIND, VERSION)


def write_golden(file: str | Path, data: dict[str, Any]) -> None:
    """Write a golden file."""
    write_json(file, data)


@torch.no_grad()
def observe(model: LoopedMoEForCausalLM, ids: Sequence[int], recurrence: int) -> dict[str, Any]:
    """Return what the looped model computes of a prompt's last token, with the others in the cache."""
    ids_1T = torch.tensor([list(ids)])
    cache = model(ids_1T[:, :-1], recurrence=recurrence, use_cache=True).past_key_values
    out = model(
        ids_1T[:, -1:], recurrence=recurrence, past_key_values=cache, output_passes=True,
        output_routing=model.config.is_moe,
    )  # fmt: skip
    report: dict[str, Any] = {"logits": [_top(logits[0, -1]) for logits in out.pass_logits]}
    report["slots"] = [
        {"part": part, "pass": pass_index, "layer": layer, "keys": _last(slot.keys), "values": _last(slot.values)}
        for (part, pass_index, layer), slot in zip(slot_places(model, recurrence), cache.layers, strict=True)
    ]
    if out.routing is not None:
        report["experts"] = [
            {"part": part, "pass": pass_index, "layer": layer, "ids": sorted(chosen[0, -1].tolist())}
            for (part, pass_index, layer), chosen in zip(
                slot_places(model, recurrence, all_passes=True),
                (*out.routing.prelude, *out.routing.loop.flatten(0, 1), *out.routing.coda),
                strict=True,
            )
        ]
    report["exits"] = [
        {"criterion": criterion, "threshold": threshold,
         "passes": int(model(ids_1T, recurrence=recurrence, exit=Exit(criterion, threshold)).passes[0, -1])}
        for criterion, threshold in EXITS
    ]  # fmt: skip
    report["tokens"], report["margins"] = _greedy(lambda so_far: model(so_far, recurrence=recurrence).logits, ids)
    return report


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


def _top(logits_V: torch.Tensor) -> dict[str, list[float]]:
    best = logits_V.float().topk(min(TOP, len(logits_V)))
    return {"ids": best.indices.tolist(), "values": best.values.tolist()}


def _last(states_BNTh: torch.Tensor) -> list[float]:
    """Return the newest position of the first head."""
    newest: list[float] = states_BNTh[0, 0, -1].float().tolist()
    return newest


def _greedy(logits: Callable[[torch.Tensor], torch.Tensor], ids: Sequence[int]) -> tuple[list[int], list[float]]:
    """Return greedy tokens, and by how much each led the second."""
    so_far, margins = torch.tensor([list(ids)]), []
    for _ in range(NEW):
        best = logits(so_far)[0, -1].float().topk(2)
        margins.append(float(best.values[0] - best.values[1]))
        so_far = torch.cat((so_far, best.indices[None, :1]), dim=1)
    return so_far[0, len(ids) :].tolist(), margins


def compare(expected: dict[str, Any], reported: dict[str, Any], tolerance: float = 1e-3) -> list[Difference]:
    """Return what differs, in the order of computation; an empty list means that the engine conforms.

    ``tolerance`` is relative to the largest number compared. A token may differ where the second was as near.
    """
    runs = {(run["prompt"], run["recurrence"]): run for run in expected["runs"]}
    found: list[Difference] = []
    for run in reported["runs"]:
        key = run["prompt"], run["recurrence"]
        if key not in runs:
            raise InputError(f"the report has prompt {key[0]} at R = {key[1]}, which the golden file has not")
        found += _compare_run(runs[key], run, tolerance)
    return found


def _compare_run(golden_run: dict[str, Any], run: dict[str, Any], tolerance: float) -> Iterator[Difference]:
    at = {"prompt": run["prompt"], "recurrence": run["recurrence"]}
    for what, fields in (("experts", ("ids",)), ("slots", ("keys", "values"))):
        theirs = {_place(entry): entry for entry in run.get(what, ())}
        for entry in golden_run.get(what, ()) if what in run else ():
            part, pass_index, layer = _place(entry)
            other = theirs.get((part, pass_index, layer))
            if other is None:
                size = float("inf")
            elif what == "experts":
                size = float(len(set(entry["ids"]) - set(other["ids"])))
            else:
                size = max(_apart(entry[name], other[name], tolerance) for name in fields)
            if size:
                name = "experts" if what == "experts" else "cache slot"
                yield Difference(name, **at, part=part, pass_index=pass_index, layer=layer, size=size)
    for index, ours in enumerate(golden_run["logits"]):
        theirs_here = run["logits"][index] if index < len(run.get("logits", ())) else None  # None: not reported
        if theirs_here is not None:
            values = dict(zip(theirs_here["ids"], theirs_here["values"], strict=True))
            # The last of the likeliest may be another one by rounding.
            shared = [token for token in ours["ids"][: TOP // 2] if token in values]
            mine = dict(zip(ours["ids"], ours["values"], strict=True))
            size = _apart([mine[token] for token in shared], [values[token] for token in shared], tolerance)
            if len(shared) < len(ours["ids"][: TOP // 2]):
                size = max(size, abs(ours["values"][0] - theirs_here["values"][0]), tolerance)
            if size:
                yield Difference("logits", **at, part="", pass_index=index + 1, layer=None, size=size)
    for ours, other in zip(golden_run.get("exits", ()), run.get("exits", ()), strict=False):
        if ours["passes"] != other["passes"]:
            size = abs(ours["passes"] - other["passes"])
            yield Difference("exit", **at, part="", pass_index=ours["passes"], layer=None, size=size)
    for position, (ours, other) in enumerate(zip(golden_run["tokens"], run.get("tokens", ()), strict=False)):
        if ours != other:
            if golden_run["margins"][position] > tolerance:
                wrong = sum(a != b for a, b in zip(golden_run["tokens"], run["tokens"], strict=False))
                yield Difference("tokens", **at, part="", pass_index=None, layer=None, size=wrong)
            return  # what follows another token is another text


def _place(entry: dict[str, Any]) -> tuple[str, int | None, int]:
    return entry["part"], entry["pass"], entry["layer"]


def _apart(ours: Sequence[float], theirs: Sequence[float], tolerance: float) -> float:
    """Return the largest difference, or zero if it is within the tolerance."""
    if len(ours) != len(theirs):
        return float("inf")
    largest = max((abs(a - b) for a, b in zip(ours, theirs, strict=True)), default=0.0)
    return largest if not largest <= tolerance * max(1.0, *(abs(a) for a in ours)) else 0.0


def report_of(
    engine: str,
    model: LoopedMoEForCausalLM,
    expected: dict[str, Any],
    tokenizer: Any = None,
    packages: str | None = None,
) -> dict[str, Any]:
    """Return what an engine computes of the golden prompts at the golden recurrences."""
    prompts = expected["prompts"]
    recurrences = list(dict.fromkeys(run["recurrence"] for run in expected["runs"]))
    if engine == "transformers":
        return golden(model, prompts, recurrences)
    run = ENGINES[engine]
    runs = [entry for R in recurrences for entry in run(model, prompts, R, tokenizer, packages)]
    return {**_head(model, prompts), "runs": runs}


Runs = Iterator[dict[str, Any]]


@torch.no_grad()
def _unrolled(
    model: LoopedMoEForCausalLM, prompts: list[list[int]], R: int, tokenizer: Any, packages: str | None
) -> Runs:
    """Run the plain model of a standard architecture."""
    plain: Any = unroll(model, R)
    for index, ids in enumerate(prompts):
        cache = plain(torch.tensor([ids[:-1]]), use_cache=True).past_key_values
        logits = plain(torch.tensor([ids[-1:]]), past_key_values=cache).logits
        slots = [
            {"part": part, "pass": pass_index, "layer": layer, "keys": _last(slot.keys), "values": _last(slot.values)}
            for (part, pass_index, layer), slot in zip(slot_places(model, R), cache.layers, strict=True)
        ]
        tokens, _ = _greedy(lambda so_far: plain(so_far).logits, ids)
        yield {"prompt": index, "recurrence": R, "tokens": tokens, "slots": slots,
               "logits": [None] * (R - 1) + [_top(logits[0, -1])]}  # fmt: skip


def _onnx(model: LoopedMoEForCausalLM, prompts: list[list[int]], R: int, tokenizer: Any, packages: str | None) -> Runs:
    """Run the ONNX graph in onnxruntime; it has no cache."""
    onnxruntime = require("onnxruntime", "onnx", "the engine onnx")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        write_onnx(model, file, R)
        session = onnxruntime.InferenceSession(str(file))
        for index, ids in enumerate(prompts):

            def logits(so_far: torch.Tensor) -> torch.Tensor:
                return torch.tensor(session.run(None, {"input_ids": so_far.numpy()})[0])

            top = _top(logits(torch.tensor([ids]))[0, -1])
            yield {"prompt": index, "recurrence": R, "tokens": _greedy(logits, ids)[0],
                   "logits": [None] * (R - 1) + [top]}  # fmt: skip


def _llama_cpp(
    model: LoopedMoEForCausalLM, prompts: list[list[int]], R: int, tokenizer: Any, packages: str | None
) -> Runs:
    """Run a GGUF file in llama.cpp, through the npm package node-llama-cpp; it reports tokens."""
    if packages is None:
        raise InputError(
            "`packages` is missing: the folder where `npm install node-llama-cpp @node-llama-cpp/linux-x64` was run"
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.gguf"
        write_gguf(unroll(model, R), tokenizer, file, "f32")
        for index, tokens in enumerate(llama_cpp_tokens(file, prompts, NEW, packages)):
            yield {"prompt": index, "recurrence": R, "tokens": tokens}


def llama_cpp_tokens(file: Path, prompts: list[list[int]], new: int, packages: str) -> list[list[int]]:
    """Return the tokens that llama.cpp generates greedily."""
    script = str(files("loopscale.model").joinpath("llama_cpp.mjs"))
    try:
        done = subprocess.run(
            ["node", script, packages, str(file), str(new)],
            input=json.dumps(prompts), capture_output=True, text=True, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise InputError("node is not installed; llama.cpp is run through its package node-llama-cpp") from None
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "rror" in line] or ["no message"]
        raise InputError(f"llama.cpp could not run the file: {lines[0].strip()[:200]}")
    tokens: list[list[int]] = json.loads(done.stdout.splitlines()[-1])
    return tokens


ENGINES: dict[str, Callable[..., Runs]] = {"unrolled": _unrolled, "onnx": _onnx, "llama.cpp": _llama_cpp}
"""Engines that are run here, beside "transformers": others write a report themselves."""


def as_rows(differences: Sequence[Difference]) -> list[dict[str, Any]]:
    """Return differences as plain values."""
    return [asdict(difference) for difference in differences]
