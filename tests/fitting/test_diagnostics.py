"""What a fit shows about itself."""

from dataclasses import replace

import numpy as np
import pytest
from plain import fit

from loopscale.core.errors import InputError
from loopscale.fitting import (
    correlations,
    identification,
    intraclass_correlation,
    outliers,
    residuals_by_axis,
    simulate_sweep,
    unidentified,
)
from loopscale.fitting.covariance import fit_covariance
from loopscale.fitting.warnings import mid_schedule
from loopscale.scaling import Counting, find_law, published
from warning_trials import simulated

SWEEP = simulate_sweep()


@pytest.fixture(scope="module")
def fitted():
    return fit(SWEEP)


def test_residuals_are_level_along_every_axis(fitted):
    table = residuals_by_axis(fitted)
    assert set(table.columns["axis"]) == {"size", "tokens", "experts", "recurrence"}
    for axis in set(table.columns["axis"]):
        rows = [row["rows"] for row in table.records() if row["axis"] == axis]
        assert sum(rows) == len(SWEEP)
    assert np.abs(table.columns["mean"]).max() < 0.0005


def test_a_wrong_law_shows_along_its_axis():
    linear = residuals_by_axis(fit(SWEEP, mapping="linear"))
    by_recurrence = [abs(row["mean"]) for row in linear.records() if row["axis"] == "recurrence"]
    assert max(by_recurrence) > 0.005


def test_amplitudes_and_exponents_are_strongly_correlated(fitted):
    table = correlations(fitted)
    pairs = {frozenset((row["first"], row["second"])): row["correlation"] for row in table.records()}
    assert len(pairs) == 14 * 13 / 2
    assert abs(pairs[frozenset(("A", "alpha"))]) > 0.95
    assert abs(pairs[frozenset(("B", "beta"))]) > 0.98
    assert abs(pairs[frozenset(("omega", "zeta"))]) > 0.98
    assert np.abs(table.columns["correlation"]).max() <= 1 + 1e-9


def test_errors_from_the_jacobian_agree_with_resampling():
    sweep = simulate_sweep(noise=0.0026, run_noise=0.0026)
    fitted = fit(sweep)
    spread = fitted.resample(100).law.resamples.std(axis=0)
    errors = fit_covariance(fitted).errors
    for name in ("alpha", "theta", "zeta"):
        assert errors[name] == pytest.approx(spread[fitted.law.names.index(name)], rel=0.4)


def test_what_the_data_identify_and_what_holding_it_costs(fitted):
    rows = {row["coefficient"]: row for row in identification(fitted).records()}
    assert all(rows[name]["identified"] for name in ("alpha", "kappa1", "kappa2", "theta"))
    assert rows["theta"]["held_at"] == 0
    assert rows["theta"]["objective"] > 1.3
    assert rows["theta"]["moved"] > 0.003
    assert all(row["objective"] >= 1 - 1e-6 for row in rows.values())


def test_a_coefficient_that_the_data_leave_open_can_be_held_at_no_cost():
    two = fit(simulate_sweep(recurrences=(1, 2)), mapping="sparsity-conditional")
    assert "kappa2" in unidentified(two)
    row = next(row for row in identification(two).records() if row["coefficient"] == "kappa2")
    assert not row["identified"]
    assert row["objective"] < 1.01


def test_outliers_are_named_by_row_and_run(fitted):
    assert len(outliers(fitted)) == 0
    loss = SWEEP.loss.copy()
    loss[100] *= 1.05
    odd = fit(replace(SWEEP, loss=loss))
    assert any(said.startswith("1 outlier beyond") and said.endswith("in row 101") for said in odd.warnings)
    found = outliers(odd)
    assert found.columns["row"] == [101]
    assert found.columns["run"] == [SWEEP.run[100]]
    assert found.columns["residual"][0] == pytest.approx(-np.log(1.05), abs=0.01)


def test_the_share_of_run_effects_is_seen(fitted):
    assert intraclass_correlation(fitted) < 0.05
    assert 0.25 < intraclass_correlation(fit(simulate_sweep(noise=0.0026, run_noise=0.0026))) < 0.6


def test_rows_in_mid_schedule_are_counted():
    assert mid_schedule(SWEEP) == 0
    assert mid_schedule(replace(SWEEP, finished=None)) == 0
    unfinished = replace(SWEEP, finished=SWEEP.points.tokens == 5e11)
    assert mid_schedule(unfinished) == 990
    assert any("990 of 1080 rows are in mid-schedule" in each for each in fit(unfinished).warnings)


