"""Renew the outputs that README and documentation show below their commands: ``python tools/page_outputs.py [PAGE …]``.

A block of text below ``<!-- output -->`` is what the last command above it prints, at 80 columns.
``<!-- output: 12 lines -->`` shows the first twelve lines of it. ``<!-- output: measured -->`` marks what differs
between machines (losses of training, times): it is renewed with ``--measured`` only, and no test compares it.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
from pages import PAGES, Step, all_steps_of, write_reader_files  # noqa: E402

_BLOCK = re.compile(
    r"(?P<mark><!-- output(?:: (?P<option>[\w ]+))? -->\n)```text\n(?P<body>.*?)^```$", re.DOTALL | re.M
)
_TRAINING = ("train", "generate", "routing", "eval", "sweep", "lab")
"""Commands that take long or print what differs between machines."""


def with_outputs(text: str, *, measured: bool = False) -> str:
    """Return a page with its outputs computed again, in a folder with the reader's files.

    Everything above an output is done first, as a reader would: files are written, Python and commands run.
    """
    shown = [block for block in _BLOCK.finditer(text) if measured or block["option"] != "measured"]
    if not shown:
        return text
    trained = any(block["option"] == "measured" for block in shown)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_reader_files(folder)
        parts, done = [], 0
        for block in shown:
            printed = block["body"]
            for step in all_steps_of(text[done : block.start()]):
                if not step.runs:
                    printed = block["body"]  # what no test can run is left as it is
                elif trained or not _trains(step):
                    printed = _run(step, folder) or printed
            parts += [text[done : block.start()], block["mark"], f"```text\n{_shortened(printed, block['option'])}```"]
            done = block.end()
    return "".join([*parts, text[done:]])


def _trains(step: Step) -> bool:
    return step.kind == "command" and shlex.split(step.text)[1] in _TRAINING


def _run(step: Step, folder: Path) -> str:
    variables = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "MPLBACKEND": "agg"}
    if step.kind == "file":
        (folder / step.name).write_text(step.text, encoding="utf-8")
        return ""
    if step.kind == "command":
        command = [sys.executable, "-m", *shlex.split(step.text)]
    elif step.kind == "python":
        command = [sys.executable, "-c", step.text]
    else:
        return ""
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{step.text}\n{done.stderr[-2000:]}")
    lines = [line.rstrip() for line in done.stdout.replace(f"{ROOT}/", "").splitlines()]
    return "\n".join(lines).strip("\n") + "\n" if step.kind == "command" else ""


def _shortened(printed: str, option: str | None) -> str:
    match = re.fullmatch(r"(\d+) lines", option or "")
    lines = printed.splitlines(keepends=True)
    return "".join([*lines[: int(match[1])], "…\n"]) if match and len(lines) > int(match[1]) else printed


def main() -> None:
    """Renew the pages that are named, or all."""
    parser = argparse.ArgumentParser(description="Renew the outputs that pages show.")
    parser.add_argument("pages", nargs="*", type=Path, default=PAGES)
    parser.add_argument("--measured", action="store_true", help="Renew measured outputs too; this trains small models.")
    options = parser.parse_args()
    for page in options.pages:
        text = page.read_text(encoding="utf-8")
        renewed = with_outputs(text, measured=options.measured)
        if renewed != text:
            page.write_text(renewed, encoding="utf-8")
            print(f"renewed {page}")


if __name__ == "__main__":
    main()
