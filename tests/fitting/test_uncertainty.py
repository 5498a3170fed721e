"""Resampled laws and their intervals."""

import json
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest
from plain import fit

from loopscale.core.errors import InputError
from loopscale.fitting import Scheme, simulate_sweep
from loopscale.fitting.covariance import coefficient_intervals
from loopscale.fitting.search import search
from loopscale.fitting.starts import staged_start
from loopscale.scaling import ScalingLaw, published

SWEEP = simulate_sweep(noise=0.0026, run_noise=0.0026)


@pytest.fixture(scope="module")
def fitted():
    return fit(SWEEP)


@pytest.fixture(scope="module")
def resampled(fitted):
    return fitted.resample(60)


def width(fit_, name="kappa1"):
    low, high = coefficient_intervals(fit_)[name]
    return high - low


def test_whole_runs_are_resampled_by_default(fitted, resampled):
    assert resampled.scheme is Scheme.RUNS
    assert resampled.law.resamples.shape == (60, 14)
    assert dict(resampled.law.coefficients) == dict(fitted.law.coefficients)
    assert fitted.law.resamples is None


def test_the_papers_scheme_is_several_times_too_narrow(fitted, resampled):
    paper = fitted.resample(60, scheme="paper")
    rows = fitted.resample(60, scheme="observations")
    assert width(paper) < width(resampled) / 4
    assert width(rows) < width(resampled) / 1.5


def test_intervals_surround_the_estimate_and_widen_with_the_level(fitted, resampled):
    for name, (low, high) in coefficient_intervals(resampled).items():
        assert low <= fitted.law.coefficients[name] <= high
        wider = coefficient_intervals(resampled, 0.99)[name]
        assert wider[0] <= low <= high <= wider[1]


def test_predictions_have_an_interval_at_any_points(fitted, resampled):
    points = SWEEP.where(slice(0, 24)).points
    low, high = resampled.law.interval(points)
    assert low.shape == high.shape == (24,)
    assert ((low < fitted.law(points)) & (fitted.law(points) < high)).all()
    assert 0.0005 < np.mean(high - low) < 0.01


def test_every_refit_is_the_optimum_of_its_own_draw(fitted):
    """A warm start must not stay behind: a fresh search of the same draw finds nothing lower."""
    problem = fitted.problem
    random = np.random.default_rng(5)
    which = np.unique(SWEEP.run, return_inverse=True)[1]
    for _ in range(3):
        weight = random.multinomial(90, np.full(90, 1 / 90))[which].astype(float)
        warm = search(replace(problem, weight=weight), problem.point(fitted.law.coefficients)[None, :], 1e-3)
        cold = search(replace(problem, weight=weight), staged_start(problem)[None, :], 1e-3)
        assert warm.value <= cold.value * (1 + 1e-6)


def test_the_same_seed_gives_the_same_laws_in_any_number_of_processes(fitted):
    alone, two = (fitted.resample(44, seed=3, workers=workers) for workers in (1, 2))
    np.testing.assert_array_equal(alone.law.resamples, two.law.resamples)
    other = fitted.resample(44, seed=4, workers=1)
    assert not np.array_equal(alone.law.resamples, other.law.resamples)


def test_processes_do_not_run_an_unguarded_script_again(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            from loopscale.fitting import fit, simulate_sweep
            print("once")
            law = fit(simulate_sweep(tokens=(1e11, 3e11)), starts=1).resample(40, workers=2).law
            print(len(law.resamples))
            """
        )
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["once", "40"]


def test_progress_is_reported(fitted):
    seen = []
    fitted.resample(45, workers=1, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (45, 45)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_resampled_laws_travel_in_the_law_file(resampled, tmp_path):
    resampled.law.save(tmp_path / "law.json")
    again = ScalingLaw.load(tmp_path / "law.json")
    np.testing.assert_array_equal(again.resamples, resampled.law.resamples)
    assert len(json.loads((tmp_path / "law.json").read_text())["resamples"]) == 60


def test_fixed_coefficients_do_not_vary():
    held = fit(SWEEP, fixed={"theta": 0.33}, starts=1).resample(10)
    assert coefficient_intervals(held)["theta"] == (0.33, 0.33)


def test_few_runs_are_drawn_until_every_axis_varies():
    small = simulate_sweep(rungs=("0.3B", "1.0B"), experts=(1, 16), recurrences=(1, 4), tokens=(1e11, 2e11, 3e11, 5e11))
    bounded = fit(small, mapping="bounded", fixed={"E_start": 1.3, "E_max": 57.0})
    again = bounded.resample(20)
    assert np.isfinite(again.law.resamples).all()


def test_intervals_without_resamples_say_what_to_do(fitted):
    with pytest.raises(InputError, match=r"call fit\.resample\(\)"):
        coefficient_intervals(fitted)
    with pytest.raises(InputError, match="fit it again with resampling"):
        fitted.law.interval(SWEEP.points)


@pytest.mark.parametrize(
    ("options", "said"), [({"scheme": "run"}, "did you mean 'runs'"), ({"count": 1}, "needs 2 or more")]
)
def test_bad_options_are_named(fitted, options, said):
    with pytest.raises(InputError, match=said):
        fitted.resample(**options)


def test_a_level_must_be_a_share(resampled):
    with pytest.raises(InputError, match="between 0 and 1"):
        coefficient_intervals(resampled, 90)


@pytest.mark.slow
def test_nominal_90_percent_intervals_cover_about_that_often():
    """A short version of the coverage experiment, to be seen failing soon if the refits go wrong."""
    truth, hits = published(), []
    for seed in range(40):
        sweep = simulate_sweep(noise=0.0026, run_noise=0.0026, seed=seed)
        again = fit(sweep, starts=2).resample(80, seed=seed, workers=1)
        low, high = again.law.interval(sweep.points)
        hits.append(np.mean((low <= truth(sweep.points)) & (truth(sweep.points) <= high)))
    assert 0.82 <= np.mean(hits) <= 0.97
