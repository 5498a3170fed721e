"""Files for generated commands: a good one, or a copy with one thing changed."""

from __future__ import annotations

import copy
import json
import random
import shutil
import tomllib
from pathlib import Path
from typing import Any

ODD = [
    "", "0", "-1", "nan", "inf", "1e400", "10" * 200, "1e-300", "x", "é", "1..", "--", "[[[[", "\t", "9" * 5000, "1,,2",
    "٣", "1e308", "../x", "a\0b", "=", "a=b=c", "[" * 3000,
]  # fmt: skip
"""Texts that an option or a cell may hold by mistake."""
ODD_VALUES: list[Any] = [
    None, True, -1, 0, 10**30, 10**400, 1e300, -1e-300, "", "x", "nan", [], {}, [[[]]], {"a": {}}, "1" * 3000, 5e-324,
    float("nan"), 2**63, "a\0b",
]  # fmt: skip


def mutated(data: Any, draw: random.Random) -> Any:
    """Return JSON-like data with one value changed, removed, added or nested."""
    data = copy.deepcopy(data)
    places = _places(data)
    if not places:
        return data
    parent, key = draw.choice(places)
    kind = draw.random()
    if kind < 0.4 and isinstance(parent[key], int | float) and not isinstance(parent[key], bool):
        parent[key] = parent[key] * draw.choice([0.9, 1.1, 1.5])  # another number, which is often right
    elif kind < 0.75:
        parent[key] = draw.choice(ODD_VALUES)
    elif kind < 0.9 and isinstance(parent, dict):
        del parent[key]
    elif isinstance(parent, dict):
        parent[str(key) + "x"] = parent[key]
    return data


def _places(data: Any) -> list[tuple[Any, Any]]:
    """Return every (container, key) of nested data."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    found = []
    for key, value in items:
        found += [(data, key), *_places(value)]
    return found


def mutate_table(text: str, draw: random.Random) -> str:
    """Return a CSV table with one cell, row or column changed."""
    rows = [line.split(",") for line in text.strip().splitlines()]
    row, column = draw.randrange(len(rows)), draw.randrange(len(rows[0]))
    kind = draw.random()
    if kind < 0.25 and row:
        rows[row][column] = _near(rows[row][column], draw)
    elif kind < 0.5:
        rows[row][column] = draw.choice([*ODD, "1e300", "1e-300", "1e9"])
    elif kind < 0.65:
        del rows[row][column]
    elif kind < 0.85:
        del rows[row]
    else:
        rows.append(rows[-1])
    return "\n".join(",".join(cells) for cells in rows) + "\n"


def _near(cell: str, draw: random.Random) -> str:
    try:
        return repr(float(cell) * draw.choice([0.99, 1.01, 1.5]))
    except ValueError:
        return cell + "x"


def mutate_bytes(content: bytes, draw: random.Random) -> bytes:
    """Return bytes with one bit flipped, a part removed, or some bytes added."""
    kind, position = draw.random(), draw.randrange(len(content) or 1)
    if kind < 0.5 and content:
        changed = bytearray(content)
        changed[position] ^= 1 << draw.randrange(8)
        return bytes(changed)
    if kind < 0.75:
        return content[:position]
    return content[:position] + draw.randbytes(draw.randrange(1, 9)) + content[position:]


def to_toml(data: dict[str, Any], prefix: str = "") -> str:
    """Return nested values as TOML; what TOML cannot hold becomes text."""
    plain = [f"{_key(name)} = {_toml(value)}" for name, value in data.items() if not isinstance(value, dict)]
    parts = ["\n".join(plain)]
    for name, value in data.items():
        if isinstance(value, dict):
            where = f"{prefix}{_key(name)}"
            parts.append(f"[{where}]\n{to_toml(value, where + '.')}")
    return "\n".join(parts)


def _key(name: str) -> str:
    return json.dumps(str(name))


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return '"null"'
    if isinstance(value, list):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(name)} = {_toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, str):
        return json.dumps(value).replace("\\u0000", "\\u0001")
    return repr(value)


class Files:
    """The files of one folder; those that a trial changes get names of their own and are removed after it."""

    def __init__(self, folder: Path, draw: random.Random, odd: float = 0.4) -> None:
        self.folder, self.draw, self.odd = folder, draw, odd
        self.made: list[Path] = []
        self._number = 0

    def __call__(self, *names: str) -> str:
        """Return one of the named files, or the name of a changed copy of it."""
        name = self.draw.choice(names)
        if self.draw.random() >= self.odd or not (self.folder / name).exists():
            return name
        return self._mutant(name)

    def copy(self, name: str) -> str:
        """Return the name of an unchanged copy of a folder, for commands that change it."""
        return Path(shutil.copytree(self.folder / name, self._path(""))).name

    def new(self, suffix: str) -> str:
        """Return a name for a file or folder that the trial writes."""
        path = self._path(suffix)
        return path.name

    def clear(self) -> None:
        """Remove what the last trial made."""
        for path in self.made:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        self.made.clear()

    def _path(self, suffix: str) -> Path:
        self._number += 1
        path = self.folder / f"mutant-{self._number}{suffix}"
        self.made.append(path)
        return path

    def _mutant(self, name: str) -> str:
        source = self.folder / name
        if source.is_dir():
            target = self._path("")
            shutil.copytree(source, target)
            if self.draw.random() < 0.8:  # else every change ends at the checksums
                for seal in target.rglob("checksums.json"):
                    seal.unlink()
            inner = self.draw.choice(sorted(path for path in target.rglob("*") if path.is_file()))
            inner.write_bytes(self._changed(inner))
            return target.name
        target = self._path("".join(source.suffixes[-2:]) if source.name.endswith(".gz") else source.suffix)
        target.write_bytes(self._changed(source))
        return target.name

    def _changed(self, path: Path) -> bytes:
        """Return the content with one change that keeps its format, or rarely one that does not."""
        content = path.read_bytes()
        if self.draw.random() < 0.2:
            return mutate_bytes(content, self.draw)
        try:
            if path.suffix == ".json":
                data = json.loads(content)
                if isinstance(data, dict) and self.draw.random() < 0.9:
                    data.pop("checksum", None)  # else every change ends at the checksum
                return json.dumps(mutated(data, self.draw)).encode("utf-8", "surrogatepass")
            if path.suffix == ".toml":
                return to_toml(mutated(tomllib.loads(content.decode()), self.draw)).encode("utf-8", "surrogatepass")
            if path.suffix == ".csv":
                return mutate_table(content.decode(), self.draw).encode("utf-8", "surrogatepass")
        except (ValueError, RecursionError, IndexError):
            pass
        return mutate_bytes(content, self.draw)
