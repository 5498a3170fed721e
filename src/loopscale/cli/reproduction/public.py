"""The paper's held-out comparison on public looped runs: real losses beside the simulated ones."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np

from loopscale.core.errors import InputError
from loopscale.core.files import cache_folder
from loopscale.fitting.data.downloads import FOLDER_VARIABLE, PUBLIC_FILES

SWEEPS = ("qlabs-loops", "isodepth")
MAPPINGS = ("linear", "power", "bounded")


@dataclass(frozen=True)
class PublicComparison:
    """The errors of three mappings on held-out rows of a public sweep of dense looped models."""

    sweep: str
    held_out: str
    rows: int
    linear: float
    power: float
    bounded: float

    @property
    def lowest(self) -> str:
        """The mapping with the lowest error."""
        return min(MAPPINGS, key=lambda name: float(getattr(self, name)))


def _is_here(name: str) -> bool:
    """Tell whether a sweep can be read without the network."""
    return bool(os.environ.get(FOLDER_VARIABLE)) or (cache_folder() / PUBLIC_FILES[name].file).is_file()


def public_comparisons() -> tuple[list[PublicComparison], list[str]]:
    """Return the comparisons, and a sentence for each sweep whose data are not here."""
    from loopscale.fitting import load_public
    from loopscale.fitting.compare import compare

    comparisons, missing = [], []
    for name in SWEEPS:
        if not _is_here(name):
            missing.append(f"{name} was left out: its data are not here (see `loopscale data {name}`)")
            continue
        try:
            data = load_public(name)
        except InputError as error:
            missing.append(f"{name} was left out: {error}")
            continue
        points = data.points
        for letter, values in (("R", points.recurrence), ("N", points.active), ("D", points.tokens)):
            levels = np.unique(values)
            part = f"R={levels[-1]:g}" if letter == "R" else f"{letter}>{np.quantile(values, 0.8):.6g}"
            if letter == "N" and len(levels) < 3:
                continue
            scores = compare(data, [part], outer="chinchilla", mappings=MAPPINGS, folds=0, count=10).scores
            errors = {score.mapping: round(score.rmse, 4) for score in scores if score.mapping in MAPPINGS}
            label = part if letter == "R" else f"largest fifth of {letter}"
            comparisons.append(PublicComparison(name, label, scores[0].rows, **errors))
    return comparisons, missing
