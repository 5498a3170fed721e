"""Every kind of file that loopscale reads or writes: its pydantic model, its JSON Schema, and ``load``.

This module stands above the packages that define the kinds, so it may name all of them. A new kind adds one line.
"""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from loopscale.core.errors import InputError, nearest, shown
from loopscale.core.files import kind_of, read_json

if TYPE_CHECKING:
    from loopscale.core.schemas import Record

MODELS = {
    "law": "loopscale.scaling.schema:LawFile",
    "grouped-law": "loopscale.scaling.schema:GroupedLawFile",
    "architecture": "loopscale.architecture.schema:ArchitectureFile",
    "fit": "loopscale.fitting.schema:FitFile",
    "plan": "loopscale.planning.plan_file:PlanFile",
    "next-runs": "loopscale.choosing.schema:NextRunsFile",
    "train": "loopscale.train.config:TrainConfig",
    "training-run": "loopscale.train.run_dir:RunFile",
    "training-summary": "loopscale.train.run_dir:SummaryFile",
    "checkpoint": "loopscale.train.checkpoints:ManifestFile",
    "tokens": "loopscale.train.data.token_store:IndexFile",
    "sweep": "loopscale.sweep.spec:SweepFile",
    "rates": "loopscale.sweep.tune:RateLaw",
    "suite": "loopscale.evaluate.suites:SuiteFile",
    "evaluation": "loopscale.evaluate.store:ResultFile",
    "evaluated-model": "loopscale.evaluate.store:ModelFile",
    "conformance": "loopscale.model.conformance_file:ConformanceFile",
    "checksums": "loopscale.core.schemas:ChecksumsFile",
}
"""The pydantic model of each kind of file, imported when it is needed: some bring torch."""

OBJECTS = {
    "law": "loopscale.scaling:ScalingLaw",
    "architecture": "loopscale.architecture:Architecture",
    "fit": "loopscale.fitting:Fit",
    "plan": "loopscale.planning:Plan",
    "next-runs": "loopscale.choosing:NextRuns",
    "evaluation": "loopscale.evaluate.store:Result",
    "evaluated-model": "loopscale.evaluate.store:EvaluatedModel",
}
"""The class that reads each kind with ``from_dict(data, where)``, for the kinds that ``load`` opens."""


def load(path: str | Path) -> Any:
    """Return what a JSON file holds: a ScalingLaw, Architecture, Fit, Plan, NextRuns or a result of an evaluation.

    The file's ``kind`` decides. Folders of results are opened by ``loopscale.evaluate``.
    """
    data = read_json(path)
    kind = kind_of(data, str(path))
    if kind not in OBJECTS:
        raise InputError(
            f"a file of kind {shown(kind)} cannot be loaded{nearest(kind, OBJECTS)}",
            where=str(path), remedy=f"kinds that can are {', '.join(OBJECTS)}",
        )  # fmt: skip
    return resolve_name(OBJECTS[kind]).from_dict(data, str(path))


def json_schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of a kind of file."""
    from loopscale.core.schemas import schema_of

    return schema_of(model_of(kind))


def model_of(kind: str) -> type[Record]:
    """Return the model of a kind of file."""
    if kind not in MODELS:
        raise InputError(f"schema {shown(kind)} is not known{nearest(kind, MODELS)}; choose from {', '.join(MODELS)}")
    model: type[Record] = resolve_name(MODELS[kind])
    return model
