"""Ships runs of the laboratory and renews what shows them: ``renew.py [--two-axes FOLDER] [--downstream FOLDER]``.

A folder is what ``loopscale lab two-axes --out`` or ``lab downstream --out`` wrote. Its table replaces the shipped one
if it has more runs; then the figures of docs/images and the outputs in docs/lab.md are made again.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from loopscale.figures.lab import draw_downstream, draw_two_axes
from loopscale.figures.style import save
from loopscale.lab import downstream, two_axes
from loopscale.lab.questions import summary
from loopscale.lab.tables import Table

ROOT = Path(__file__).parents[2]
DATA, PAGE, IMAGES = ROOT / "src/loopscale/lab/data", ROOT / "docs/lab.md", ROOT / "docs/images"


def ship(table: Table, folder: Path | None, name: str) -> None:
    """Replace the shipped table by that of a folder, if it has more runs."""
    if folder is None:
        return
    before, now = len(table.read(DATA / name)), len(table.read(folder / name))
    if now > before:
        shutil.copy(folder / name, DATA / name)
    print(f"{name}: {before} runs shipped, {now} in {folder}")


def renew(command: str) -> None:
    """Put what a command prints into the page, below it."""
    variables = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    arguments = [sys.executable, "-m", "loopscale", *command.split()]
    printed = subprocess.run(arguments, env=variables, capture_output=True, text=True, check=True).stdout
    body = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
    block = re.compile(rf"(    loopscale {command}\n\n<!-- output: measured -->\n```text\n).*?```", re.DOTALL)
    PAGE.write_text(block.sub(lambda match: f"{match[1]}{body}```", PAGE.read_text()))


def main() -> None:
    """Ship, draw and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--two-axes", type=Path)
    parser.add_argument("--downstream", type=Path)
    options = parser.parse_args()
    ship(two_axes.TABLE, options.two_axes, two_axes.RESULTS)
    ship(downstream.TABLE, options.downstream, downstream.RESULTS)
    save(draw_two_axes(two_axes.summary(two_axes.shipped_rows())), IMAGES / "lab-two-axes.svg")
    result = summary(downstream.shipped_rows())
    if result["runs"] == result["planned"]:
        save(draw_downstream(result), IMAGES / "lab-downstream.svg")
    for command in ("lab two-axes --shipped", "lab downstream --shipped"):
        renew(command)


if __name__ == "__main__":
    main()
