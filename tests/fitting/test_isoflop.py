"""IsoFLOP parabolas find the exponent of the law behind the runs, and leave out budgets that cannot."""

import json

import numpy as np
import pytest

from loopscale.core.errors import InputError
from loopscale.fitting import Observations
from loopscale.fitting.isoflop import isoflop
from loopscale.scaling import Points, costs, published
from loopscale.scaling.optimum import compute_optimal

LAW = published("chinchilla-epoch-2024")


def runs(budgets=(1e19, 6e19, 3e20, 1e21), spread=1.2, sizes=9, noise=0.0):
    """Runs around the optimum of each budget, log-spaced by a factor of e^spread to both sides."""
    N = np.concatenate([compute_optimal(LAW, C).size * np.exp(np.linspace(-spread, spread, sizes)) for C in budgets])
    D = costs.tokens_for(np.repeat(budgets, sizes), N)
    one = np.ones(len(N))
    points = Points(N, D, one, one, None, N)
    loss = LAW(points) * np.exp(noise * np.random.default_rng(1).standard_normal(len(N)))
    return Observations(points, loss, np.array([f"run {k}" for k in range(len(N))]), "simulated", LAW.counts)


def test_parabolas_find_the_exponents_of_the_law():
    found, expected = isoflop(runs()), compute_optimal(LAW, 1e20)
    assert found.size_exponent == pytest.approx(expected.size_exponent, abs=0.002)
    assert found.size_exponent + found.token_exponent == 1
    assert found.optimal_size(1e20) == pytest.approx(expected.size, rel=0.05)
    assert found.table().columns["left_out"] == ["", "", "", ""]


def test_intervals_of_noisy_runs_hold_the_truth():
    found = isoflop(runs(noise=0.003))
    low, high = found.size_exponent_interval
    assert low < compute_optimal(LAW, 1e20).size_exponent < high
    for row in found.table().records():
        assert row["size_low"] <= row["size"] <= row["size_high"]


def test_a_budget_without_a_lowest_point_is_left_out_with_the_reason():
    data = runs()
    small = (data.points.train_flops < 2e19) & (data.points.active > compute_optimal(LAW, 1e19).size * 0.9)
    few = (data.points.train_flops > 5e20) & (np.arange(len(data)) % 4 != 0)
    found = isoflop(data.where(~small & ~few))
    reasons = found.table().columns["left_out"]
    assert "beyond its largest size" in reasons[0]
    assert "3 sizes" in reasons[3] or "sizes" in reasons[3]
    assert reasons[1:3] == ["", ""]


def test_too_few_budgets_are_refused_in_a_sentence():
    with pytest.raises(InputError, match="need two training budgets"):
        isoflop(runs(budgets=(1e20,)))


def test_designs_are_not_mixed():
    data = runs()
    p = data.points
    mixed = Points(p.active, p.tokens, p.recurrence, np.where(np.arange(len(data)) % 2, 1.0, 8.0), None, p.active * 8)
    with pytest.raises(InputError, match="keep one E and one R"):
        isoflop(Observations(mixed, data.loss, data.run, "mixed", data.counts))


def test_the_command_prints_the_same(tmp_path, capsys):
    from loopscale.cli import main

    (tmp_path / "runs.csv").write_text(runs().csv())
    with pytest.raises(SystemExit) as stop:
        main(["isoflop", str(tmp_path / "runs.csv"), "--json"])
    assert stop.value.code == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["size_exponent"] == pytest.approx(isoflop(runs()).size_exponent, abs=1e-6)
    with pytest.raises(SystemExit) as stop:
        main(["isoflop", str(tmp_path / "runs.csv")])
    assert "N* ~ C^" in capsys.readouterr().out
