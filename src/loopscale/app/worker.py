"""A job in a process of its own: ``python -m loopscale.app.worker`` reads one task and writes lines of JSON.

A process can be stopped at any moment, and a long fit in it leaves the server free to answer others.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from loopscale.app.requests import CompareRequest, FitOptions, NextRequest
from loopscale.app.work import compare_work, fit_work, next_work
from loopscale.errors import InputError
from loopscale.files import finite

NICENESS = 5
"""Jobs give way to answers that somebody waits for at a slider."""


def main() -> None:
    """Do the task on standard input; progress, and then the result or one sentence, go to standard output."""
    if hasattr(os, "nice"):
        os.nice(NICENESS)
    task = json.load(sys.stdin)
    try:
        _write({"result": finite(_result(task))})
    except InputError as error:
        _write({"error": " ".join(str(error).split())})


def _result(task: dict[str, Any]) -> dict[str, Any]:
    text, options = task["csv"], FitOptions(**task["options"])
    if task["kind"] == "fit":
        return fit_work(text, options, _say)
    if task["kind"] == "comparison":
        return compare_work(text, options, CompareRequest(**task["asked"]), _say)
    return next_work(text, options, NextRequest(**task["asked"]), _say)


def _say(stage: str, done: int, total: int) -> None:
    _write({"stage": stage, "done": done, "total": total})


def _write(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line, allow_nan=False) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
