"""Published coefficient sets, by name, as their sources print them (exponents signed as in the paper here)."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from loopscale.core.errors import InputError, nearest, shown
from loopscale.core.files import is_file, kind_of, read_json
from loopscale.core.tables import Table
from loopscale.scaling import costs
from loopscale.scaling.extensions import Excess, Repeated
from loopscale.scaling.form import outer_law
from loopscale.scaling.law import ScalingLaw
from loopscale.scaling.mappings import NoRecurrence, PowerLawRecurrence, SparsityConditional, mapping
from loopscale.scaling.outer import Chinchilla, JointMoE, Kaplan, Routed
from loopscale.scaling.points import BILLIONS, RAW, Counting, Points, Units
from loopscale.scaling.trust import AXES, TYPICAL_GROWTH, FittedRange, Spread

DEFAULT = "looped-moe-2026"

PAPER: dict[str, Any] = json.loads(Path(__file__).with_name("paper.json").read_text(encoding="utf-8"))
"""Every number that the paper prints and we use or recompute, with the table or section that it comes from."""


def _routed(router: str, name: str, a: float, b: float, c: float, d: float, start: float, most: float) -> ScalingLaw:
    return ScalingLaw(
        outer=Routed(),
        mapping=NoRecurrence(),
        coefficients={"a": a, "b": b, "c": c, "d": d, "E_start": start, "E_max": most},
        units=RAW,
        counts=Counting.WITH_EMBEDDINGS,
        name=name,
        source=f"Clark et al. 2022, Unified Scaling Laws for Routed Language Models, {router}",
        note="Every run used 131B tokens, so the law has no token term. N is the dense model's whole count; "
        "every second layer is routed.",
        fitted_range=FittedRange(size=(1.65e7, 1.31e9), tokens=(1.31e11, 1.32e11), experts=(1, 512), recurrence=(1, 1)),
    )


_SETS = (
    ScalingLaw(
        outer=JointMoE(),
        mapping=SparsityConditional(),
        coefficients=PAPER["coefficients"]["values"],
        units=BILLIONS,
        counts=Counting.WITHOUT_EMBEDDINGS,
        name=DEFAULT,
        source=f"{PAPER['source']}, fitted coefficients",
        note="The only published law with both passes and experts. Sizes and compute leave embeddings out.",
        rmse=PAPER["coefficients"]["rmse"],
        # The sweep's rungs 0.3B to 1.0B without embeddings; tests hold them equal to the ladder's.
        fitted_range=FittedRange(
            size=(173_045_760, 755_056_640), tokens=(1e11, 5e11), experts=(1, 16), recurrence=(1, 8)
        ),
    ),
    ScalingLaw(
        outer=Chinchilla(),
        mapping=NoRecurrence(),
        coefficients={"A": 406.4, "alpha": -0.34, "B": 410.7, "beta": -0.28, "c": 1.69},
        units=RAW,
        counts=Counting.WITH_EMBEDDINGS,
        name="chinchilla-2022",
        source="Hoffmann et al. 2022, Training Compute-Optimal Large Language Models, approach 3",
        note="Exponents are printed to two digits; the 2024 refit found this set inconsistent with its own data.",
        fitted_range=FittedRange(size=(7e7, 1.6e10), tokens=(5e9, 5e11), experts=(1, 1), recurrence=(1, 1)),
    ),
    ScalingLaw(
        outer=Chinchilla(),
        mapping=NoRecurrence(),
        coefficients={"A": 482.01, "alpha": -0.3478, "B": 2085.43, "beta": -0.3658, "c": 1.8172},
        units=RAW,
        counts=Counting.WITH_EMBEDDINGS,
        name="chinchilla-epoch-2024",
        source="Besiroglu et al. 2024 (Epoch AI), Chinchilla Scaling: A Replication Attempt",
        note="Refitted to 240 points read from Chinchilla's figure 4.",
        rmse=0.0218,
        fitted_range=FittedRange(size=(5.7e7, 1.62e10), tokens=(8.1e8, 3.18e11), experts=(1, 1), recurrence=(1, 1)),
    ),
    ScalingLaw(
        outer=JointMoE(),
        mapping=NoRecurrence(),
        coefficients={
            "A": 35.91, "alpha": -0.1889, "B": 35.98, "beta": -0.1775, "c": 1.3637,
            "delta": -0.2285, "gamma": 0.0098, "omega": 0.5529, "zeta": -0.0259,
            "E_start": 2.0732, "E_max": 290.4521,
        },
        units=RAW,
        counts=Counting.WITH_EMBEDDINGS,
        name="joint-moe-2025",
        source="Ludziejewski et al. 2025, Joint MoE Scaling Laws: Mixture of Experts Can Be Memory Efficient",
        note="Top-1 routing. Smallest size and token range are not in the abstract's figures, so they are not checked.",
        fitted_range=FittedRange(size=(None, 2.7e9), experts=(1, 32), recurrence=(1, 1)),
    ),
    _routed("S-Base routing", "routed-s-base-2022", -0.082, -0.108, 0.009, 1.104, 1.847, 314.478),
    _routed("RL-R routing", "routed-rl-r-2022", -0.083, -0.126, 0.012, 1.111, 1.880, 469.982),
    _routed("hash routing", "routed-hash-2022", -0.087, -0.136, 0.012, 1.157, 4.175, 477.741),
    ScalingLaw(
        outer=Chinchilla(),
        mapping=PowerLawRecurrence(),
        coefficients={
            "A": 0.454595, "alpha": -0.199285, "B": 0.437970, "beta": -0.370413, "c": 1.566949, "phi": 0.459,
        },
        units=BILLIONS,
        counts=Counting.WITHOUT_EMBEDDINGS,
        name="iso-depth-2026",
        source="Schwethelm, Rückert & Kaissis 2026, How Much Is One Recurrence Worth?",
        note="phi as published; the other five refitted here, phi held, to its 116 baseline runs as read off the "
        "published figure. Losses are for its tokenizer and data.",
        rmse=0.0102,
        fitted_range=FittedRange(size=(1.09e7, 1.137e9), tokens=(3.24e8, 7.97e9), experts=(1, 1), recurrence=(1, 8)),
    ),
    ScalingLaw(
        outer=Excess(Chinchilla()),
        mapping=NoRecurrence(),
        # The source prints the logarithms of A, B and c. With alpha = beta its compute-optimal model of U unique
        # tokens has (A / B)^(1 / alpha) U parameters, which is N_U here.
        coefficients={
            "A": math.exp(6.255414), "alpha": -0.3526596, "B": math.exp(7.3049974), "beta": -0.3526596,
            "c": math.exp(0.6254804), "R_D": 15.387756, "R_N": 5.309743,
            "N_U": math.exp((6.255414 - 7.3049974) / 0.3526596),
        },
        units=RAW,
        counts=Counting.WITH_EMBEDDINGS,
        name="data-constrained-2023",
        source="Muennighoff et al. 2023, Scaling Data-Constrained Language Models, appendix A",
        note="For tokens that are seen several times; without a number of unique tokens every token counts as new. "
        "Exponents are tied. Runs whose loss rises again with many epochs lie above it.",
        fitted_range=FittedRange(
            size=(7e6, 9e9), tokens=(1e8, 9e11), experts=(1, 1), recurrence=(1, 1), epochs=(1, 1500)
        ),
    ),
    ScalingLaw(
        outer=Kaplan(),
        mapping=NoRecurrence(),
        coefficients={"N_c": 6.4e13, "alpha_N": 0.076, "D_c": 1.8e13, "alpha_D": 0.103},
        units=RAW,
        counts=Counting.WITHOUT_EMBEDDINGS,
        name="kaplan-2020",
        source="Kaplan et al. 2020, Scaling Laws for Neural Language Models, table 2",
        note="Models stopped early on data of size D, without learning-rate schedules matched to D: later work finds "
        "that it asks for too large models.",
        fitted_range=FittedRange(size=(768, 1.5e9), tokens=(2.2e7, 2.3e10), experts=(1, 1), recurrence=(1, 1)),
    ),
)  # fmt: skip

REFITS = ("qlabs-loops-2026", "qlabs-repetition-2026")
"""Laws refitted here to public runs, each in a law file beside this one; experiments/evidence writes them."""


def _refit(name: str) -> ScalingLaw:
    """Return a refitted law with its resampled laws.

    The file is read without its schema: that takes longer than everything else that an import does.
    """
    content = json.loads(Path(__file__).with_name(f"{name}.json").read_text(encoding="utf-8"))
    spans = {axis: tuple(span) for axis, span in content["range"].items()}
    as_stored = (
        "coefficients", "counts", "name", "source", "note", "fitted", "rmse", "noise", "resamples", "resampled_by",
    )  # fmt: skip
    return ScalingLaw(
        outer=outer_law(content["outer"]),
        mapping=mapping(content["mapping"]),
        units=Units(**content["units"]),
        spread=Spread(**content["spread"]),
        fitted_range=FittedRange(**spans),
        **{field: content[field] for field in as_stored},
    )


def _with_spread(law: ScalingLaw) -> ScalingLaw:
    """Return a law with what its predictive intervals add, where its source states an RMSE and a range.

    The noise of a run is the RMSE. Beyond the range the law's error grows as that of fitted laws did in public sweeps.
    """
    span = law.fitted_range
    (small, large), (few, many), (_, passes) = span.size, span.tokens, span.recurrence
    if law.rmse is None or small is None or large is None or few is None or many is None:
        return law
    middle = float(law(Points(math.sqrt(small * large), math.sqrt(few * many))))
    return replace(
        law, spread=Spread(law.rmse / middle, TYPICAL_GROWTH, costs.train_flops(large * (passes or 1), many))
    )


PUBLISHED: dict[str, ScalingLaw] = {law.name: _with_spread(law) for law in _SETS} | {
    name: replace(_refit(name), resamples=None) for name in REFITS
}


def published(name: str = DEFAULT) -> ScalingLaw:
    """Return a published law by name; ``loopscale laws`` lists them."""
    if name not in PUBLISHED:
        raise InputError(
            f"law {shown(name)} is not known{nearest(name, PUBLISHED)}; choose from {', '.join(PUBLISHED)}"
        )
    return PUBLISHED[name]


TABLES = (".csv", ".tsv", ".jsonl", ".parquet")
"""Endings of tables of runs, which are no law files."""


@runtime_checkable
class HasLaw(Protocol):
    """An object with a law as ``law``: a ``Fit``, whose package builds on this one."""

    law: ScalingLaw


def find_law(law: Any = None, group: str | None = None) -> ScalingLaw:
    """Return the law that is meant: a law, a fit, a published name or a file; the paper's law for None.

    ``group`` names the group in a file that holds the laws of several.
    """
    if group is not None and not isinstance(law, str | Path):
        raise InputError("`group` goes with the file of several groups", remedy="leave it out")
    if law is None:
        return with_uncertainty(DEFAULT)
    if isinstance(law, ScalingLaw):
        return with_uncertainty(law.name) if law is PUBLISHED.get(law.name) else law
    if isinstance(law, HasLaw) and isinstance(law.law, ScalingLaw):
        return find_law(law.law)
    if isinstance(law, str) and law in PUBLISHED:
        if group is not None:
            raise InputError(f"law {law} has no groups", field="group", remedy="leave `group` out")
        return with_uncertainty(law)
    if isinstance(law, Path) or (isinstance(law, str) and (law.endswith(".json") or is_file(law))):
        if Path(law).suffix in TABLES and is_file(law):
            raise InputError(
                "this is a table of runs, and a law is needed here", where=str(law),
                remedy=f"fit it first: loopscale fit {law} --out law.json",
            )  # fmt: skip
        data: Any = read_json(law)
        if kind_of(data, str(law)) == "fit":
            return ScalingLaw.from_dict(data.get("law"), f"{law}: law", group)
        return ScalingLaw.from_dict(data, str(law), group)
    hint = nearest(law, PUBLISHED) if isinstance(law, str) else ""
    raise InputError(
        f"law {shown(law)} is neither a published law{hint} nor a file; choose from {', '.join(PUBLISHED)}"
    )


@lru_cache(maxsize=16)
def with_uncertainty(name: str) -> ScalingLaw:
    """Return a published law with resampled laws, where the design of its sweep is known.

    No source publishes refits of its sweep. Laws refitted here have those of the public runs. The others have refits
    of their sweep, simulated with its own design and noise from the published coefficients
    (experiments/published-uncertainty). ``resampled_by`` says which.
    """
    law = published(name)
    if name in REFITS:
        return _refit(name)
    simulated = json.loads(Path(__file__).with_name("resamples.json").read_text(encoding="utf-8"))
    if name not in simulated:
        return law
    return replace(law, resamples=simulated[name]["rows"], resampled_by=simulated[name]["resampled_by"])


REPETITION = "data-constrained-2023"
"""The published law whose discount of repeated tokens serves laws without a term for them."""


def with_repetition(law: ScalingLaw) -> ScalingLaw:
    """Return a law in which repeated tokens count for less, as Muennighoff et al. 2023 measured on dense models.

    A law that has a term for repetition is returned as it is. Every answer about repeated tokens uses this law, and
    says so by ``repetition_text``.
    """
    if law.outer.uses_unique:
        return law
    scale, outer = PUBLISHED[REPETITION].coefficients["R_D"], Repeated(law.outer)
    rows = None if law.resamples is None else np.insert(law.resamples, len(law.outer.coefficients), scale, axis=1)
    return replace(law, outer=outer, coefficients={**law.coefficients, "R_D": scale}, resamples=rows)


def repetition_text(law: ScalingLaw, points: Points) -> str:
    """Say how often tokens are seen, and whose discount serves where ``law`` has no term; empty without repetition."""
    epochs = float(np.max(points.tokens / points.unique))
    if epochs <= 1:
        return ""
    discount = "" if law.outer.uses_unique else f", discounted as {REPETITION} found on dense models"
    return f"each token is seen {epochs:.3g} times{discount}"


def laws() -> Table:
    """Return the published laws: name, form, what they were fitted on, and their source."""
    ends = [(axis, k, end) for axis in AXES for k, end in enumerate(("min", "max"))]
    rows = [
        {
            "name": law.name,
            "outer": law.outer.name,
            "mapping": law.mapping.name,
            "counts": law.counts.value,
            **{f"{axis}_{end}": getattr(law.fitted_range, axis)[k] for axis, k, end in ends},
            "rmse": law.rmse,
            "equation": law.equation(),
            "source": law.source,
        }
        for law in PUBLISHED.values()
    ]
    return Table.from_records(rows)
