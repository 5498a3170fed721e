"""Very small sweeps for the tests."""

from pathlib import Path

from loopscale.sweep.spec import Sweep, read_sweep
from loopscale.sweep.store import Store
from loopscale.sweep.sync import opened, prepared

BASE = """
[base.model]
width = 16
layers = 3
head_size = 8
[base.data]
files = ["text.txt"]
folder = "tokens"
context = 16
validation = 0.2
[base.schedule]
warmup_steps = 2
[base.run]
batch = 2
validation_sequences = 4
checkpoint_every = 4
"""


def write_sweep(folder: Path, body: str, name: str = "tiny", base: str = BASE, file: str = "sweep.toml") -> Path:
    """Write a sweep and its text into a folder; return the file."""
    folder.mkdir(parents=True, exist_ok=True)
    text = folder / "text.txt"
    if not text.is_file():
        words = " ".join(f"word{number * number % 97}" for number in range(60_000))
        text.write_text("\n\n".join(words[start : start + 900] for start in range(0, len(words), 900)))
    path = folder / file
    path.write_text(f'[sweep]\nname = "{name}"\n{body}\n{base}')
    return path


def open_sweep(path: Path) -> tuple[Sweep, Store]:
    """Check a sweep and open its store."""
    sweep = read_sweep(path)
    return sweep, opened(sweep, prepared(sweep, progress=False))
