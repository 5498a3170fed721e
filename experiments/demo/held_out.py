"""Text that the demo model never saw, as sequences of tokens."""

from __future__ import annotations

import torch
from transformers import PreTrainedTokenizerBase

from loopscale.train.data.sources import DataSource

CONTEXT = 128


def sequences(tokenizer: PreTrainedTokenizerBase, count: int) -> torch.Tensor:
    """Return sequences of 128 tokens, taken evenly from the documents of the built-in corpus kept for validation."""
    source = DataSource()
    texts = [text for text in source.documents() if source.held_out(text)]
    rows = torch.cat([torch.tensor(tokenizer(text)["input_ids"]) for text in texts])
    rows = rows[: len(rows) // CONTEXT * CONTEXT].view(-1, CONTEXT)
    return rows[torch.linspace(0, len(rows) - 1, count).long()]
