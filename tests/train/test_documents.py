"""Documents come from text, JSONL, Parquet, folders, globs and datasets; bad ones are refused by file, row and byte."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from token_stores import write_rows

from loopscale.core.errors import InputError
from loopscale.train.data.documents import LONG, SECTION
from loopscale.train.data.sources import DataSource

TEXTS = ["It was the best of times.", "Ünïcode, 漢字 and 🙂\r\nwith lines", "last one"]


def read(*names: str | Path, **options: object) -> list[str]:
    return list(DataSource(tuple(map(str, names)), **options).documents())  # type: ignore[arg-type]


def refused(*names: str | Path, **options: object) -> str:
    with pytest.raises(InputError) as error:
        read(*names, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_every_format_gives_the_same_documents(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", TEXTS)
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(gzip.compress(rows.read_bytes()))
    pq.write_table(pa.table({"id": [1, 2, 3], "text": TEXTS}), tmp_path / "rows.parquet", row_group_size=2)
    for place, text in enumerate(TEXTS):
        (tmp_path / f"{place}.txt").write_bytes(text.encode())
    assert read(rows) == TEXTS
    assert list(DataSource(str(rows)).documents()) == TEXTS  # type: ignore[arg-type]
    assert read(packed) == TEXTS
    assert read(tmp_path / "rows.parquet") == TEXTS
    assert read(*(tmp_path / f"{place}.txt" for place in range(3))) == TEXTS
    assert read(tmp_path / "*.txt") == TEXTS


def test_a_folder_is_read_in_order_without_hidden_empty_and_foreign_files(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    for name in ("b/two.md", "a.txt", ".git/three.txt", "picture.png"):
        (tmp_path / name).write_text(name)
    (tmp_path / "empty.txt").touch()
    assert read(tmp_path) == ["a.txt", "b/two.md"]
    assert read(tmp_path, tmp_path / "a.txt") == ["a.txt", "b/two.md"], "a file named twice is read once"


def test_a_dataset_is_streamed_by_name_config_and_split(tmp_path: Path) -> None:
    write_rows(tmp_path / "train.jsonl", TEXTS)
    write_rows(tmp_path / "test.jsonl", ["held"])
    assert list(DataSource(dataset=str(tmp_path)).documents()) == TEXTS
    assert list(DataSource(dataset=f"{tmp_path}:default:test").documents()) == ["held"]
    with pytest.raises(InputError, match=r"row 1: there is no field 'txt' \(did you mean 'text'\?\)"):
        list(DataSource(dataset=str(tmp_path), text_field="txt").documents())
    with pytest.raises(InputError, match="cannot be read after 0 rows: Bad split: dev"):
        list(DataSource(dataset=f"{tmp_path}::dev").documents())


def test_without_a_hub_a_dataset_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(InputError, match="dataset some/set: no such folder, and the hub cannot be reached"):
        list(DataSource(dataset="some/set").documents())


def test_a_long_text_is_cut_at_paragraphs_and_loses_nothing(tmp_path: Path) -> None:
    text = "\n\n".join(f"{place} " + "words é " * (place % 97) for place in range(3000))
    path = tmp_path / "long.txt"
    path.write_text(text, encoding="utf-8")
    parts = read(path)
    assert len(text) > LONG
    assert "".join(parts) == text
    assert all(part.endswith("\n\n") and SECTION <= len(part) <= 2 * SECTION for part in parts[:-1])


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=50), st.integers(1, 60))
@settings(max_examples=50)
def test_sections_add_up_whatever_the_text(tmp_path_factory: pytest.TempPathFactory, piece: str, times: int) -> None:
    text = (piece + "a") * (times * 700)
    path = tmp_path_factory.mktemp("text") / "any.txt"
    path.write_bytes(text.encode())
    assert "".join(read(path)) == (text.removeprefix("\ufeff") if text.strip() else "")


def test_blank_documents_and_nulls_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": " \\n"}\n\n{"text": null}\n{"text": "kept"}\n{"text": "lone \\ud800"}\n')
    assert read(path) == ["kept", "lone ?"]


def test_binary_and_broken_text_are_refused_at_their_byte(tmp_path: Path) -> None:
    binary, latin, cut = (tmp_path / name for name in ("a.bin", "b.txt", "c.txt"))
    binary.write_bytes(b"x" * (LONG + 5) + b"\0abc")
    assert refused(binary).endswith(f"a.bin: not text: byte {LONG + 5} is zero; give UTF-8 text, JSONL or Parquet")
    latin.write_bytes("é".encode() * (LONG // 2) + b"caf\xe9 noir")
    assert refused(latin).endswith(f"b.txt: not UTF-8 text at byte {LONG + 3} (0xe9)")
    cut.write_bytes(b"ab\xe2\x82")
    assert refused(cut).endswith("c.txt: not UTF-8 text at byte 2 (0xe2)")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"text": "a"}\n{"body": "b"}\n', "row 2: there is no field 'text'; its fields are 'body'"),
        ('{"text": "a"}\n{"text": 3}\n', "row 2: field 'text' is 3; it should be text"),
        ('{"text": "a"}\n\n{"text": \n', "row 3: not JSON: Expecting value; write one JSON object a line"),
        ("[1, 2]\n", "row 1: found [1, 2]; each row should be an object with a field 'text'"),
        ("[" * 100_000, "row 1: not JSON: nested too deeply; write one JSON object a line"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(content)
    assert refused(path) == f"{path}: {said}"


def test_bad_files_are_named(tmp_path: Path) -> None:
    empty, fake, packed, folder = (tmp_path / name for name in ("a.txt", "b.parquet", "c.txt.gz", "d"))
    empty.touch()
    fake.write_text("no parquet at all")
    packed.write_bytes(gzip.compress(b"text" * 1000)[:30])
    folder.mkdir()
    pq.write_table(pa.table({"body": TEXTS}), tmp_path / "e.parquet")
    assert (
        refused(tmp_path / "none.txt")
        == f"{tmp_path / 'none.txt'}: no such file or folder; check the name in [data] files"
    )
    assert refused(empty) == f"{empty}: the file is empty; give one with text"
    assert refused(fake).startswith(f"{fake}: not usable as Parquet: ")
    assert refused(packed).startswith(f"{packed}: not usable as gzip: ")
    assert refused(folder).startswith(f"{folder}: the folder holds no text; files that end in .txt")
    assert refused(tmp_path / "*.nothing").endswith(
        "no file matches, or all that do are empty; check the pattern in [data] files"
    )
    assert refused(tmp_path / "e.parquet").endswith("there is no field 'text'; its fields are 'body'")
    assert refused("") == "files: one of the names is empty; name a file, a folder or a glob"


def test_settings_that_contradict_are_refused() -> None:
    with pytest.raises(InputError, match="files and the dataset 'b' are both given"):
        DataSource(("a",), "b")
    with pytest.raises(InputError, match=r"validation: 1.0 is not a share from 0 to below 1"):
        DataSource(validation=1.0)


@given(st.lists(st.text(max_size=20), max_size=30), st.floats(0, 0.99), st.sampled_from(["", " ", "\n\n"]))
def test_equal_documents_are_on_the_same_side_and_the_share_only_adds(
    texts: list[str], share: float, around: str
) -> None:
    small, large = DataSource(validation=share / 2), DataSource(validation=share)
    for text in texts:
        assert large.held_out(text) == large.held_out(around + text + around)
        assert large.held_out(text) or not small.held_out(text)


def test_the_share_held_out_is_the_one_asked_for() -> None:
    source = DataSource(validation=0.1)
    held = sum(source.held_out(f"document {place}") for place in range(20_000))
    assert abs(held / 20_000 - 0.1) < 0.01
