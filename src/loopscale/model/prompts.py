"""Prompts of a text file, as batches of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from loopscale.core.errors import InputError
from loopscale.core.files import read_text


def read_prompts(path: str | Path) -> list[str]:
    """Return the prompts of a text file, one on each line; empty lines do not count."""
    prompts = [line for line in read_text(path).splitlines() if line.strip()]
    if not prompts:
        raise InputError(f"{path}: it holds no text; give one prompt a line")
    return prompts


def batches_by_length(
    tokenizer: Any, prompts: Sequence[str], size: int, context: int
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Yield (positions in ``prompts``, input_ids, attention_mask), prompts of one length together and unpadded.

    Padding changes the last bits of a state, and with them a close choice between two experts: without it a result does
    not depend on ``size``.
    """
    by_length: dict[int, list[tuple[int, list[int]]]] = {}
    for position, prompt in enumerate(prompts):
        ids = list(tokenizer(prompt, truncation=True, max_length=context)["input_ids"])
        if ids:
            by_length.setdefault(len(ids), []).append((position, ids))
    for _, rows in sorted(by_length.items()):
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            input_ids = torch.tensor([ids for _, ids in part])
            yield [position for position, _ in part], input_ids, torch.ones_like(input_ids)


def batches(tokenizer: Any, prompts: list[str], size: int, context: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (input_ids, attention_mask) of a few prompts at a time, cut at ``context`` tokens."""
    for start in range(0, len(prompts), size):
        part = tokenizer(
            prompts[start : start + size], return_tensors="pt", padding=True, truncation=True, max_length=context
        )
        yield torch.as_tensor(part["input_ids"]), torch.as_tensor(part["attention_mask"])