def test_the_fitted_range_is_that_of_the_data(fitted):
    assert fitted.law.fitted_range.tokens == (1e11, 5e11)
    assert fitted.law.fitted_range.recurrence == (1, 8)


def test_a_sound_fit_warns_of_nothing(fitted):
    assert fitted.warnings == ()


def test_a_constant_that_the_law_has_no_term_for_is_a_note_and_not_a_warning():
    p = SWEEP.points
    found = fit(SWEEP.where((p.experts == 8) & (p.recurrence == 2)))
    assert "every run has E = 8 and R = 2" in found.summary()
    assert not any("recurrence" in sentence for sentence in found.warnings)


def test_axes_that_the_law_does_not_know_are_said():
    said = " ".join(fit(SWEEP, outer="chinchilla", mapping="none").warnings)
    assert "the law does not know experts" in said
    assert "the law does not know recurrence" in said


def test_a_summary_holds_what_a_paper_needs(fitted):
    assert fitted.summary() == str(fitted)
    text = fitted.summary(verbose=True)
    for part in (
        "joint MoE law, sparsity-conditional recurrence", "1,080 losses of 90 runs", "simulated from",
        "without embeddings", "sum of Huber(0.001)", "8 of 8 starts", "RMSE 0.0038", "R² 0.999", "kappa1", "±",
    ):  # fmt: skip
        assert part in text
    assert "warning" not in text


def test_a_resampled_summary_gives_intervals_and_says_how(fitted):
    assert "90%, 20 resamples of whole runs" in fitted.resample(20).summary(verbose=True)
    assert "too narrow" in fitted.resample(20, scheme="paper").summary(verbose=True)


def test_a_degenerate_summary_says_so_first():
    text = fit(simulate_sweep(recurrences=(1, 2)), mapping="sparsity-conditional").summary(verbose=True)
    assert text.splitlines()[0].endswith("[DEGENERATE]")
    assert "degenerate: kappa2 is not identifiable from these data" in " ".join(text.split())


def test_a_summary_of_the_papers_recipe_and_of_fixed_coefficients_says_so():
    text = fit(SWEEP, recipe="paper", fixed={"theta": 0.3286}).summary(verbose=True)
    assert "the paper's: curve_fit" in text
    assert "fixed" in text


def test_r_squared_of_the_truth_is_high(fitted):
    assert fitted.r_squared > 0.999
    assert fitted.law.counts is Counting.WITHOUT_EMBEDDINGS
    assert fitted.law.names == published().names


def test_noise_between_runs_is_told_from_noise_within():
    parts = fit(simulate_sweep(noise=0.002, run_noise=0.006)).noise_components
    level = SWEEP.loss.mean()
    assert parts.run == pytest.approx(0.006 / level, rel=0.25)
    assert parts.observation == pytest.approx(0.002 / level, rel=0.25)
    assert fit(SWEEP).noise_components.run < 0.4 * fit(SWEEP).noise_components.observation


def test_a_new_run_has_the_noise_of_both(tmp_path):
    fitted = fit(simulate_sweep(noise=0.002, run_noise=0.004), resamples=4)
    spread = fitted.law.spread
    assert spread.within**2 + spread.between**2 == pytest.approx(spread.noise**2)
    fitted.law.save(tmp_path / "law.json")
    assert find_law(tmp_path / "law.json").spread == spread
    assert fitted.to_dict()["noise"] == {
        "new_run": spread.noise, "between_runs": pytest.approx(spread.between), "within_run": spread.within
    }  # fmt: skip
    assert "between runs" in fitted.summary(verbose=True)
    assert "within a run" in fitted.summary(verbose=True)


def test_run_effects_are_estimated_and_shrunk():
    sweep = simulate_sweep(noise=0.002, run_noise=0.006)
    shifts = np.log(sweep.loss / published()(sweep.points)).reshape(90, 12).mean(axis=1)
    truth = dict(zip(sweep.run[::12], shifts, strict=True))
    table = fit(sweep).run_effects()
    effects = np.array(table.columns["effect"])
    expected = np.array([truth[run] for run in table.columns["run"]])
    assert np.corrcoef(effects, expected)[0, 1] > 0.8
    assert np.std(effects) < np.std(expected)
    assert min(table.columns["error"]) > 0


def test_one_row_a_run_cannot_tell_the_two_apart():
    fitted = fit(simulated(24, 0))
    assert fitted.noise_components is None
    assert fitted.to_dict()["noise"]["within_run"] is None
    with pytest.raises(InputError, match="run effects need several rows in each run"):
        fitted.run_effects()
