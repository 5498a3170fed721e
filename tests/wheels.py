"""Build the wheel that tests install or import from."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def build_wheel(folder: Path) -> Path:
    """Build the wheel into ``folder`` and return its path."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def unpack_wheel(folder: Path) -> Path:
    """Build the wheel, unpack it, and return the folder to put on PYTHONPATH."""
    with zipfile.ZipFile(build_wheel(folder)) as archive:
        archive.extractall(folder / "installed")
    return folder / "installed"
