"""Batches are a pure function of seed and step: every token is a target once in an epoch, on any number of ranks."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from token_stores import store_of, stream

from loopscale.core.errors import InputError
from loopscale.model import LoopedMoEConfig, LoopedMoEForCausalLM
from loopscale.train.config import TrainConfig
from loopscale.train.data import shards
from loopscale.train.data.batches import IGNORED, Batch, Batches, MixedBatches
from loopscale.train.data.permutation import Permutation
from loopscale.train.data.token_store import MixedStore, TokenStore

LETTERS = "abcdefghijklmnopqrstuvwxyz"
relaxed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


@given(st.integers(1, 3000), st.integers(0, 2**63), st.integers(0, 10))
def test_an_order_is_a_permutation(n: int, seed: int, epoch: int) -> None:
    order = Permutation(n, seed, epoch)(np.arange(n))
    assert sorted(order.tolist()) == list(range(n))


def test_orders_of_other_seeds_and_epochs_have_nothing_in_common() -> None:
    places = np.arange(20_000)
    orders = [Permutation(20_000, seed, epoch)(places) for seed, epoch in ((0, 0), (0, 1), (1, 0), (1, 1))]
    for place, one in enumerate(orders):
        assert abs(np.corrcoef(places, one)[0, 1]) < 0.03
        assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < 0.03
        assert all(np.mean(one == other) < 0.001 for other in orders[:place])


def test_every_order_of_four_is_about_as_likely() -> None:
    counts = Counter(tuple(Permutation(4, seed, 0)(np.arange(4)).tolist()) for seed in range(4800))
    assert len(counts) == 24
    assert min(counts.values()) > 100


def test_an_order_of_trillions_is_computed_where_it_is_asked_for() -> None:
    n = 10**13 + 7
    some = Permutation(n, 1, 2)(np.arange(n - 1000, n))
    assert len(set(some.tolist())) == 1000
    assert 0 <= some.min() <= some.max() < n


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    """Return 2,000 or so tokens in ten shards, so that windows cross shards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "SHARD_TOKENS", 211)
        letters = random.Random(0)
        texts = ["".join(letters.choices(LETTERS, k=1 + place % 20)) for place in range(170)]
        return store_of(tmp_path_factory.mktemp("store"), texts, validation=0.2)


def rows(batches: Batches, steps: int, ranks: int = 1) -> Batch:
    parts = [batches.batch(step, rank=rank, ranks=ranks) for step in range(steps) for rank in range(ranks)]
    return Batch(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("ids", "labels", "starts")))


def seen(batches: Batches, first: int, count: int) -> Counter[int]:
    """Count how often each place of the stream is a target in some sequences of the endless row."""
    found: Counter[int] = Counter()
    whole = "".join(map(chr, stream(batches.store, batches.split)))
    batch = rows(batches, -(-(first + count) // batches.size))
    for ids, labels in zip(batch.ids[first : first + count], batch.labels[first : first + count], strict=True):
        window = "".join(map(chr, ids))
        assert whole.count(window) == 1, "a window of this store is like no other"
        found.update((whole.index(window) + np.flatnonzero(labels != IGNORED)).tolist())
    return found


def wanted(store: TokenStore, split: str) -> set[int]:
    """Return the places of every token but the first of each document."""
    whole = [store.end, *stream(store, split)]
    return {place for place in range(len(whole) - 1) if whole[place] != store.end}


@given(st.integers(8, 300), st.integers(1, 9), st.integers(0, 100))
@relaxed
def test_every_token_is_a_target_once_in_each_epoch(store: TokenStore, context: int, batch: int, seed: int) -> None:
    batches = Batches(store, split="train", batch=batch, context=context, seed=seed)
    once = Counter(dict.fromkeys(wanted(store, "train"), 1))
    assert seen(batches, 0, batches.windows) == once
    assert seen(batches, batches.windows, batches.windows) == once


@given(st.integers(8, 200), st.integers(1, 9))
@relaxed
def test_an_evaluation_sees_every_token_once_in_order(store: TokenStore, context: int, batch: int) -> None:
    batches = Batches(store, split="validation", batch=batch, context=context, seed=0, shuffle=False)
    found = rows(batches, batches.steps_per_epoch)
    assert found.ids.shape == (batches.steps_per_epoch * batch, context)
    assert found.targets == len(wanted(store, "validation"))
    whole = stream(store, "validation")
    assert found.labels[found.labels != IGNORED].tolist() == [
        whole[place] for place in sorted(wanted(store, "validation"))
    ]
    again = batches.batch(batches.steps_per_epoch)
    assert np.array_equal(again.ids, batches.batch(0).ids), "the next epoch is the same"


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 200), st.integers(0, 100))
@relaxed
def test_ranks_share_the_rows_of_the_one_global_batch(
    store: TokenStore, ranks: int, share: int, step: int, seed: int
) -> None:
    batches = Batches(store, split="train", batch=ranks * share, context=16, seed=seed)
    whole = batches.batch(step)
    parts = [batches.batch(step, rank=rank, ranks=ranks) for rank in range(ranks)]
    for name in ("ids", "labels", "starts"):
        assert np.array_equal(getattr(whole, name), np.concatenate([getattr(part, name) for part in parts]))
    assert whole.targets == sum(part.targets for part in parts)


