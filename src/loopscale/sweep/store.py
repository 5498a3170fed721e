"""The store: runs that workers claim, one worker each, and the observations that come of them, each once."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import time
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from loopscale.errors import InputError

LEASE = 60.0
"""Seconds without a sign of life after which a process of another machine is taken for dead."""


@dataclass(frozen=True)
class Owner:
    """A process."""

    machine: str
    pid: int
    begun: str
    """When the process began, as its system counts: a pid alone is used again."""

    @classmethod
    def this(cls) -> Owner:
        """Return the process that runs now."""
        return cls(machine(), os.getpid(), _begun(os.getpid()) or "")

    def lives(self, silence: float) -> bool:
        """Tell whether the process is at work: by looking, on its own machine; elsewhere by how long it is silent."""
        if self.machine != machine():
            return silence < LEASE
        return _begun(self.pid) == self.begun


@cache
def machine() -> str:
    """Return a name for this machine since it was started: its processes are the ones that can be looked up."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{platform.node()}/{boot.read_text().strip()[:8] if boot.is_file() else ''}"


def _begun(pid: int) -> str | None:
    """Return when a process began, or None when there is none; one that only waits to be buried is none."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        fields = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return None if stat.parent.parent.joinpath("self").exists() else _known(pid)
    return None if fields[0] in "ZX" else fields[19]


def _known(pid: int) -> str | None:
    """Do the same on a system without /proc, which tells only that a process is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return ""


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


MOST_DEATHS = 30
"""Deaths of workers on one run, none of which got any further, after which the run is to blame."""


class ClaimLost(Exception):  # noqa: N818 - it is news, not an error
    """Another worker has taken the run over: this one must leave it alone."""


@dataclass(frozen=True)
class Claim:
    """A run in a worker's hands."""

    key: str
    mark: str
    config: dict[str, Any]
    points: dict[int, float]
    done: frozenset[int]
    """Tokens whose observation is there already."""


@dataclass(frozen=True)
class RunState:
    """A run as ``status`` shows it."""

    key: str
    state: str
    error: str | None
    points: dict[int, float]
    done: frozenset[int]
    steps_done: int
    steps: int
    seconds: float
    cost: float
    worker: str | None
    """The process that works on it now."""
    stale: bool
    """Claimed by a worker that is gone: the next one takes it over."""


def run_folder(results: Path, key: str) -> Path:
    """Return the folder of a run."""
    return results / "runs" / key


