"""The SQLite file of a sweep: opening, the tables, and every database error as one sentence."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from loopscale.core.errors import InputError, StorageError, reason

FILE = "sweep.sqlite"
SCHEMA = 2
_APPLICATION = 0x4C535750
_TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE runs (
    key TEXT PRIMARY KEY,
    position INTEGER NOT NULL,
    wanted INTEGER NOT NULL,
    config TEXT NOT NULL,
    points TEXT NOT NULL,
    cost REAL NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('waiting', 'running', 'done', 'failed')),
    error TEXT,
    claim_id TEXT,
    machine TEXT, pid INTEGER, started_at TEXT,
    steps_done INTEGER NOT NULL DEFAULT 0,
    steps INTEGER NOT NULL,
    seconds REAL NOT NULL DEFAULT 0,
    crashes INTEGER NOT NULL DEFAULT 0,
    heartbeat INTEGER NOT NULL DEFAULT 0,
    gpus INTEGER NOT NULL DEFAULT 1,
    nodes INTEGER NOT NULL DEFAULT 1,
    cell TEXT NOT NULL DEFAULT '{}'
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
_SIGHTINGS = """
CREATE TABLE sightings (
    run TEXT NOT NULL,
    observer TEXT NOT NULL,
    claim_id TEXT NOT NULL,
    heartbeat INTEGER NOT NULL,
    seen REAL NOT NULL,
    UNIQUE (run, observer)
) STRICT
"""
"""When a machine first saw the current heartbeat of a run, on that machine's own monotonic clock."""
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "lustre", "beegfs", "gpfs", "ceph", "fuse.sshfs", "9p", "afs"}
_FULL = ("full", "disk i/o error", "readonly", "unable to open")


class Database:
    """One connection. Errors of SQLite become a ``StorageError`` that names the file and what to do."""

    def __init__(self, folder: Path, *, make: bool, rebuild: bool = False) -> None:
        self.path = folder / FILE
        if not rebuild:
            refuse_lost_database(folder)
        if not make and not self.path.is_file():
            raise InputError(f"{self.path}: there is no sweep here yet; start it with `loopscale sweep run`")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(self.path, timeout=60, isolation_level=None)
        except (OSError, sqlite3.Error) as error:
            raise StorageError(f"{self.path}: cannot be opened: {reason(error)}") from None
        self._connection.row_factory = sqlite3.Row
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Return the rows of a query."""
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.DatabaseError as error:
            self._refuse(error)

    def row(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Row | None:
        """Return the first row of a query, or None."""
        rows = self.rows(statement, values)
        return rows[0] if rows else None

    def execute(self, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> int:
        """Change something; return how many rows changed."""
        try:
            return self._connection.execute(statement, values).rowcount
        except sqlite3.DatabaseError as error:
            self._refuse(error)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Apply everything in the block at once or not at all; other processes wait."""
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            # A full disk may have ended the transaction already.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self.execute("COMMIT")

    def _refuse(self, error: sqlite3.DatabaseError) -> NoReturn:
        if isinstance(error, sqlite3.IntegrityError):
            raise error
        text = str(error)
        if any(word in text.lower() for word in _FULL):
            raise StorageError(f"{self.path}: cannot be written: {text}; free some disk space and run again") from None
        if isinstance(error, sqlite3.OperationalError) and "locked" in text:
            raise StorageError(f"{self.path}: another process has kept it locked for a minute; run again") from None
        raise StorageError(
            f"{self.path}: the database is damaged ({text}); `loopscale sweep rebuild SWEEP.toml` restores it from "
            "the results of the runs"
        ) from None

    def _number(self, pragma: str) -> int:
        row = self.row(f"PRAGMA {pragma}")
        assert row is not None
        return int(row[0])

    def _prepare(self) -> None:
        version = self._number("user_version")
        if version > SCHEMA:
            raise InputError(
                f"{self.path}: schema {version} is newer than this loopscale reads ({SCHEMA}); upgrade loopscale"
            )
        self.execute(f"PRAGMA journal_mode = {journal(self.path.parent)}")
        self.execute("PRAGMA synchronous = FULL")
        with self.transaction():
            tables = self.rows("SELECT name FROM sqlite_master")
            if not tables:
                for statement in [*_TABLES.split(";\n"), _SIGHTINGS]:
                    self.execute(statement)
                self.execute(f"PRAGMA application_id = {_APPLICATION}")
                self.execute(f"PRAGMA user_version = {SCHEMA}")
            elif self._number("application_id") != _APPLICATION:
                raise InputError(f"{self.path}: this database is not a sweep's; name another folder")
            elif self._number("user_version") < SCHEMA:
                raise InputError(
                    f"{self.path}: schema {self._number('user_version')} is older than this loopscale reads ({SCHEMA})",
                    remedy="`loopscale sweep rebuild SWEEP.toml` makes it anew from the results of the runs",
                )


def refuse_lost_database(folder: Path) -> None:
    """Refuse to start anew where runs have results but the database is missing or empty."""
    path = folder / FILE
    if path.is_file() and path.stat().st_size > 0:
        return
    summaries = sum(1 for _ in folder.glob("runs/*/D*/summary.json"))
    if summaries:
        what = "is empty" if path.is_file() else "is missing"
        raise StorageError(
            f"{path}: the database {what}, and the runs beside it hold {summaries} results; "
            "`loopscale sweep rebuild SWEEP.toml` restores it from them"
        )


def set_aside(folder: Path) -> Path | None:
    """Rename the database files of a folder, so that a new one can be made; return the new name of the main file."""
    path = folder / FILE
    number = 1
    while path.with_name(f"{FILE}.old-{number}").exists():
        number += 1
    main: Path | None = None
    for suffix in ("", "-wal", "-shm", "-journal"):
        file = path.with_name(FILE + suffix)
        if file.exists():
            moved = path.with_name(f"{FILE}.old-{number}{suffix}")
            file.rename(moved)
            main = main or moved
    return main


def journal(folder: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """Return SQLite's journal mode: write-ahead (WAL), or DELETE where the folder is on a network file system.

    WAL needs memory that all processes share, which those of several machines do not have.
    """
    if not mounts.is_file():
        return "WAL"
    nearest, kind = Path(), ""
    for line in mounts.read_text().splitlines():
        _, point, file_system, *_ = line.split()
        if folder.resolve().is_relative_to(point) and len(Path(point).parts) >= len(nearest.parts):
            nearest, kind = Path(point), file_system
    return "DELETE" if kind in _NETWORK else "WAL"
