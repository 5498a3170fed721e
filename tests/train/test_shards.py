"""A store is made once, whole or not at all, and is the same however often its making was interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from token_stores import store_of, stream, write_rows

from loopscale.core.errors import InputError, StorageError
from loopscale.core.files import read_json, write_json
from loopscale.train.data import prepare as preparing
from loopscale.train.data import shards
from loopscale.train.data.prepare import DataSource, prepare
from loopscale.train.data.token_store import TokenStore
from loopscale.train.data.tokenizer import ByteTokens

TEXTS = [f"document {place}: " + "some words " * (place % 13) for place in range(200)]
PREPARE = """
import sys
from loopscale.core.errors import LoopscaleError
from loopscale.train.data.prepare import DataSource, prepare
try:
    print(prepare(DataSource((sys.argv[1],), validation=0.1), sys.argv[2], progress=False).digest)
except LoopscaleError as error:
    sys.exit(f"one sentence: {error}")
"""

FULL = "; free some space, or name another [data] folder"


INTERRUPTED = """
import os
from loopscale.train.data.shards import SplitWriter
write, written = SplitWriter._write, 0
def interrupted(self, ids):
    global written
    write(self, ids)
    written += len(ids)
    if written >= {least}:
        os.kill(os.getpid(), {ending})
SplitWriter._write = interrupted
"""
"""Ends the process by a signal once it has written so many tokens, however fast it is."""


def start(source: Path, folder: Path, before: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", before + PREPARE, str(source), str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a source that takes long enough to be interrupted."""
    return write_rows(
        tmp_path_factory.mktemp("large") / "rows.jsonl", [f"{text} {n}" for n in range(400) for text in TEXTS]
    )


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=30), max_size=25), st.floats(0, 0.9), st.integers(3, 50))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_every_document_is_in_one_split_in_order(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, texts: list[str], share: float, room: int
) -> None:
    monkeypatch.setattr(shards, "SHARD_TOKENS", room)
    texts = [*texts, "one that trains", *texts]
    source = DataSource(validation=share)
    kept = [text for text in texts if text.strip()]
    if source.held_out("one that trains") or (share and not any(source.held_out(text) for text in kept)):
        return
    store = store_of(tmp_path_factory.mktemp("store"), texts, validation=share)
    sides = {
        "train": [text for text in kept if not source.held_out(text)],
        "validation": [text for text in kept if source.held_out(text)],
    }
    for split, wanted in sides.items():
        assert stream(store, split) == (ByteTokens().encode(wanted).tolist() if wanted else [])
        assert store.documents[split] == len(wanted)
        assert all(shard.tokens == room for shard in store.shards[split][:-1])
    assert not {text.strip() for text in sides["train"]} & {text.strip() for text in sides["validation"]}


def trained_documents(count: int, words: int) -> list[str]:
    """Return documents of which the default holds out none by itself."""
    texts = (f"document {number:03d} " + f"of plain words {number:03d} " * words for number in range(2 * count))
    return [text for text in texts if not DataSource().held_out(text)][:count]


@pytest.mark.parametrize(
    ("texts", "held"),
    [
        (trained_documents(40, words=2000), 1),
        (trained_documents(400, words=20), 21),  # as many as make a few sequences
        (trained_documents(1, words=2000), 1),
        (trained_documents(2, words=2000), 2),
    ],
    ids=["one of forty", "many short ones", "the end of one", "the end of two"],
)
def test_a_small_text_has_something_held_out_by_default(tmp_path: Path, texts: list[str], held: int) -> None:
    store = store_of(tmp_path, [*texts, *texts], validation=0.01)  # every document twice
    assert store.documents["validation"] == 2 * held
    assert 0.005 < store.tokens["validation"] / store.tokens["train"] < 0.3
    assert store.tokens["validation"] > min(2**14, 0.1 * store.tokens["train"])
    end = ByteTokens().encode([""])[-1]
    documents = {
        split: "".join(map(chr, stream(store, split))).split(chr(end))[:-1] for split in ("train", "validation")
    }
    assert not set(documents["train"]) & set(documents["validation"])
    assert len(set(documents["validation"])) == held  # equal documents are on the same side
    assert sum(map(len, documents["train"] + documents["validation"])) == 2 * sum(map(len, texts))


def test_many_small_files_hold_out_enough_to_validate_on(tmp_path: Path) -> None:
    """A hash alone would hold out about three of these documents: less than one sequence of 2,048."""
    texts = [f"note {number:03d} " + f"some words {number:03d} " * 12 for number in range(300)]
    assert 0 < sum(len(text) for text in texts if DataSource().held_out(text)) < 2048
    store = store_of(tmp_path, texts, validation=0.01)
    assert 2 * 2048 <= store.tokens["validation"] <= store.tokens["train"] / 4


