"""Training jobs on devices: settings that fit, real costs, and plans that last as long as they say."""

import pytest

from loopscale.architecture import rung
from loopscale.core.quantities import parse_bits, parse_context
from loopscale.planning import Budget, Cluster, plan, search, search_on
from loopscale.planning.devices import DEVICES, USABLE
from loopscale.planning.job import CHUNK, Job, Layout, padding


def job(
    name: str = "0.3B", experts: int = 16, passes: int = 2, sequences: int = 8, parts: int = 2, gpus: int = 8
) -> Job:
    model = rung(name, experts)
    return Job(model, passes, gpus * sequences * parts, 2048, gpus, DEVICES["h100"], float(padding(model, 1.5)))


@pytest.mark.parametrize(
    ("run", "layout", "peak", "moved"),
    [
        (job(), Layout(2, 1, "pass", 0.0), 12.35, 40.2),
        (job(parts=1), Layout(1, 1, "step"), 46.49, 13.7),
        (job(), Layout(2, 1, "step"), 56.29, 18.8),
        (job(), Layout(2, 1, "pass"), 47.71, 40.2),
        (job(gpus=16), Layout(2, 2, "pass"), 47.71, 42.4),
        (job(), Layout(2, 1, "block"), 44.04, 59.5),
        (job(experts=1), Layout(2, 1, "step"), 28.36, 2.42),
        (job(passes=1), Layout(2, 1, "pass"), 30.97, 27.4),
        (job("1.0B", sequences=1, gpus=64), Layout(2, 8, "step"), 99.02, 86.8),
        (job("0.6B", 8, 4, 2, 3), Layout(3, 1, "pass"), 43.48, 119.3),
    ],
)
def test_the_closed_form_is_near_the_simulated_step(run: Job, layout: Layout, peak: float, moved: float) -> None:
    """Peaks and bytes moved in GB, as `train --estimate` simulated these steps."""
    cost = run.cost(layout)
    assert cost.memory / 1e9 == pytest.approx(peak, rel=0.1)
    assert cost.moved / 1e9 == pytest.approx(moved, rel=0.02)


def test_the_loss_is_counted_in_chunks_of_the_trainers_size() -> None:
    kernels = pytest.importorskip("loopscale.model.kernels")
    assert kernels.CHUNK == CHUNK


@pytest.mark.parametrize(("name", "gpus"), [("1.0B", 64), ("0.3B", 8), ("0.6B", 8)])
def test_the_papers_largest_cells_fit_and_are_bound_by_arithmetic(name: str, gpus: int) -> None:
    cell = Job(rung(name, 16), 8, 3072, 2048, gpus, DEVICES["h100"], 1.5)
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
    found = search_on(
        cluster, gpus * days * 24, lambda real: search(real_flops=real, memory="6GB", bits=4, extrapolate=True)
    )
    assert cluster.days(found.choice, 0.0) <= days * 1.005


def test_real_compute_buys_fewer_tokens() -> None:
    real = plan(real_flops=5e21, memory="3GB", bits=4)
    assert real.choice.train_flops < 0.8 * 5e21
    assert real.real_train_flops is not None
    assert real.real_train_flops["flops"] == pytest.approx(5e21)


def test_formats_and_contexts_mean_what_people_mean() -> None:
    named = {"q4_k_m": 4.85, "Q4_0": 4.5, "awq-g128": 4.25, "int4": 4, "q8_0": 8.5}
    assert {name: parse_bits(name) for name in named} == named
    assert [parse_context(text) for text in ("8k", "8192", "128K", "1M")] == [8192, 8192, 131072, 1048576]
    assert Budget(flops=5e21, memory="3GB", context="8k").context == 8192


def test_a_near_miss_of_a_limit_is_written_exactly() -> None:
    need = plan(flops=5e21, memory="3GB", bits=4).choice.memory
    found = search(flops=5e21, memory=need * (1 - 0.00044), bits=4)
    verdicts = [design.verdict for design in found.candidates() if design.ruled_out_by == "memory"]
    assert any("needs 2.7" in verdict and "1.2 MB over" in verdict for verdict in verdicts), verdicts[:5]
