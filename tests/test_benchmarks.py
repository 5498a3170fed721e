"""The benchmarks measure what they say."""

import os
import subprocess
import sys
from pathlib import Path

import timing

MEGABYTE = 2**20


def test_the_peak_of_a_process_does_not_start_at_what_its_parent_held():
    held = b"x" * (400 * MEGABYTE)
    code = "from timing import peak_memory; print(peak_memory())"
    folder = str(Path(timing.__file__).parent)
    child = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": folder},
        capture_output=True,
        text=True,
        check=True,
    )
    assert MEGABYTE < int(child.stdout) < len(held)
