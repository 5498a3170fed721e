"""Open anything that loopscale saves: the file says what it is."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from loopscale.errors import InputError, nearest, shown
from loopscale.files import Fields, read_json

READERS = {
    "law": "loopscale.laws:ScalingLaw",
    "architecture": "loopscale.architecture:Architecture",
    "fit": "loopscale.fit:Fit",
    "plan": "loopscale.plan:Plan",
    "next-runs": "loopscale.next:NextRuns",
    "evaluation": "loopscale.evaluate.store:Result",
    "evaluated-model": "loopscale.evaluate.checkpoints:Model",
}
"""The class that reads each kind of file with ``from_dict(data, where)``; imported when such a file is opened."""


def load(path: str | Path) -> Any:
    """Return what a JSON file holds: a ScalingLaw, Architecture, Fit, Plan, NextRuns or a result of an evaluation.

    The file's ``kind`` decides. Folders of results are opened by ``loopscale.evaluate``.
    """
    data = read_json(path)
    kind = Fields(data, str(path)).take("kind", str)
    if kind not in READERS:
        raise InputError(
            f"{path}: a file of kind {shown(kind)} cannot be loaded{nearest(kind, READERS)}; "
            f"kinds that can: {', '.join(READERS)}"
        )
    module, _, name = READERS[kind].partition(":")
    return getattr(import_module(module), name).from_dict(data, str(path))
