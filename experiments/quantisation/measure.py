"""What weights and caches in fewer bits cost at each recurrence, on three models: one JSON line for each setting.

    python experiments/quantisation/measure.py --out bits.jsonl [--smollm FOLDER | --models RUN ...]

Numbers are rounded to whole multiples of a scale, one for each block of 32 weights of a row (for keys and values: one
for each head and position), which is what GGUF's q8_0 and q4_0 do; nothing is trained for it. "weights" are all
projections, "experts" and "attention" parts of them; embeddings, head, routers and norms keep their format. Losses are
paired with those of float32 by sequence.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from loopscale.lab.shipped import shipped_folder
from loopscale.model import LoopedMoEForCausalLM
from loopscale.model.blocks import Attention
from loopscale.model.loading import DEMO, load, load_model
from loopscale.model.moe import Experts
from loopscale.train.data.labels import fixed_problems
from loopscale.train.data.puzzles import task_called

sys.path.append(str(Path(__file__).parents[1] / "demo"))
from held_out import sequences

BLOCK = 32
BITS = (8, 6, 5, 4, 3)


def rounded(x: torch.Tensor, bits: int, block: int = BLOCK) -> torch.Tensor:
    """Return numbers of so many bits in blocks of the last dimension."""
    size = x.shape[-1]
    blocks = torch.nn.functional.pad(x, (0, -size % block)).unflatten(-1, (-1, block))
    most = 2 ** (bits - 1) - 1
    scale = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-12) / most
    return ((blocks / scale).round().clamp(-most, most) * scale).flatten(-2)[..., :size]


def projections(model: LoopedMoEForCausalLM, part: str) -> list[torch.nn.Parameter]:
    """Return the weights of a part: "weights" for all projections, "experts" or "attention"."""
    chosen = []
    for name, module in model.named_modules():
        is_attention = name.endswith(("qkv_proj", "o_proj"))
        is_linear = isinstance(module, torch.nn.Linear) and module is not model.lm_head
        if isinstance(module, Experts) and part in ("weights", "experts"):
            chosen += [module.gate_up_proj, module.down_proj]
        elif is_linear and (part == "weights" or (part == "attention" and is_attention)):
            chosen.append(module.weight)
    return chosen


@contextmanager
def in_bits(model: LoopedMoEForCausalLM, part: str, bits: int) -> Iterator[None]:
    """Round a part of the model within the block."""
    handles, kept = [], projections(model, part)
    if part == "cache":

        def hook(module: torch.nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            query, key, value, *rest = args
            return (query, rounded(key, bits, key.shape[-1]), rounded(value, bits, value.shape[-1]), *rest)

        handles = [m.register_forward_pre_hook(hook) for m in model.modules() if isinstance(m, Attention)]
    before = [weight.data for weight in kept]
    for weight in kept:
        weight.data = rounded(weight.data, bits)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for weight, data in zip(kept, before, strict=True):
            weight.data = data


@torch.no_grad()
def losses(model: LoopedMoEForCausalLM, ids_ST: torch.Tensor, labels_ST: torch.Tensor, R: int) -> torch.Tensor:
    """Return the mean loss of each sequence; -100 is no label."""
    found = []
    for ids, labels in zip(ids_ST.split(16), labels_ST.split(16), strict=True):
        logits = model(ids, recurrence=R, use_cache=False).logits
        each = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
        found.append(each.sum(1) / (labels != -100).sum(1))
    return torch.cat(found)


def following(ids_ST: torch.Tensor) -> torch.Tensor:
    """Return the next token of each position, as labels."""
    return torch.nn.functional.pad(ids_ST[:, 1:], (0, 1), value=-100)


def subjects(
    smollm: str | None, runs: Sequence[Path], count: int
) -> Iterator[tuple[str, LoopedMoEForCausalLM, Any, Any, tuple[int, ...], float | None]]:
    """Yield name, model, sequences, labels, recurrences and, for models of text, training tokens per parameter."""
    for run in runs:
        model, tokenizer = load(run / "model", dtype=torch.float32)
        ids_ST = sequences(tokenizer, count)
        summary = json.loads((run / "summary.json").read_text())
        yield run.name, model, ids_ST, following(ids_ST), (1, 2, 4), summary["tokens"] / summary["total"]
    if runs:
        return
    if smollm is not None:
        ids_ST = torch.load(Path(smollm) / "windows.pt")
        yield "smollm", load_model(smollm, torch.float32), ids_ST, following(ids_ST), (1, 2, 3), 14_900.0
        return
    model, tokenizer = load(DEMO, dtype=torch.float32)
    ids_ST = sequences(tokenizer, count)
    yield "demo", model, ids_ST, following(ids_ST), (1, 2, 3, 4), 16.2
    problems, answers = fixed_problems(task_called("s3", 12), 4 * count, "validation")
    model = load_model(shipped_folder(), torch.float32)
    yield "s3", model, torch.from_numpy(problems), torch.from_numpy(answers), (1, 2, 4, 8, 12), None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--smollm")
    parser.add_argument("--models", type=Path, nargs="*", default=(), help="Folders of runs, as train.py writes them.")
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--bits", type=int, nargs="*", default=BITS)
    parser.add_argument("--parts", nargs="*", default=("weights", "experts", "attention", "cache"))
    parser.add_argument("--recurrences", type=int, nargs="*")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, model, ids, labels, recurrences, ratio in subjects(options.smollm, options.models, options.sequences):
        parts = [part for part in options.parts if model.config.is_moe or part != "experts"]
        for R in options.recurrences or recurrences:
            exact = losses(model, ids, labels, R)
            for part in parts:
                for bits in options.bits:
                    with in_bits(model, part, bits):
                        more = losses(model, ids, labels, R) - exact
                    row = {"model": name, "R": R, "part": part, "bits": bits, "ratio": ratio,
                           "loss": float(exact.mean()), "difference": float(more.mean()),
                           "error": float(more.std() / len(more) ** 0.5), "sequences": more.tolist()}  # fmt: skip
                    with options.out.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                    print(f"{name} R={R} {part} {bits}: {row['difference']:+.4f} ± {row['error']:.4f}", flush=True)


if __name__ == "__main__":
    main()