def test_a_share_of_zero_holds_out_nothing(tmp_path: Path) -> None:
    assert store_of(tmp_path, TEXTS, validation=0.0).documents["validation"] == 0


def test_prepared_twice_is_prepared_once(tmp_path: Path) -> None:
    first = store_of(tmp_path, TEXTS, validation=0.1)
    written = {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")}
    second = prepare(DataSource((str(tmp_path / "rows.jsonl"),), validation=0.1), first.folder)
    assert second == first
    assert {path: path.stat().st_mtime_ns for path in first.folder.rglob("*")} == written
    first.verify()


def test_the_digest_is_of_the_tokens_and_nothing_else(tmp_path: Path) -> None:
    same = {store_of(tmp_path / name, TEXTS, validation=0.1).digest for name in ("a", "b")}
    assert len(same) == 1
    others = {
        store_of(tmp_path / "c", TEXTS[::-1], validation=0.1).digest,
        store_of(tmp_path / "d", TEXTS, validation=0.2).digest,
        store_of(tmp_path / "e", TEXTS, validation=0.1, tokenizer="train:300").digest,
    }
    assert len(same | others) == 4


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
def test_after_an_interruption_the_next_preparation_gives_the_same_tokens(
    tmp_path: Path, large: Path, ending: signal.Signals
) -> None:
    undisturbed = prepare(DataSource((str(large),), validation=0.1), tmp_path / "whole").digest
    folder, partial = tmp_path / "tokens", tmp_path / ".tokens.partial"
    for least in (1, 1 << 21):
        process = start(large, folder, INTERRUPTED.format(least=least, ending=int(ending)))
        process.communicate()
        assert process.returncode != 0, "it was to be interrupted"
        assert not folder.exists()
        assert partial.exists(), "the next preparation resumes from it"
    assert prepare(DataSource((str(large),), validation=0.1), folder).digest == undisturbed
    assert not partial.exists()


def test_processes_that_prepare_at_once_share_one_store(tmp_path: Path, large: Path) -> None:
    processes = [start(large, tmp_path / "tokens") for _ in range(3)]
    said = {process.communicate() for process in processes}
    assert len(said) == 1
    assert {(f"{TokenStore.open(tmp_path / 'tokens').digest}\n", "")} == said


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path, large: Path) -> None:
    # A limit on file sizes fails as a full disk does: in the middle of a write.
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 22, 1 << 22))\n"
    process = start(large, tmp_path / "tokens", limit)
    said = process.communicate()[1]
    assert process.returncode == 1
    assert said == f"one sentence: {tmp_path / 'tokens'}: the tokens cannot be written: File too large{FULL}\n"
    assert {path.name for path in tmp_path.iterdir()} <= {".tokens.lock"}


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a disk of its own")
def test_no_space_left_is_said_so(tmp_path: Path, large: Path) -> None:
    script = f"mount -t tmpfs -o size=4m none {tmp_path} && exec {sys.executable} - {large} {tmp_path}/tokens"
    found = subprocess.run(["unshare", "--mount", "sh", "-c", script], input=PREPARE, capture_output=True, text=True)
    if "mount" in found.stderr:
        pytest.skip("mounting is not allowed here")
    assert (
        found.stderr
        == f"one sentence: {tmp_path}/tokens: the tokens cannot be written: No space left on device{FULL}\n"
    )


def test_other_sources_and_other_files_are_left_alone(tmp_path: Path) -> None:
    store = store_of(tmp_path, TEXTS)
    rows = tmp_path / "rows.jsonl"
    with pytest.raises(InputError, match=r"tokens are of another source: validation was 0.0 and is 0.1; name another"):
        prepare(DataSource((str(rows),), validation=0.1), store.folder)
    write_rows(rows, [*TEXTS, "new"])
    with pytest.raises(InputError, match=r"the files have changed, first rows.jsonl"):
        prepare(DataSource((str(rows),), validation=0.0), store.folder)
    with pytest.raises(InputError, match="the folder holds other files"):
        prepare(DataSource((str(rows),)), tmp_path)
    with pytest.raises(InputError, match="this is a file; name a folder"):
        prepare(DataSource((str(rows),)), rows)
    with pytest.raises(StorageError, match=r"rows.jsonl/tokens: the tokens cannot be written: "):
        prepare(DataSource((str(rows),)), rows / "tokens")
    assert TokenStore.open(store.folder) == store


