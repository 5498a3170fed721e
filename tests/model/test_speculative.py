"""Self-speculative decoding: the tokens of plain greedy decoding, from fewer passes one at a time."""

from __future__ import annotations

import pytest
import torch
from looped_models import model, tokens

from loopscale.core.errors import InputError

FULL = {"return_dict_in_generate": True}


@pytest.mark.parametrize("draft", [1, 2, 3])
@pytest.mark.parametrize("options", [{}, {"injection": "concat", "balance": "pass"}, {"num_experts": 1}])
def test_drafts_of_any_length_give_the_tokens_of_plain_decoding(draft: int, options: dict[str, object]) -> None:
    made = model(recurrence=4, **options)
    expected = made.generate(tokens(1, 9), max_new_tokens=20, do_sample=False)
    for length, margin in ((1, 0.0), (3, 0.0), (8, 0.0), (8, 0.2), (8, float("inf"))):
        found = made.generate(
            tokens(1, 9), max_new_tokens=20, draft_recurrence=draft, draft_tokens=length, draft_margin=margin
        )
        assert torch.equal(found, expected)


def test_every_attention_implementation_gives_the_same_tokens() -> None:
    made = model(recurrence=4)
    expected = made.generate(tokens(1, 9), max_new_tokens=20, do_sample=False)
    made.set_attn_implementation("eager")
    assert torch.equal(made.generate(tokens(1, 9), max_new_tokens=20, draft_recurrence=2), expected)


def test_each_verification_gives_the_confirmed_tokens_and_one_more() -> None:
    out = model(recurrence=4).generate(
        tokens(1, 9), max_new_tokens=20, draft_recurrence=3, draft_tokens=4, draft_margin=0.0, **FULL
    )
    assert (out.accepted <= out.drafted).all()
    assert out.drafted.max() == 4
    assert 1 + (out.accepted + 1).sum() == 20  # the prompt gives the first token
    assert len(out.accepted) < 19  # some drafts were confirmed: fewer verifications than tokens


def test_a_draft_ends_before_a_token_that_leads_by_less_than_the_margin() -> None:
    made = model(recurrence=4)
    drafted = [
        made.generate(tokens(1, 9), max_new_tokens=20, draft_recurrence=1, draft_margin=margin, **FULL).drafted.sum()
        for margin in (0.0, 0.3, float("inf"))
    ]
    assert drafted[0] > drafted[1] > drafted[2] == 0


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
        ({"draft_recurrence": 1, "draft_margin": -1.0}, "draft_margin is -1.0; it should be 0 or more"),
        ({"draft_recurrence": 1, "draft_margin": float("nan")}, "draft_margin is nan"),
        ({"draft_recurrence": 1, "repetition_penalty": 1.3}, "RepetitionPenaltyLogitsProcessor would change"),
        ({"draft_recurrence": 1, "stopping_criteria": []}, "does not take the argument 'stopping_criteria'"),
    ],
)
def test_what_speculation_cannot_do_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        model(recurrence=4).generate(tokens(1, 5), max_new_tokens=4, **arguments)
    with pytest.raises(InputError, match="one sequence without padding"):
        model(recurrence=4).generate(tokens(2, 5), max_new_tokens=4, draft_recurrence=1)
    with pytest.raises(InputError, match="kept_passes and kept_window should be None"):
        model(recurrence=4, kept_passes=1).generate(tokens(1, 5), max_new_tokens=4, draft_recurrence=1)
