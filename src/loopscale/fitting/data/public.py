"""Sweeps to try a fit on: the paper's, simulated from its coefficients, and the public ones by name."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from loopscale.architecture import rung, rung_name
from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError, nearest, shown
from loopscale.core.tables import Table
from loopscale.fitting.data import looped
from loopscale.fitting.data.converters import csv_rows, numbers
from loopscale.fitting.data.downloads import PUBLIC_FILES, fetch, public_rows, public_source
from loopscale.fitting.data.observations import Observations
from loopscale.scaling import Counting, Points, ScalingLaw, costs, published

TOKENS_PER_STEP = 524_288
"""Clark's batch: 256 sequences of 2,048 tokens."""


def load_public(name: str, **options: object) -> Observations:
    """Return a public sweep by name: one of ``PUBLIC_FILES``.

    Options are those of ``epoch_chinchilla``, ``clark_routing``, ``isodepth``, ``qlabs_loops`` and
    ``qlabs_regimes``; the others take none.
    """
    if name in looped.TABLES:
        raise InputError(f"{name} is not a sweep of training runs; read it with load_table({name!r})")
    if name not in _LOADERS:
        raise InputError(
            f"public sweep {shown(name)} is not known{nearest(name, _LOADERS)}; choose from {', '.join(_LOADERS)}"
        )
    loader = _LOADERS[name]
    allowed = list(inspect.signature(loader).parameters)
    for option in options:
        if option not in allowed:
            raise InputError(f"{name}: option {shown(option)} is unknown; it takes {', '.join(allowed) or 'none'}")
    return loader(**options)


def epoch_chinchilla(*, drop_highest: int = 5) -> Observations:
    """Return Chinchilla's points as Epoch AI read them, without the ``drop_highest`` largest losses.

    The five highest lie far from any fit: they move c from 1.82 to 1.89. D = FLOP / 6N.
    """
    table = public_rows("epoch-chinchilla")
    loss, N = numbers(table, "loss"), numbers(table, "Model Size")
    one = np.ones(len(N))
    rest = np.sort(np.argsort(loss, kind="stable")[: len(loss) - drop_highest])
    return Observations(
        points=Points(N, costs.tokens_for(numbers(table, "Training FLOP"), N), one, one, None, N),
        loss=loss,
        run=np.array([f"point-{row}" for row in range(1, len(loss) + 1)]),
        source=public_source("epoch-chinchilla"),
        counts=Counting.WITH_EMBEDDINGS,
        notes=(f"dropped the {drop_highest} highest losses of {len(loss)}",) if drop_highest else (),
    ).where(rest)


def clark_routing(*, router: str = "S-Base", every_step: bool = False) -> Observations:
    """Return Clark's runs of one router with the dense runs: routing frequency .5, k = 1, seed 42.

    Only the last step of each run, or ``every_step``: those are points in mid-schedule, marked unfinished. Four
    evaluations without a loss are left out.
    """
    rows = [
        row for row in public_rows("clark-routing")
        if float(row["routing_frequency"]) == 0.5 and row["k"] == "1" and row["seed"] == "42"
    ]  # fmt: skip
    routers = sorted({row["router_type"] for row in rows} - {"Dense"})
    if router not in routers:
        raise InputError(f"router {shown(router)} is not in clark-routing; choose from {', '.join(routers)}")
    rows = [
        row for row in rows
        if row["router_type"] in (router, "Dense") and int(row["step"]) > 0 and row["loss_validation"]
    ]  # fmt: skip
    step = numbers(rows, "step")
    run = np.array([f"{row['router_type']}-{row['hyper_id']}" for row in rows])
    finished = np.array([at == step[run == name].max() for at, name in zip(step, run, strict=True)])
    N, total = numbers(rows, "dense_parameter_count"), numbers(rows, "total_parameter_count")
    observations = Observations(
        points=Points(N, TOKENS_PER_STEP * step, np.ones(len(N)), numbers(rows, "num_experts"), None, total),
        loss=numbers(rows, "loss_validation"),
        run=run,
        source=public_source("clark-routing"),
        counts=Counting.WITH_EMBEDDINGS,
        finished=finished,
    )
    return observations if every_step else observations.where(finished)


