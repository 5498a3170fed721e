"""A small byte-level checkpoint, trained for half a minute on generated sentences of plain English."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from loopscale.model import LoopedMoEConfig, LoopedMoEForCausalLM
from loopscale.model.balancing import update_biases

CONTEXT = 128
ADJECTIVES = [
    "old",
    "young",
    "small",
    "great",
    "little",
    "good",
    "new",
    "long",
    "dark",
    "quiet",
    "red",
    "green",
    "warm",
    "cold",
    "happy",
    "strong",
]
PEOPLE = [
    "man",
    "woman",
    "child",
    "teacher",
    "doctor",
    "farmer",
    "king",
    "queen",
    "sailor",
    "soldier",
    "friend",
    "mother",
    "father",
    "brother",
    "sister",
]
ANIMALS = ["dog", "cat", "horse", "bird", "fish", "cow", "sheep", "mouse"]
THINGS = [
    "book",
    "letter",
    "table",
    "chair",
    "window",
    "door",
    "bread",
    "apple",
    "stone",
    "boat",
    "lamp",
    "basket",
    "bottle",
    "hammer",
    "ladder",
]
PLACES = [
    "river",
    "mountain",
    "garden",
    "house",
    "school",
    "market",
    "village",
    "forest",
    "bridge",
    "harbour",
    "church",
    "kitchen",
    "city",
    "castle",
]
MOVES = ["walked", "went", "came", "ran", "travelled", "returned", "moved", "hurried"]
ACTS = ["found", "carried", "bought", "wanted", "painted", "lost", "opened", "watched", "followed", "remembered"]
TIMES = [
    "in the morning",
    "in the evening",
    "at night",
    "before dinner",
    "after the storm",
    "on Sunday",
    "in winter",
    "in summer",
]
SIZES = {
    "hidden_size": 64,
    "prelude_layers": 1,
    "loop_layers": 2,
    "coda_layers": 1,
    "recurrence": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 128,
    "intermediate_size": 256,
    "max_position_embeddings": 512,
    "initializer_range": 0.08,
}


def sentence(draw: random.Random) -> str:
    """Return a sentence of one of three shapes."""
    who, other = draw.choice(PEOPLE + ANIMALS), draw.choice(PEOPLE)
    thing, place = draw.choice(THINGS), draw.choice(PLACES)
    shape = draw.randrange(3)
    if shape == 0:
        return f"The {draw.choice(ADJECTIVES)} {who} {draw.choice(MOVES)} to the {place} {draw.choice(TIMES)}."
    if shape == 1:
        return f"The {other} {draw.choice(ACTS)} the {draw.choice(ADJECTIVES)} {thing} near the {place}."
    return f"The {other} and the {who} {draw.choice(ACTS)} the {thing} {draw.choice(TIMES)}."


def text(sentences: int, seed: int) -> str:
    """Return that many sentences, one after the other."""
    draw = random.Random(seed)
    return " ".join(sentence(draw) for _ in range(sentences))


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with a token for each byte, and one for the end of text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<end>", pad_token="<end>")


def new_model(seed: int, **changes: Any) -> LoopedMoEForCausalLM:
    """Return a model with random weights."""
    torch.manual_seed(seed)
    words = byte_tokenizer()
    sizes = {**SIZES, "vocab_size": len(words), "eos_token_id": words.eos_token_id, **changes}
    return LoopedMoEForCausalLM(LoopedMoEConfig(**sizes))


def save(model: LoopedMoEForCausalLM, where: Path) -> None:
    """Write model and tokenizer into a folder; the tokenizer last."""
    model.save_pretrained(where)
    byte_tokenizer().save_pretrained(where)


def train(where: Path, steps: int = 300, batch: int = 4, rate: float = 5e-3, seed: int = 0) -> list[float]:
    """Train with AdamW and a cosine, save model and tokenizer into ``where``, return the losses."""
    model = new_model(seed)
    ids = torch.tensor(byte_tokenizer()(text(8_000, seed=1), verbose=False)["input_ids"])
    optimiser = torch.optim.AdamW(model.parameters(), rate, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, steps, pct_start=0.1, cycle_momentum=False)
    losses = []
    for _ in range(steps):
        starts = torch.randint(len(ids) - CONTEXT, (batch,))
        part = torch.stack([ids[start : start + CONTEXT] for start in starts.tolist()])
        out = model(part, labels=part)
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        schedule.step()
        update_biases(model, out.expert_counts)
        losses.append(out.loss.item())
    save(model, where)
    return losses
