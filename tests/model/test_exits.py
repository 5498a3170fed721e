"""Early exit: it stops when the criterion says so, reports it, and at threshold zero changes nothing."""

from __future__ import annotations

import pytest
import torch
from looped_models import model, same, tokens

from loopscale.cli.params import EXITS
from loopscale.core.errors import InputError
from loopscale.model import Exit
from loopscale.model.exit import CRITERIA

CHANGES = CRITERIA[:-1]
"""Criteria that compare two passes."""
GREEDY = {"max_new_tokens": 8, "do_sample": False, "return_dict_in_generate": True}


@pytest.mark.parametrize("criterion", CHANGES)
def test_a_threshold_of_zero_equals_full_recurrence_exactly(criterion: str) -> None:
    made = model(recurrence=4)
    full = made(tokens(2, 9))
    out = made(tokens(2, 9), recurrence="auto", exit=Exit(criterion, 0.0))
    same(out.logits, full.logits)
    assert (out.passes == 4).all()
    found = made.generate(tokens(2, 9), recurrence="auto", exit=Exit(criterion, 0.0), output_logits=True, **GREEDY)
    expected = made.generate(tokens(2, 9), output_logits=True, **GREEDY)
    assert torch.equal(found.sequences, expected.sequences)
    for ours, theirs in zip(found.logits, expected.logits, strict=True):
        same(ours, theirs)
    assert found.passes.shape == (2, 8)
    assert (found.passes == 4).all()


@pytest.mark.parametrize("criterion", CHANGES)
def test_a_loose_threshold_stops_as_soon_as_two_passes_can_be_compared(criterion: str) -> None:
    made = model(recurrence=6)
    found = made.generate(tokens(2, 9), recurrence="auto", exit=Exit(criterion, 1e9), **GREEDY)
    assert (found.passes == 2).all()
    later = made.generate(tokens(2, 9), recurrence="auto", exit=Exit(criterion, 1e9, least=5), **GREEDY)
    assert (later.passes == 5).all()
    calm = made.generate(tokens(2, 9), recurrence="auto", exit=Exit(criterion, 1e9, patience=3), **GREEDY)
    assert (calm.passes == 4).all()


def test_what_leaves_at_a_pass_is_what_that_recurrence_gives() -> None:
    made = model(recurrence=6)
    out = made(tokens(3, 1), recurrence="auto", exit=Exit("state", 1e9))
    same(out.logits, made(tokens(3, 1), recurrence=2).logits)


@pytest.mark.parametrize("criterion", ["kl", "state"])
def test_tokens_of_a_batch_leave_on_their_own_and_as_they_would_alone(criterion: str) -> None:
    made = model(recurrence=8)
    threshold = {"kl": 0.02, "state": 0.25}[criterion]
    together = made.generate(tokens(6, 5), recurrence="auto", exit=Exit(criterion, threshold), **GREEDY)
    assert together.passes.min() < together.passes.max()
    for row in range(6):
        alone = made.generate(tokens(6, 5)[row : row + 1], recurrence="auto", exit=Exit(criterion, threshold), **GREEDY)
        assert torch.equal(alone.sequences[0], together.sequences[row])
        assert torch.equal(alone.passes[0], together.passes[row])


@pytest.mark.parametrize(
    "options", [{}, {"kept_passes": 1}, {"kept_passes": 2}, {"injection": "gated", "pass_norms": True}]
)
@pytest.mark.parametrize("criterion", ["kl", "state"])
def test_rows_that_have_left_are_not_computed_and_cost_no_token(criterion: str, options: dict[str, object]) -> None:
    made = model(recurrence=8, **options)
    exit_ = Exit(criterion, {"kl": 0.02, "state": 0.25}[criterion])
    found = made.generate(tokens(6, 5), recurrence="auto", exit=exit_, **GREEDY)
    assert torch.equal(found.executed, found.passes.sum(0))  # no pass beyond those that the tokens used
    assert found.executed.sum() < 6 * found.passes.amax(0).sum()
    for row in range(6):
        alone = made.generate(tokens(6, 5)[row : row + 1], recurrence="auto", exit=exit_, **GREEDY)
        assert torch.equal(alone.sequences[0], found.sequences[row])
        assert torch.equal(alone.passes[0], found.passes[row])


def test_asking_for_every_layers_states_computes_all_rows_and_changes_no_token() -> None:
    made, exit_ = model(recurrence=8), Exit("state", 0.25)
    found = made.generate(tokens(6, 5), recurrence="auto", exit=exit_, **GREEDY)
    whole = made.generate(tokens(6, 5), recurrence="auto", exit=exit_, output_hidden_states=True, **GREEDY)
    assert torch.equal(whole.sequences, found.sequences)
    assert torch.equal(whole.passes, found.passes)
    assert (whole.executed == 6 * whole.passes.amax(0)).all()


