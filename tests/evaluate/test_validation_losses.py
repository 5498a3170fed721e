"""Validation loss after each pass, its curve, and early exit."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import trained

from loopscale.core.errors import InputError
from loopscale.evaluate import fit_saturation
from loopscale.evaluate.losses import cache_losses, exit_losses, pass_losses
from loopscale.evaluate.texts import Text, cut, read_text
from loopscale.model import Exit, loading

VALID = Text("valid", (trained.text(6, seed=5), trained.text(3, seed=6)))


@pytest.fixture(scope="module")
def parts(untrained: Path) -> tuple:
    return loading.load_model(untrained), loading.load_tokenizer(untrained, None)


def quietly(done: int) -> None:
    pass


@pytest.mark.parametrize("batch", [1, 4])
def test_one_forward_gives_the_loss_of_every_recurrence(parts, batch: int):
    model, words = parts
    windows = cut(VALID, words, 50)
    found = pass_losses(model, windows.batches(batch), 4, quietly)
    for each in found:
        total = tokens = 0
        for part in windows.parts:
            ids = torch.tensor([part])
            with torch.no_grad():
                total += float(model(ids, labels=ids, recurrence=each.recurrence).loss) * (len(part) - 1)
            tokens += len(part) - 1
        assert each.sums.tokens == tokens
        assert each.sums.total / tokens == pytest.approx(total / tokens, abs=1e-4)


def test_perplexity_and_bits_a_byte_follow_from_the_loss(parts):
    windows = cut(VALID, parts[1], 64)
    scores = pass_losses(parts[0], windows.batches(4), 1, quietly)[0].sums.scores(windows.tokens_per_byte)
    loss = scores["loss"].value
    assert scores["perplexity"].value == pytest.approx(math.exp(loss))
    assert scores["bits_per_byte"].value == pytest.approx(loss / math.log(2), rel=5e-3)  # bytes and one end of text
    assert scores["loss"].stderr > 0


def test_a_threshold_of_zero_is_the_full_recurrence_and_a_large_one_saves_passes(parts):
    windows = cut(VALID, parts[1], 64)
    full = pass_losses(parts[0], windows.batches(4), 4, quietly)[-1]
    never = exit_losses(parts[0], windows.batches(4), 4, Exit("kl", 0.0), quietly)
    soon = exit_losses(parts[0], windows.batches(4), 4, Exit("kl", 1e9), quietly)
    assert never.mean_passes == 4
    assert never.sums.total == pytest.approx(full.sums.total, rel=1e-5)
    assert soon.mean_passes == 2  # a change takes two passes to see


@pytest.mark.parametrize("batch", [1, 5])
def test_a_cache_of_the_last_pass_costs_what_decoding_with_it_shows(untrained: Path, batch: int):
    model, words = loading.load_model(untrained), loading.load_tokenizer(untrained, None)
    model.double()
    windows = cut(VALID, words, 24)
    whole = cache_losses(model, windows.batches(batch), 4, "passes:4", quietly)
    assert whole.cost.total == pytest.approx(0, abs=1e-5)
    shared = cache_losses(model, windows.batches(batch), 4, "passes:1", quietly)
    assert model.config.kept_passes is None  # the model is as it was
    model.config.kept_passes = 1
    total = tokens = 0
    for part in windows.parts:  # each window alone, through generate's own cache
        cache = None
        for now, following in pairwise(part):
            with torch.no_grad():
                out = model(torch.tensor([[now]]), past_key_values=cache, use_cache=True, recurrence=4)
            cache = out.past_key_values
            total -= float(torch.log_softmax(out.logits[0, -1], dim=-1)[following])
            tokens += 1
        assert len(cache.layers) == model.config.slots(4)
    assert shared.sums.tokens == tokens
    assert shared.sums.total == pytest.approx(total, rel=1e-6)
    assert abs(shared.cost.total) > 1e-4
    assert shared.cost.total == pytest.approx(shared.sums.total - whole.sums.total, rel=1e-4, abs=1e-4)


def test_the_saturating_curve_is_recovered():
    R = np.arange(1, 9)
    found = fit_saturation(R.tolist(), (3.0 - 0.4 * (1 - np.exp(-(R - 1) / 1.7))).tolist())
    assert (found.once, found.kappa1, found.kappa2) == pytest.approx((3.0, 0.4, 1.7), rel=1e-4)
    assert found.limit == pytest.approx(2.6, abs=1e-4)
    assert found.rmse < 1e-6


def test_a_loss_that_rises_again_is_fitted_up_to_its_best_and_said_so():
    found = fit_saturation([1, 2, 3, 4, 5], [3.0, 2.8, 2.75, 2.74, 2.9])
    assert found.rising_from == 5
    assert found(1) == pytest.approx(3.0, abs=0.01)
    with pytest.raises(InputError, match="rises from R = 3"):
        fit_saturation([1, 2, 3, 4], [3.0, 2.8, 2.9, 3.0])


def test_texts_come_from_files_of_several_kinds(tmp_path: Path):
    (tmp_path / "a.txt").write_text("one two")
    (tmp_path / "b.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    (tmp_path / "c.csv").write_text("body,n\none,1\ntwo,2\n")
    assert read_text(str(tmp_path / "a.txt")).documents == ("one two",)
    assert read_text(str(tmp_path / "b.jsonl")).documents == ("one", "two")
    assert read_text(str(tmp_path / "c.csv"), "body").documents == ("one", "two")
    with pytest.raises(InputError, match="no column 'text'; it has body, n"):
        read_text(str(tmp_path / "c.csv"))
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(InputError, match="holds no text"):
        read_text(str(tmp_path / "empty.txt"))
