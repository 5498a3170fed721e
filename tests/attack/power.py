"""Simulated power cuts: what a disk may hold when the machine stops, for every moment of an operation.

A ``Recorder`` watches a folder while an operation runs in this process. At every fsync, rename, removal and new
folder it notes all names and contents. From that it makes folders as a disk could hold them after a power cut:
contents that were not synced are lost, cut short or there, and names that were not synced are the old or the new ones.
"""

from __future__ import annotations

import os
import random
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Names = dict[int, dict[str, int]]
"""The entries of each folder: name to inode, by the folder's inode."""
PATCHED = ("fsync", "rename", "replace", "unlink", "remove", "rmdir", "mkdir")


@dataclass
class Moment:
    """All that is known at one moment."""

    event: str
    names: Names
    """As programs see them."""
    contents: dict[int, bytes]
    synced: dict[int, bytes] = field(default_factory=dict)
    """Contents that a power cut cannot take."""
    synced_names: Names = field(default_factory=dict)
    synced_at: dict[int, int] = field(default_factory=dict)
    """The moment of each folder's last sync."""
    promises: tuple[Any, ...] = ()
    """What the operation has reported as done by now."""


class Recorder:
    """Watches one folder."""

    def __init__(self, root: Path, durable: str = "") -> None:
        self.root = root
        self.durable = durable
        """The start of the names of files that sync themselves, out of Python's sight: those of SQLite."""
        self.moments: list[Moment] = []
        self._lock = threading.RLock()
        self._held: dict[int, int] = {}
        """Open handles, so that no inode number is used twice."""
        self._promises: tuple[Any, ...] = ()
        self._originals: dict[str, Any] = {}

    @contextmanager
    def watching(self) -> Iterator[Recorder]:
        """Record what happens in the block; what is there already counts as synced."""
        names, contents = self._look()
        self.moments.append(
            Moment("start", names, contents, dict(contents), {key: dict(v) for key, v in names.items()})
        )
        for name in PATCHED:
            self._originals[name] = getattr(os, name)
            setattr(os, name, self._wrapped(name))
        try:
            yield self
            self._note("end")
        finally:
            for name, original in self._originals.items():
                setattr(os, name, original)
            for handle in self._held.values():
                os.close(handle)

    def promise(self, what: Any) -> None:
        """Note that the operation has reported something as done."""
        with self._lock:
            self._promises = (*self._promises, what)
            self._note(f"promise {what}")

    def _wrapped(self, name: str) -> Callable[..., Any]:
        original = self._originals[name]

        def call(*arguments: Any, **options: Any) -> Any:
            with self._lock:
                self._note(f"before {name}")  # contents may have changed without any call that is watched
                done = original(*arguments, **options)
                self._note(name, arguments[0] if name == "fsync" else None)
                return done

        return call

    def _note(self, event: str, handle: int | None = None) -> None:
        names, contents = self._look()
        last = self.moments[-1]
        synced, synced_names, synced_at = dict(last.synced), dict(last.synced_names), dict(last.synced_at)
        if handle is not None:
            inode = os.fstat(handle).st_ino
            if inode in names:
                synced_names[inode], synced_at[inode] = dict(names[inode]), len(self.moments)
            elif inode in contents:
                synced[inode] = contents[inode]
        if self.durable:
            self._trust(names, contents, synced, synced_names)
        moment = Moment(event, names, contents, synced, synced_names, synced_at, self._promises)
        if event.startswith("before") and (names, contents) == (last.names, last.contents):
            return
        self.moments.append(moment)

    def _trust(self, names: Names, contents: dict[int, bytes], synced: dict[int, bytes], synced_names: Names) -> None:
        """Count the files that sync themselves as synced."""
        for folder, entries in names.items():
            own = {name: inode for name, inode in entries.items() if name.startswith(self.durable)}
            synced |= {inode: contents[inode] for inode in own.values() if inode in contents}
            if own or folder in synced_names:
                others = {n: i for n, i in synced_names.get(folder, {}).items() if not n.startswith(self.durable)}
                synced_names[folder] = others | own

    def _look(self) -> tuple[Names, dict[int, bytes]]:
        names: Names = {}
        contents: dict[int, bytes] = {}
        pending = [self.root]
        while pending:
            folder = pending.pop()
            try:
                entries = {path.name: path.lstat() for path in folder.iterdir()}
            except FileNotFoundError:  # another thread removes it now
                continue
            names[self._hold(folder)] = {name: status.st_ino for name, status in entries.items()}
            for name, status in entries.items():
                path = folder / name
                if stat.S_ISDIR(status.st_mode):
                    pending.append(path)
                elif stat.S_ISREG(status.st_mode):
                    try:
                        contents[self._hold(path)] = path.read_bytes()
                    except FileNotFoundError:
                        continue
        return names, contents

    def _hold(self, path: Path) -> int:
        inode = path.stat().st_ino
        if inode not in self._held:
            self._held[inode] = os.open(path, os.O_RDONLY)
        return inode


