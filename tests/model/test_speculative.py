"""Self-speculative decoding: the tokens of plain greedy decoding, from fewer passes one at a time."""

from __future__ import annotations

import pytest
import torch
from looped_models import model, tokens

from loopscale.errors import InputError


@pytest.mark.parametrize("draft", [1, 2, 3])
@pytest.mark.parametrize("options", [{}, {"injection": "concat", "balance": "pass"}, {"num_experts": 1}])
def test_drafts_of_any_length_give_the_tokens_of_plain_decoding(draft: int, options: dict[str, object]) -> None:
    made = model(recurrence=4, **options)
    expected = made.generate(tokens(1, 9), max_new_tokens=20, do_sample=False)
    for length in (1, 3, 8):
        found = made.generate(tokens(1, 9), max_new_tokens=20, draft_recurrence=draft, draft_tokens=length)
        assert torch.equal(found, expected)


def test_every_attention_implementation_gives_the_same_tokens() -> None:
    made = model(recurrence=4)
    expected = made.generate(tokens(1, 9), max_new_tokens=20, do_sample=False)
    made.set_attn_implementation("eager")
    assert torch.equal(made.generate(tokens(1, 9), max_new_tokens=20, draft_recurrence=2), expected)


def test_accepted_lengths_add_up_to_the_tokens() -> None:
    made = model(recurrence=4)
    out = made.generate(
        tokens(1, 9), max_new_tokens=20, draft_recurrence=3, draft_tokens=4, return_dict_in_generate=True
    )
    assert out.accepted.max() <= 4
    # The prompt gives the first token; a verification gives the confirmed ones and, unless all were, one more.
    assert 1 + (out.accepted + (out.accepted < 4)).clamp(max=4).sum() >= 20


def test_an_end_token_ends_the_sequence() -> None:
    made = model(recurrence=4)
    plain = made.generate(tokens(1, 9), max_new_tokens=20, do_sample=False)
    end = int(plain[0, 15])
    expected = made.generate(tokens(1, 9), max_new_tokens=20, do_sample=False, eos_token_id=end)
    found = made.generate(tokens(1, 9), max_new_tokens=20, draft_recurrence=1, eos_token_id=end)
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"draft_recurrence": 4}, "draft_recurrence is 4; it should be a whole number from 1 to 3"),
        ({"draft_recurrence": 0}, "draft_recurrence is 0"),
        ({"draft_recurrence": 1, "draft_tokens": 0}, "draft_tokens is 0"),
        ({"draft_recurrence": 1, "do_sample": True}, "decodes greedily"),
        ({"draft_recurrence": 1, "num_beams": 2}, "decodes greedily"),
    ],
)
def test_what_speculation_cannot_do_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        model(recurrence=4).generate(tokens(1, 5), max_new_tokens=4, **arguments)
    with pytest.raises(InputError, match="one sequence without padding"):
        model(recurrence=4).generate(tokens(2, 5), max_new_tokens=4, draft_recurrence=1)
    with pytest.raises(InputError, match="kept_passes and kept_window should be None"):
        model(recurrence=4, kept_passes=1).generate(tokens(1, 5), max_new_tokens=4, draft_recurrence=1)
