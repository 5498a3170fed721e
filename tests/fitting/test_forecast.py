"""Forecasts: the frontier of a sweep, one forecast from it and the law, and what is refused."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import loopscale as ls
from loopscale.cli import main
from loopscale.cli.forecast import forecast_command
from loopscale.core.errors import InputError
from loopscale.fitting import Observations, fit
from loopscale.fitting.approaches import lower_envelope
from loopscale.fitting.frontier import posterior_draws, stated_cost
from loopscale.fitting.scoreboard import scoreboard, scoreboard_text
from loopscale.scaling import Frontier, Points, StatedCost

REAL = Path(os.environ.get("LOOPSCALE_DATA", "")) / "real"
real_data = pytest.mark.skipif(
    not os.environ.get("LOOPSCALE_DATA") or not REAL.is_dir(), reason="set LOOPSCALE_DATA to a folder with real/*.csv"
)


def runs(bend=0.0, noise=0.002, seed=0):
    """Runs of four budgets whose loss bends below Chinchilla's law as compute grows, by ``bend`` a squared decade."""
    random = np.random.default_rng(seed)
    C = np.repeat([1e18, 3e18, 1e19, 3e19], 7)
    N = np.sqrt(C / 120) * np.tile(np.exp(np.linspace(-1.2, 1.2, 7)), 4)
    loss = true_loss(N, C / 6 / N, bend) * np.exp(noise * random.standard_normal(len(C)))
    return {"N": N.tolist(), "D": (C / 6 / N).tolist(), "loss": loss.tolist()}


def true_loss(N, D, bend):
    loss = 1.7 + 400 / N**0.34 + 1500 / D**0.36
    return loss * np.exp(-bend * np.log10(6 * N * D / 1e18) ** 2)


@pytest.fixture(scope="module")
def bent():
    return fit(runs(bend=0.004), resamples=30)


def test_a_forecast_lies_between_its_parts_and_its_interval_covers_a_bent_truth(bent):
    C = 3e22
    N = np.array([3e9, 3e10, 3e11])
    truth = true_loss(N, C / 6 / N, 0.004)
    forecast = bent.law.forecast(Points(N, C / 6 / N))
    between = np.log(forecast.law) + forecast.weight * np.log(forecast.frontier / forecast.law)
    assert np.log(forecast.loss) == pytest.approx(between)
    assert np.all((forecast.low < truth) & (truth < forecast.high))


def test_the_frontier_counts_less_the_farther_a_run_is_from_the_best_size(bent):
    C, factors = 1e21, np.array([1.0, 5.0, 30.0])
    best = ls.forecast(bent, flops=C)[0].params
    weight = bent.law.forecast(Points(best * factors, C / 6 / (best * factors))).weight
    assert weight[0] > 0.95
    assert np.all(np.diff(weight) < 0)


def test_intervals_widen_with_distance_and_level(bent):
    near, far = ls.forecast(bent, flops=[1e20, 1e22])
    assert np.log(far.high / far.low) > np.log(near.high / near.low)
    half = ls.forecast(bent, flops=1e22, level=0.5)[0]
    assert far.low < half.low < half.loss < half.high < far.high


def test_noise_far_from_the_frontier_does_not_widen_the_interval_near_it():
    data = runs()
    far = np.abs(np.tile(np.linspace(-1.2, 1.2, 7), 4)) > 0.7
    wild = np.array(data["loss"]) * np.exp(0.05 * far * np.random.default_rng(1).standard_normal(len(far)))
    law = fit(data | {"loss": wild.tolist()}, resamples=20).law
    assert law.frontier.noise < 0.7 * law.spread.noise
    best = ls.forecast(law, flops=1e20)[0].params
    new_run = law.forecast(Points(best * np.array([1.0, 20.0]), 1e20 / 6 / (best * np.array([1.0, 20.0]))))
    assert np.log(new_run.high / new_run.low)[0] < np.log(new_run.high / new_run.low)[1]


def test_the_law_file_of_an_earlier_version_still_forecasts(bent):
    law = replace(bent.law, frontier=replace(bent.law.frontier, noise=None))
    assert ls.forecast(law, flops=1e21)[0].loss == pytest.approx(ls.forecast(bent, flops=1e21)[0].loss)


