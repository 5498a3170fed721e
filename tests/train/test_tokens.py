"""Tokens are what the saved Hugging Face tokenizer says they are, and text never spells the end of a document."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_stores import store_of, stream
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from loopscale.core.errors import InputError
from loopscale.train.data.tokenizer import END, ByteTokens, FastTokens, find_tokens, train_bpe

TEXTS = [
    "It was the best of times, it was the worst of times.",
    "don't  stop\n\n\tthe 漢字 🙂",
    f"a {END} b",
    "the end",
]
BYTES = ByteTokens()
BPE = find_tokens("train:300", TEXTS)


@given(st.text(st.characters(codec="utf-8"), max_size=200))
def test_bytes_are_encoded_as_the_tokenizer_encodes_them(text: str) -> None:
    plain = text.replace(END, "")
    ids = BYTES.encode([plain]).tolist()
    assert ids == [*plain.encode(), 256]
    assert ids[:-1] == BYTES.tokenizer(plain)["input_ids"]
    assert BYTES.tokenizer.decode(ids, skip_special_tokens=True) == plain


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=60), min_size=1, max_size=8))
@pytest.mark.parametrize("tokens", [BYTES, BPE], ids=["bytes", "BPE"])
def test_documents_come_back_and_only_their_ends_are_end_tokens(
    tokens: ByteTokens | FastTokens, texts: list[str]
) -> None:
    ids = tokens.encode(texts)
    assert np.count_nonzero(ids == tokens.end) == len(texts)
    parts = np.split(ids, np.flatnonzero(ids == tokens.end) + 1)
    assert [tokens.tokenizer.decode(part[:-1]) for part in parts[:-1]] == texts


def test_text_that_spells_the_end_token_stays_text() -> None:
    for tokens in (BYTES, BPE):
        assert np.count_nonzero(tokens.encode([f"{END}{END}"]) == tokens.end) == 1
        assert tokens.tokenizer(END)["input_ids"] == [tokens.end], "the saved tokenizer still knows it"


def test_a_trained_bpe_has_the_vocabulary_asked_for_and_is_the_same_again() -> None:
    texts = [f"{word} {place} times {word}" for place in range(200) for word in ("seven", "several", "sever")]
    first, second = train_bpe(texts, 320), train_bpe(iter(texts), 320)
    assert len(first) == 320
    assert first.backend_tokenizer.to_str() == second.backend_tokenizer.to_str()


def test_a_bpe_learns_from_training_documents_only(tmp_path: Path) -> None:
    texts = [f"the house of number {place} is not the house of number {place + 1}" for place in range(300)]
    store = store_of(tmp_path, texts, tokenizer="train:330", validation=0.2)
    kept = [text for text in texts if _ends_in(store.tokenizer(), text, stream(store, "train"))]
    assert 200 < len(kept) < 280
    again = train_bpe(kept, 330).backend_tokenizer.to_str()
    assert store.tokenizer().backend_tokenizer.to_str() == again


def _ends_in(tokenizer: PreTrainedTokenizerFast, text: str, ids: list[int]) -> bool:
    wanted = " ".join(map(str, [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]))
    return f" {wanted} " in f" {tokenizer.eos_token_id} {' '.join(map(str, ids))} "


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    BPE.tokenizer.save_pretrained(tmp_path / "tokenizer")
    return tmp_path / "tokenizer"


def test_a_saved_tokenizer_is_used_and_saved_again(saved: Path, tmp_path: Path) -> None:
    for name in (saved, saved / "tokenizer.json"):
        store = store_of(tmp_path / name.suffix.strip("."), TEXTS, tokenizer=str(name))
        assert stream(store) == BPE.encode(TEXTS).tolist()
        assert store.tokenizer().backend_tokenizer.to_str() == BPE.tokenizer.backend_tokenizer.to_str()
        assert store.tokenizer().eos_token == END


def test_a_large_vocabulary_takes_four_bytes(tmp_path: Path) -> None:
    words = WordLevel({END: 0} | {f"w{place}": place for place in range(1, 70_000)}, unk_token="w1")
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END).save_pretrained(tmp_path / "large")
    store = store_of(tmp_path, ["w69999 w2", "w65536"], tokenizer=str(tmp_path / "large"))
    assert store.dtype.itemsize == 4
    assert stream(store) == [69_999, 2, 0, 65_536, 0]


def test_tokenizers_that_cannot_be_used_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    endless = PreTrainedTokenizerFast(tokenizer_object=train_bpe(TEXTS, 300).backend_tokenizer)
    endless.save_pretrained(tmp_path / "endless")
    json = (tmp_path / "endless" / "tokenizer.json").read_text().replace(END, "<|stop|>")
    (tmp_path / "endless" / "tokenizer.json").write_text(json)
    for name, said in (
        ("gpt2", "no such folder, and the hub does not have it or cannot be reached; give the folder"),
        ("train:256", "a vocabulary should be from 257 to 1048576"),
        ("train1024", "write the vocabulary like train:1024"),
        (str(tmp_path), "there is no tokenizer in it that Transformers can load"),
        (str(tmp_path / "endless"), "it names no end-of-text token"),
    ):
        with pytest.raises(InputError, match=said):
            find_tokens(name, [])


def test_bad_text_is_named_while_a_bpe_is_trained(tmp_path: Path) -> None:
    def texts() -> Iterator[str]:
        yield "fine"
        raise InputError("rows.jsonl: row 2: bad")

    with pytest.raises(InputError, match="row 2: bad"):
        train_bpe(texts(), 300)
