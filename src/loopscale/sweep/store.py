"""The store: runs that workers claim, one worker each, and the observations that come of them, each once."""

from __future__ import annotations

import json
import sqlite3
import time
import uuid
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopscale.sweep.database import connect, transaction
from loopscale.sweep.owners import Owner

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
