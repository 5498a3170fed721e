"""How many of our files a reader crosses to follow one thing: distinct source files entered, counted with a tracer.

Importing a module is not entering it: only files in which a function or method runs are counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

LIMITS = {"plan": 12, "fit": 12, "sweep run": 14, "training step": 14}
"""What we allow ourselves, in files."""

TRACER = """
import atexit, inspect, json, os, sys, threading
import loopscale
ROOT = os.path.dirname(loopscale.__file__) + os.sep
entered = set()
def enter(frame, event, argument):
    code = frame.f_code
    if code.co_flags & inspect.CO_OPTIMIZED and code.co_filename.startswith(ROOT):
        entered.add(code.co_filename[len(ROOT):])
def write():
    with open(os.path.join(os.environ["JOURNEY"], f"{os.getpid()}.json"), "w") as file:
        json.dump(sorted(entered), file)
"""
COMMAND = f"""{TRACER}
from loopscale.cli import cli, main
cli.get_command(None, sys.argv[1])
atexit.register(write)
sys.setprofile(enter); threading.setprofile(enter)
main(sys.argv[1:])
"""
STEP = f"""{TRACER}
from pathlib import Path
from loopscale.train.config import read_config
from loopscale.train.trainer import Trainer
trainer = Trainer(read_config(Path(sys.argv[1])), Path(sys.argv[2]), quiet=True)
sys.setprofile(enter)
trainer.one_step()
sys.setprofile(None)
write()
"""


def journey(script: str, *arguments: str, cwd: Path) -> list[str]:
    """Run a traced script and return the files entered in it and in the processes that it started."""
    with tempfile.TemporaryDirectory() as notes:
        environment = {**os.environ, "JOURNEY": notes}
        subprocess.run(
            [sys.executable, "-c", script, *arguments], cwd=cwd, env=environment, check=True, stdout=subprocess.DEVNULL
        )
        files: set[str] = set()
        for note in Path(notes).glob("*.json"):
            files.update(json.loads(note.read_text()))
    return sorted(files)
