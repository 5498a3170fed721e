"""Whether an engine computes the looped model: a file of golden outputs, and what differs from it at which pass.

An engine reads a prompt into its cache but for the last token, and then that token alone. What it reports of that step
is compared with what this model computes: the experts and the cache slot of every (pass, layer), the logits of every
pass, and the greedy tokens that follow. A report may leave parts out: llama.cpp tells its tokens only.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from loopscale.core.errors import InputError, require
from loopscale.core.files import check_version, read_json, write_json
from loopscale.model import llama_cpp
from loopscale.model.exit import Exit
from loopscale.model.export import unroll, write_onnx, write_program
from loopscale.model.gguf_file import write_gguf
from loopscale.model.mlx_folder import read_mlx, write_mlx
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
    report["slots"] = _slots(model, recurrence, ((slot.keys, slot.values) for slot in cache.layers))
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
    runs = list(ENGINES[engine](Subject(model, prompts, recurrences, tokenizer, packages)))
    return {**_head(model, prompts), "runs": runs}


@dataclass(frozen=True)
class Subject:
    """What an engine is to compute."""

    model: LoopedMoEForCausalLM
    prompts: list[list[int]]
    recurrences: list[int]
    tokenizer: Any
    packages: str | None


Runs = Iterator[dict[str, Any]]
Logits = Callable[[torch.Tensor], torch.Tensor]


@torch.no_grad()
def _unrolled(subject: Subject) -> Runs:
    """Run the plain model of a standard architecture."""
    for R in subject.recurrences:
        plain: Any = unroll(subject.model, R)
        for index, ids in enumerate(subject.prompts):
            cache = plain(torch.tensor([ids[:-1]]), use_cache=True).past_key_values
            logits = plain(torch.tensor([ids[-1:]]), past_key_values=cache).logits
            slots = _slots(subject.model, R, ((slot.keys, slot.values) for slot in cache.layers))
            tokens, _ = _greedy(lambda so_far: plain(so_far).logits, ids)  # noqa: B023 - used at once
            yield {"prompt": index, "recurrence": R, "tokens": tokens, "slots": slots, "logits": _last_pass(logits, R)}


def _slots(
    model: LoopedMoEForCausalLM, R: int, states: Iterable[tuple[torch.Tensor, torch.Tensor]]
) -> list[dict[str, Any]]:
    return [
        {"part": part, "pass": pass_index, "layer": layer, "keys": _last(keys), "values": _last(values)}
        for (part, pass_index, layer), (keys, values) in zip(slot_places(model, R), states, strict=True)
    ]


def _last_pass(logits_1TV: torch.Tensor, R: int) -> list[dict[str, list[float]] | None]:
    """Return the logits of an engine that reports those of the last pass."""
    return [None] * (R - 1) + [_top(logits_1TV[0, -1])]


def _graph(subject: Subject, compiled: Callable[[int, Path], Logits]) -> Runs:
    """Run a graph without a cache, which is written to a file for each recurrence."""
    for R in subject.recurrences:
        with tempfile.TemporaryDirectory() as folder:
            logits = compiled(R, Path(folder))
            for index, ids in enumerate(subject.prompts):
                yield {"prompt": index, "recurrence": R, "tokens": _greedy(logits, ids)[0],
                       "logits": _last_pass(logits(torch.tensor([ids])), R)}  # fmt: skip


def _onnx(subject: Subject) -> Runs:
    """Run the ONNX graph in onnxruntime."""
    onnxruntime = require("onnxruntime", "onnx", "the engine onnx")

    def compiled(R: int, folder: Path) -> Logits:
        write_onnx(subject.model, folder / "model.onnx", R)
        session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
        return lambda ids: torch.tensor(session.run(None, {"input_ids": ids.numpy()})[0])

    return _graph(subject, compiled)


def _program(subject: Subject) -> Runs:
    """Run the program of torch.export."""

    def compiled(R: int, folder: Path) -> Logits:
        write_program(subject.model, folder / "model.pt2", R)
        loaded = torch.export.load(folder / "model.pt2").module()
        return lambda ids: loaded(ids).detach()

    return _graph(subject, compiled)


def _mlx(subject: Subject) -> Runs:
    """Run the model file for MLX with its cache."""
    mx = require("mlx.core", "mlx", "the engine mlx")

    def array(ids: Any) -> Any:
        return mx.array(ids, dtype=mx.int32)

    def tensor(values: Any) -> torch.Tensor:
        return torch.tensor(values.astype(mx.float32).tolist())

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_mlx(subject.model, folder)
        loaded = read_mlx(folder)
        for R in subject.recurrences:
            loaded.args.recurrence = R
            for index, ids in enumerate(subject.prompts):
                cache = loaded.make_cache()
                loaded(array([ids[:-1]]), cache)
                logits = tensor(loaded(array([ids[-1:]]), cache))
                held = ((slot.keys[:, :, : slot.offset], slot.values[:, :, : slot.offset]) for slot in cache)
                slots = _slots(subject.model, R, ((tensor(keys), tensor(values)) for keys, values in held))
                tokens, _ = _greedy(lambda so_far: tensor(loaded(array(so_far.tolist()))), ids)
                yield {"prompt": index, "recurrence": R, "tokens": tokens, "slots": slots,
                       "logits": _last_pass(logits, R)}  # fmt: skip


def _llama_cpp(subject: Subject) -> Runs:
    """Run a GGUF file in llama.cpp, through the npm package node-llama-cpp; it reports tokens."""
    if subject.packages is None:
        raise InputError(f"`packages` is missing: {llama_cpp.WHERE}")
    for R in subject.recurrences:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.gguf"
            write_gguf(unroll(subject.model, R), subject.tokenizer, file, "f32")
            for index, tokens in enumerate(llama_cpp.generated(file, subject.prompts, NEW, subject.packages)):
                yield {"prompt": index, "recurrence": R, "tokens": tokens}


def _vllm(subject: Subject) -> Runs:
    """Run vLLM, an engine for each recurrence with one copy of the weights; it reports tokens."""
    try:
        from vllm import SamplingParams
    except ImportError:
        raise InputError("vLLM is not installed here; it needs a separate environment (docs/serve.md)") from None
    from loopscale.model.vllm import engines, register

    with tempfile.TemporaryDirectory() as folder:
        subject.model.save_pretrained(folder)
        register()
        longest = max(map(len, subject.prompts)) + NEW
        made = engines(
            folder, subject.recurrences, skip_tokenizer_init=True, dtype="float32", max_model_len=longest,
            enforce_eager=True,
        )  # fmt: skip
        greedy = SamplingParams(temperature=0, max_tokens=NEW, detokenize=False, ignore_eos=True)
        for R, engine in made.items():
            replies = engine.generate([{"prompt_token_ids": ids} for ids in subject.prompts], greedy, use_tqdm=False)
            for index, reply in enumerate(replies):
                yield {"prompt": index, "recurrence": R, "tokens": list(reply.outputs[0].token_ids)}


ENGINES: dict[str, Callable[[Subject], Runs]] = {
    "unrolled": _unrolled,
    "onnx": _onnx,
    "torch.export": _program,
    "mlx": _mlx,
    "llama.cpp": _llama_cpp,
    "vllm": _vllm,
}
"""Engines that are run here, beside "transformers": others write a report themselves."""


def as_rows(differences: Sequence[Difference]) -> list[dict[str, Any]]:
    """Return differences as plain values."""
    return [asdict(difference) for difference in differences]