def test_a_step_hangs_on_nothing_but_seed_and_step(store: TokenStore) -> None:
    one, other = (Batches(store, split="train", batch=4, context=32, seed=7) for _ in range(2))
    forward = [one.batch(step).ids for step in range(50)]
    backward = [other.batch(step).ids for step in reversed(range(50))]
    assert all(np.array_equal(a, b) for a, b in zip(forward, reversed(backward), strict=True))
    another = Batches(store, split="train", batch=4, context=32, seed=8)
    assert not np.array_equal(another.batch(0).ids, forward[0])


def test_the_order_of_a_seed_never_changes(tmp_path: Path) -> None:
    """A run that began with an earlier version resumes exactly only as long as these numbers stay."""
    assert Permutation(1000, 3, 1)(np.arange(5)).tolist() == [724, 125, 83, 784, 540]
    store = store_of(tmp_path, [LETTERS])
    batch = Batches(store, split="train", batch=3, context=5, seed=3).batch(1)
    assert ["".join(map(chr, ids)) for ids in batch.ids] == ["wxyzĀ", "mnopq", "efghi"]


def test_documents_are_told_apart(store: TokenStore) -> None:
    batch = Batches(store, split="train", batch=6, context=40, seed=0).batch(0)
    after_end = np.zeros(batch.ids.shape, bool)
    after_end[:, 1:] = batch.ids[:, :-1] == store.end
    assert after_end.any()
    assert (batch.labels[after_end] == IGNORED).all()
    assert (batch.positions[after_end] == 0).all()
    assert (batch.positions[:, 0] == 0).all()
    steps = np.diff(batch.positions, axis=1)
    assert (steps[~after_end[:, 1:]] == 1).all()


def small_model(store: TokenStore) -> LoopedMoEForCausalLM:
    torch.manual_seed(0)
    config = LoopedMoEConfig(
        vocab_size=store.vocabulary, hidden_size=64, prelude_layers=1, loop_layers=1, coda_layers=1,
        num_attention_heads=1, num_key_value_heads=1, num_experts=1, intermediate_size=64, max_position_embeddings=64,
    )  # fmt: skip
    return LoopedMoEForCausalLM(config).eval()


def test_positions_keep_attention_within_a_document(store: TokenStore) -> None:
    model = small_model(store)
    batch = Batches(store, split="train", batch=3, context=40, seed=0).batch(0)
    ids, positions = torch.from_numpy(batch.ids), torch.from_numpy(batch.positions)
    row, last = 0, int(np.flatnonzero(batch.starts[0])[-1])
    assert last > 0
    with torch.no_grad():
        alone = model(ids[row : row + 1, last:]).logits
        packed = model(ids, position_ids=positions, use_cache=False).logits[row : row + 1, last:]
        plain = model(ids, use_cache=False).logits[row : row + 1, last:]
    assert torch.allclose(packed, alone, atol=1e-5)
    assert not torch.allclose(plain, alone, atol=1e-3)


