"""Engines that compute a looped model here; each reports in the form of ``loopscale.model.conformance``."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from loopscale.core.errors import InputError, require
from loopscale.model import llama_cpp
from loopscale.model.conformance import NEW, cache_slots, greedy, observe, report, top_logits
from loopscale.model.export import unroll, write_onnx, write_program
from loopscale.model.gguf_file import write_gguf
from loopscale.model.mlx_folder import read_mlx, write_mlx
from loopscale.model.model import LoopedMoEForCausalLM

Observations = Iterator[dict[str, Any]]
"""What is observed of each prompt, in order."""
Logits = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Subject:
    """What an engine is to compute."""

    model: LoopedMoEForCausalLM
    prompts: list[list[int]]
    recurrences: list[int]
    tokenizer: Any
    packages: str | None


def run_engine(
    engine: str,
    model: LoopedMoEForCausalLM,
    expected: dict[str, Any],
    tokenizer: Any = None,
    packages: str | None = None,
) -> dict[str, Any]:
    """Return what an engine computes of the golden prompts at the golden recurrences."""
    recurrences = list(dict.fromkeys(run["recurrence"] for run in expected["runs"]))
    subject = Subject(model, expected["prompts"], recurrences, tokenizer, packages)
    return report(model, subject.prompts, recurrences, ENGINES[engine](subject))


def _transformers(subject: Subject) -> Observations:
    """Run the model itself."""
    for R in subject.recurrences:
        for ids in subject.prompts:
            yield observe(subject.model, ids, R)


@torch.no_grad()
def _unrolled(subject: Subject) -> Observations:
    """Run the plain model of a standard architecture."""
    for R in subject.recurrences:
        plain: Any = unroll(subject.model, R)
        for ids in subject.prompts:
            cache = plain(torch.tensor([ids[:-1]]), use_cache=True).past_key_values
            logits = plain(torch.tensor([ids[-1:]]), past_key_values=cache).logits
            yield {
                "tokens": greedy(lambda so_far: plain(so_far).logits, ids)[0],  # noqa: B023 - used at once
                "slots": cache_slots(subject.model, R, ((slot.keys, slot.values) for slot in cache.layers)),
                "logits": _last_pass(logits, R),
            }


def _last_pass(logits_1TV: torch.Tensor, R: int) -> list[dict[str, list[float]] | None]:
    """Return the logits of an engine that reports those of the last pass."""
    return [None] * (R - 1) + [top_logits(logits_1TV[0, -1])]


def _graph(subject: Subject, compiled: Callable[[int, Path], Logits]) -> Observations:
    """Run a graph without a cache, which is written to a file for each recurrence."""
    for R in subject.recurrences:
        with tempfile.TemporaryDirectory() as folder:
            logits = compiled(R, Path(folder))
            for ids in subject.prompts:
                yield {"tokens": greedy(logits, ids)[0], "logits": _last_pass(logits(torch.tensor([ids])), R)}


def _onnx(subject: Subject) -> Observations:
    """Run the ONNX graph in onnxruntime."""
    onnxruntime = require("onnxruntime", "onnx", "the engine onnx")

    def compiled(R: int, folder: Path) -> Logits:
        write_onnx(subject.model, folder / "model.onnx", R)
        session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
        return lambda ids: torch.tensor(session.run(None, {"input_ids": ids.numpy()})[0])

    return _graph(subject, compiled)


def _program(subject: Subject) -> Observations:
    """Run the program of torch.export."""

    def compiled(R: int, folder: Path) -> Logits:
        write_program(subject.model, folder / "model.pt2", R)
        loaded = torch.export.load(folder / "model.pt2").module()
        return lambda ids: loaded(ids).detach()

    return _graph(subject, compiled)


def _mlx(subject: Subject) -> Observations:
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
            for ids in subject.prompts:
                cache = loaded.make_cache()
                loaded(array([ids[:-1]]), cache)
                logits = tensor(loaded(array([ids[-1:]]), cache))
                states = ((slot.keys[:, :, : slot.offset], slot.values[:, :, : slot.offset]) for slot in cache)
                yield {
                    "tokens": greedy(lambda so_far: tensor(loaded(array(so_far.tolist()))), ids)[0],
                    "slots": cache_slots(subject.model, R, ((tensor(keys), tensor(values)) for keys, values in states)),
                    "logits": _last_pass(logits, R),
                }


def _llama_cpp(subject: Subject) -> Observations:
    """Run a GGUF file in llama.cpp, through the npm package node-llama-cpp; it reports tokens."""
    if subject.packages is None:
        raise InputError(f"`packages` is missing; give {llama_cpp.WHERE}")
    for R in subject.recurrences:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.gguf"
            write_gguf(unroll(subject.model, R), subject.tokenizer, file, "f32")
            for tokens in llama_cpp.generated(file, subject.prompts, NEW, subject.packages):
                yield {"tokens": tokens}


def _vllm(subject: Subject) -> Observations:
    """Run vLLM, an engine for each recurrence with one copy of the weights; it reports tokens."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB for each engine; the prompts are short
    try:
        from vllm import SamplingParams
    except ImportError:
        raise InputError("vLLM is not installed here; it needs a separate environment (docs/serve.md)") from None
    from loopscale.model import vllm as plugin

    prompts = [{"prompt_token_ids": ids} for ids in subject.prompts]
    how = SamplingParams(temperature=0, max_tokens=NEW, detokenize=False, ignore_eos=True)
    with tempfile.TemporaryDirectory() as folder:
        subject.model.save_pretrained(folder)
        plugin.register()
        try:
            engines = plugin.engines(
                folder, subject.recurrences, skip_tokenizer_init=True, dtype="float32", enforce_eager=True,
                max_model_len=max(map(len, subject.prompts)) + NEW,
            )  # fmt: skip
            replies = [reply for engine in engines.values() for reply in engine.generate(prompts, how, use_tqdm=False)]
        except InputError:
            raise
        except (RuntimeError, ValueError, NotImplementedError) as error:  # a size that its kernels do not have
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise InputError(f"vLLM cannot run this model: {reason}") from error
    for reply in replies:
        yield {"tokens": list(reply.outputs[0].token_ids)}


ENGINES: dict[str, Callable[[Subject], Observations]] = {
    "transformers": _transformers,
    "unrolled": _unrolled,
    "onnx": _onnx,
    "torch.export": _program,
    "mlx": _mlx,
    "llama.cpp": _llama_cpp,
    "vllm": _vllm,
}
"""Engines that are run here; others write a report themselves."""