def test_a_trained_tokenizer_that_changed_is_another_source(tmp_path: Path) -> None:
    store = store_of(tmp_path / "first", TEXTS, tokenizer="train:300")
    own = store.folder / "tokenizer"
    store_of(tmp_path, TEXTS, tokenizer=str(own))
    (own / "tokenizer.json").write_text((own / "tokenizer.json").read_text() + "\n")
    with pytest.raises(InputError, match="tokenizer_file was"):
        prepare(DataSource((str(tmp_path / "rows.jsonl"),), tokenizer=str(own), validation=0.0), tmp_path / "tokens")


def test_data_and_tokens_can_move_together(tmp_path: Path) -> None:
    store = store_of(tmp_path / "here", TEXTS)
    (tmp_path / "here").rename(tmp_path / "there")
    source = DataSource((str(tmp_path / "there" / "rows.jsonl"),), validation=0.0)
    assert prepare(source, tmp_path / "there" / "tokens").digest == store.digest


def test_damage_is_found(tmp_path: Path) -> None:
    store = store_of(tmp_path, TEXTS)
    shard = store.folder / "train-00000.bin"
    content = bytearray(shard.read_bytes())
    content[100] ^= 1
    shard.write_bytes(content)
    with pytest.raises(InputError, match=r"train-00000.bin: damaged: its SHA-256"):
        TokenStore.open(store.folder).verify()
    shard.write_bytes(content[:-2])
    with pytest.raises(InputError, match=r"train-00000.bin: has \d+ bytes, not \d+; remove the folder"):
        TokenStore.open(store.folder)
    shard.unlink()
    with pytest.raises(InputError, match=r"train-00000.bin: cannot be read: No such file"):
        TokenStore.open(store.folder)
    with pytest.raises(InputError, match="there are no tokens here"):
        TokenStore.open(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 2}, "schema 2 is newer"),
        ({"kind": "fit"}, "this is a 'fit' file"),
        ({"end": 257}, "the end token 257 is not one of the 257 tokens"),
        ({"extra": 1}, "unknown field 'extra'"),
        ({"splits": {"train": {"documents": 1, "shards": []}}}, "field 'validation' is missing"),
    ],
)
def test_an_index_that_is_not_ours_is_refused(tmp_path: Path, change: dict[str, object], said: str) -> None:
    path = store_of(tmp_path, TEXTS).folder / "index.json"
    write_json(path, read_json(path) | change)
    with pytest.raises(InputError, match=said):
        TokenStore.open(path.parent)


def test_a_shard_outside_the_folder_is_refused(tmp_path: Path) -> None:
    path = store_of(tmp_path, TEXTS).folder / "index.json"
    write_json(path, json.loads(json.dumps(read_json(path)).replace("train-00000.bin", "../rows.jsonl")))
    with pytest.raises(InputError, match="is not a file of the folder"):
        TokenStore.open(path.parent)


def test_a_source_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no text to train on: 0 documents were found"):
        store_of(tmp_path, [" ", "\n"])
    assert not (tmp_path / "tokens").exists()


def contents(store: TokenStore) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(store.folder.glob("*.bin"))}


def test_an_interrupted_preparation_resumes_to_the_same_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tmp_path / "rows.jsonl"
    write_rows(
        rows, [f"document {number} of many, some longer than others {'x' * (number % 7)}" for number in range(90)]
    )
    source = DataSource((str(rows),), tokenizer="train:300", validation=0.2)
    monkeypatch.setattr(preparing, "GROUP", 200)
    monkeypatch.setattr(preparing, "RECORD", 3)
    monkeypatch.setattr(shards, "SHARD_TOKENS", 300)
    whole = prepare(source, tmp_path / "whole", progress=False)
    encode, calls = preparing._encode, []

    def interrupted(*arguments: object) -> object:
        calls.append(arguments)
        if len(calls) == 11:
            raise KeyboardInterrupt
        return encode(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(preparing, "_encode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare(source, tmp_path / "cut", progress=False)
    assert not (tmp_path / "cut").exists()
    before = len(calls)
    resumed = prepare(source, tmp_path / "cut", progress=False)
    assert len(calls) - before < before + 20
    assert contents(resumed) == contents(whole)
    assert resumed.digest == whole.digest
    assert sorted(path.name for path in resumed.folder.iterdir()) == sorted(
        path.name for path in whole.folder.iterdir()
    )


def test_processes_make_the_same_shards(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    write_rows(rows, [f"document {number} of many" for number in range(60)])
    source = DataSource((str(rows),), tokenizer="train:300", validation=0.2)
    one = prepare(source, tmp_path / "one", progress=False)
    two = prepare(source, tmp_path / "two", progress=False, processes=2)
    assert contents(two) == contents(one)
    assert two.digest == one.digest