def test_draws_of_a_frontier_cover_the_curve_that_made_the_losses():
    x = np.log(10.0) * np.linspace(-3, 0, 12)
    y = np.log(1.95 + 1.05 * np.exp(-0.14 * x))  # a floor of 65% of the loss at x = 0
    frontier = Frontier(1.0, tuple(map(tuple, posterior_draws(x, y, np.full(12, 0.003)).tolist())))
    mean, deviation = frontier.log_loss(100.0)
    assert abs(mean - np.log(1.95 + 1.05 * 100**-0.14)) < 2 * deviation
    assert frontier.log_loss(1.0)[0] == pytest.approx(np.log(3.0), abs=0.01)


def test_one_diverged_run_hardly_moves_the_frontier():
    clean, dirty = runs(), runs()
    dirty["loss"][-1] *= 2.5
    first, second = (ls.forecast(data, flops=1e22, resamples=20)[0] for data in (clean, dirty))
    assert second.loss == pytest.approx(first.loss, rel=0.01)
    assert np.log(second.high / second.low) < 1.5 * np.log(first.high / first.low)


def test_a_law_file_gives_the_forecast_of_its_runs(bent, tmp_path):
    bent.law.save(tmp_path / "law.json")
    first, again = (ls.forecast(data, flops=1e22)[0] for data in (bent, tmp_path / "law.json"))
    for name in ("loss", "low", "high", "params", "tokens", "law", "frontier"):
        assert getattr(again, name) == pytest.approx(getattr(first, name)), name


def test_compute_is_as_the_file_states_it():
    data = runs()
    factor = 1 + 0.5 * (np.array(data["N"]) / 1e8) ** -0.5
    data["flops"] = (6 * np.array(data["N"]) * np.array(data["D"]) * factor).tolist()
    cost = stated_cost(Observations.of(data))
    assert float(cost.ratio(1e8)) == pytest.approx(1.5, rel=0.1)
    assert cost.exponent < 0
    one = ls.forecast(data, flops=1e20, resamples=10)[0]
    assert 6 * one.params * one.tokens * float(cost.ratio(one.params)) == pytest.approx(1e20)
    assert StatedCost().ratio(1e9) == 1


def test_the_envelope_is_what_no_cheaper_run_beats():
    flops, loss = np.array([1.0, 2.0, 3.0, 4.0]), np.array([4.0, 4.5, 3.0, 3.5])
    assert lower_envelope(flops, loss).tolist() == [0, 2]


def test_three_approaches_stand_side_by_side(bent):
    rows = ls.forecast(bent, flops=1e21).approaches()
    assert [row.approach[0] for row in rows] == ["1", "2", "3"]
    for row in rows:
        assert row.size * row.tokens * 6 == pytest.approx(1e21)
        assert 0.2 < row.size_exponent < 0.8


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"flops": 1e21, "experts": 8}, "no term for E"),
        ({"flops": 1e21, "recurrence": 2}, "no term for R"),
        ({"flops": 1e21, "unique_tokens": 1e9}, "unique_tokens: it describes one run"),
        ({"params": 1e9}, "give `tokens` or `flops`"),
        ({"tokens": 1e9}, "needs `params`"),
        ({}, "give `flops`"),
        ({"flops": 1e29}, "no answer: "),
    ],
)
def test_what_the_law_cannot_answer_is_refused(bent, arguments, problem):
    with pytest.raises(InputError, match=problem):
        ls.forecast(bent, **arguments)


def test_a_fit_refuses_what_its_law_has_no_term_for(bent):
    for extra in ({"E": 8}, {"R": 4, "loop": 1e8}):
        with pytest.raises(InputError, match="has no term for"):
            bent.predict(1e9, 2e10, **extra)


def test_repeated_tokens_take_the_published_discount_and_say_so(bent):
    fresh, asked = bent.predict(1e9, 2e10), {"params": 1e9, "tokens": 2e10}
    for symbol in ("unique", "U"):
        repeated = bent.predict(1e9, 2e10, **{symbol: 1e9})
        assert float(repeated.value) > float(fresh.value)
        assert "seen 20 times, discounted as data-constrained-2023" in repeated.note
        assert repeated.note in repr(repeated)
    forecast = ls.forecast(bent, **asked, unique_tokens=1e9)
    assert forecast[0].loss == pytest.approx(float(repeated.value))
    assert forecast.repetition == repeated.note
    assert "repetition" in forecast.summary()
    assert ls.forecast(bent, **asked, unique_tokens=2e10)[0].loss == pytest.approx(float(fresh.value))
    assert fresh.note == ls.forecast(bent, **asked).repetition == ""


