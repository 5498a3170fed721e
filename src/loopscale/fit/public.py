"""Three public sweeps, each by source and checksum, filtered as their authors or refitters did."""

from __future__ import annotations

import csv
import gzip
import inspect
import io
from collections.abc import Callable

import numpy as np

from loopscale.arrays import FloatArray
from loopscale.errors import InputError, nearest, shown
from loopscale.fit.downloads import PublicFile, fetch
from loopscale.fit.observations import Observations
from loopscale.laws import Counting, Points

TOKENS_PER_STEP = 524_288
"""Clark's batch: 256 sequences of 2,048 tokens."""

_GITHUB = "https://raw.githubusercontent.com"
PUBLIC_FILES: dict[str, PublicFile] = {
    "epoch-chinchilla": PublicFile(
        file="epoch-chinchilla.csv",
        origin="epoch-research/analyzing-chinchilla, data/svg_extracted_data.csv",
        licence="none stated; points read from figure 4 of Hoffmann et al. 2022 by Epoch AI",
        sha256="193478df4e90f040016431996c45682659306840ecdadf83cfb9cd5ca0aa1b30",
        url=f"{_GITHUB}/epoch-research/analyzing-chinchilla/92258837425e1b5f2851d624287f0120583a3d0e"
        "/data/svg_extracted_data.csv",
    ),
    "clark-routing": PublicFile(
        file="clark-routing.csv.gz",
        origin="google-deepmind/scaling_laws_for_routing, data/curves.csv.gz",
        licence="CC-BY 4.0",
        sha256="c03e7531add85e594f368d33bac4a0220280be858a7ed12d147cf73af6a3819f",
        url=f"{_GITHUB}/google-deepmind/scaling_laws_for_routing/7b1cc8fef4ec707c8a0a82daa7e42b8d60573ed6"
        "/data/curves.csv.gz",
    ),
    "isodepth": PublicFile(
        file="isodepth.csv",
        origin="kschwethelm/looped_nanochat and the paper How Much Is One Recurrence Worth",
        licence="code MIT, paper CC-BY",
        sha256="2fe7d5f5af41cd0f8f0fd42e119e9500b5dc8ec7c3e8a5302330da752bf0e5f3",
        url=None,
        otherwise="it is published nowhere as a file: sizes and tokens come from the scaling-law scripts of "
        "kschwethelm/looped_nanochat and losses were read off its paper's figure",
    ),
}


def load_public(name: str, **options: object) -> Observations:
    """Return a public sweep: ``epoch-chinchilla``, ``clark-routing`` or ``isodepth``.

    Options are those of :func:`epoch_chinchilla`, :func:`clark_routing` and :func:`isodepth`.
    """
    if name not in _LOADERS:
        raise InputError(
            f"public sweep {shown(name)} is not known{nearest(name, _LOADERS)}; choose from {', '.join(_LOADERS)}"
        )
    loader = _LOADERS[name]
    known = list(inspect.signature(loader).parameters)
    for option in options:
        if option not in known:
            raise InputError(f"{name}: option {shown(option)} is unknown; it takes {', '.join(known)}")
    return loader(**options)


def epoch_chinchilla(*, drop_highest: int = 5) -> Observations:
    """Return Chinchilla's points as Epoch AI read them, without the ``drop_highest`` largest losses.

    The five highest lie far from any fit: they move c from 1.82 to 1.89. D = FLOP / 6N.
    """
    table = _table("epoch-chinchilla")
    loss, N = _numbers(table, "loss"), _numbers(table, "Model Size")
    kept = np.sort(np.argsort(loss, kind="stable")[: len(loss) - drop_highest])
    return Observations(
        points=_dense(N, _numbers(table, "Training FLOP") / (6 * N)),
        loss=loss,
        run=np.array([f"point-{row}" for row in range(1, len(loss) + 1)]),
        source=_source("epoch-chinchilla"),
        counts=Counting.WITH_EMBEDDINGS,
        notes=(f"dropped the {drop_highest} highest losses of {len(loss)}",) if drop_highest else (),
    ).where(kept)


