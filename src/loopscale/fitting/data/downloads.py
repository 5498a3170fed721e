"""Files of other people's sweeps: fetched from a folder, the cache or the network, and checked by their SHA-256."""

from __future__ import annotations

import csv
import gzip
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote

from loopscale.core.errors import InputError, shown
from loopscale.core.files import cache_folder, make_folder, read_toml, write_bytes
from loopscale.core.progress import progress_bar
from loopscale.core.tables import Table
from loopscale.fitting.data.converters import CONVERTERS, Rows, csv_rows

FOLDER_VARIABLE = "LOOPSCALE_DATA"
_PATIENCE = 60.0
_UNREADABLE = (
    AttributeError, LookupError, RecursionError, StopIteration, SyntaxError, TypeError, ValueError, csv.Error,
)  # fmt: skip
"""What a conversion raises on text of another form than the published files have."""


@dataclass(frozen=True)
class PublicFile:
    """One sweep of somebody else's: where it is published, under what terms, and which checksum it must have."""

    file: str
    """Its name in the data folder and in the cache."""
    origin: str
    """Repository and path, or what it was made from."""
    licence: str
    sha256: str
    """Of its bytes; of its rows (``rows_checksum``) if it is converted."""
    url: str | None = None
    """Where the file itself is published."""
    parts: tuple[str, ...] = ()
    """Where the files are that ``convert`` makes it from, each at a fixed commit."""
    convert: Callable[[dict[str, str]], Rows] | None = None
    """Makes the rows from the text of the parts by file name, in the order of ``parts``."""
    otherwise: str = ""
    """How to get it where there is nothing to download."""
    note: str = ""
    """Derived columns and caveats."""


def fetch(source: PublicFile) -> bytes:
    """Return the file's bytes, checked: from ``LOOPSCALE_DATA`` when that is set, or the cache, or the network."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        return _given(source, Path(folder) / source.file)
    cached = cache_folder() / source.file
    if cached.is_file():
        return _checked(source, cached.read_bytes(), str(cached))
    if source.parts:
        content = _converted(source)
        make_folder(cached.parent)
        write_bytes(cached, content)
        return content
    if source.url is None:
        raise InputError(f"{source.file}: {source.otherwise}; put it in a folder and name that in {FOLDER_VARIABLE}")
    return _download(source, source.url, cached.parent, f"sha256:{source.sha256}")


def _given(source: PublicFile, path: Path) -> bytes:
    try:
        return _checked(source, path.read_bytes(), str(path))
    except FileNotFoundError:
        remedy = f"get it from {source.url}" if source.url else source.otherwise
        remedy = remedy or f"unset {FOLDER_VARIABLE} to download and convert it from {source.origin}"
        raise InputError(f"{path}: no such file in the folder that {FOLDER_VARIABLE} names; {remedy}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def _checked(source: PublicFile, content: bytes, where: str) -> bytes:
    sha256 = rows_checksum(content) if source.convert else hashlib.sha256(content).hexdigest()
    if sha256 != source.sha256:
        raise InputError(
            f"{where}: SHA-256 is {sha256[:12]}…, but {source.file} from {source.origin} has {source.sha256[:12]}…; "
            "remove the file to download it again, or read your own file with Observations.of"
        )
    return content


def rows_checksum(content: bytes) -> str:
    """Return the SHA-256 of a table's cells, numbers to twelve digits: line ends and the last bits do not count."""
    text = content.decode("utf-8", errors="replace")
    lines = [",".join(map(_twelve_digits, line.split(","))) for line in text.splitlines()]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _twelve_digits(cell: str) -> str:
    try:
        return f"{float(cell):.12g}"
    except ValueError:
        return cell


def _converted(source: PublicFile) -> bytes:
    """Return the table that the parts convert to, once its rows are those they should be."""
    assert source.convert is not None
    texts = {}
    with TemporaryDirectory() as folder, progress_bar(f"download {source.file}", len(source.parts)) as update:
        for done, url in enumerate(source.parts, start=1):
            content = _download(source, url, Path(folder), None)
            texts[unquote(url.rsplit("/", 1)[-1])] = content.decode("utf-8", errors="replace")
            update(done, len(source.parts))
    changed = f"{source.file}: what was downloaded from {source.origin} is not what it was"
    try:
        content = Table.from_records(source.convert(texts)).csv().encode()
    except _UNREADABLE as error:
        raise InputError(f"{changed}: no rows can be read from it ({type(error).__name__}); nothing was kept") from None
    sha256 = rows_checksum(content)
    if sha256 != source.sha256:
        sums = f"SHA-256 {sha256[:12]}… and not {source.sha256[:12]}…"
        raise InputError(f"{changed}: it converts to rows with {sums}; nothing was kept")
    return content


def _download(source: PublicFile, url: str, folder: Path, checksum: str | None) -> bytes:
    """Download a file into ``folder``, where it is kept only if its checksum is right."""
    pooch = import_module("pooch")  # imports requests, which only a download should cost

    pooch.get_logger().setLevel("ERROR")
    try:
        path = pooch.retrieve(
            url, checksum, fname=source.file if checksum else None, path=folder,
            downloader=None if not url.startswith("http") else pooch.HTTPDownloader(timeout=_PATIENCE),
        )  # fmt: skip
        return Path(path).read_bytes()
    except ValueError as error:  # pooch's error for another checksum, or for an address it cannot read
        if "hash" not in str(error):
            raise _failed(source, url, error) from None
        raise InputError(
            f"{url}: SHA-256 differs from that of {source.file} from {source.origin}; the file has changed there"
        ) from None
    except OSError as error:  # errors of requests are OSErrors
        raise _failed(source, url, error) from None


def _failed(source: PublicFile, url: str, error: Exception) -> InputError:
    remedy = f"try again, or name a folder that has {source.file} in {FOLDER_VARIABLE}"
    if not source.parts:
        remedy = f"fetch it by hand into a folder and name that in {FOLDER_VARIABLE}"
    return InputError(f"{url}: download failed: {shown(str(error))}; {remedy}")


def _public_files() -> dict[str, PublicFile]:
    """Return the sweeps of public.toml by name."""
    sources = {}
    for name, entry in read_toml(Path(__file__).with_name("public.toml")).items():
        folders = entry.pop("from", {})
        parts = tuple(f"{folder}/{file}" for folder, files in folders.items() for file in files)
        sources[name] = PublicFile(**entry, parts=parts, convert=CONVERTERS.get(name))
    return sources


PUBLIC_FILES = _public_files()


def public_rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a public file by column."""
    content = fetch(PUBLIC_FILES[name])
    text = gzip.decompress(content) if PUBLIC_FILES[name].file.endswith(".gz") else content
    return csv_rows(text.decode("utf-8"))


def public_source(name: str) -> str:
    """Return where a public file is from and its licence, as the source of observations."""
    source = PUBLIC_FILES[name]
    return f"{name}: {source.origin} ({source.licence})"
