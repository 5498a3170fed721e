"""Disturb sweeps whose runs have two processes each: the export stays the same, byte for byte, and no run fails.

Processes are killed, frozen and woken, or run out of memory; the database is locked or deleted; the disk is full for a
while; another machine takes a run over; on Ray, the head or a node is lost. Nobody helps but by what a sentence says:
the command is repeated, and ``sweep rebuild`` is run where a message asks for it.

python tests/attack/disturbances.py FOLDER --backend ray --count 70    continues where a former call stopped
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "sweep"))

from disks import small_disk
from killing import start, workers

from loopscale.core.errors import LoopscaleError
from loopscale.sweep.database import FILE
from loopscale.sweep.spec import read_sweep
from loopscale.sweep.store import Store
from sweeps import write_sweep

GRID = "[grid]\nrecurrence = [1, 2]\nseed = [0, 1]\ntokens = [960, 1920]\n[resources]\ngpus = 2\n"
BACKENDS = {
    "local": ("--workers", "2"),
    "ray": ("--on", "ray", "--workers", "2"),
    "submitit": ("--on", "slurm", "--workers", "2", "--slurm", "cluster=local"),
}
MEMORY = Path("/sys/fs/cgroup/memory")
DISK_KILOBYTES = 60_000
MOST_FRUITLESS = 4
"""Disturbances in a row without any progress of the sweep between them: a slow machine might never end."""
MOST_IN_ONE = 14
"""Disturbances of one sweep."""
TRANSIENT = ("no cluster could be started", "kept it locked")
"""Sentences after which the same command is simply repeated, whatever was disturbed."""
FULL = ("No space left", "disk is full", "is full", "cannot be written")
LOST = ("sweep rebuild", "there is no sweep here yet")


class Sweep:
    """A sweep that is being disturbed, and its command."""

    def __init__(self, path: Path, options: tuple[str, ...], draw: random.Random) -> None:
        self.path, self.options, self.draw = path, options, draw
        self.results = read_sweep(path).results
        self.command = start(path, *options)
        self.said: list[str] = []
        """What ended commands said."""
        self.rebuilt = False
        self._kept: list[subprocess.Popen] = []

    def processes(self) -> list[int]:
        """Return the processes that work on a run now."""
        with suppress(LoopscaleError, sqlite3.Error):
            return workers(self.results)
        return []

    def ranks(self) -> list[int]:
        """Return the processes that the workers have started."""
        found = []
        for pid in self.processes():
            with suppress(psutil.NoSuchProcess):
                found += [child.pid for child in psutil.Process(pid).children()]
        return found

    def supervisor(self) -> list[int]:
        """Return the command's process while runs are being trained."""
        return [self.command.pid] if self.processes() and self.command.poll() is None else []

    def of_ray(self, name: str) -> list[int]:
        """Return the processes of Ray's cluster that have this name."""
        with suppress(psutil.NoSuchProcess):
            below = psutil.Process(self.command.pid).children(recursive=True)
            return [child.pid for child in below if name in child.name()] if self.processes() else []
        return []

    def progress(self) -> int:
        """Return the steps that are done and the points that are recorded, added up."""
        with suppress(LoopscaleError, sqlite3.Error), Store(self.results) as store:
            return sum(run.steps_done + len(run.done) for run in store.runs())
        return 0

    def ended(self) -> bool:
        """Tell whether the sweep is done; a command that was killed, or that stopped with a sentence, is repeated."""
        code = self.command.poll()
        if code is None:
            return False
        if code == -signal.SIGKILL:
            self._kept.append(self.command)  # its pipes stay open: jobs that outlive it have inherited them
            self.command = start(self.path, *self.options)
            return False
        out, err = self.command.communicate()
        if code == 0:
            return True
        self.said.append(err.strip())
        assert (code, "Traceback" in err) == (2, False), f"exit code {code}: {err}{out}"
        if any(words in err for words in LOST) and list(self.results.glob("runs/*/D*/summary.json")):
            command = [sys.executable, "-m", "loopscale", "sweep", "rebuild", str(self.path)]
            again = subprocess.run(command, capture_output=True, text=True)
            assert again.returncode == 0 or "kept it locked" in again.stderr, again.stderr + again.stdout
            self.rebuilt = True
        else:
            assert any(words in err for words in (*TRANSIENT, *FULL, *LOST, *RAY_LOST)), err + out
        self.command = start(self.path, *self.options)
        return False