def worst(moment: Moment) -> tuple[Names, dict[int, bytes]]:
    """Only what was synced."""
    return moment.synced_names, moment.synced


def names_first(moment: Moment) -> tuple[Names, dict[int, bytes]]:
    """All names are there, and contents that were not synced are empty: what some file systems leave after a rename."""
    return moment.names, {inode: moment.synced.get(inode, b"") for inode in moment.contents}


def killed(moment: Moment) -> tuple[Names, dict[int, bytes]]:
    """Everything is there, as after a kill."""
    return moment.names, moment.contents


def mixed(moments: list[Moment], index: int, draw: random.Random) -> tuple[Names, dict[int, bytes]]:
    """Each folder as at its last sync or at any later moment, and each content whole, cut short or as last synced."""
    moment = moments[index]
    names: Names = {}
    for inode in {*moment.names, *moment.synced_names}:
        since = [moment.synced_names[inode]] if inode in moment.synced_names else []
        later = moments[moment.synced_at.get(inode, 0) : index + 1]
        since += [before.names[inode] for before in later if inode in before.names]
        names[inode] = draw.choice(since) if since else {}
    contents = {}
    for inode in {*moment.contents, *moment.synced}:
        whole = moment.contents.get(inode, moment.synced.get(inode, b""))
        synced = moment.synced.get(inode, b"")
        kept = len(synced) if whole.startswith(synced) else 0  # an append cannot take what was synced before it
        contents[inode] = synced if whole == synced else draw.choice([synced, whole, whole[: (kept + len(whole)) // 2]])
    return names, contents


def write(state: tuple[Names, dict[int, bytes]], root: int, target: Path, folders: set[int]) -> None:
    """Make a folder as the disk would hold it; a name of which nothing else was synced is an empty file or folder."""
    names, contents = state
    target.mkdir(parents=True)
    for name, inode in names.get(root, {}).items():
        if inode in folders:
            write(state, inode, target / name, folders)
        else:
            (target / name).write_bytes(contents.get(inode, b""))


def cuts(recorder: Recorder, seed: int = 0, random_cuts: int = 2) -> Iterator[tuple[str, Moment, tuple[Names, Any]]]:
    """Yield what the disk may hold after a cut at each moment: three extremes, and a few random mixtures."""
    draw, seen = random.Random(seed), set()
    for index, moment in enumerate(recorder.moments):
        states = {"killed": killed(moment), "names first": names_first(moment), "only synced": worst(moment)}
        states |= {f"mixed {number}": mixed(recorder.moments, index, draw) for number in range(random_cuts)}
        for kind, (names, contents) in states.items():
            places = repr(sorted((inode, sorted(entries.items())) for inode, entries in names.items()))
            key = (places, repr(sorted((inode, hash(content)) for inode, content in contents.items())), moment.promises)
            if key not in seen:
                seen.add(key)
                yield f"{index} {moment.event}: {kind}", moment, (names, contents)


def survey(
    root: Path,
    operate: Callable[[Recorder], Any],
    check: Callable[[Path, Moment], None],
    scratch: Path,
    durable: str = "",
    **options: Any,
) -> tuple[int, list[str]]:
    """Run an operation on a folder, cut the power at every moment, and check each result; return trials, failures."""
    import shutil

    recorder = Recorder(root, durable)
    with recorder.watching():
        operate(recorder)
    inode = root.stat().st_ino
    folders = {folder for moment in recorder.moments for folder in moment.names}
    trials, failures = 0, []
    for name, moment, state in cuts(recorder, **options):
        shutil.rmtree(scratch, ignore_errors=True)
        write(state, inode, scratch, folders)
        trials += 1
        try:
            check(scratch, moment)
        except Exception as error:
            failures.append(f"{name}: {type(error).__name__}: {str(error)[:200]}")
    return trials, failures
