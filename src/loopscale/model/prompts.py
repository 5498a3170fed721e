"""Prompts of a text file, as batches of tokens."""

from __future__ import annotations

from collections.abc import Iterator
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


def batches(tokenizer: Any, prompts: list[str], size: int, context: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (input_ids, attention_mask) of a few prompts at a time, cut at ``context`` tokens."""
    for start in range(0, len(prompts), size):
        part = tokenizer(
            prompts[start : start + size], return_tensors="pt", padding=True, truncation=True, max_length=context
        )
        yield torch.as_tensor(part["input_ids"]), torch.as_tensor(part["attention_mask"])
