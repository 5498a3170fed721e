"""Text to token ids: bytes, a BPE trained on the run's text, or any fast Hugging Face tokenizer."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from loopscale.core.errors import InputError, shown
from loopscale.train.data.hub import hub_answers

END = "<|endoftext|>"
CHAT = (
    "{% for message in messages %}{{ message['role'] | capitalize }}: {{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
"""How a conversation is written for a tokenizer of ours: names and colons, because it has no token for roles."""
BYTES = 256
TRAINING_BYTES = 1 << 28
"""A BPE is trained on the first 256 MiB of the training documents: more changes its merges little and takes memory."""
_NEVER = b"\xff"  # a byte that no UTF-8 text holds
_TRAIN = re.compile(r"train:([0-9]{1,7})")
_USUAL_ENDS = (END, "</s>", "<eos>", "<|end_of_text|>", "[SEP]")

Ids = NDArray[np.unsignedinteger[Any]]


class Tokens(Protocol):
    """What turns documents into ids."""

    vocabulary: int
    end: int
    """The id that ends a document; text never encodes to it."""
    tokenizer: Any
    """The same as a Hugging Face tokenizer."""

    def encode(self, texts: list[str]) -> Ids:
        """Return the ids of documents one after the other, each with the end token."""
        ...


class ByteTokens:
    """Every byte is a token and its value is the id. numpy encodes it, far faster than the tokenizer would."""

    vocabulary = BYTES + 1
    end = BYTES

    def __init__(self) -> None:
        self.tokenizer = _byte_tokenizer()

    def encode(self, texts: list[str]) -> Ids:
        """Return the bytes of documents one after the other, each with the end token."""
        joined = b"".join(text.encode() + _NEVER for text in texts)
        ids = np.frombuffer(joined, np.uint8).astype(np.uint16)
        ids[ids == _NEVER[0]] = self.end
        return ids


class FastTokens:
    """A fast Hugging Face tokenizer."""

    def __init__(self, tokenizer: Any, end: int) -> None:
        from tokenizers import Tokenizer

        self.tokenizer, self.end = tokenizer, end
        self.vocabulary = len(tokenizer)
        # A copy: the saved tokenizer should keep knowing special tokens, while text that spells one stays text.
        self._backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._backend.encode_special_tokens = True
        self._backend.no_truncation()
        self._backend.no_padding()
        self._dtype = id_type(self.vocabulary)

    def encode(self, texts: list[str]) -> Ids:
        """Return the ids of documents one after the other, each with the end token; the library uses every core."""
        encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        return np.concatenate([np.array([*encoding.ids, self.end], self._dtype) for encoding in encodings])


def id_type(vocabulary: int) -> np.dtype[Any]:
    """Return the smallest of the two types that holds every id."""
    return np.dtype("<u2" if vocabulary <= 1 << 16 else "<u4")


def check_name(name: str) -> None:
    """Refuse a vocabulary that no BPE over bytes can have."""
    wanted = _wanted(name)
    if wanted is not None and not BYTES < wanted <= 1 << 20:
        raise InputError(f"tokenizer {shown(name)}: a vocabulary should be from {BYTES + 1} to {1 << 20}")
    if wanted is None and name.startswith("train"):
        raise InputError(f"tokenizer {shown(name)}: write the vocabulary like train:1024")


def vocabulary_of(name: str) -> int:
    """Return the vocabulary of a tokenizer by its name, without text; a trained BPE may get less than it asks for."""
    check_name(name)
    wanted = BYTES + 1 if name == "bytes" else _wanted(name)
    return len(load_fast(name)) if wanted is None else wanted


def find_tokens(name: str, training: Iterable[str]) -> Tokens:
    """Return the tokenizer of a ``name``; ``training`` is read only to train a BPE."""
    check_name(name)
    if name == "bytes":
        return ByteTokens()
    wanted = _wanted(name)
    if wanted is not None:
        return FastTokens(trained := train_bpe(training, wanted), trained.eos_token_id)
    loaded = load_fast(name)
    return FastTokens(loaded, _end_of(loaded, name))


def train_bpe(texts: Iterable[str], vocabulary: int) -> Any:
    """Return a byte-level BPE tokenizer trained on texts; little text gives fewer tokens than asked for."""
    from tokenizers import trainers
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    tokenizer = _byte_level(BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END], initial_alphabet=sorted(ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(_up_to(texts, TRAINING_BYTES), trainer)
    return _wrapped(tokenizer)


def load_fast(name: str) -> Any:
    """Return a Hugging Face tokenizer from a folder, a ``tokenizer.json`` or the hub; third-party code is never run."""
    from transformers import PreTrainedTokenizerFast

    try:
        if name.endswith(".json"):
            return PreTrainedTokenizerFast(tokenizer_file=name)  # type: ignore[no-untyped-call]
        loaded = _from_folder_or_hub(name)
    except Exception:  # Transformers, the hub and the tokenizers library raise many kinds here
        raise InputError(_not_found(name)) from None
    if not getattr(loaded, "is_fast", False):
        raise InputError(
            f"tokenizer {shown(name)}: it has no fast version, which is needed here; save it with tokenizer.json"
        )
    return loaded


def _from_folder_or_hub(name: str) -> Any:
    """Look on this machine first, where an earlier download may be."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(name, local_files_only=True, trust_remote_code=False)
    except Exception:
        if Path(name).exists() or not hub_answers():
            raise
    return AutoTokenizer.from_pretrained(name, trust_remote_code=False)


def _not_found(name: str) -> str:
    if Path(name).exists():
        return f"tokenizer {shown(name)}: there is no tokenizer in it that Transformers can load; save one there"
    return (
        f"tokenizer {shown(name)}: no such folder, and the hub does not have it or cannot be reached; give the folder "
        "of a tokenizer that save_pretrained wrote, or 'bytes' or 'train:1024', which need no download"
    )


def _end_of(tokenizer: Any, name: str) -> int:
    if tokenizer.eos_token_id is not None:
        return int(tokenizer.eos_token_id)
    vocabulary = tokenizer.get_vocab()
    for word in _USUAL_ENDS:
        if word in vocabulary:
            tokenizer.eos_token = word
            return int(vocabulary[word])
    raise InputError(
        f"tokenizer {shown(name)}: it names no end-of-text token (eos_token), which documents end with; set one"
    )


def _wanted(name: str) -> int | None:
    match = _TRAIN.fullmatch(name)
    return int(match[1]) if match else None


def _up_to(texts: Iterable[str], limit: int) -> Iterator[str]:
    done = 0
    for text in texts:
        yield text
        done += len(text)
        if done >= limit:
            return


def _byte_tokenizer() -> Any:
    from tokenizers.models import BPE
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters: dict[int, str] = bytes_to_unicode()  # type: ignore[no-untyped-call]
    vocabulary = {letter: value for value, letter in letters.items()}
    return _wrapped(_byte_level(BPE(vocab=vocabulary, merges=[])))


def _byte_level(model: Any) -> Any:
    from tokenizers import Tokenizer, decoders
    from tokenizers.pre_tokenizers import ByteLevel

    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _wrapped(tokenizer: Any) -> Any:
    """Return the Hugging Face form. It names no padding token, as the model would never train its embedding."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, chat_template=CHAT)  # type: ignore[no-untyped-call]
