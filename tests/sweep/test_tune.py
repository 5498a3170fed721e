"""Learning rates found by a bracketed search, and the law of them."""

from __future__ import annotations

import csv
import io
import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from loopscale.cli import main
from loopscale.core.errors import InputError
from loopscale.sweep.spec import Sweep, read_sweep
from loopscale.sweep.tune import RateLaw, RateSearch, Trial, fit_rates, law_path
from sweeps import write_sweep

GRID = """
[tune]
rates = [0.002, 0.004, 0.008]
tokens = ["160", "320"]
[sizes.narrow]
width = 16
[sizes.wide]
width = 32
[[grid]]
experts = [1, 2]
recurrence = [1, 2]
tokens = ["1k"]
"""


def best_rate(width: float, recurrence: float, experts: float, tokens: float) -> float:
    return 0.03 * (width / 32) ** -1.0 * recurrence**-0.5 * experts**-0.25 * (tokens / 320) ** -0.1


def loss_at(rate: float, **cell: float) -> float:
    return 2.0 + 0.1 * cell["width"] / 32 + 0.05 * math.log(rate / best_rate(**cell)) ** 2


def trained(short: Sweep) -> dict[str, dict[int, float]]:
    """Give every short run the loss of a known parabola."""
    return {
        run.key: {
            tokens: loss_at(
                run.config.optimizer.learning_rate,
                width=run.config.model.width,
                recurrence=run.cell.recurrence,
                experts=run.cell.experts,
                tokens=tokens,
            )
            for tokens in run.points
        }
        for run in short.runs
    }


def trials(noise: float = 0.0) -> list[Trial]:
    random = np.random.default_rng(3)
    cells = product((24, 32, 48), (1, 2, 4), (1, 8), (150_000, 600_000), (0.004, 0.008, 0.016, 0.032))
    return [
        Trial(w, R, E, D, rate, loss_at(rate, width=w, recurrence=R, experts=E, tokens=D) + random.normal(0, noise))
        for w, R, E, D, rate in cells
    ]


def test_the_law_of_exact_parabolas_is_recovered() -> None:
    law = fit_rates(trials(), near=16)
    expected = {"width": -1.0, "recurrence": -0.5, "experts": -0.25, "tokens": -0.1}
    assert law.exponents == pytest.approx(expected, abs=1e-6)
    assert law.at(width=64, recurrence=3, experts=2, tokens=1e6) == pytest.approx(best_rate(64, 3, 2, 1e6), rel=1e-6)


def test_intervals_cover_the_exponents_of_noisy_losses() -> None:
    law = fit_rates(trials(noise=0.005), near=16)
    assert law.residual == pytest.approx(0.005, rel=0.3)
    inside = [law.intervals[name][0] <= power <= law.intervals[name][1] for name, power in
              {"width": -1.0, "recurrence": -0.5, "experts": -0.25, "tokens": -0.1}.items()]  # fmt: skip
    assert sum(inside) >= 3


def test_losses_without_a_minimum_give_no_law() -> None:
    flat = [Trial(32, R, 1, 1000, rate, 3 - rate**2) for R in (1, 2) for rate in (0.1, 0.2, 0.4)]
    with pytest.raises(InputError, match="minimum"):
        fit_rates(flat)


def test_the_search_goes_on_until_the_best_rate_is_between_two_others(tmp_path: Path) -> None:
    search = RateSearch(read_sweep(write_sweep(tmp_path, GRID)))
    found = search.run(trained)
    for cell, rates in search.rates.items():
        tried = [(t.loss, t.rate) for t in found if t.tokens == 320 and t.size == cell.size
                 and (t.experts, t.recurrence) == (cell.experts, cell.recurrence)]  # fmt: skip
        assert rates[0] < min(tried)[1] < rates[-1]
    assert max(max(rates) for rates in search.rates.values()) > 0.03  # beyond the rates of the file


def test_a_cell_whose_runs_all_fail_is_searched_at_lower_rates(tmp_path: Path) -> None:
    search = RateSearch(read_sweep(write_sweep(tmp_path, GRID)))
    search.run(lambda short: {})
    assert all(len(rates) == search.tune.most and min(rates) < 0.002 for rates in search.rates.values())


def test_a_sweep_takes_its_rates_from_the_law_that_was_found(tmp_path: Path) -> None:
    path = write_sweep(tmp_path, GRID)
    sweep = read_sweep(path)
    law = fit_rates(RateSearch(sweep).run(trained))
    law_path(sweep).parent.mkdir(parents=True)
    law.save(law_path(sweep))
    assert RateLaw.read(law_path(sweep)) == law
    for run in read_sweep(path).runs:
        wanted = best_rate(run.config.model.width, run.cell.recurrence, run.cell.experts, max(run.points))
        assert run.config.optimizer.learning_rate == pytest.approx(wanted, rel=0.1)


def test_a_rate_that_is_an_axis_cannot_be_tuned_too(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="choose one"):
        read_sweep(write_sweep(tmp_path, GRID + '"optimizer.learning_rate" = [1e-3, 2e-3]\n'))


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param((), id="local"),
        pytest.param(("--on", "ray"), id="ray", marks=pytest.mark.slow),
        pytest.param(("--on", "slurm", "--slurm", "cluster=local"), id="submitit", marks=pytest.mark.slow),
    ],
)
def test_sweep_run_searches_first_and_trains_at_the_rates_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], backend: tuple[str, ...]
) -> None:
    grid = """
[tune]
rates = [1e-5, 1e-2, 10.0]
tokens = [640]
most = 3
[[grid]]
recurrence = [1, 2]
tokens = [960]
"""
    path = write_sweep(tmp_path, grid)
    with pytest.raises(SystemExit, match="0"):
        main(["sweep", "run", str(path), "--workers", "2", "--quiet", *backend])
    law = RateLaw.read(tmp_path / "tiny" / "tune" / "rates.json")
    capsys.readouterr()
    with pytest.raises(SystemExit, match="0"):
        main(["sweep", "export", str(path)])
    rates = [float(row["learning_rate"]) for row in csv.DictReader(io.StringIO(capsys.readouterr().out))]
    assert len(rates) == 2
    for rate, R in zip(rates, (1, 2), strict=True):
        assert rate == pytest.approx(law.at(recurrence=R), rel=0.01)
        assert 1e-5 < rate < 10.0