RAY_LOST = ("the cluster was lost",)


def kill(who: Callable[[Sweep], list[int]]) -> Callable[[Sweep], bool]:
    """Return what kills one of some processes."""

    def disturb(sweep: Sweep) -> bool:
        with suppress(ProcessLookupError, IndexError):
            os.kill(sweep.draw.choice(who(sweep)), signal.SIGKILL)
            return True
        return False

    return disturb


def freeze(who: Callable[[Sweep], list[int]]) -> Callable[[Sweep], bool]:
    """Return what stops one of some processes for a while."""

    def disturb(sweep: Sweep) -> bool:
        with suppress(ProcessLookupError, IndexError):
            pid = sweep.draw.choice(who(sweep))
            os.kill(pid, signal.SIGSTOP)
            time.sleep(sweep.draw.uniform(0.1, 4))
            os.kill(pid, signal.SIGCONT)
            return True
        return False

    return disturb


def lock(sweep: Sweep) -> bool:
    """Hold the database locked for a while."""
    if not sweep.processes():
        return False
    connection = sqlite3.connect(sweep.results / FILE, timeout=30, isolation_level=None)
    try:
        connection.execute("BEGIN EXCLUSIVE")
        time.sleep(sweep.draw.uniform(0.1, 6))
        connection.execute("ROLLBACK")
    finally:
        connection.close()
    return True


def delete(sweep: Sweep) -> bool:
    """Delete the database under the workers."""
    if not sweep.processes():
        return False
    for suffix in ("", "-wal", "-shm"):
        (sweep.results / (FILE + suffix)).unlink(missing_ok=True)
    return True


def fill(sweep: Sweep) -> bool:
    """Leave no room on the disk for a while."""
    if not sweep.processes() or not os.path.ismount(sweep.results):
        return False
    ballast = sweep.results / ".ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    time.sleep(sweep.draw.uniform(0.1, 4))
    ballast.unlink()
    return True


def lose_lease(sweep: Sweep) -> bool:
    """Let another machine take a run over, as after a lease, and give it back; the worker may be frozen meanwhile."""
    frozen = sweep.ranks() if sweep.draw.random() < 0.5 else []
    for pid in frozen:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    try:
        with Store(sweep.results) as store:
            running = [run.key for run in store.runs() if run.state == "running"]
            if not running:
                return False
            change, key = store.database(), sweep.draw.choice(running)
            taken = (
                "UPDATE runs SET claim_id = 'elsewhere', machine = 'elsewhere/0' WHERE key = ? AND state = 'running'"
            )
            with change.transaction():
                if not change.execute(taken, (key,)):
                    return False
            time.sleep(sweep.draw.uniform(0, 3))
            given = "UPDATE runs SET state = 'waiting', claim_id = NULL WHERE key = ? AND claim_id = 'elsewhere'"
            with change.transaction():
                change.execute(given, (key,))
    except LoopscaleError:
        return False
    finally:
        for pid in frozen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
    return True


def starve(sweep: Sweep) -> bool:
    """Let the system's out-of-memory killer end a rank: it may have one more megabyte."""
    group = MEMORY / f"loopscale-{os.getpid()}"
    try:
        group.mkdir(exist_ok=True)
        (group / "memory.limit_in_bytes").write_text("1M")
        pid = sweep.draw.choice(sweep.ranks())
        (group / "cgroup.procs").write_text(str(pid))
    except (OSError, IndexError):
        return False
    while psutil.pid_exists(pid) and str(pid) in (group / "cgroup.procs").read_text().split():
        time.sleep(0.05)
    with suppress(OSError):
        group.rmdir()
    return True


