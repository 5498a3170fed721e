"""A small file cannot fill the memory: limits are checked before anything is allocated."""

import gzip
from unittest.mock import Mock

import pytest

from loopscale.core import files
from loopscale.core.errors import InputError
from loopscale.fitting.data import readers
from loopscale.fitting.data.readers import read_columns


def test_a_parquet_file_of_equal_rows_is_counted_before_it_is_read(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "many.parquet"
    column = arrow.repeat(arrow.scalar(1.0), 20_000_000)
    parquet.write_table(arrow.table({"N": column, "D": column, "loss": column}), path, compression="zstd")
    assert path.stat().st_size < 2**20
    with pytest.raises(InputError, match="20,000,000 rows"):
        read_columns(path)


def repeated(text: str, rows: int):
    """A column of one text in every row, which is stored once."""
    arrow = pytest.importorskip("pyarrow")
    return arrow.DictionaryArray.from_arrays(arrow.array([0] * rows, arrow.int32()), arrow.array([text]))


@pytest.mark.parametrize("backend", ["pyarrow", "polars"])
def test_a_parquet_file_with_one_long_text_in_every_row_is_not_unpacked(tmp_path, monkeypatch, backend):
    arrow = pytest.importorskip("pyarrow")
    pytest.importorskip(backend)
    from pyarrow import parquet

    if backend == "polars":
        monkeypatch.setattr(readers, "_arrow_size", Mock(side_effect=ImportError))
    path = tmp_path / "text.parquet"
    parquet.write_table(arrow.table({"note": repeated("x" * 100_000, 20_000)}), path)  # 2 GB
    assert path.stat().st_size < 2**20
    with pytest.raises(InputError, match="unpack to more"):
        read_columns(path)


def test_texts_in_lists_and_cells_of_wide_tables_are_counted(tmp_path, monkeypatch):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    monkeypatch.setattr(readers, "TEXT_BYTES", 2**20)
    monkeypatch.setattr(files, "TABLE_CELLS", 1000)
    path = tmp_path / "nested.parquet"
    parquet.write_table(arrow.table({"note": [["x" * 10_000] * 900]}), path)
    with pytest.raises(InputError, match="unpack to more"):
        read_columns(path)
    for table in (arrow.table({f"c{k}": [1.0] * 11 for k in range(100)}), arrow.table({"c": [[1.0] * 1001]})):
        parquet.write_table(table, path)
        with pytest.raises(InputError, match="1,000 cells"):
            read_columns(path)
    for name, text in (("wide.csv", "a,b\r" * 600), ("wide.jsonl", '{"a": 1, "b": 2}\n' * 600)):
        (tmp_path / name).write_text(text)
        with pytest.raises(InputError, match="1,000 cells"):
            read_columns(tmp_path / name)


def test_a_long_text_in_every_row_is_trained_on_row_by_row(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    pytest.importorskip("torch")
    from pyarrow import parquet

    from loopscale.train.data.documents import read_documents

    path = tmp_path / "text.parquet"
    parquet.write_table(arrow.table({"text": repeated("x" * 4_000_000, 5_000)}), path)  # 20 GB
    documents = read_documents(path, "text")
    assert [len(next(documents)) for _ in range(3)] == [4_000_000] * 3


def test_a_line_without_an_end_is_refused(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from loopscale.train.data import documents

    monkeypatch.setattr(documents, "ROW_BYTES", 2**16)
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "a"}\n' + b" " * 2**24))
    with pytest.raises(InputError, match="row 2 has more than the 65,536 bytes"):
        list(documents.read_documents(path, "text"))


def test_a_zip_or_zstd_file_is_not_unpacked(tmp_path):
    for start in (b"PK\x03\x04", b"\x28\xb5\x2f\xfd"):
        path = tmp_path / "runs.csv"
        path.write_bytes(start + bytes(range(256)))
        with pytest.raises(InputError, match=r"runs\.csv"):
            read_columns(path)


def test_a_gzip_bomb_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "TEXT_BYTES", 2**24)
    path = tmp_path / "bomb.csv.gz"
    path.write_bytes(gzip.compress(b"1,2,3\n" * 2**23))
    with pytest.raises(InputError, match="unpacks to more"):
        files.gunzip(path.read_bytes(), str(path), 2**24)


def test_gzip_of_several_members_is_read_and_damage_is_found(tmp_path):
    content = gzip.compress(b"N,D\n1,2\n") + gzip.compress(b"3,4\n")
    assert files.gunzip(content, "x") == b"N,D\n1,2\n3,4\n"
    with pytest.raises(EOFError):
        files.gunzip(content[:-9], "x")
    path = tmp_path / "x.csv.gz"
    path.write_bytes(b"not gzip")
    with pytest.raises(InputError, match="cannot be read"):
        read_columns(path)
