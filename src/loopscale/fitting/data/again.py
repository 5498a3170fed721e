"""The data of a law, read again: with the choices that the law's file keeps, unless others are stated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopscale.core.errors import InputError, shown
from loopscale.core.files import is_file, read_json
from loopscale.fitting.data.folders import STATE
from loopscale.fitting.data.wandb import is_project
from loopscale.scaling import Provenance, Reading, ScalingLaw

if TYPE_CHECKING:
    from loopscale.fitting.data.observations import Observations

CHOICES = tuple(Reading().options())
"""The options of reading, by the names of ``Observations.of``."""


def is_law_file(path: object) -> bool:
    """Tell whether ``path`` is a JSON file of a law or a fit, in place of a table of runs."""
    return isinstance(path, str | Path) and Path(path).suffix == ".json" and Path(path).name != STATE and is_file(path)


def read_again(path: str | Path, read: Callable[..., Observations], choices: Mapping[str, Any]) -> Observations:
    """Return the runs behind a law file; ``read`` reads a table, and ``choices`` overrule the law's own."""
    provenance = _provenance(path)
    reading = provenance.reading
    observations = read(_data(reading.data, Path(path)), **reading.overruled(choices))
    observations = replace(observations, reading=replace(observations.reading, data=reading.data))
    if any(choices.values()) or observations.digest == provenance.sha256:
        return observations
    changed = (
        f"{reading.data} is not what the law was fitted to: {len(observations)} rows now, {provenance.rows} then",
        f"fit it again: loopscale fit {reading.data} --out {path}",
    )
    return replace(observations, warnings=(changed, *observations.warnings))


def law_data(law: ScalingLaw) -> str | None:
    """Return the table that a law was fitted to, if it is still there."""
    data = "" if law.provenance is None else law.provenance.reading.data
    return data if data and _is_readable(data) else None


def _is_readable(data: str) -> bool:
    """Tell whether data are a file that is there, a W&B project, or, without a suffix, the name of a sweep."""
    return is_file(data) or is_project(data) or not Path(data).suffix


def _provenance(path: str | Path) -> Provenance:
    content = read_json(path)
    kind = content.get("kind") if isinstance(content, Mapping) else None
    if not isinstance(content, Mapping) or kind not in ("law", "fit"):
        raise InputError(
            f"a JSON file of kind {shown(kind)} holds no runs",
            where=str(path), remedy="give a table of runs, or the file of a fitted law",
        )  # fmt: skip
    law = ScalingLaw.from_dict(content if kind == "law" else content.get("law"), str(path))
    if law.provenance is None or not law.provenance.reading.data:
        raise InputError(
            "this law does not say which file it was fitted to", where=str(path), remedy="give the table of runs"
        )
    return law.provenance


def _data(data: str, law: Path) -> str:
    """Return the data of a law, whose file may also lie beside that of the law."""
    beside = law.parent / data
    if _is_readable(data):
        return data
    if is_file(str(beside)):
        return str(beside)
    raise InputError(f"its runs, {shown(data)}, are not there", where=str(law), remedy="give the table of runs")
