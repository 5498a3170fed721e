"""What single runs, Huber's delta and crowded budgets do to a law."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from plain import fit

from loopscale.fitting import Observations, sensitivity
from loopscale.fitting.data.budgets import balanced_weights
from loopscale.fitting.data.public import simulate_sweep
from loopscale.fitting.sensitivity import sensitivity_lines
from loopscale.scaling import Counting, Points, ScalingLaw, published


def isoflop_sweep(counts: tuple[int, ...], noise: float = 0.002) -> Observations:
    """Return budgets a factor of three apart, the k-th with ``counts[k]`` runs."""
    flops = np.repeat(1e19 * 3.0 ** np.arange(len(counts)), counts)
    offsets = np.concatenate([np.linspace(-1.3, 1.3, count) for count in counts])
    N = np.sqrt(flops / 120) * np.exp(offsets)
    points = Points(N, flops / 6 / N, np.ones(len(N)), np.ones(len(N)))
    loss = published("chinchilla-epoch-2024")(points)
    loss = loss * np.exp(noise * np.random.default_rng(0).standard_normal(len(N)))
    runs = np.array([f"r{k}" for k in range(len(N))])
    return Observations(points, loss, runs, "simulated", Counting.WITH_EMBEDDINGS)


def test_a_bad_run_and_the_delta_show_in_one_table() -> None:
    data = isoflop_sweep((6, 6, 6, 6))
    bad = int(np.argmax(data.points.train_flops))
    loss = data.loss.copy()
    loss[bad] *= 1.1
    table = sensitivity(fit(replace(data, loss=loss), delta=1.0))
    rows = list(table.records())
    assert rows[0]["change"] == "as fitted"
    assert rows[0]["difference"] == 0
    changes = [row["change"] for row in rows]
    assert {"delta 0.0001", "delta 0.001", "least squares"} <= set(changes)
    runs = [row for row in rows if row["change"].startswith("without")]
    assert len(runs) == 24
    assert runs[0]["change"] == f"without run r{bad}"
    assert abs(runs[0]["difference"]) > 3 * abs(runs[1]["difference"])
    assert {"alpha", "beta", "c", "loss"} <= set(table.columns)


def test_leaving_a_run_out_is_what_a_fit_without_it_gives() -> None:
    data = isoflop_sweep((5, 5, 5, 5))
    found = fit(data)
    row = next(row for row in sensitivity(found).records() if row["change"] == "without run r19")
    again = fit(data.where(data.run != "r19"))
    assert row["alpha"] == pytest.approx(again.coefficients["alpha"], abs=0.01)
    assert row["c"] == pytest.approx(again.coefficients["c"], abs=0.02)


def test_the_verbose_text_has_the_table() -> None:
    text = fit(isoflop_sweep((5, 5, 5, 5))).summary(verbose=True)
    assert "Sensitivity to single runs" in text
    assert "least squares" in text
    assert "The other 15 runs change that loss by at most" in text


def test_each_budget_counts_alike() -> None:
    data = isoflop_sweep((4, 4, 20, 4))
    balanced = data.balanced()
    assert balanced.weight is not None
    flops = data.points.train_flops
    totals = [balanced.weight[np.isclose(flops, budget)].sum() for budget in 1e19 * 3.0 ** np.arange(4)]
    assert totals == pytest.approx([8, 8, 8, 8])
    weighted, _ = balanced_weights(flops, np.linspace(1, 2, len(flops)))
    assert weighted[np.isclose(flops, 1e19)].sum() == pytest.approx(8)
    assert weighted[3] > weighted[0]


def test_compute_without_steps_is_cut_into_bins() -> None:
    flops = 10.0 ** np.linspace(19, 21, 81)
    weights, count = balanced_weights(flops, None)
    assert count == 8
    assert weights.mean() == pytest.approx(1)


def test_the_law_keeps_the_weights_and_its_file_reads_them_again(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    isoflop_sweep((4, 4, 20, 4)).to_csv(path)
    found = fit(Observations.of(path, balance=True))
    law = found.law
    assert law.provenance is not None
    assert law.provenance.reading.balance
    assert "each compute budget counts alike" in found.summary()
    law.save(tmp_path / "law.json")
    again = Observations.of(tmp_path / "law.json")
    assert again.weight == pytest.approx(found.observations.weight)
    assert fit(again).coefficients["alpha"] == pytest.approx(found.coefficients["alpha"], rel=1e-6)
    assert ScalingLaw.load(tmp_path / "law.json") == law
    plain = fit(Observations.of(path))
    assert plain.coefficients["alpha"] != pytest.approx(found.coefficients["alpha"], rel=1e-6)


def test_an_exponent_of_the_gain_from_looping_has_one_column() -> None:
    fitted = fit(simulate_sweep(experts=(1,), recurrences=(1, 2, 4)), outer="chinchilla", mapping="power")
    header = next(line for line in sensitivity_lines(fitted) if line.startswith("change"))
    assert header.split()[:5] == ["change", "alpha", "beta", "c", "phi"]
    assert header.count("phi") == 1
