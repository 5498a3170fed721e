"""A file as a client sent it: bytes that have to be the text of a CSV file."""

from __future__ import annotations

from loopscale.app.problems import RefusalError
from loopscale.errors import InputError

ARCHIVES = {
    b"\x1f\x8b": "a gzip archive",
    b"PK\x03\x04": "a zip archive or a spreadsheet",
    b"BZh": "a bzip2 archive",
    b"\xfd7zXZ": "an xz archive",
    b"\x28\xb5\x2f\xfd": "a zstd archive",
    b"7z\xbc\xaf": "a 7z archive",
    b"PAR1": "a Parquet file",
    b"%PDF": "a PDF",
}


def csv_text(content: bytes, name: str, content_type: str) -> str:
    """Return the text of an uploaded CSV file, or say what was sent instead."""
    if content_type.startswith("multipart/"):
        raise RefusalError(415, "send the CSV itself as the body of the request, not as a form")
    for start, kind in ARCHIVES.items():
        if content.startswith(start):
            raise RefusalError(415, f"{name}: this is {kind}; send it unpacked, as CSV text")
    if not content.strip():
        raise InputError(f"{name}: the file is empty; its first line should name the columns")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: byte {error.start + 1} is not UTF-8 text; save the file as UTF-8") from None
    if "\0" in text:
        raise InputError(f"{name}: it holds NUL bytes; it should be CSV text")
    return text
