"""Sweeps to try a fit on: the paper's, simulated from its coefficients, and the public ones by name."""

from __future__ import annotations

import csv
import gzip
import hashlib
import inspect
import io
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path

import numpy as np

from loopscale.architecture import rung, rung_name
from loopscale.arrays import FloatArray
from loopscale.errors import InputError, nearest, shown
from loopscale.files import cache_folder
from loopscale.fit.data.read import Observations
from loopscale.laws import Counting, Points, ScalingLaw, costs, published
from loopscale.tables import Table

FOLDER_VARIABLE = "LOOPSCALE_DATA"
_PATIENCE = 60.0


@dataclass(frozen=True)
class PublicFile:
    """One file of somebody else's: where it lives, under what terms, and which bytes it must be."""

    file: str
    """Its name in the data folder."""
    origin: str
    """Repository and path, or what it was made from."""
    licence: str
    sha256: str
    url: str | None
    """Where to download it; None when the file was never published as such."""
    otherwise: str = ""
    """How to get it where there is nothing to download."""


def fetch(source: PublicFile) -> bytes:
    """Return the file's bytes, checked: from ``LOOPSCALE_DATA`` when that is set, else from the cache or its URL."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        return _given(source, Path(folder) / source.file)
    cached = cache_folder() / source.file
    if cached.is_file():
        return _checked(source, cached.read_bytes(), str(cached))
    if source.url is None:
        raise InputError(f"{source.file}: {source.otherwise}; put it in a folder and name that in {FOLDER_VARIABLE}")
    return _download(source, source.url, cached.parent)


def _given(source: PublicFile, path: Path) -> bytes:
    try:
        return _checked(source, path.read_bytes(), str(path))
    except FileNotFoundError:
        remedy = f"get it from {source.url}" if source.url else source.otherwise
        raise InputError(f"{path}: no such file in the folder that {FOLDER_VARIABLE} names; {remedy}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None


def _checked(source: PublicFile, content: bytes, where: str) -> bytes:
    found = hashlib.sha256(content).hexdigest()
    if found != source.sha256:
        raise InputError(
            f"{where}: SHA-256 is {found[:12]}…, but {source.file} from {source.origin} has {source.sha256[:12]}…; "
            "remove the file to download it again, or read your own file with Observations.read"
        )
    return content


def _download(source: PublicFile, url: str, folder: Path) -> bytes:
    """Download the file into ``folder``, where it is kept only if its checksum is right."""
    pooch = import_module("pooch")  # imports requests, which only a download should cost

    pooch.get_logger().setLevel("ERROR")
    try:
        path = pooch.retrieve(
            url, f"sha256:{source.sha256}", fname=source.file, path=folder,
            downloader=None if not url.startswith("http") else pooch.HTTPDownloader(timeout=_PATIENCE),
        )  # fmt: skip
        return Path(path).read_bytes()
    except ValueError as error:  # pooch's error for another checksum, or for an address it cannot read
        if "hash" not in str(error):
            raise _failed(url, error) from None
        raise InputError(
            f"{url}: SHA-256 differs from that of {source.file} from {source.origin}; the file has changed there"
        ) from None
    except OSError as error:  # errors of requests are OSErrors
        raise _failed(url, error) from None


def _failed(url: str, error: Exception) -> InputError:
    reason = shown(str(error))
    return InputError(
        f"{url}: download failed: {reason}; fetch it by hand into a folder and name that in {FOLDER_VARIABLE}"
    )


TOKENS_PER_STEP = 524_288
"""Clark's batch: 256 sequences of 2,048 tokens."""