def test_padded_rows_leave_a_batch_as_they_would_alone() -> None:
    made, exit_ = model(recurrence=8), Exit("state", 0.25)
    ids, mask = tokens(4, 6), torch.ones(4, 6, dtype=torch.long)
    for row in range(4):
        mask[row, :row] = 0
    found = made.generate(ids, attention_mask=mask, recurrence="auto", exit=exit_, **GREEDY)
    for row in range(4):
        alone = made.generate(ids[row : row + 1, row:], recurrence="auto", exit=exit_, **GREEDY)
        assert torch.equal(alone.sequences[0, 6 - row :], found.sequences[row, 6:])
        assert torch.equal(alone.passes[0], found.passes[row])


def test_the_cache_policy_is_apart_from_the_criterion() -> None:
    for kept in (None, 1, 2):
        made = model(recurrence=6, kept_passes=kept)
        found = made.generate(tokens(2, 9), recurrence="auto", exit=Exit("kl", 0.05), **GREEDY)
        cache = found.past_key_values
        assert {layer.get_seq_length() for layer in cache.layers} == {16}
        assert len(cache.layers) == made.config.num_hidden_layers


@pytest.mark.parametrize("how", [{"num_beams": 3}, {"do_sample": True}, {"do_sample": True, "num_beams": 2}])
def test_beams_and_samples_that_leave_at_a_pass_are_those_of_that_recurrence(how: dict[str, object]) -> None:
    made = model(recurrence=5)
    written = []
    for passes in ({"recurrence": 2}, {"recurrence": "auto", "exit": Exit("state", 1e9)}):
        torch.manual_seed(0)
        written.append(made.generate(tokens(3, 6), max_new_tokens=8, **({"do_sample": False} | how), **passes))
    assert torch.equal(*written)


@torch.no_grad()
def test_a_beam_with_early_exit_has_the_score_of_its_tokens_read_one_by_one() -> None:
    made, early = model(recurrence=8), {"recurrence": "auto", "exit": Exit("state", 0.25)}
    beams = {"num_beams": 3, "num_return_sequences": 3, "length_penalty": 0.0, "output_scores": True}
    found = made.generate(tokens(2, 5), **early, **GREEDY, **beams)
    for row, score in zip(found.sequences, found.sequences_scores, strict=True):
        total, used, cache, ids = torch.zeros(()), set(), None, row[None, :5]
        for token in row[5:]:
            out = made(ids, past_key_values=cache, logits_to_keep=1, **early)
            total = total + out.logits[0, -1].log_softmax(-1)[token]
            used |= set(out.passes[0].tolist())
            cache, ids = out.past_key_values, token[None, None]
        assert len(used) > 1
        assert float(total) == pytest.approx(float(score), abs=1e-5)


def test_passes_that_did_not_run_hold_the_keys_of_the_last_that_did() -> None:
    made = model(recurrence=4)
    cache = made(tokens(1, 5), recurrence="auto", exit=Exit("state", 1e9)).past_key_values
    assert torch.equal(cache.layers[3].keys, cache.layers[5].keys)
    assert torch.equal(cache.layers[3].values, cache.layers[7].values)
    assert not torch.equal(cache.layers[1].keys, cache.layers[3].keys)


def test_a_model_without_an_output_head_leaves_by_its_states() -> None:
    made, early = model(recurrence=6), {"recurrence": "auto", "exit": Exit("state", 0.25)}
    assert torch.equal(made.model(tokens(2, 5), **early).passes, made(tokens(2, 5), **early).passes)
    with pytest.raises(InputError, match="criterion 'kl' needs a model with an output head"):
        made.model(tokens(2, 5), recurrence="auto", exit=Exit("kl", 0.1))


def test_a_whole_number_bounds_the_passes_beside_a_criterion() -> None:
    made = model(recurrence=2)
    out = made(tokens(1, 5), recurrence=5, exit=Exit("kl", 0.0))
    same(out.logits, made(tokens(1, 5), recurrence=5).logits)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Exit("vibes", 0.1), "criterion is 'vibes'; it should be 'kl' or"),
        (lambda: Exit("kl", -1), "threshold is -1; it should be zero or more"),
        (lambda: Exit("kl", float("nan")), "threshold is nan"),
        (lambda: Exit("kl", 0.1, patience=0), "both should be 1 or more"),
        (lambda: model()(tokens(1, 4), recurrence="auto"), "recurrence 'auto' needs a criterion"),
        (lambda: model()(tokens(1, 4), exit="kl"), "exit is 'kl'; it should be an Exit"),
        (lambda: model().model(tokens(1, 4), exit="kl"), "exit is 'kl'; it should be an Exit"),
    ],
)
def test_bad_criteria_are_refused(make: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        make()


def test_commands_offer_the_criteria_there_are() -> None:
    assert tuple(EXITS.choices) == CRITERIA
