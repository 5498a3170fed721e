"""The file that a sweep lives in: SQLite, opened by many processes at once."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loopscale.errors import InputError

FILE = "sweep.sqlite"
SCHEMA = 1
_APPLICATION = 0x4C535750
_TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE runs (
    key TEXT PRIMARY KEY,
    place INTEGER NOT NULL,
    wanted INTEGER NOT NULL,
    config TEXT NOT NULL,
    points TEXT NOT NULL,
    cost REAL NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('waiting', 'running', 'done', 'failed')),
    error TEXT,
    claim TEXT,
    machine TEXT, pid INTEGER, begun TEXT,
    beat REAL,
    steps_done INTEGER NOT NULL DEFAULT 0,
    steps INTEGER NOT NULL,
    seconds REAL NOT NULL DEFAULT 0,
    deaths INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE observations (
    run TEXT NOT NULL REFERENCES runs (key),
    tokens INTEGER NOT NULL,
    loss REAL NOT NULL,
    facts TEXT NOT NULL,
    UNIQUE (run, tokens)
) STRICT;
CREATE TABLE events (time REAL NOT NULL, run TEXT NOT NULL, what TEXT NOT NULL, worker TEXT NOT NULL) STRICT;
"""
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "lustre", "beegfs", "gpfs", "ceph", "fuse.sshfs", "9p", "afs"}


def connect(folder: Path, *, make: bool) -> sqlite3.Connection:
    """Open the store of a folder, made now if asked; what is no store of ours, or a later one's, is refused."""
    path = folder / FILE
    if not make and not path.is_file():
        raise InputError(f"{path}: there is no sweep here yet; start it with `loopscale sweep run`")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=60, isolation_level=None)
        connection.row_factory = sqlite3.Row
        _prepare(connection, path)
    except (OSError, sqlite3.Error) as error:
        raise InputError(f"{path}: cannot be used as the store of a sweep: {error}") from None
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Do a few things at once, alone: all of them or none."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found > SCHEMA:
        connection.close()
        raise InputError(f"{path}: schema {found} is newer than this loopscale reads ({SCHEMA}); upgrade loopscale")
    connection.execute(f"PRAGMA journal_mode = {journal(path.parent)}")
    connection.execute("PRAGMA synchronous = FULL")
    with transaction(connection):
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (mark,) = connection.execute("PRAGMA application_id").fetchone()
        if tables and mark != _APPLICATION:
            raise InputError(f"{path}: this database is not a sweep's; name another folder")
        if not tables:
            for statement in _TABLES.split(";\n"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
            connection.execute(f"PRAGMA user_version = {SCHEMA}")


def journal(folder: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """Return how SQLite should keep its journal: ahead of the file (WAL), unless the folder is on a network.

    WAL needs memory that all processes share, which those of several machines do not have.
    """
    if not mounts.is_file():
        return "WAL"
    place, kind = Path(), ""
    for line in mounts.read_text().splitlines():
        _, point, found, *_ = line.split()
        if folder.resolve().is_relative_to(point) and len(Path(point).parts) >= len(place.parts):
            place, kind = Path(point), found
    return "DELETE" if kind in _NETWORK else "WAL"
