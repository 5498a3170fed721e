"""Training jobs on devices: settings that fit, real costs, and plans that last as long as they say."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from loopscale.architecture import rung
from loopscale.core.devices import DEVICES, USABLE
from loopscale.core.quantities import bits_of, context_of
from loopscale.planning import Budget, Plan, WithheldError, plan, search
from loopscale.planning.cluster import Cluster
from loopscale.planning.compute import device_flops
from loopscale.planning.device_search import search_on
from loopscale.planning.job import TrainingJob
from loopscale.planning.layouts import Layout
from loopscale.planning.recipes import padding
from loopscale.planning.step_memory import CHUNK


def job(
    name: str = "0.3B", experts: int = 16, passes: int = 2, sequences: int = 8, parts: int = 2, gpus: int = 8
) -> TrainingJob:
    model = rung(name, experts)
    return TrainingJob(model, passes, gpus * sequences * parts, 2048, gpus, DEVICES["h100"], float(padding(model, 1.5)))


SIMULATED = [
    ("0.6B", 16, 3, 16, 2, 8, 2, "step", "some", 76.76, 132.3, 41.03),
    ("0.2B", 1, 3, 16, 2, 4, 1, "step", "some", 12.69, 14.32, 0.9983),
    ("0.6B", 8, 4, 1, 2, 32, 2, "block", "all", 0, 18.81, 147.3),
    ("0.1B", 1, 1, 4, 2, 2, 1, "pass", "some", 25.59, 1.834, 0.3691),
    ("1.0B", 2, 2, 1, 2, 8, 1, "block", "some", 2.447, 7.658, 39.06),
    ("1.0B", 1, 2, 4, 1, 4, 1, "block", "all", 0, 33.59, 9.658),
    ("0.2B", 1, 3, 1, 2, 8, 8, "pass", "some", 1.889, 5.197, 1.66),
    ("1.6B", 4, 2, 1, 2, 1, 1, "pass", "all", 0, 104.4, 0),
    ("0.2B", 2, 1, 8, 1, 1, 1, "pass", "some", 35.32, 12.3, 0),
    ("0.6B", 16, 1, 8, 1, 32, 2, "pass", "none", 0, 17.99, 33.91),
    ("0.6B", 2, 1, 1, 1, 4, 4, "pass", "all", 0, 18.14, 5.577),
    ("0.6B", 16, 4, 2, 2, 1, 1, "step", "none", 0, 108.2, 0),
    ("0.1B", 16, 2, 1, 1, 4, 2, "step", "all", 0, 2.037, 0.8243),
    ("1.0B", 32, 1, 16, 2, 1, 1, "pass", "all", 0, 466.3, 0),
    ("1.0B", 8, 4, 2, 2, 2, 2, "step", "all", 0, 142.4, 21.68),
    ("1.0B", 2, 1, 8, 2, 2, 1, "block", "some", 8.396, 22.47, 12.63),
    ("0.6B", 4, 4, 8, 1, 32, 4, "step", "none", 0, 12, 9.877),
    ("0.6B", 4, 3, 16, 1, 32, 16, "step", "some", 77.91, 91.16, 10.9),
    ("0.6B", 4, 1, 16, 1, 4, 1, "step", "all", 0, 73.04, 7.446),
    ("1.0B", 32, 2, 1, 1, 32, 8, "step", "some", 4.062, 171.9, 132.1),
    ("0.1B", 8, 3, 16, 2, 1, 1, "step", "some", 70.51, 12.63, 0),
    ("1.6B", 1, 4, 16, 2, 2, 1, "pass", "some", 74.75, 92.19, 23.64),
    ("0.6B", 16, 3, 1, 1, 16, 1, "block", "some", 2.331, 10.29, 108.3),
    ("0.3B", 32, 3, 4, 1, 32, 4, "step", "none", 0, 30.31, 29.91),
    ("0.3B", 4, 4, 1, 2, 16, 16, "step", "none", 0, 14.91, 5.648),
    ("0.1B", 16, 1, 8, 1, 2, 2, "step", "some", 9.746, 5.109, 0.6182),
]
"""Random steps as `train --estimate` simulated them: size, E, R, sequences, parts, GPUs, copies, reduce, what is
stored, memory for activations; then the peak and the bytes moved, in GB. The formulas were written with the first
twenty at hand; the others came after."""


@pytest.mark.parametrize("case", SIMULATED, ids=lambda case: " ".join(map(str, case[:9])))
def test_the_closed_form_is_near_the_simulated_step(case: tuple[Any, ...]) -> None:
    name, experts, passes, sequences, parts, gpus, replicas, reduce, stored, allowed, peak, moved = case
    run = job(name, experts, passes, sequences, parts, gpus)
    share = {"all": 1.0, "none": 0.0}.get(stored)
    if share is None:
        share = run.stored_share(parts, allowed * 1e9)
    cost = run.cost(Layout(parts, replicas, reduce, share))
    assert cost.memory / 1e9 == pytest.approx(peak, rel=0.1)
    assert cost.moved / 1e9 == pytest.approx(moved, rel=0.02)


def test_the_loss_is_counted_in_chunks_of_the_trainers_size() -> None:
    losses = pytest.importorskip("loopscale.model.losses")
    assert losses.CHUNK == CHUNK


@pytest.mark.parametrize(("name", "gpus"), [("1.0B", 64), ("0.3B", 8), ("0.6B", 8)])
def test_the_papers_largest_cells_fit_and_are_bound_by_arithmetic(name: str, gpus: int) -> None:
    cell = TrainingJob(rung(name, 16), 8, 3072, 2048, gpus, DEVICES["h100"], 1.5)
    best, runner_up = cell.fastest()[:2]
    assert best.memory < USABLE * DEVICES["h100"].memory
    assert best.seconds <= 1.3 * best.compute_seconds
    assert runner_up.seconds >= best.seconds


def test_padding_and_recomputation_are_counted() -> None:
    model = rung("0.3B", 16)
    plain, padded, again = (
        model.real_train_flops_per_token(8, context=2048, **options)
        for options in ({}, {"padding": 1.5}, {"recomputed": 1.0})
    )
    experts = 6 * 3 * 768 * 4 * 768 * (4 + 8 * 16)  # routed rows of every block call
    assert padded - plain == pytest.approx(0.5 * experts)
    head = 6 * 768 * model.vocabulary
    assert again - plain == pytest.approx((plain - head) / 3)


@pytest.mark.parametrize(("device", "gpus", "days"), [("h100", 64, 21), ("l40s", 16, 3), ("a100", 24, 7)])
def test_a_plan_for_devices_takes_no_longer_than_it_was_given(device: str, gpus: int, days: float) -> None:
    cluster = Cluster(device, gpus)
    real = device_flops(gpus * days * 24, device)
    found = search_on(cluster, real_flops=real, memory="6GB", bits=4, extrapolate=True)
    assert cluster.cost(found.choice).days <= days * 1.005


def test_real_compute_buys_fewer_tokens() -> None:
    real = plan(real_flops=5e21, memory="3GB", bits=4)
    assert real.choice.train_flops < 0.8 * 5e21
    assert real.real_train_flops is not None
    assert real.real_train_flops["flops"] == pytest.approx(5e21)


def test_formats_and_contexts_mean_what_people_mean() -> None:
    named = {"q4_k_m": 4.85, "Q4_0": 4.5, "awq-g128": 4.25, "int4": 4, "q8_0": 8.5}
    assert {name: bits_of(name) for name in named} == named
    assert [context_of(text) for text in ("8k", "8192", "128K", "1M")] == [8192, 8192, 131072, 1048576]
    assert Budget(flops=5e21, memory="3GB", context="8k").context == 8192


def test_a_near_miss_of_a_limit_is_written_exactly() -> None:
    need = plan(flops=5e21, memory="3GB", bits=4).choice.memory
    found = search(flops=5e21, memory=need * (1 - 0.00044), bits=4)
    verdicts = [design.verdict for design in found.candidates() if design.ruled_out_by == "memory"]
    assert any("needs 2.7" in verdict and "1.2 MB over" in verdict for verdict in verdicts), verdicts[:5]


@pytest.mark.parametrize("context", [None, 8192])
def test_what_would_make_a_near_miss_fit_does(context: int | None) -> None:
    limits: dict[str, Any] = {"flops": 5e21, "bits": 8, "context": context}
    wanted = plan(memory="12GB", **limits).choice
    short = plan(memory=wanted.memory * 0.999, **limits)
    assert short.next_best is not None
    assert short.next_best.design == wanted.label
    remedy = str(short.next_best.fits_with)
    if context is None:
        changed = limits | {"bits": float(remedy.removesuffix(" bits a weight"))}
    else:
        changed = limits | {"context": int(remedy.removeprefix("a context of ").replace(",", ""))}
    assert plan(memory=wanted.memory * 0.999, **changed).choice.label == wanted.label
    assert f"it fits with {remedy}" in short.to_dict()["sentences"]["prices"]


def test_four_bits_are_compared_with_a_format_that_people_use() -> None:
    four = plan(flops=5e21, memory="3GB", bits=4)
    assert four.at_real_bits is not None
    assert four.at_real_bits.design == plan(flops=5e21, memory="3GB", bits="q4_k_m").choice.label != four.choice.label
    assert plan(flops=5e21, memory="3GB", bits="q4_k_m").at_real_bits is None
    assert Plan.from_dict(json.loads(json.dumps(four.to_dict()))) == four


def test_a_withheld_answer_names_the_best_design_within_reach() -> None:
    with pytest.raises(WithheldError, match=r"The best design within 10x is (.*), loss ([\d.]+) on") as refused:
        plan(flops=1.2e23, memory="3GB", bits=4)
    label, loss = re.search(r"within 10x is (.*), loss ([\d.]+) on", str(refused.value)).groups()  # type: ignore[union-attr]
    listed = search(flops=1.2e23, memory="3GB", bits=4, extrapolate=True).candidates()
    inside = [row for row in listed if row.trust != "beyond" and row.ruled_out_by is None]
    best = min(inside, key=lambda row: row.loss)
    assert (label, loss) == (best.label, f"{best.loss:.4f}")


def test_a_plan_for_devices_uses_their_time_and_leaves_out_what_they_cannot_train() -> None:
    cluster = Cluster("h100", 8)
    found = search_on(cluster, real_flops=device_flops(8 * 21 * 24, "h100"))
    cost = cluster.cost(found.choice)
    assert cost.fits
    assert cost.days == pytest.approx(21, rel=0.02)
    free = search(real_flops=device_flops(8 * 21 * 24, "h100")).choice
    assert not cluster.cost(free).fits
    assert free.loss < found.choice.loss


def test_what_does_not_fit_the_devices_goes_to_the_host_before_it_is_given_up() -> None:
    model = rung("0.3B", 16)
    small = replace(DEVICES["rtx4090"], host_memory=64e9)
    job = TrainingJob(model, 1, 64, 2048, 1, small, float(padding(model, 1.5)))
    best = job.fastest()[0]
    assert best.layout.offload
    assert best.memory <= job.usable
    assert 0 < best.host_memory <= 64e9
    assert best.host_seconds > 0
    assert replace(job, device=replace(small, host_memory=16e9)).fastest() == []