def test_the_models_loss_is_over_the_targets(store: TokenStore) -> None:
    model = small_model(store)
    batch = Batches(store, split="train", batch=3, context=40, seed=0).batch(0)
    with torch.no_grad():
        out = model(torch.from_numpy(batch.ids), labels=torch.from_numpy(batch.labels))
    log = out.logits.log_softmax(-1)
    rows_, places = np.nonzero(batch.labels != IGNORED)
    by_hand = -sum(log[r, p - 1, batch.ids[r, p]] for r, p in zip(rows_, places, strict=True)) / batch.targets
    assert torch.allclose(out.loss, by_hand, atol=1e-5)


def test_a_small_text_is_validated_in_one_shorter_sequence(tmp_path: Path) -> None:
    store = store_of(tmp_path, ["a few words of text that somebody wrote " * 8], validation=0.01)
    held = store.tokens["validation"]
    assert 2 <= held < 64 <= store.tokens["train"]
    batches = Batches(store, split="validation", batch=2, context=64, seed=0, shuffle=False)
    batch = batches.batch(0)
    assert batch.ids.shape == (2, held)
    assert batch.ids[0].tolist() == stream(store, "validation")
    assert batch.targets == held - 1


def test_what_cannot_be_batched_is_refused(store: TokenStore, tmp_path: Path) -> None:
    short = store_of(tmp_path, ["too short"])
    with pytest.raises(
        InputError, match=r"train split has 10 tokens in 1 document, less than one sequence of 16; give"
    ):
        Batches(short, split="train", batch=1, context=16, seed=0)
    with pytest.raises(InputError, match=r"validation split has 0 tokens in 0 documents.*; raise \[data\] validation"):
        Batches(short, split="validation", batch=1, context=16, seed=0)
    with pytest.raises(InputError, match="there is no split 'test'; the splits are train, validation"):
        Batches(store, split="test", batch=1, context=16, seed=0)
    with pytest.raises(InputError, match="context 1"):
        Batches(store, split="train", batch=1, context=1, seed=0)
    with pytest.raises(InputError, match="a batch of 4 sequences cannot be shared by 3 processes"):
        Batches(store, split="train", batch=4, context=16, seed=0).batch(0, rank=0, ranks=3)


def test_a_corpus_of_exactly_one_sequence_is_enough(tmp_path: Path) -> None:
    store = store_of(tmp_path, ["exactly sixteen"])
    batch = Batches(store, split="train", batch=2, context=16, seed=0).batch(0)
    assert batch.ids.tolist() == [stream(store)] * 2
    assert batch.targets == 30


def mixture(tmp_path: Path, weights: dict[str, float]) -> MixedStore:
    texts = {name: [f"{name} document {number} with some words" for number in range(40)] for name in weights}
    parts = {name: store_of(tmp_path / name, rows) for name, rows in texts.items()}
    return MixedStore.of(parts, weights)


def test_a_mixture_has_its_exact_shares_on_any_number_of_processes(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / name).mkdir()
    mixed = mixture(tmp_path, {"a": 6, "b": 3, "c": 1})
    batches = MixedBatches(mixed, split="train", batch=100, context=8, seed=0)
    sources = np.concatenate([batches._source] * 2)
    assert [int((sources[start : start + 1000] == source).sum()) for start in (0, 700) for source in range(3)] == [
        600, 300, 100, 600, 300, 100,
    ]  # fmt: skip
    for step in (0, 13):
        whole = batches.batch(step)
        for ranks in (2, 4):
            rows = [batches.batch(step, rank=rank, ranks=ranks).ids for rank in range(ranks)]
            assert np.array_equal(np.concatenate(rows), whole.ids)


def test_a_source_of_a_mixture_is_read_in_order_without_gaps(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    batches = MixedBatches(mixture(tmp_path, {"a": 1, "b": 2}), split="train", batch=10, context=8, seed=1)
    sources, within = batches._find(np.arange(2500))
    for source in range(2):
        found = within[sources == source]
        assert np.array_equal(found, np.arange(len(found)))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"mix": {"web": 1}}, "every source needs a weight, and every weight a source"),
        ({"mix": {"web": 1}, "sources": {"web": {}}, "files": ["a"]}, "belong to its sources"),
        ({"mix": {"web": 1}, "sources": {"web": {}}, "tokenizer": "train:300"}, "does not depend on its sources"),
        ({"mix": {"web": 0}, "sources": {"web": {}}}, "above 0"),
    ],
)
def test_an_incomplete_mixture_is_one_sentence(data: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        TrainConfig.from_dict({"data": data})