def test_the_command_prints_the_answer_first_and_json(tmp_path):
    Observations.of(runs()).to_csv(tmp_path / "runs.csv")
    path, figure = str(tmp_path / "runs.csv"), tmp_path / "forecast.png"
    shown = CliRunner().invoke(
        forecast_command, [path, "--flops", "1e20,1e21", "--resamples", "10", "--figure", str(figure)]
    )
    assert shown.exit_code == 0, shown.output
    assert shown.output.startswith("Loss ")
    assert len(shown.output.splitlines()) <= 22
    assert max(map(len, shown.output.splitlines())) <= 80
    assert figure.stat().st_size > 5000
    as_json = CliRunner().invoke(
        forecast_command, [path, "--params", "1e9", "--tokens", "2e10", "--resamples", "10", "--json", "--level", "0.8"]
    )
    (one,) = json.loads(as_json.output)["forecasts"]
    assert {"flops", "params", "tokens", "loss", "low", "high", "level", "parts"} <= set(one)
    assert one["low"] < one["loss"] < one["high"]
    assert (one["params"], one["tokens"], one["level"]) == (1e9, 2e10, 0.8)


@real_data
@pytest.mark.parametrize("name", ["marin-comma-isoflop", "misfitting-isoflop"])
def test_larger_runs_of_real_sweeps_are_covered_and_hardly_biased(name):
    """Hidden: the top decade. Version 0.2 erred by 3.8% and 6.5% at the last budget's best size."""
    data = Observations.of(REAL / f"{name}.csv")
    flops = data.points.train_flops
    hidden = data.where(flops > flops.max() / 10)
    fitted = fit(data.where(flops <= flops.max() / 10), resamples=30)
    forecast = fitted.law.forecast(hidden.points)
    inside = (forecast.low <= hidden.loss) & (hidden.loss <= forecast.high)
    assert inside.mean() >= 0.85
    assert abs(np.log(forecast.loss / hidden.loss).mean()) < 0.01
    assert np.abs(np.log(forecast.loss / hidden.loss)).mean() < 0.8 * np.abs(np.log(forecast.law / hidden.loss)).mean()


def test_a_sealed_forecast_is_scored_against_later_runs_and_refused_once_changed(tmp_path):
    data = Observations.of(runs(bend=0.004))
    flops = data.points.train_flops
    first, later, sealed = (str(tmp_path / name) for name in ("first.csv", "later.csv", "sealed.json"))
    data.where(flops < 2e19).to_csv(first)
    data.to_csv(later)
    made = CliRunner().invoke(
        forecast_command, [first, "--flops", "1e21", "--resamples", "10", "--register", sealed, "--json"]
    )
    assert made.exit_code == 0, made.output
    checked = CliRunner().invoke(forecast_command, [later, "--check", sealed, "--json"])
    scored = json.loads(checked.output)
    assert len(scored["runs"]) == int(np.sum(flops > 2e19)) == 7
    assert scored["covered"] == sum(row["low"] <= row["measured"] <= row["high"] for row in scored["runs"])
    content = json.loads(Path(sealed).read_text())
    content.pop("checksum", None)  # as someone who edits the file would
    content["forecasts"][0]["loss"] += 0.1
    Path(sealed).write_text(json.dumps(content))
    refused = CliRunner().invoke(forecast_command, [later, "--check", sealed])
    assert "does not match its hash" in str(refused.exception)


@pytest.mark.parametrize(
    ("decades", "sentence"),
    [
        pytest.param("50", "no sweep has 8 rows left to fit with 50 decades hidden; lower --decades", marks=real_data),
        ("1", "no public sweep can be read; set LOOPSCALE_DATA to the folder that has them"),
    ],
)
def test_a_scoreboard_of_nothing_is_refused_with_what_to_do(decades, sentence, capsys, tmp_path, monkeypatch):
    if decades == "1":
        monkeypatch.setenv("LOOPSCALE_DATA", str(tmp_path))
    with pytest.raises(SystemExit) as stop:
        main(["scoreboard", "--decades", decades])
    assert stop.value.code == 2
    assert sentence in capsys.readouterr().err


@real_data
def test_the_scoreboard_is_computed_from_the_sweeps():
    entries, left_out = scoreboard(("marin-comma-isoflop", "no-such-sweep"), resamples=20)
    (one,) = entries
    assert one.low < one.forecast < one.high
    assert one.score < one.law_score
    assert left_out[0].startswith("no-such-sweep")
    assert max(map(len, scoreboard_text(entries, left_out).splitlines())) <= 80
