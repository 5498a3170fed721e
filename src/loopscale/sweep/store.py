"""The store of a sweep: runs that workers claim, one worker each, and their observations, each recorded once."""

from __future__ import annotations

import json
import sqlite3
import time
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loopscale.core.errors import StorageError, shown
from loopscale.sweep.database import FILE, Database
from loopscale.sweep.owner import Owner, machine

LEASE = 60.0
"""Seconds without a new heartbeat, as this machine counts them, after which a worker of another machine is lost."""
MOST_CRASHES = 30
"""Workers that may crash on a run one after another without any progress; then the run fails."""


class ClaimLost(Exception):  # noqa: N818 - a normal event in a sweep, not an error
    """Another worker has taken the run over; this one must not touch it any more."""


@dataclass(frozen=True)
class Resources:
    """What one run needs: processes on each node, one per GPU (or CPU core), and nodes."""

    gpus: int = 1
    nodes: int = 1

    @property
    def processes(self) -> int:
        """All processes of the run."""
        return self.gpus * self.nodes


ONE = Resources()
"""One process."""


@dataclass(frozen=True)
class Claim:
    """A run that a worker holds."""

    key: str
    claim_id: str
    config: dict[str, Any]
    points: dict[int, float]
    done: frozenset[int]
    """Tokens whose observation is recorded already."""
    cell: dict[str, Any] = field(default_factory=dict)
    """The run's value on each axis of the sweep: size, experts, recurrence, seed."""


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
    """The process that works on it."""
    stale: bool
    """Its worker is lost; the next one takes the run over."""
    resources: Resources = ONE
    """Processes and nodes that the run needs."""
    crashes: int = 0


@dataclass(frozen=True)
class Assignment:
    """The instructions for a worker: plain values, which any backend can send."""

    root: str
    """The folder of the sweep's file; the paths in that file are relative to it."""
    folder: str
    session: str
    """The call of ``loopscale sweep run`` that the worker belongs to; it can ask its workers to stop."""
    keep_models: bool
    only: tuple[str, ...] | None = None
    """Runs to claim from; by default all."""
    resources: Resources = ONE
    """What the runs that this worker claims need."""
    processes: int | None = None
    """Processes on each node, where they differ from what the runs ask for."""
    seconds: float | None = None
    """Stop after this time, counted from the worker's start."""
    cores: tuple[int, ...] = ()
    """CPU cores to stay on; none: wherever the system puts it."""
    gpus: tuple[int, ...] = ()
    """GPUs to use; none: all that are visible."""
    crew: str = ""
    """A name that the workers of one run on several nodes share."""
    node: int = 0
    """The worker's number in its crew; 0 claims the runs, the others follow it."""
    objects: str | None = None
    """A folder or URL that finished points are copied to."""

    @property
    def processes_per_node(self) -> int:
        """The processes of a run on each node."""
        return self.processes or self.resources.gpus


def run_folder(results: Path, key: str) -> Path:
    """Return the folder of a run."""
    return results / "runs" / key