KINDS: dict[str, Callable[[Sweep], bool]] = {
    "worker killed": kill(Sweep.processes),
    "rank killed": kill(Sweep.ranks),
    "supervisor killed": kill(Sweep.supervisor),
    "worker frozen": freeze(Sweep.processes),
    "rank frozen": freeze(Sweep.ranks),
    "supervisor frozen": freeze(Sweep.supervisor),
    "database locked": lock,
    "database deleted": delete,
    "disk full": fill,
    "lease lost": lose_lease,
    "out of memory": starve,
}
OF_RAY: dict[str, Callable[[Sweep], bool]] = {
    "Ray's head killed": kill(lambda sweep: sweep.of_ray("gcs_server")),
    "Ray's node killed": kill(lambda sweep: sweep.of_ray("raylet")),
}


def disturb(path: Path, backend: str, kinds: list[str], draw: random.Random) -> tuple[Counter[str], bytes]:
    """Run a sweep to its end, disturbed in these ways one after another; return what was done, and its export."""
    done, left, fruitless, furthest = Counter[str](), list(kinds), 0, 0
    sweep = Sweep(path, BACKENDS[backend], draw)
    while not sweep.ended():
        time.sleep(draw.uniform(0.05, 0.6))
        if not left:
            continue
        progress = sweep.progress()
        fruitless, furthest = (0 if progress > furthest else fruitless), max(furthest, progress)
        if fruitless < MOST_FRUITLESS and {**KINDS, **OF_RAY}[left[0]](sweep):
            done[left.pop(0)] += 1
            fruitless += 1
        elif draw.random() < 0.2:
            left.append(left.pop(0))  # what cannot be done now may be later
    with Store(sweep.results) as store:
        failed = [run for run in store.runs() if run.state != "done"]
        assert not failed, failed
        events = Counter((key, what) for _, key, what, _ in store.events())
        doubled = [event for event, count in events.items() if event[1].startswith("observed") and count > 1]
        assert not doubled, doubled
        assert not [event for event in events if event[1] == "failed"], events
    return done, export(path)


def export(path: Path) -> bytes:
    """Return the table of a finished sweep."""
    command = [sys.executable, "-m", "loopscale", "sweep", "export", str(path)]
    return subprocess.run(command, capture_output=True, check=True).stdout


@contextmanager
def sweep_folder(folder: Path) -> Iterator[Path]:
    """Yield the file of a new sweep, whose results are on a disk of their own where that is permitted."""
    shutil.rmtree(folder, ignore_errors=True)
    path = write_sweep(folder, GRID)
    with small_disk(read_sweep(path).results, DISK_KILOBYTES):
        yield path


def attack(folder: Path, backend: str, count: int, seed: int = 0) -> Counter[tuple[str, str]]:
    """Disturb one sweep after another until there were so many disturbances; finished sweeps are kept in a record."""
    folder.mkdir(parents=True, exist_ok=True)
    record = folder / f"{backend}.json"
    counts = Counter(json.loads(record.read_text())) if record.is_file() else Counter[str]()
    wanted = _undisturbed(folder)
    kinds = [*KINDS, *(OF_RAY if backend == "ray" else ())]
    while counts.total() - counts["sweeps"] < count:
        draw = random.Random(f"{seed} {backend} {counts['sweeps']}")
        order = sorted(kinds, key=lambda kind: (counts[kind], draw.random()))
        with sweep_folder(folder / backend) as path:
            done, exported = disturb(path, backend, (order * 2)[:MOST_IN_ONE], draw)
            if exported != wanted:
                shutil.copytree(folder / backend, folder / f"{backend}-different", dirs_exist_ok=True)
                return Counter({(f"sweep on {backend}", "DIFFERENT"): done.total()})
        counts += done + Counter(sweeps=1)
        record.write_text(json.dumps(counts))
        print(backend, dict(counts), flush=True)
    return Counter({(f"{backend}: {kind}", "exact"): number for kind, number in counts.items() if kind != "sweeps"})


def _undisturbed(folder: Path) -> bytes:
    """Return the export of the same sweep that nobody disturbs, trained once."""
    kept = folder / "undisturbed.csv"
    if not kept.is_file():
        with sweep_folder(folder / "quiet") as path:
            done, exported = disturb(path, "local", [], random.Random(0))
            assert not done
        kept.write_bytes(exported)
    return kept.read_bytes()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--backend", choices=BACKENDS, default="local")
    parser.add_argument("--count", type=int, default=70)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(attack(given.folder, given.backend, given.count, given.seed))
