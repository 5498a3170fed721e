"""Files from outside and our own: limits of what is read, JSON and TOML, and writing completely or not at all.

Limits are checked before memory is allocated.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import select
import shutil
import stat
import sys
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import IO, Any

from loopscale.core.errors import InputError, reason, shown

CHECKSUM, SEAL = "checksum", "checksums.json"
"""The field of a JSON file with the checksum of its other fields, and the file with the checksums of a folder."""
TEXT_BYTES = 512 * 2**20
"""Size of a JSON, TOML or CSV file, unpacked."""
TABLE_ROWS = 2_000_000
"""Rows of a table of observations or results. The largest public sweep has a few thousand."""
TABLE_CELLS = 20_000_000
"""Rows times columns of a table; as Python objects they take more than a gigabyte."""
SILENCE_SECONDS = 20.0
"""How long a pipe that is read may send nothing."""


def check_size(path: str | Path, most: int = TEXT_BYTES) -> None:
    """Refuse a file that is larger than ``most`` bytes; a missing file is left to the reader."""
    try:
        size = Path(path).stat().st_size
    except (OSError, ValueError):
        return
    if size > most:
        raise InputError(f"it has {size:,} bytes, more than the {most:,} that are read", where=str(path))


def check_rows(rows: int, source: str) -> None:
    """Refuse a table with more rows than are read."""
    if rows > TABLE_ROWS:
        raise InputError(f"it has {rows:,} rows, more than the {TABLE_ROWS:,} that are read", where=source)


def check_cells(cells: int, source: str) -> None:
    """Refuse a table with more cells than are read."""
    if cells > TABLE_CELLS:
        raise InputError(
            f"it has more than the {TABLE_CELLS:,} cells that are read", where=source, remedy="leave some columns out"
        )


def gunzip(content: bytes, source: str, most: int = TEXT_BYTES) -> bytes:
    """Return the unpacked content; what unpacks to more than ``most`` bytes is refused before it is all in memory."""
    unpack = zlib.decompressobj(wbits=31)
    parts, size = [], 0
    try:
        while content:
            part = unpack.decompress(content, 2**20)
            parts.append(part)
            size += len(part)
            if size > most:
                raise InputError(f"it unpacks to more than the {most:,} bytes that are read", where=source)
            content = unpack.unconsumed_tail
            if unpack.eof and unpack.unused_data:  # several members, as `cat a.gz b.gz` makes
                content, unpack = unpack.unused_data, zlib.decompressobj(wbits=31)
    except zlib.error as error:
        raise gzip.BadGzipFile(str(error)) from None
    if not unpack.eof:
        raise EOFError("the compressed file ends early")
    return b"".join(parts)


def is_file(path: str | Path) -> bool:
    """Tell whether ``path`` names a file; text that cannot be a path names none."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def read_json(path: str | Path) -> object:
    """Read a JSON file; anything that is not one gives a sentence that names the file."""
    text = read_text(path, "JSON")
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON: {error.msg} at line {error.lineno}", where=str(path)) from None
    except RecursionError:
        raise InputError("not usable: its brackets are nested too deeply", where=str(path)) from None
    except ValueError as error:  # a number of thousands of digits
        raise InputError(f"cannot be read: {error}", where=str(path)) from None
    return without_checksum(data, str(path))


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file; anything that is not one gives a sentence that names the file."""
    import tomllib  # commands that read no such file start without it

    text = read_text(path, "TOML")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise InputError("not usable: its brackets are nested too deeply", where=str(path)) from None
    except ValueError as error:
        raise InputError(f"not TOML: {error}", where=str(path)) from None


def read_bytes(path: str | Path, most: int = TEXT_BYTES) -> bytes:
    """Read a file of at most ``most`` bytes.

    A device or pipe without an end is refused by its size, a silent one after ``SILENCE_SECONDS``.
    """
    check_size(path, most)
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # opening a pipe would wait for its writer
    with os.fdopen(handle, "rb", buffering=0) as file:
        waits = not stat.S_ISREG(os.fstat(handle).st_mode)
        parts, size = list[bytes](), 0
        while size <= most:
            if waits and not select.select([file], [], [], SILENCE_SECONDS)[0]:
                raise InputError(
                    f"nothing arrived for {SILENCE_SECONDS:g} seconds", where=str(path), remedy="give a file"
                )
            part = file.read(min(2**24, most + 1 - size))
            if not part:
                return b"".join(parts)
            parts.append(part)
            size += len(part)
    raise InputError(f"it has more than the {most:,} bytes that are read", where=str(path))


def read_text(path: str | Path, kind: str = "") -> str:
    """Read a text file; a missing or unreadable one, or other bytes than UTF-8, give a sentence that names it."""
    try:
        return read_bytes(path).decode("utf-8")
    except FileNotFoundError:
        raise InputError("no such file", where=str(path)) from None
    except UnicodeDecodeError:
        raise InputError(f"{f'not {kind}: ' if kind else ''}the file is not UTF-8 text", where=str(path)) from None
    except InputError:
        raise
    except (OSError, ValueError) as error:  # a path with a zero byte is a ValueError
        raise InputError(f"cannot be read: {reason(error)}", where=str(path)) from None


def kind_of(data: object, where: str) -> str:
    """Return the kind that the content of a file of ours states."""
    if not isinstance(data, dict):
        raise InputError(f"found {shown(data)} where an object with named fields was expected", where=where)
    if "kind" not in data:
        raise InputError("field 'kind' is missing", where=where, remedy="it should be text")
    if not isinstance(data["kind"], str):
        raise InputError(f"field 'kind' is {shown(data['kind'])}", where=where, remedy="it should be text")
    return data["kind"]


def check_version(data: object, where: str, kind: str, version: int) -> dict[str, Any]:
    """Return the other fields of a file of ours, once its kind and schema version are known to be readable."""
    content = without_checksum(data, where)
    stated = kind_of(content, where)
    assert isinstance(content, dict)
    if stated != kind:
        raise InputError(f"this is a {shown(stated)} file", where=where, remedy=f"a {kind!r} file is needed here")
    schema = content.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool):
        problem = f"is {shown(schema)}" if "schema" in content else "is missing"
        raise InputError(f"field 'schema' {problem}", where=where, remedy="it should be a whole number")
    if schema > version:
        raise InputError(
            f"schema {schema} is newer than this loopscale reads ({version})", where=where, remedy="upgrade loopscale"
        )
    if schema < 1:
        raise InputError(f"schema {schema} does not exist", where=where, remedy=f"it should be from 1 to {version}")
    return {name: value for name, value in content.items() if name not in ("kind", "schema")}


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file's contents."""
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cache_folder() -> Path:
    """Return the user's cache for loopscale."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "loopscale"


def make_folder(path: str | Path) -> Path:
    """Return the folder ``path``, made where it is missing."""
    try:
        make_lasting_folder(Path(path))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be made a folder: {reason(error)}", where=str(path)) from None
    return Path(path)


def make_lasting_folder(folder: Path) -> None:
    """Make a folder and its parents where they are missing; a power cut cannot take them with all that follows."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        flush_folder(path.parent)


