"""A small file cannot fill the memory: limits are checked before anything is allocated."""

import gzip

import pytest

from loopscale.core import files
from loopscale.core.errors import InputError
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
