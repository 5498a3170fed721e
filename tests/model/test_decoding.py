"""Decoding with a cache equals a full forward, at every recurrence, padded, in batches, with stock caches."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from looped_models import model, same, tokens
from torch import Tensor
from transformers import DynamicCache, StaticCache

from loopscale.core.errors import InputError
from loopscale.model import Exit, LoopedMoEForCausalLM


def padded(lengths: tuple[int, ...], width: int) -> tuple[Tensor, Tensor]:
    """Return left-padded prompts and their mask."""
    ids, mask = tokens(len(lengths), width), torch.zeros(len(lengths), width, dtype=torch.long)
    for row, length in enumerate(lengths):
        mask[row, width - length :] = 1
    return ids * mask, mask


def step_by_step(made: LoopedMoEForCausalLM, ids: Tensor, mask: Tensor, recurrence: int, prompt: int) -> Tensor:
    """Return the logits of each position after the prompt, one token at a time through a cache."""
    cache, found = DynamicCache(), []
    position = (mask.cumsum(1) - 1).clamp(min=0)
    for start, stop in [(0, prompt), *((at, at + 1) for at in range(prompt, ids.shape[1]))]:
        out = made(
            ids[:, start:stop],
            attention_mask=mask[:, :stop],
            position_ids=position[:, start:stop],
            past_key_values=cache,
            recurrence=recurrence,
        )
        found.append(out.logits[:, -1])
    assert len(cache.layers) == made.config.slots(recurrence)
    return torch.stack(found, dim=1)


@torch.no_grad()
@pytest.mark.parametrize("recurrence", [1, 2, 3, 6])
@pytest.mark.parametrize("options", [{}, {"num_experts": 1}, {"injection": "concat"}, {"balance": "pass"}])
def test_cached_decoding_equals_a_full_forward_with_left_padding_in_batches(
    recurrence: int, options: dict[str, object]
) -> None:
    made = model(**options)
    ids, mask = padded((12, 7, 9), 12)
    cached = step_by_step(made, ids, mask, recurrence, prompt=6)
    for row, length in enumerate((12, 7, 9)):
        alone = made(ids[row : row + 1, 12 - length :], recurrence=recurrence).logits[0, -7:]
        first = max(0, 7 - length)
        same(cached[row, first:], alone[-(7 - first) :])


@torch.no_grad()
def test_generate_gives_each_prompt_of_a_batch_what_it_gets_alone() -> None:
    made = model()
    ids, mask = padded((9, 4), 9)
    together = made.generate(ids, attention_mask=mask, max_new_tokens=10, do_sample=False, recurrence=4, pad_token_id=0)
    for row, length in enumerate((9, 4)):
        alone = made.generate(ids[row : row + 1, 9 - length :], max_new_tokens=10, do_sample=False, recurrence=4)
        assert torch.equal(together[row, 9:], alone[0, length:])


def test_recurrence_is_a_dial_at_call_at_generate_and_at_loading(tmp_path: object) -> None:
    made = model()
    made.save_pretrained(tmp_path)
    for recurrence in (1, 3, 7):
        loaded = LoopedMoEForCausalLM.from_pretrained(tmp_path, recurrence=recurrence).eval()
        same(loaded(tokens(2, 9)).logits, made(tokens(2, 9), recurrence=recurrence).logits)
        ours = made.generate(tokens(1, 9), max_new_tokens=8, do_sample=False, recurrence=recurrence)
        assert torch.equal(ours, loaded.generate(tokens(1, 9), max_new_tokens=8, do_sample=False))
    assert made.config.recurrence == 3


@pytest.mark.parametrize("options", [{"cache_implementation": "static"}, {"num_beams": 3}, {"use_cache": False}])
def test_generate_works_with_static_caches_beams_and_no_cache(options: dict[str, object]) -> None:
    made = model()
    expected = made.generate(tokens(1, 9), max_new_tokens=8, do_sample=False, recurrence=4)
    found = made.generate(tokens(1, 9), max_new_tokens=8, do_sample=False, recurrence=4, **options)
    assert found.shape == expected.shape
    if "num_beams" not in options:
        assert torch.equal(found, expected)


@torch.no_grad()
@pytest.mark.parametrize("kept", [1, 2, 3, 9])
def test_fewer_kept_passes_hold_the_memory_that_architecture_counts(kept: int) -> None:
    made = model(kept_passes=kept, recurrence=5)
    cache = DynamicCache()
    for part in (tokens(2, 9)[:, :6], tokens(2, 9)[:, 6:7], tokens(2, 9)[:, 7:]):
        made(part, past_key_values=cache)
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert held == made.config.to_architecture().kv_bytes(5, context=9, batch=2, bits=64, kept_passes=kept)
    assert {layer.get_seq_length() for layer in cache.layers} == {9}


@torch.no_grad()
def test_a_ring_as_long_as_the_recurrence_is_exact_and_a_prompt_always_is() -> None:
    full = model(recurrence=4)
    for kept in (1, 2, 4, 6):
        ring = model(recurrence=4, kept_passes=kept)
        same(ring(tokens(2, 9)).logits, full(tokens(2, 9)).logits)
        equal = torch.equal(*(each.generate(tokens(1, 9), max_new_tokens=12, do_sample=False) for each in (ring, full)))
        assert equal or kept < 4


@torch.no_grad()
def test_sharing_the_last_pass_keeps_the_keys_of_the_last_pass() -> None:
    full, shared = model(recurrence=3), model(recurrence=3, kept_passes=1)
    caches = DynamicCache(), DynamicCache()
    full(tokens(1, 9), past_key_values=caches[0]), shared(tokens(1, 9), past_key_values=caches[1])
    same(caches[1].layers[1].keys, caches[0].layers[1 + 2 * 2].keys)


@torch.no_grad()
def test_a_cache_from_another_recurrence_is_refused() -> None:
    made = model()
    for first, second in ((3, 2), (2, 3)):
        cache = made(tokens(1, 6), recurrence=first).past_key_values
        with pytest.raises(InputError, match="continue with the recurrence that filled it"):
            made(tokens(1, 1), past_key_values=cache, recurrence=second)


@torch.no_grad()
def test_a_static_cache_says_that_it_cannot_be_rewritten() -> None:
    made = model(kept_passes=1)
    with pytest.raises(InputError, match="a static cache cannot"):
        made(tokens(1, 6), past_key_values=StaticCache(config=made.config, max_cache_len=16))
    whole = model()
    with pytest.raises(InputError, match="a static cache cannot"):
        whole(tokens(1, 6), past_key_values=StaticCache(config=whole.config, max_cache_len=16), output_passes=True)


def test_generating_past_the_maximum_is_refused_before_any_work() -> None:
    made = model()
    with pytest.raises(InputError, match="60 tokens and 6 new ones are more than max_position_embeddings"):
        made.generate(tokens(1, 60), max_new_tokens=6)
    assert made.generate(tokens(1, 60), max_new_tokens=5, do_sample=False).shape == (1, 65)


def test_a_window_of_the_cache_keeps_later_passes_of_recent_tokens_only() -> None:
    ids = tokens(2, 12)
    whole, wide = model(), model(kept_window=12)
    same(stepwise(wide, ids), stepwise(whole, ids))
    narrow = model(kept_window=3)
    logits = stepwise(narrow, ids)
    same(logits[:, :3], stepwise(whole, ids)[:, :3])
    assert not torch.allclose(logits[:, -1], stepwise(whole, ids)[:, -1])
    cache = narrow(ids, use_cache=True).past_key_values
    lengths = [layer.get_seq_length() for layer in cache.layers]
    assert lengths == [12, 12, 12, 3, 3, 3, 3, 12]  # prelude, first pass, later passes, coda
    held = sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)
    assert narrow.config.to_architecture().kv_bytes(3, 12, batch=2, bits=8, kept_window=3) == held


def test_beyond_the_window_later_passes_attend_to_the_keys_of_the_first() -> None:
    made, ids = model(kept_window=1, prelude_layers=0, loop_layers=1, coda_layers=0, recurrence=2), tokens(1, 5)
    cache = made(ids[:, :4], use_cache=True).past_key_values
    first = cache.layers[0].keys.clone()
    second = cache.layers[1].keys.clone()
    out = made(ids[:, 4:], past_key_values=cache).logits
    # The same by hand: a cache whose second pass holds the first pass's keys for all positions but the last.
    by_hand = model(prelude_layers=0, loop_layers=1, coda_layers=0, recurrence=2)
    filled = by_hand(ids[:, :4], use_cache=True).past_key_values
    same(filled.layers[1].keys[..., -1:, :], second)
    for name in ("keys", "values"):
        getattr(filled.layers[1], name)[..., :3, :] = getattr(filled.layers[0], name)[..., :3, :]
    same(filled.layers[0].keys, first)
    same(out, by_hand(ids[:, 4:], past_key_values=filled).logits)


def stepwise(made: LoopedMoEForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    """Return the logits of decoding one token at a time."""
    cache, logits = DynamicCache(), []
    for position in range(ids.shape[1]):
        logits.append(made(ids[:, position : position + 1], past_key_values=cache, use_cache=True).logits)
    return torch.cat(logits, 1)


@pytest.mark.parametrize("exit_", [None, Exit("state", 0.5)], ids=["all passes", "early exit"])
def test_threads_that_generate_at_different_recurrences_do_not_meet(exit_: Exit | None) -> None:
    made, ids, passes = model(recurrence=4), tokens(2, 5), (1, 2, 4)
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "return_dict_in_generate": True}
    alone = {R: made.generate(ids, recurrence=R, exit=exit_, **options) for R in passes}
    step = threading.Barrier(len(passes))

    def side_by_side(input_ids: Tensor, scores: Tensor) -> Tensor:
        step.wait()  # every token of one call falls within the other calls
        return scores

    def generate(R: int) -> Any:
        return made.generate(ids, recurrence=R, exit=exit_, logits_processor=[side_by_side], **options)

    with ThreadPoolExecutor(len(passes)) as threads:
        together = dict(zip(passes, threads.map(generate, passes), strict=True))
    for R in passes:
        assert torch.equal(together[R].sequences, alone[R].sequences)
        if exit_ is not None:
            assert torch.equal(together[R].passes, alone[R].passes)
            assert torch.equal(together[R].executed, alone[R].executed)
    assert made.config.recurrence == made.model.config.recurrence == 4
    assert made.config is made.model.config