_TIDY = "run, params, tokens, loss"
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
    **{
        name: PublicFile(
            file=f"real/{name}.csv",
            origin=origin,
            licence="as its repository states",
            sha256=sha256,
            url=None,
            otherwise=f"no address holds this table: it was made from the results in {origin}, "
            f"https://github.com/{repository}; from there write one row per loss with the columns {columns}",
        )
        for name, origin, repository, columns, sha256 in (
            ("datablations", "huggingface/datablations", "huggingface/datablations", "run, params, tokens, loss, unique_tokens", "47585fac0c0347ff368427746840863f46e44730cda05d06aadeb82d8c56b7c2"),  # noqa: E501
            ("gemstones-hot", "mcleish7/gemstone-scaling-laws", "mcleish7/gemstone-scaling-laws", "run, params, tokens, loss, width, depth", "687600fdd43bbdb887bad64c5f0519c79e8ee1e757b41a80b452330095557384"),  # noqa: E501
            ("marin-comma-isoflop", "marin, via Open-Athena/vpnls", "Open-Athena/vpnls", _TIDY, "d831dde711a920753b158506746f61e8d3453d8fb1a9ff2d86a1d588e81a3c9e"),  # noqa: E501
            ("misfitting-isoflop", "the misfitting survey, via Open-Athena/vpnls", "Open-Athena/vpnls", _TIDY, "6de22fda3807de2d98a6cf8b902b9bfd2006712aca940d123ad99d2e29c6539a"),  # noqa: E501
            ("mlf-redpajama-c4val", "mlfoundations/scaling", "mlfoundations/scaling", _TIDY, "290fd32303d63e4f548f8624bf09027e1cb40572b842913cbf52e6fd7e6ce03d"),  # noqa: E501
            ("olmo-ladder", "allenai/OLMo-ladder", "allenai/OLMo-ladder", _TIDY, "b2dea2579f41dae7cc9ebe36970f7bc96f07318b8bb50042fb94e53526a9d877"),  # noqa: E501
            ("porian-chinchilla-decay", "formll/resolving-scaling-law-discrepancies", "formll/resolving-scaling-law-discrepancies", _TIDY, "f99f3338205a70c8ad579046a2608e8eec2ddfabc1bdf62a58975694a0c3c92e"),  # noqa: E501
        )
    },
}  # fmt: skip


def load_public(name: str, **options: object) -> Observations:
    """Return a public sweep by name: one of ``PUBLIC_FILES``.

    Options are those of :func:`epoch_chinchilla`, :func:`clark_routing` and :func:`isodepth`; the others take none.
    """
    if name not in _LOADERS:
        raise InputError(
            f"public sweep {shown(name)} is not known{nearest(name, _LOADERS)}; choose from {', '.join(_LOADERS)}"
        )
    loader = _LOADERS[name]
    known = list(inspect.signature(loader).parameters)
    for option in options:
        if option not in known:
            raise InputError(f"{name}: option {shown(option)} is unknown; it takes {', '.join(known) or 'none'}")
    return loader(**options)