def flush_file(file: IO[Any]) -> None:
    """Wait until a file's content is on the disk; without it, a power cut may leave a complete name with no content."""
    file.flush()
    os.fsync(file.fileno())


def flush_folder(folder: str | Path) -> None:
    """Wait until the names in a folder are on the disk, after a file in it was made or renamed."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # a folder that may be written but not read
        return
    try:
        os.fsync(handle)
    except OSError:  # some network file systems cannot
        pass
    finally:
        os.close(handle)


def flush_tree(folder: str | Path) -> None:
    """Wait until everything in a folder is on the disk: the files, also those that a library wrote, and their names."""
    for here, _, names in os.walk(folder, topdown=False):
        for name in names:
            with Path(here, name).open("rb") as file:
                os.fsync(file.fileno())
        flush_folder(here)


def remove_folder(folder: Path) -> None:
    """Remove a folder whose name means complete: it loses the name first, so that no moment shows a part of it."""
    if not folder.exists():
        return
    removed = folder.with_name(f".{folder.name}.removed")
    shutil.rmtree(removed, ignore_errors=True)
    folder.rename(removed)
    flush_folder(folder.parent)
    shutil.rmtree(removed)


def replace_folder(complete: Path, target: Path) -> None:
    """Give a finished folder its final name, in place of what has it now; after a power cut the name means complete."""
    flush_tree(complete)
    remove_folder(target)
    complete.rename(target)
    flush_folder(target.parent)


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a file completely or not at all, also across a power cut: to a temporary name, flushed, then renamed.

    A link keeps pointing where it does: its target is written. Devices and pipes are written to, never replaced, and
    ``-`` is standard output. A file that is replaced keeps its mode and owner; a new one gets those of the process.
    """
    try:
        if str(path) == "-":
            _write_standard_output(content)
        elif _is_special(path):
            with Path(path).open("wb") as file:
                file.write(content)
        else:
            _replace_file(Path(os.path.realpath(path)), content)
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:  # a path that holds a NUL is a ValueError
        raise InputError(f"cannot be written: {reason(error)}", where=str(path)) from None