def clark_routing(*, router: str = "S-Base", every_step: bool = False) -> Observations:
    """Return Clark's runs of one router with the dense runs: routing frequency .5, k = 1, seed 42.

    Only the last step of each run, or ``every_step``: those are points in mid-schedule, marked unfinished.
    """
    rows = [row for row in _table("clark-routing") if _is_main_run(row)]
    routers = sorted({row["router_type"] for row in rows} - {"Dense"})
    if router not in routers:
        raise InputError(f"router {shown(router)} is not in clark-routing; choose from {', '.join(routers)}")
    rows = [row for row in rows if row["router_type"] in (router, "Dense") and _is_usable(row)]
    step = _numbers(rows, "step")
    run = np.array([f"{row['router_type']}-{row['hyper_id']}" for row in rows])
    finished = np.array([at == step[run == name].max() for at, name in zip(step, run, strict=True)])
    N, total = _numbers(rows, "dense_parameter_count"), _numbers(rows, "total_parameter_count")
    observations = Observations(
        points=Points(N, TOKENS_PER_STEP * step, np.ones(len(N)), _numbers(rows, "num_experts"), None, total),
        loss=_numbers(rows, "loss_validation"),
        run=run,
        source=_source("clark-routing"),
        counts=Counting.WITH_EMBEDDINGS,
        finished=finished,
    )
    return observations if every_step else observations.where(finished)


def isodepth(*, variant: str = "baseline") -> Observations:
    """Return the looped runs of one variant: ``baseline``, ``hyperconn`` or ``trunc_bptt``.

    The adapter that injects the input belongs to the loop. Losses were read off a figure, to about .001 nats.
    """
    table = _table("isodepth")
    variants = sorted({row["variant"] for row in table})
    if variant not in variants:
        raise InputError(f"variant {shown(variant)} is not in isodepth; choose from {', '.join(variants)}")
    rows = [row for row in table if row["variant"] == variant]
    once, loop = _numbers(rows, "N_once"), _numbers(rows, "N_rec")
    R = _numbers(rows, "r")
    return Observations(
        points=Points(once + loop, _numbers(rows, "D"), R, np.ones(len(R)), loop, once + loop),
        loss=_numbers(rows, "loss"),
        run=np.array([f"{variant}-C{row['C']}-r{row['r']}-s{row['s']}" for row in rows]),
        source=_source("isodepth"),
        counts=Counting.WITHOUT_EMBEDDINGS,
        finished=np.ones(len(rows), dtype=bool),
    )


def _is_main_run(row: dict[str, str]) -> bool:
    return float(row["routing_frequency"]) == 0.5 and row["k"] == "1" and row["seed"] == "42"


def _is_usable(row: dict[str, str]) -> bool:
    """Tell whether the row was trained at all and has a loss; four evaluations are empty."""
    return int(row["step"]) > 0 and row["loss_validation"] != ""


def _dense(N: FloatArray, D: FloatArray) -> Points:
    one = np.ones(len(N))
    return Points(N, D, one, one, None, N)


def _table(name: str) -> list[dict[str, str]]:
    content = fetch(PUBLIC_FILES[name])
    text = gzip.decompress(content) if PUBLIC_FILES[name].file.endswith(".gz") else content
    return list(csv.DictReader(io.StringIO(text.decode("utf-8"))))


def _numbers(rows: list[dict[str, str]], column: str) -> FloatArray:
    return np.array([float(row[column]) for row in rows])


def _source(name: str) -> str:
    source = PUBLIC_FILES[name]
    return f"{name}: {source.origin} ({source.licence})"


_LOADERS: dict[str, Callable[..., Observations]] = {
    "epoch-chinchilla": epoch_chinchilla,
    "clark-routing": clark_routing,
    "isodepth": isodepth,
}
