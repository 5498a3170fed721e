"""The data of the page: laws, the ladder, the fields of a budget, devices and shared texts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from math import inf
from typing import Any

from loopscale import __version__
from loopscale.app.formulas.laws import outer_laws
from loopscale.architecture import RUNG_EXPERTS, RUNG_RECURRENCES, RUNGS
from loopscale.architecture.ladder import extended_rungs
from loopscale.architecture.space import CONTINUOUS_WIDTHS, GENERIC_SIZES
from loopscale.core.devices import DEVICES, NODE, UTILISATION
from loopscale.core.files import finite
from loopscale.core.quantities import WEIGHT_FORMATS
from loopscale.planning import FIELDS, PRESETS
from loopscale.planning.budget import LEAST_MEMORY
from loopscale.planning.design import NO_GAIN, STEPS
from loopscale.planning.device_search import LONG
from loopscale.planning.intervals import interval_basis
from loopscale.planning.layouts import REDUCES
from loopscale.planning.limits import DEVICES as DEVICES_LIMIT
from loopscale.planning.limits import DEVICES_TEXTS, NEAR, SLACK
from loopscale.planning.text import AXIS_TEXT
from loopscale.scaling import DEFAULT, MAPPINGS, OUTER_LAWS, PUBLISHED, ScalingLaw, find_law
from loopscale.scaling.trust import AXES, MOST_DECADES, TRUST_LEVELS


def page_data() -> dict[str, Any]:
    """Return the data as plain values."""
    return {
        "version": __version__,
        "rungs": RUNGS,
        "extended": extended_rungs(),
        "experts": list(RUNG_EXPERTS),
        "recurrences": list(RUNG_RECURRENCES),
        "continuous": list(CONTINUOUS_WIDTHS),
        "sizes": list(GENERIC_SIZES),
        "slack": SLACK,
        "near": NEAR,
        "steps": list(STEPS),
        "noGain": NO_GAIN,
        "leastMemory": LEAST_MEMORY,
        "trust": {level: None if factor == inf else factor for level, factor in TRUST_LEVELS.items()},
        "axisText": AXIS_TEXT,
        "axes": list(AXES),
        "mostDecades": MOST_DECADES,
        "weightFormats": WEIGHT_FORMATS,
        "fields": [_field(name) for name in FIELDS],
        "presets": [preset(name, values) for name, values in PRESETS.items()],
        "devices": {
            name: {**asdict(device), "link": device.link or device.network} for name, device in DEVICES.items()
        },
        "utilisation": UTILISATION,
        "node": NODE,
        "reduces": list(REDUCES),
        "longRun": LONG,
        "devicesLimit": {"field": DEVICES_LIMIT, "otherwise": DEVICES_LIMIT}
        | dict(zip(("excluded", "empty", "closest"), DEVICES_TEXTS, strict=True)),
        "outers": {name: _outer(law) for name, law in outer_laws().items()},
        "mappings": {
            name: {
                "names": [term.name for term in mapping.coefficients],
                "loops": mapping.loops,
                "ratio": mapping.needs_ratio,
                "title": mapping.title,
            }
            for name, mapping in MAPPINGS.items()
        },
        "repetition": PUBLISHED["data-constrained-2023"].coefficients["R_D"],
        "law": DEFAULT,
        "laws": {name: law_data(find_law(name)) for name in PUBLISHED},
    }


def law_data(law: ScalingLaw) -> dict[str, Any]:
    """Return the content of a law's file, with its form, its uncertainty and the basis of its interval in words."""
    own = {"uncertainty": law.uncertainty, "form": str(law.form), "basis": interval_basis(law)}
    data: dict[str, Any] = finite({**law.to_dict(), **own})
    return data


def preset(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a device that models run on, with its limits as people write them."""
    limits = {field: FIELDS[field].amount.exact(value) for field, value in values.items()}
    about = ", ".join(FIELDS[field].write(values[field]) for field in limits if field != "bits")
    return {"name": name, "label": f"{name} ({about}, {limits['bits']} bits)", "limits": limits}


def _outer(law: Any) -> dict[str, Any]:
    names = [term.name for term in law.coefficients]
    return {
        "names": names, "experts": law.uses_experts, "unique": law.uses_unique, "title": law.title,
        "listed": law.name in OUTER_LAWS,
    }  # fmt: skip


def _field(name: str) -> dict[str, Any]:
    field = FIELDS[name]
    return {
        **field.to_dict(),
        "sentence": field.label,
        "option": field.option,
        "relaxed": field.relaxed,
        "counts_with": list(field.counts_with),
        "least": field.amount.least,
        "example": field.slider.start or field.slider.first,
    }


def data_module() -> str:
    """Return the data as a JavaScript module."""
    return f"export const DATA = {json.dumps(page_data(), separators=(',', ':'), ensure_ascii=False)};\n"
