"""The few calls that a notebook needs: fit, read the result, predict, save and load."""

import inspect
from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest

import loopscale as ls
from loopscale.choosing import Goal, NextRuns, PlannedRun
from loopscale.core.errors import InputError
from loopscale.fitting import Fit, simulate_sweep

mpl.use("Agg")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A dense sweep in a file."""
    random = np.random.default_rng(0)
    lines = ["run,params,tokens,loss"]
    for k, (N, D) in enumerate((N, D) for N in (1e8, 3e8, 1e9, 3e9) for D in (2e9, 1e10, 4e10, 1.5e11)):
        loss = 1.8 + 480 / N**0.35 + 2100 / D**0.37
        lines.append(f"r{k},{N},{D},{loss * np.exp(0.002 * random.standard_normal())}")
    path = tmp_path_factory.mktemp("dense") / "runs.csv"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def fitted(runs):
    return ls.fit(runs, resamples=20)


def test_one_call_fits_a_file_and_chooses_the_form(fitted):
    assert fitted.law.outer.name == "chinchilla"
    assert not fitted.law.mapping.loops
    assert fitted.law.name == "runs"
    assert len(fitted.law.resamples) == 20


def test_paths_frames_and_observations_give_the_same_fit(runs, fitted):
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    for data in (str(runs), pandas.read_csv(runs), polars.read_csv(runs), ls.Observations.of(runs)):
        assert ls.fit(data, resamples=0).objective == pytest.approx(fitted.objective)


def test_a_fit_shows_itself(fitted):
    assert len(fitted.summary().splitlines()) < 25
    assert list(fitted.conf_int().columns) == ["coefficient", "estimate", "low", "high"]
    assert isinstance(fitted.warnings, tuple)
    assert repr(fitted).startswith("<Fit 'runs'")
    assert "<table>" in fitted._repr_html_()
    assert len(fitted.plot().axes) == 3


def test_predictions_broadcast_and_carry_both_intervals(fitted):
    one = fitted.predict(N="7B", D=2e12)
    assert one.low < one.value < one.high
    assert one.law_low < one.law_value < one.law_high
    assert one.high - one.low > one.law_high - one.law_low
    assert "for a new run" in repr(one)
    many = fitted.predict(N=[[1e9], [7e9]], D=[1e11, 1e12, 1e13])
    assert many.value.shape == (2, 3)
    assert (many.low < many.value).all()
    pytest.importorskip("pandas")
    assert len(many.to_pandas()) == 6


def test_a_saved_fit_loads_and_predicts_the_same(fitted, tmp_path):
    fitted.save(tmp_path / "fit.json")
    again = Fit.load(tmp_path / "fit.json")
    assert again.summary() == fitted.summary()
    assert again.predict(7e9, 2e12).high == pytest.approx(fitted.predict(7e9, 2e12).high)


def made(kind, runs):
    """Return a fit of each kind that a file must hold."""
    weighted = replace(ls.Observations.of(runs), weight=np.linspace(0.5, 3.0, 16))
    return {
        "resampled": lambda: ls.fit(runs, resamples=5),
        "without resamples": lambda: ls.fit(runs, resamples=0),
        "least squares": lambda: ls.fit(runs, resamples=0, delta=np.inf),
        "held": lambda: ls.fit(runs, resamples=3, fixed={"c": 1.8}, bounds={"A": (0.01, 5.0)}, tie={"alpha": "beta"}),
        "paper": lambda: ls.fit(runs, resamples=0, recipe="paper").resample(4, scheme="paper"),
        "weighted": lambda: ls.fit(weighted.where(np.arange(14)), resamples=3),
        "expression": lambda: ls.fit(runs, resamples=3, outer="c + A/N**alpha + B/D**beta"),
        "looped": lambda: ls.fit(simulate_sweep(tokens=(1e11, 2e11, 4e11)), resamples=3),
    }[kind]()


@pytest.mark.parametrize(
    "kind",
    ["resampled", "without resamples", "least squares", "held", "paper", "weighted", "expression",
     "looped"],
)  # fmt: skip
def test_a_fit_read_from_its_own_dict_is_equal_to_it(runs, kind, tmp_path):
    fitted = made(kind, runs)
    again = Fit.from_dict(fitted.to_dict())
    assert again == fitted
    assert again.summary() == fitted.summary()
    assert again.warnings == fitted.warnings
    fitted.save(tmp_path / "fit.json")
    assert ls.load(tmp_path / "fit.json") == fitted
    assert again != replace(fitted, objective=2 * fitted.objective)


def test_a_fit_file_of_version_0_2_loads(fitted):
    content = fitted.to_dict()
    for added in ("coefficients", "intervals", "rmse", "r_squared", "noise", "warnings"):
        del content[added]
    for added in ("name", "numbers", "number_unit"):
        del content["data"][added]
    again = Fit.from_dict(content | {"schema": 1})
    assert again.law == fitted.law
    assert again.name == fitted.name


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"loss": ["x"] * 16}, "fit.json: data: column 'loss' should hold numbers"),
        ({"loss": [3.0]}, "fit.json: data: .* one entry for each of 1 losses"),
        ({"los": [3.0] * 16}, r"fit.json: data: unknown column 'los' \(did you mean 'loss'\?\)"),
        ({"N_act (raw)": None}, "fit.json: data: there is no column 'N_act"),
    ],
)
def test_a_fit_file_with_damaged_data_is_refused(fitted, change, said):
    content = fitted.to_dict()
    columns = content["data"]["columns"] | change
    content["data"]["columns"] = {name: cells for name, cells in columns.items() if cells is not None}
    with pytest.raises(InputError, match=said):
        Fit.from_dict(content, "fit.json")


def test_a_looped_fit_with_its_data_loads_too(tmp_path):
    looped = ls.fit(simulate_sweep(tokens=(1e11, 2e11, 4e11)), resamples=3)
    looped.save(tmp_path / "fit.json")
    again = Fit.load(tmp_path / "fit.json")
    assert again.objective == looped.objective
    np.testing.assert_allclose(again.residuals, looped.residuals)


def test_a_law_file_is_no_fit(fitted, tmp_path):
    fitted.law.save(tmp_path / "law.json")
    with pytest.raises(InputError, match="law"):
        Fit.load(tmp_path / "law.json")


def test_planned_runs_load_as_saved(tmp_path):
    from loopscale.fitting.noise import Noise

    run = PlannedRun("0.3B", 1.7e8, 1.0, 2, 1e11, 1e20, 1e20, 0.01)
    chosen = NextRuns((run,), Goal.CHOICE, 1e21, 0.02, 0.01, Noise(0.001, 0.0), 5, 1)
    chosen.save(tmp_path / "next.json")
    again = ls.NextRuns.load(tmp_path / "next.json")
    assert again == chosen
    assert ls.NextRuns.from_dict(chosen.to_dict()) == chosen
    assert "0.3B" in again.summary()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"recipe": "papr"}, "did you mean 'paper'"),
        ({"resamples": -1}, "`resamples` is -1"),
    ],
)
def test_what_is_not_an_option_is_refused(runs, options, said):
    with pytest.raises(InputError, match=said):
        ls.fit(runs, **options)


def test_what_is_not_an_option_of_reading_is_refused(runs):
    with pytest.raises(InputError, match="with-embeddings"):
        ls.Observations.of(runs, counts="with")
    with pytest.raises(InputError, match="are for files and frames"):
        ls.Observations.of(ls.Observations.of(runs), units={"N": 1e9})


def test_a_fit_has_at_most_a_dozen_arguments():
    assert len(inspect.signature(ls.fit).parameters) <= 12


def test_the_name_of_a_sweep_that_is_not_there_is_refused_with_the_nearest():
    with pytest.raises(InputError, match="did you mean 'isodepth'"):
        ls.fit("isodept")