def _write_standard_output(content: bytes) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.flush()


def _is_special(path: str | Path) -> bool:
    """Tell whether a path names, perhaps by a link, something that exists and is neither a file nor a folder."""
    try:
        mode = Path(path).stat().st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _replace_file(target: Path, content: bytes) -> None:
    temporary = target.with_name(f".{target.name[:50]}.{os.urandom(4).hex()}")
    # The umask applies here; tempfile would make the file private.
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            if target.exists():
                _keep_mode(file.fileno(), target.stat())
            file.write(content)
            flush_file(file)
        temporary.replace(target)
    except BaseException:  # an interrupt too leaves nothing behind
        temporary.unlink(missing_ok=True)
        raise
    flush_folder(target.parent)


def _keep_mode(handle: int, before: os.stat_result) -> None:
    with suppress(PermissionError):  # only root may give files away
        os.fchown(handle, before.st_uid, before.st_gid)
    os.fchmod(handle, stat.S_IMODE(before.st_mode))


def write_text(path: str | Path, text: str) -> None:
    """Write a text file whole or not at all."""
    write_bytes(path, text.encode("utf-8"))


def as_json(value: Any) -> Any:
    """Return a value as JSON has it: objects by ``to_dict`` or their fields, enums by value, tuples as lists."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value):
        return fields_as_json(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {name: as_json(item) for name, item in value.items()}
    return [as_json(item) for item in value] if isinstance(value, list | tuple) else value


def fields_as_json(part: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as JSON has them."""
    return {field.name: as_json(getattr(part, field.name)) for field in fields(part)}


def finite(data: Any) -> Any:
    """Return plain values that strict JSON can hold: NaN and infinities become null."""
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    if isinstance(data, float) and not math.isfinite(data):
        return None
    return data


def write_json(path: str | Path, data: object) -> None:
    """Write ``data`` as indented JSON, completely or not at all; an object gets a checksum of its content."""
    if isinstance(data, dict):
        data = {**data, CHECKSUM: content_checksum(data)}
    write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def content_checksum(data: dict[str, Any]) -> str:
    """Return the SHA-256 of an object's fields and values; their order and layout in a file do not matter."""
    import hashlib

    content = {key: value for key, value in data.items() if key != CHECKSUM}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def without_checksum(data: object, where: str) -> object:
    """Return an object without its checksum; one whose content is not what was written is refused."""
    if not isinstance(data, dict) or CHECKSUM not in data:
        return data
    if data[CHECKSUM] != content_checksum(data):
        raise InputError(
            f"{where}: its content is not what was written (the checksum differs): the file is damaged or edited; "
            f"if you edited it, remove its field {CHECKSUM!r}"
        )
    return {key: value for key, value in data.items() if key != CHECKSUM}


def seal_folder(folder: Path) -> None:
    """Write the checksums of all files of a folder into it, so that later damage is found."""
    sums = {file.name: checksum(file) for file in sorted(folder.iterdir()) if file.is_file() and file.name != SEAL}
    write_json(folder / SEAL, {"kind": "checksums", "schema": 1, "files": sums})


def check_seal(folder: Path) -> bool:
    """Compare a folder with the checksums in it; False where it has none. A changed or missing file is refused."""
    if not (folder / SEAL).is_file():
        return False
    from loopscale.core.schemas import ChecksumsFile, parse

    for name, expected in parse(ChecksumsFile, read_json(folder / SEAL), str(folder / SEAL)).files.items():
        file = folder / name
        if Path(name).name != name or not file.is_file():
            raise InputError("the file is missing", where=str(file))
        if checksum(file) != expected:
            raise InputError(
                f"{file}: its content is not what was written: it is damaged or edited; if you edited it, remove {SEAL}"
            )
    return True