class Store:
    """One connection to a sweep's store; each process and thread has its own."""

    def __init__(self, folder: Path, *, make: bool = False) -> None:
        self.folder = folder
        self._db = connect(folder, make=make)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        self._db.close()

    def fact(self, name: str) -> str | None:
        """Return something that the sweep knows of itself."""
        row = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row["value"])

    def set_fact(self, name: str, value: str) -> None:
        """Keep something that the sweep knows of itself."""
        self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def claim(self, only: Collection[str] | None = None) -> Claim | None:
        """Take the first run that nobody works on, or whose worker is dead; None when there is none."""
        me, now = Owner.this(), time.time()
        with transaction(self._db):
            for row in self._open(only):
                if row["state"] == "running" and _lives(row, now):
                    continue
                deaths = row["deaths"] + (row["state"] == "running")
                if deaths >= MOST_DEATHS:
                    self._give_up(row["key"], deaths)
                    continue
                mark = uuid.uuid4().hex
                self._db.execute(
                    "UPDATE runs SET state = 'running', claim = ?, machine = ?, pid = ?, begun = ?, beat = ?, "
                    "deaths = ?, error = NULL WHERE key = ?",
                    (mark, me.machine, me.pid, me.begun, now, deaths, row["key"]),
                )
                self._log(row["key"], "taken over" if row["state"] == "running" else "claimed")
                return self._claimed(row, mark)
        return None

    def beat(self, claim: Claim, steps_done: int, seconds: float) -> bool:
        """Show that the run's worker lives, and how far it is; tell whether the run is still its own."""
        with transaction(self._db):
            found = self._db.execute(
                "UPDATE runs SET beat = ?, deaths = iif(? > steps_done, 0, deaths), steps_done = max(steps_done, ?), "
                "seconds = seconds + ? WHERE key = ? AND claim = ?",
                (time.time(), steps_done, steps_done, seconds, claim.key, claim.mark),
            )
        return found.rowcount == 1

    def record(self, claim: Claim, tokens: int, loss: float, facts: dict[str, Any]) -> None:
        """Add an observation."""
        with transaction(self._db):
            self._mine(claim)
            row = (claim.key, tokens, loss, json.dumps(facts))
            self._db.execute("INSERT INTO observations VALUES (?, ?, ?, ?)", row)
            self._log(claim.key, f"observed {tokens}")

    def finish(self, claim: Claim) -> None:
        """Close a run whose every point is there."""
        with transaction(self._db):
            self._mine(claim)
            lacking = set(self._points(claim.key)) - self._done(claim.key)
            # Points may have been added to the file while the run was at work.
            self._leave(claim.key, "waiting" if lacking else "done")
            self._log(claim.key, "finished")

    def release(self, claim: Claim) -> None:
        """Give a run back, to go on with later."""
        with transaction(self._db):
            self._mine(claim)
            self._leave(claim.key, "waiting")
            self._log(claim.key, "released")

    def fail(self, claim: Claim, error: str) -> None:
        """Keep what went wrong; the run waits until somebody asks for it again."""
        with transaction(self._db):
            self._mine(claim)
            self._leave(claim.key, "failed", error)
            self._log(claim.key, "failed")

    def retry_failed(self) -> int:
        """Let failed runs be claimed again; return how many."""
        with transaction(self._db):
            found = self._db.execute("UPDATE runs SET state = 'waiting', deaths = 0 WHERE wanted AND state = 'failed'")
        return found.rowcount

    def runs(self) -> list[RunState]:
        """Return the runs of the sweep, in its order."""
        now = time.time()
        rows = self._db.execute("SELECT * FROM runs WHERE wanted ORDER BY place").fetchall()
        done: dict[str, set[int]] = {}
        for row in self._db.execute("SELECT run, tokens FROM observations").fetchall():
            done.setdefault(row["run"], set()).add(row["tokens"])
        return [_state(row, frozenset(done.get(row["key"], ())), now) for row in rows]

    def claimable(self) -> list[str]:
        """Return the runs that a worker could claim now."""
        return [run.key for run in self.runs() if run.state == "waiting" or run.stale]

    def observations(self) -> Iterator[tuple[str, int, float, dict[str, Any]]]:
        """Yield run, tokens, loss and what else is known of each."""
        for row in self._db.execute("SELECT * FROM observations ORDER BY run, tokens").fetchall():
            yield row["run"], row["tokens"], row["loss"], json.loads(row["facts"])

    def events(self) -> list[tuple[float, str, str, str]]:
        """Return what happened to the runs, in order."""
        return [tuple(row) for row in self._db.execute("SELECT * FROM events ORDER BY rowid")]

    def database(self) -> sqlite3.Connection:
        """Return the connection, for what is done to the whole store at once."""
        return self._db

    def _open(self, only: Collection[str] | None) -> list[sqlite3.Row]:
        rows = self._db.execute(
            "SELECT * FROM runs WHERE wanted AND state IN ('waiting', 'running') ORDER BY place"
        ).fetchall()
        return [row for row in rows if only is None or row["key"] in only]

    def _claimed(self, row: sqlite3.Row, mark: str) -> Claim:
        key = row["key"]
        return Claim(key, mark, json.loads(row["config"]), _points(row), frozenset(self._done(key)))

    def _points(self, key: str) -> dict[int, float]:
        return _points(self._db.execute("SELECT points FROM runs WHERE key = ?", (key,)).fetchone())

    def _done(self, key: str) -> set[int]:
        return {row["tokens"] for row in self._db.execute("SELECT tokens FROM observations WHERE run = ?", (key,))}

    def _mine(self, claim: Claim) -> None:
        row = self._db.execute("SELECT claim FROM runs WHERE key = ?", (claim.key,)).fetchone()
        if row is None or row["claim"] != claim.mark:
            raise ClaimLost(claim.key)

    def _leave(self, key: str, state: str, error: str | None = None) -> None:
        self._db.execute("UPDATE runs SET state = ?, error = ?, claim = NULL WHERE key = ?", (state, error, key))

    def _give_up(self, key: str, deaths: int) -> None:
        self._leave(key, "failed", f"{deaths} workers died on it, none of which got further; is there enough memory?")
        self._log(key, "failed")

    def _log(self, key: str, what: str) -> None:
        me = Owner.this()
        self._db.execute("INSERT INTO events VALUES (?, ?, ?, ?)", (time.time(), key, what, f"{me.machine}:{me.pid}"))


def _points(row: sqlite3.Row) -> dict[int, float]:
    return {int(trained): asked for trained, asked in json.loads(row["points"]).items()}


def _state(row: sqlite3.Row, done: frozenset[int], now: float) -> RunState:
    running = row["state"] == "running"
    return RunState(
        row["key"], row["state"], row["error"], _points(row), done,
        row["steps_done"], row["steps"], row["seconds"], row["cost"],
        f"{row['machine'].partition('/')[0]}:{row['pid']}" if running else None, running and not _lives(row, now),
    )  # fmt: skip


def _lives(row: sqlite3.Row, now: float) -> bool:
    return Owner(row["machine"], row["pid"], row["begun"]).lives(now - row["beat"])


@dataclass(frozen=True)
class Progress:
    """A sweep at one moment."""

    done: int
    failed: int
    running: int
    waiting: int
    observations: int
    wanted: int
    """Observations in all."""
    share: float
    """Of the whole cost, what is behind."""
    seconds_left: float | None
    """At the speed so far, with as many workers as now; None while nothing can be said."""


def progress(runs: Sequence[RunState]) -> Progress:
    """Add the runs up."""
    by = {state: sum(run.state == state for run in runs) for state in ("done", "failed", "running", "waiting")}
    spent = sum(run.seconds for run in runs)
    total = sum(run.cost for run in runs)
    behind = sum(run.cost * share_done(run) for run in runs)
    ahead = sum(run.cost * (1 - share_done(run)) for run in runs if run.state != "failed")
    at_work = sum(run.state == "running" and not run.stale for run in runs)
    left = ahead * spent / behind / max(1, at_work) if behind and spent else None
    return Progress(
        by["done"], by["failed"], by["running"], by["waiting"],
        sum(len(run.done & set(run.points)) for run in runs), sum(len(run.points) for run in runs),
        behind / total if total else 1.0, left,
    )  # fmt: skip


def share_done(run: RunState) -> float:
    """Return the share of a run's steps that is behind."""
    return 1.0 if run.state == "done" else min(1.0, run.steps_done / run.steps)


def duration(seconds: float | None) -> str:
    """Write a time as people say it."""
    if seconds is None:
        return "–"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"