def epoch_chinchilla(*, drop_highest: int = 5) -> Observations:
    """Return Chinchilla's points as Epoch AI read them, without the ``drop_highest`` largest losses.

    The five highest lie far from any fit: they move c from 1.82 to 1.89. D = FLOP / 6N.
    """
    table = _table("epoch-chinchilla")
    loss, N = _numbers(table, "loss"), _numbers(table, "Model Size")
    kept = np.sort(np.argsort(loss, kind="stable")[: len(loss) - drop_highest])
    return Observations(
        points=_dense(N, costs.tokens_for(_numbers(table, "Training FLOP"), N)),
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


def _tidy(name: str, /) -> Observations:
    """Return a sweep whose file is tidy already."""
    return Observations.from_csv(fetch(PUBLIC_FILES[name]).decode("utf-8"), source=_source(name))


_LOADERS: dict[str, Callable[..., Observations]] = {
    "epoch-chinchilla": epoch_chinchilla,
    "clark-routing": clark_routing,
    "isodepth": isodepth,
    **{name: partial(_tidy, name) for name, source in PUBLIC_FILES.items() if source.file.startswith("real/")},
}


__all__ = ["MICRO", "PUBLIC_FILES", "load_micro", "load_public", "simulate_sweep", "stacked"]

MICRO = ("micro", "micro-all", "micro-2", "micro-2-router")

SWEEP_RUNGS = ("0.3B", "0.6B", "1.0B")
SWEEP_EXPERTS = (1, 2, 4, 8, 16)
SWEEP_RECURRENCES = (1, 2, 3, 4, 6, 8)
SWEEP_TOKENS = tuple(np.linspace(1e11, 5e11, 12).tolist())
"""The paper's grid: 90 runs, and twelve points along each for its "more than 1,000 observations"."""


def load_micro(name: str = "micro") -> Observations:
    """Return a micro-sweep that ships with loopscale; all of them are measured.

    "micro" has one looped layer (docs/micro-sweep.md) and leaves out runs of fewer than 1.5M tokens, where more passes
    may still raise the loss; "micro-all" has them. "micro-2" has a prelude and a coda (docs/results.md): the runs of
    its sweep and the best of each search for a learning rate; its file holds the other searches and recipes too.
    In "micro-2-router" the runs with several passes and experts are those with a router for each pass.
    """
    if name.startswith("micro-2"):
        text = Path(__file__).with_name("micro-2.csv").read_text(encoding="utf-8")
        finished = [row for row in csv.DictReader(io.StringIO(text)) if row["state"] == "done"]
        rows = _of_the_plain_loop(finished)
        if name == "micro-2-router":
            rows = [row for row in rows if row["R"] == "1" or row["E"] == "1"]
            rows += [row for row in finished if row["stage"] in "EF" and row["recipe"] == "pass_router=True"]
        return Observations.from_csv(Table.from_records(rows).csv(), source=name)
    observed = Observations.read(Path(__file__).with_name("micro-sweep.csv"))
    return observed if name == "micro-all" else observed.where(observed.points.tokens >= 1.5e6)


def _of_the_plain_loop(finished: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    """Return the rows of the sweep, and of each search for a learning rate the one of lowest loss at each D."""
    plain = [row for row in finished if row["recipe"] == "plain"]
    best: dict[tuple[str, ...], dict[str, str]] = {}
    for row in plain:
        cell = tuple(row[name] for name in ("size", "E", "R", "seed", "D (raw)"))
        if row["stage"] == "A" and (cell not in best or float(row["loss"]) < float(best[cell]["loss"])):
            best[cell] = row
    # The two D of a cell may be best at two rates, and are one run all the same: they share seed and data.
    searched = [row | {"run": f"A-{row['size']}-E{row['E']}-R{row['R']}-s{row['seed']}"} for row in best.values()]
    return searched + [row for row in plain if row["stage"] == "D"]


def named_sweep(name: str) -> Observations:
    """Return the sweep called ``name``: `simulated`, the shipped `micro`, or a public one."""
    if name == "simulated":
        return simulate_sweep()
    if name in MICRO:
        return load_micro(name)
    if name in _LOADERS:
        return load_public(name)
    known = ["simulated", *MICRO, *_LOADERS]
    raise InputError(f"{name}: no such file or sweep{nearest(name, known)}; sweeps by name are {', '.join(known)}")


def simulate_sweep(
    law: ScalingLaw | None = None,
    *,
    rungs: Sequence[str] = SWEEP_RUNGS,
    experts: Sequence[float] = SWEEP_EXPERTS,
    recurrences: Sequence[int] = SWEEP_RECURRENCES,
    tokens: Sequence[float] = SWEEP_TOKENS,
    noise: float = 0.0037,
    run_noise: float = 0.0,
    seed: int = 0,
) -> Observations:
    """Simulate the paper's sweep from ``law``: its published coefficients, unless another is given.

    Every combination of rung, experts and recurrence is one run, seen at each of ``tokens``. ``noise`` is the
    standard deviation of each observation and ``run_noise`` that of one shift per run, both normal and added to
    the loss in nats. A run's draws depend on ``seed`` and the run alone, so a further slice
    (``recurrences=(1, 2, 3, 4, 6, 8, 16)``) leaves the other runs as they were.
    """
    truth = published() if law is None else law
    if not (noise >= 0 and run_noise >= 0):
        raise InputError(f"noise is {noise} and run_noise {run_noise}; both should be zero or more")
    D = np.asarray(tokens, dtype=np.float64)
    grid = [(rung_name(size), E, R) for size, E, R in product(rungs, experts, recurrences)]
    if not grid or not D.size:
        raise InputError("a simulated sweep needs at least one rung, expert count, recurrence and token count")
    points = stacked(rung(size, experts=E).points(D, R, truth.counts) for size, E, R in grid)
    names = [f"{size}-E{E:g}-R{R}" for size, E, R in grid]
    drawn = np.concatenate([_noise(name, D, noise, run_noise, seed) for name in names])
    return Observations(
        points=points,
        loss=truth(points) + drawn,
        run=np.repeat(np.array(names), D.size),
        source=f"simulated from {truth.name} (noise {noise:g}, run noise {run_noise:g} nats, seed {seed})",
        counts=truth.counts,
        finished=np.ones(len(grid) * D.size, dtype=bool),
    )


def stacked(parts: Iterable[Points]) -> Points:
    """Join points end to end, each broadcast to one dimension; every part must know its loop and total."""
    rows = [
        [np.broadcast_to(np.asarray(value, dtype=np.float64), (p.active + p.tokens + p.recurrence).shape or (1,))
         for value in (p.active, p.tokens, p.recurrence, p.experts, p.loop_block, p.active / p.m)]
        for p in parts
    ]  # fmt: skip
    return Points(*(np.concatenate(column) for column in zip(*rows, strict=True)))


def _noise(name: str, D: FloatArray, noise: float, run_noise: float, seed: int) -> FloatArray:
    random = np.random.default_rng([seed, zlib.crc32(name.encode())])
    shift = run_noise * random.standard_normal()
    return shift + noise * random.standard_normal(D.size)