class Store:
    """One connection to a sweep's store; each process and thread has its own."""

    def __init__(self, folder: Path, *, make: bool = False, rebuild: bool = False) -> None:
        self.folder = folder
        self._db = Database(folder, make=make, rebuild=rebuild)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *error: object) -> None:
        self._db.close()

    def fact(self, name: str) -> str | None:
        """Return a stored value of the sweep as a whole."""
        row = self._db.row("SELECT value FROM facts WHERE name = ?", (name,))
        return None if row is None else str(row["value"])

    def set_fact(self, name: str, value: str) -> None:
        """Store a value of the sweep as a whole."""
        self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def request_stop(self, session: str) -> None:
        """Ask the workers of a session to stop at a checkpoint."""
        self.set_fact(f"stop {session}", "")

    def stop_requested(self, session: str) -> bool:
        """Tell whether the workers of a session were asked to stop."""
        return self.fact(f"stop {session}") is not None

    def transaction(self) -> AbstractContextManager[None]:
        """Apply all changes within the block at once or not at all."""
        return self._db.transaction()

    def config(self, key: str) -> dict[str, Any] | None:
        """Return the settings of a run as they are stored, or None where there is no such run."""
        row = self._db.row("SELECT config FROM runs WHERE key = ?", (key,))
        return None if row is None else parsed(row["config"])

    def observed(self, key: str) -> set[int]:
        """Return the tokens at which a run has an observation."""
        return {row["tokens"] for row in self._db.rows("SELECT tokens FROM observations WHERE run = ?", (key,))}

    def drop_all(self) -> None:
        """Take every run out of the sweep; ``put`` brings one back with its observations."""
        self._db.execute("UPDATE runs SET wanted = 0")

    def put(
        self,
        key: str,
        *,
        position: int,
        config: dict[str, Any],
        points: Mapping[int, float],
        cost: float,
        steps: int,
        resources: Resources,
        cell: dict[str, Any],
    ) -> None:
        """Add a run to the sweep, or store what its file says now; a finished run with a new point waits again."""
        values = {
            "key": key, "position": position, "config": json.dumps(config), "points": json.dumps(points), "cost": cost,
            "steps": steps, "gpus": resources.gpus, "nodes": resources.nodes, "cell": json.dumps(cell),
            "finished": self.observed(key) >= set(points),
        }  # fmt: skip
        self._db.execute(
            "INSERT INTO runs (key, position, wanted, config, points, cost, steps, gpus, nodes, cell, state) "
            "VALUES (:key, :position, 1, :config, :points, :cost, :steps, :gpus, :nodes, :cell, 'waiting') "
            "ON CONFLICT (key) DO UPDATE SET position = :position, wanted = 1, config = :config, points = :points, "
            "cost = :cost, steps = :steps, gpus = :gpus, nodes = :nodes, cell = :cell, "
            "state = CASE WHEN state = 'done' AND NOT :finished THEN 'waiting' "
            "WHEN state = 'waiting' AND :finished THEN 'done' ELSE state END",
            values,
        )

    def reset(self, key: str) -> None:
        """Let a run without observations start from its first step again."""
        self._db.execute(
            "UPDATE runs SET state = 'waiting', error = NULL, claim_id = NULL, crashes = 0, steps_done = 0, "
            "seconds = 0 WHERE key = ?",
            (key,),
        )

    def claim(
        self,
        only: Collection[str] | None = None,
        resources: Resources | None = None,
        but: Collection[str] = (),
    ) -> Claim | None:
        """Take the first run that has no living worker; None when there is none.

        ``only`` names the runs to choose from, ``but`` those to leave, and ``resources`` what they must need.
        """
        me = Owner.this()
        with self._db.transaction():
            for row in self._open_runs(only, resources):
                if row["key"] in but or (row["state"] == "running" and self._has_worker(row)):
                    continue
                crashes = row["crashes"] + (row["state"] == "running")
                if crashes >= MOST_CRASHES:
                    self._give_up(row["key"], crashes)
                    continue
                claim_id = uuid.uuid4().hex
                self._db.execute(
                    "UPDATE runs SET state = 'running', claim_id = ?, machine = ?, pid = ?, started_at = ?, "
                    "heartbeat = 0, crashes = ?, error = NULL WHERE key = ?",
                    (claim_id, me.machine, me.pid, me.started_at, crashes, row["key"]),
                )
                self._log(row["key"], "taken over" if row["state"] == "running" else "claimed")
                done = frozenset(self.observed(row["key"]))
                return Claim(row["key"], claim_id, parsed(row["config"]), _points(row), done, parsed(row["cell"]))
        return None

    def heartbeat(self, claim: Claim, steps_done: int, seconds: float) -> bool:
        """Count one more heartbeat of the run's worker and store its progress; tell whether it still holds the run."""
        with self._db.transaction():
            changed = self._db.execute(
                "UPDATE runs SET heartbeat = heartbeat + 1, crashes = iif(? > steps_done, 0, crashes), "
                "steps_done = max(steps_done, ?), seconds = seconds + ? WHERE key = ? AND claim_id = ?",
                (steps_done, steps_done, seconds, claim.key, claim.claim_id),
            )
        return changed == 1

    def record(self, claim: Claim, tokens: int, loss: float, facts: dict[str, Any]) -> None:
        """Add an observation."""
        with self._db.transaction():
            self._check_held(claim)
            self._insert_observation(claim.key, tokens, loss, facts)
            self._log(claim.key, f"observed {tokens}")

    def restore(self, key: str, tokens: int, loss: float, facts: dict[str, Any]) -> None:
        """Add an observation that was read from a run's folder."""
        with self._db.transaction():
            self._insert_observation(key, tokens, loss, facts)
            self._log(key, f"restored {tokens}")

    def finish(self, claim: Claim) -> None:
        """Close a run whose every point is recorded."""
        with self._db.transaction():
            self._check_held(claim)
            row = self._db.row("SELECT points FROM runs WHERE key = ?", (claim.key,))
            assert row is not None
            # Points may have been added to the file while the run was trained.
            self._leave(claim.key, "done" if self.observed(claim.key) >= set(_points(row)) else "waiting")
            self._log(claim.key, "finished")

    def release(self, claim: Claim) -> None:
        """Give a run back, to be resumed later."""
        with self._db.transaction():
            self._check_held(claim)
            self._leave(claim.key, "waiting")
            self._log(claim.key, "released")

    def crashed(self, claim: Claim, what: str) -> None:
        """Give back a run whose processes crashed; too many crashes without progress make it fail."""
        with self._db.transaction():
            self._check_held(claim)
            row = self._db.row("SELECT crashes FROM runs WHERE key = ?", (claim.key,))
            assert row is not None
            crashes = row["crashes"] + 1
            if crashes >= MOST_CRASHES:
                self._give_up(claim.key, crashes, what)
                return
            self._db.execute("UPDATE runs SET crashes = ? WHERE key = ?", (crashes, claim.key))
            self._leave(claim.key, "waiting")
            self._log(claim.key, "crashed")

    def fail(self, claim: Claim, error: str) -> None:
        """Store what went wrong; the run stays failed until it is retried explicitly."""
        with self._db.transaction():
            self._check_held(claim)
            self._leave(claim.key, "failed", error)
            self._log(claim.key, "failed")

    def retry_failed(self) -> int:
        """Let failed runs be claimed again; return how many."""
        with self._db.transaction():
            return self._db.execute("UPDATE runs SET state = 'waiting', crashes = 0 WHERE wanted AND state = 'failed'")

    def runs(self) -> list[RunState]:
        """Return the runs of the sweep, in its order."""
        rows = self._db.rows("SELECT * FROM runs WHERE wanted ORDER BY position")
        if any(row["state"] == "running" and not _owner(row).is_here() for row in rows):
            with self._db.transaction():
                living = {row["key"] for row in rows if row["state"] == "running" and self._has_worker(row)}
        else:
            living = {row["key"] for row in rows if row["state"] == "running" and _owner(row).lives()}
        done: dict[str, set[int]] = {}
        for row in self._db.rows("SELECT run, tokens FROM observations"):
            done.setdefault(row["run"], set()).add(row["tokens"])
        return [_state(row, frozenset(done.get(row["key"], ())), row["key"] in living) for row in rows]

    def claimable(self) -> list[RunState]:
        """Return the runs that a worker could claim now."""
        return [run for run in self.runs() if run.state == "waiting" or run.stale]

    def observations(self) -> Iterator[tuple[str, int, float, dict[str, Any]]]:
        """Yield run, tokens, loss and the other facts of each observation."""
        for row in self._db.rows("SELECT * FROM observations ORDER BY run, tokens"):
            yield row["run"], row["tokens"], row["loss"], parsed(row["facts"])

    def events(self) -> list[tuple[float, str, str, str]]:
        """Return what happened to the runs, in order."""
        return [tuple(row) for row in self._db.rows("SELECT * FROM events ORDER BY rowid")]

    def database(self) -> Database:
        """Return the connection, to check the file itself."""
        return self._db

    def _open_runs(self, only: Collection[str] | None, resources: Resources | None) -> list[sqlite3.Row]:
        rows = self._db.rows("SELECT * FROM runs WHERE wanted AND state IN ('waiting', 'running') ORDER BY position")
        return [
            row
            for row in rows
            if (only is None or row["key"] in only) and (resources is None or _resources(row) == resources)
        ]

    def _has_worker(self, row: sqlite3.Row) -> bool:
        """Tell whether the worker of a running run lives.

        A process of this machine is looked up. One of another machine is lost when its heartbeat has not changed for
        a lease, measured from when this machine first saw it: two machines' clocks are never compared.
        """
        owner = _owner(row)
        if owner.is_here():
            return owner.lives()
        now, current = time.monotonic(), (row["claim_id"], row["heartbeat"])
        sighting = self._db.row("SELECT * FROM sightings WHERE run = ? AND observer = ?", (row["key"], machine()))
        if sighting is None or (sighting["claim_id"], sighting["heartbeat"]) != current or sighting["seen"] > now:
            values = (row["key"], machine(), *current, now)
            self._db.execute("INSERT OR REPLACE INTO sightings VALUES (?, ?, ?, ?, ?)", values)
            return True
        return bool(now - sighting["seen"] < LEASE)

    def _check_held(self, claim: Claim) -> None:
        row = self._db.row("SELECT claim_id FROM runs WHERE key = ?", (claim.key,))
        if row is None or row["claim_id"] != claim.claim_id:
            raise ClaimLost(claim.key)

    def _insert_observation(self, key: str, tokens: int, loss: float, facts: dict[str, Any]) -> None:
        self._db.execute("INSERT INTO observations VALUES (?, ?, ?, ?)", (key, tokens, loss, json.dumps(facts)))

    def _leave(self, key: str, state: str, error: str | None = None) -> None:
        self._db.execute("UPDATE runs SET state = ?, error = ?, claim_id = NULL WHERE key = ?", (state, error, key))

    def _give_up(self, key: str, crashes: int, what: str = "is there enough memory?") -> None:
        self._leave(key, "failed", f"{crashes} workers crashed on it without any progress; {what}")
        self._log(key, "failed")

    def _log(self, key: str, what: str) -> None:
        me = Owner.this()
        self._db.execute("INSERT INTO events VALUES (?, ?, ?, ?)", (time.time(), key, what, f"{me.machine}:{me.pid}"))


def parsed(text: str) -> dict[str, Any]:
    """Return the JSON object in a field of the database; damage becomes one sentence."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise StorageError(
            f"{FILE}: the database is damaged ({shown(text)} is not a JSON object); "
            "`loopscale sweep rebuild SWEEP.toml` restores it from the results of the runs"
        )
    return value


def _points(row: sqlite3.Row) -> dict[int, float]:
    return {int(trained): requested for trained, requested in parsed(row["points"]).items()}


def _resources(row: sqlite3.Row) -> Resources:
    return Resources(row["gpus"], row["nodes"])


def _owner(row: sqlite3.Row) -> Owner:
    return Owner(row["machine"], row["pid"], row["started_at"])


def _state(row: sqlite3.Row, done: frozenset[int], has_worker: bool) -> RunState:
    running = row["state"] == "running"
    return RunState(
        row["key"], row["state"], row["error"], _points(row), done,
        row["steps_done"], row["steps"], row["seconds"], row["cost"],
        f"{row['machine'].partition('/')[0]}:{row['pid']}" if running else None, running and not has_worker,
        _resources(row), row["crashes"],
    )  # fmt: skip
