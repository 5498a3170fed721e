"""Pages that show commands and code: what they show, step by step, and how to run it.

A page is run in a folder of its own, top to bottom: fenced blocks with a title become files, indented lines that start
with ``loopscale`` are commands, and Python blocks share one set of names.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import loopscale
from loopscale.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))

NOT_RUN = {
    "path/to/": "a file of the reader's own",
    "from_architecture(rung(": "a model of a billion weights",
    "LLM(": "vLLM has an environment of its own",
    "BalanceCallback(": "a trainer and data of the reader; tests/model/test_trainer_callback.py runs the callback",
    "loopscale app": "a server, which does not end by itself",
    "--tasks paper": "its data are on the hub",
    "examples/demo.toml": "an hour of training",
}
"""What marks a step that no test can run, and why."""

_STEP = re.compile(
    r"^```(?P<kind>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<body>.*?)^```$"
    r"|^    (?:\$ )?(?P<command>loopscale [^\n]+?)(?:[ ]{2,}#[^\n]*|[ ]#[ ][^\n]*)?$",
    flags=re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Step:
    """One thing that a page has its reader do: ``file``, ``python`` or ``command``."""

    kind: str
    text: str
    name: str = ""

    @property
    def runs(self) -> bool:
        """Whether a test can do it too."""
        return not any(mark in self.text for mark in NOT_RUN)


def steps(page: Path) -> list[Step]:
    """Return what a page shows, in order."""
    shown = []
    for match in _STEP.finditer(page.read_text(encoding="utf-8")):
        if match["command"]:
            shown.append(Step("command", match["command"].strip()))
        elif match["title"]:
            shown.append(Step("file", match["body"], match["title"]))
        elif match["kind"] == "python":
            shown.append(Step("python", match["body"]))
    return [step for step in shown if step.runs]


def run_page(page: Path) -> dict[str, object]:
    """Do what the page shows, in the current folder; return the names that its Python blocks leave."""
    names: dict[str, object] = {}
    for step in steps(page):
        if step.kind == "file":
            Path(step.name).write_text(step.text, encoding="utf-8")
        elif step.kind == "python":
            exec(step.text, names)
        else:
            assert run_command(step.text) == 0, step.text
    return names


def run_command(line: str) -> int:
    """Run a command line in this process; return its exit code."""
    try:
        main(shlex.split(line)[1:])
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    return 0


def run_from(installed: Path, page: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Do what the page shows in ``folder``, in another process that imports loopscale from ``installed``."""
    path = os.pathsep.join([str(installed), str(Path(__file__).parent)])
    command = [sys.executable, __file__, str(page), str(installed)]
    variables = {**os.environ, "PYTHONPATH": path, "MPLBACKEND": "agg"}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)


def cells(notebook: Path) -> list[tuple[str, str]]:
    """Return a notebook's code cells, each with what it printed when it was saved."""
    code = []
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            printed = [part for out in cell["outputs"] if out.get("name") == "stdout" for part in out["text"]]
            code.append(("".join(cell["source"]), "".join(printed)))
    return code


if __name__ == "__main__":
    assert Path(loopscale.__file__).is_relative_to(sys.argv[2]), loopscale.__file__
    run_page(Path(sys.argv[1]))