def isodepth(*, variant: str = "baseline") -> Observations:
    """Return the looped runs of one variant: ``baseline``, ``hyperconn`` or ``trunc_bptt``.

    The adapter that injects the input belongs to the loop. Losses were read off a figure, to about .001 nats.
    """
    table = public_rows("isodepth")
    variants = sorted({row["variant"] for row in table})
    if variant not in variants:
        raise InputError(f"variant {shown(variant)} is not in isodepth; choose from {', '.join(variants)}")
    rows = [row for row in table if row["variant"] == variant]
    once, loop = numbers(rows, "N_once"), numbers(rows, "N_rec")
    R = numbers(rows, "r")
    return Observations(
        points=Points(once + loop, numbers(rows, "D"), R, np.ones(len(R)), loop, once + loop),
        loss=numbers(rows, "loss"),
        run=np.array([f"{variant}-C{row['C']}-r{row['r']}-s{row['s']}" for row in rows]),
        source=public_source("isodepth"),
        counts=Counting.WITHOUT_EMBEDDINGS,
        finished=np.ones(len(rows), dtype=bool),
    )


def load_table(name: str) -> Table:
    """Return a public table that is not a sweep of training runs: growing passes, or passes at test time."""
    if name not in looped.TABLES:
        tables = ", ".join(looped.TABLES)
        raise InputError(f"public table {shown(name)} is not known{nearest(name, looped.TABLES)}; choose from {tables}")
    return looped.growth_table() if name == "qlabs-growth" else looped.curves_at_test_time(name)


def _tidy(name: str, /) -> Observations:
    """Return a sweep whose file is tidy already."""
    return Observations.from_csv(fetch(PUBLIC_FILES[name]).decode("utf-8"), source=public_source(name))


_LOADERS: dict[str, Callable[..., Observations]] = {
    "epoch-chinchilla": epoch_chinchilla,
    "clark-routing": clark_routing,
    "isodepth": isodepth,
    "qlabs-loops": looped.qlabs_loops,
    "qlabs-regimes": looped.qlabs_regimes,
    "marin-experts": looped.marin_experts,
    **{name: partial(_tidy, name) for name, source in PUBLIC_FILES.items() if source.file.startswith("real/")},
}


MICRO_2 = Path(__file__).with_name("micro-2.csv")
MICRO = ("micro", "micro-all", "micro-2", "micro-2-router")

SWEEP_RUNGS = ("0.3B", "0.6B", "1.0B")
SWEEP_EXPERTS = (1, 2, 4, 8, 16)
SWEEP_RECURRENCES = (1, 2, 3, 4, 6, 8)
SWEEP_TOKENS = tuple(np.linspace(1e11, 5e11, 12).tolist())
"""The paper's grid: 90 runs, and twelve points along each for its "more than 1,000 observations"."""


def load_micro(name: str = "micro") -> Observations:
    """Return a micro-sweep that ships with loopscale; all of them are measured.

    "micro" has one looped layer (docs/micro-sweep.md) and leaves out runs of fewer than 1.5M tokens, where more passes
    may still raise the loss; "micro-all" has them. "micro-2" has a prelude and a coda (docs/micro-sweep-2.md): the runs
    of its sweep and the best of each search for a learning rate; its file holds the other searches and recipes too.
    In "micro-2-router" the runs with several passes and experts are those with a router for each pass.
    """
    if name.startswith("micro-2"):
        rows = micro_2_rows(router=name == "micro-2-router")
        return Observations.from_csv(Table.from_records(rows).csv(), source=name)
    observed = Observations.of(Path(__file__).with_name("micro-sweep.csv"))
    return observed if name == "micro-all" else observed.where(observed.points.tokens >= 1.5e6)


def micro_2_rows(*, router: bool = False) -> list[dict[str, str]]:
    """Return the rows of the second micro-sweep: of the plain loop, or with a router for each of several passes."""
    finished = [row for row in csv_rows(MICRO_2.read_text(encoding="utf-8")) if row["state"] == "done"]
    rows = _of_the_plain_loop(finished)
    if router:
        rows = [row for row in rows if row["R"] == "1" or row["E"] == "1"]
        rows += [row for row in finished if row["stage"] in "EF" and row["recipe"] == "pass_router=True"]
    return rows


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
    if name in _LOADERS or name in looped.TABLES:  # tables are refused there, with how to read them
        return load_public(name)
    if Path(name).is_dir():
        raise InputError(
            "this folder holds no runs", where=name,
            remedy="give a table of runs, or a folder of TensorBoard logs or of a Hugging Face Trainer",
        )  # fmt: skip
    names = ["simulated", *MICRO, *_LOADERS]
    raise InputError(f"{name}: no such file or sweep{nearest(name, names)}; sweeps by name are {', '.join(names)}")


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
