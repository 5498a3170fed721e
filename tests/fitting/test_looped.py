"""The public looped sweeps: what they hold, how they are converted, and what a fit of them gives."""

import json
import os

import numpy as np
import pytest

from loopscale.core.errors import InputError
from loopscale.fitting import fit, load_public, load_table
from loopscale.fitting.compare import CROSS_VALIDATION, compare
from loopscale.fitting.data.converters import qlabs_geometry, qlabs_growth_rows, qlabs_loops_rows
from loopscale.fitting.data.downloads import PUBLIC_FILES
from loopscale.scaling import MAPPINGS, PUBLISHED, find_law

FOLDER = os.environ.get("LOOPSCALE_DATA", "")
public_data = pytest.mark.skipif(not FOLDER, reason="LOOPSCALE_DATA names no folder with the public sweeps")
DATA_TERM = {"B": 0.41568, "beta": -0.49036}
BUDGETS = {"8": 1333353355589713920, "12": 8656804363760566272}


def test_the_geometry_gives_the_counts_that_the_source_states():
    assert qlabs_geometry(8) == {
        "N_act": 102_760_448, "N_total": 102_760_448, "N_loop": 38_535_168, "N_embedding": 103_022_592,
    }  # fmt: skip
    stored = qlabs_geometry(10)
    assert stored["N_act"] + stored["N_embedding"] == 331_939_840
    assert (qlabs_geometry(6)["N_loop"] * 6, qlabs_geometry(13)["N_loop"] * 13) == (
        2 * qlabs_geometry(6)["N_act"],
        5 * qlabs_geometry(13)["N_act"],
    )


def test_published_files_convert_to_rows_in_the_order_of_size_budget_and_passes():
    tpl = [
        {"anchor": 10, "family": family, "k": k, "L": 3.2641047427528784, "C": 1.3331605974574694e18, "Nc": 267550720}
        for family in ("loop", "dep") for k in (2, 1)
    ]  # fmt: skip
    tpp = [{"arm": "van", "budget": 8, "depth": 6, "D": 2739929088.0, "C": 1.3332626458804224e18, "L": 3.33272873727}]
    rows = qlabs_loops_rows(
        {"tpl.json": json.dumps(tpl), "tpp.json": json.dumps(tpp), "tpl_budgets.json": json.dumps(BUDGETS)}
    )
    assert [row["run"] for row in rows] == ["tpl-d10-K1-b8", "tpl-d10-K2-b8", "tpp-vanilla-d6-b8"]
    assert rows[0]["D"] == 830_472_192
    assert (rows[0]["loss"], rows[2]["loss"], rows[2]["N_loop"]) == (3.264105, 3.3327287, 0)


def test_growing_runs_keep_the_arm_of_the_tied_loop():
    cells = [
        {"arm": arm, "budget": 8.0, "depth": 8, "rho": 0.05, "loss": 3.2334273488898027, "steps": 2309}
        for arm in ("dep", "k2")
    ]
    (row,) = qlabs_growth_rows({"growth.json": json.dumps(cells)})
    assert (row["run"], row["D"], row["grown"], row["R_end"]) == ("grow-b8-d8-rho0.05", 2309 * 524_288, "0.05", 4)


def test_every_looped_set_says_its_source_licence_and_caveats():
    for name in ("qlabs-loops", "qlabs-regimes", "qlabs-growth", "qlabs-test-time", "looped-nanochat",
                 "marin-reentrant", "marin-experts"):  # fmt: skip
        source = PUBLIC_FILES[name]
        assert source.note
        assert source.licence
        assert source.parts or source.otherwise


def test_a_table_is_not_a_sweep_and_a_sweep_is_not_a_table():
    with pytest.raises(InputError, match="load_table"):
        load_public("qlabs-test-time")
    with pytest.raises(InputError, match="did you mean 'qlabs-growth'"):
        load_table("qlabs-grow")


@public_data
def test_the_sweeps_have_the_rows_that_their_notes_state():
    loops, regimes = load_public("qlabs-loops"), load_public("qlabs-regimes")
    assert (len(loops), len(load_public("qlabs-loops", recipe="all"))) == (99, 174)
    assert (len(regimes), len(load_public("qlabs-regimes", weight_decay="all"))) == (67, 296)
    assert set(np.unique(regimes.points.unique_tokens)) == {1e8, 996_147_200}
    assert len(load_public("marin-experts")) == 11
    lengths = {name: len(load_table(name)) for name in ("qlabs-test-time", "looped-nanochat", "marin-reentrant")}
    assert lengths == {"qlabs-test-time": 170, "looped-nanochat": 48, "marin-reentrant": 43}
    with pytest.raises(InputError, match=r"choose from 0\.05, 0\.2"):
        load_public("qlabs-regimes", weight_decay=0.3)
    with pytest.raises(InputError, match="choose from fixed, all"):
        load_public("qlabs-loops", recipe="own")


@public_data
def test_the_gain_saturates_on_runs_of_another_laboratory():
    result = compare(load_public("qlabs-loops"), ["R=6"], folds=0)
    rmse = {mapping: result.score("R=6", mapping).rmse for mapping in result.mappings}
    assert [rmse[name] for name in ("bounded", "power", "linear")] == pytest.approx([0.0110, 0.0245, 0.0450], abs=5e-4)
    assert rmse["general"] <= 0.0115


@public_data
def test_a_prior_on_the_curve_helps_where_few_passes_leave_it_open_and_can_be_switched_off():
    data = load_public("isodepth")
    pulled = compare(data, ["R=8"], mappings=["general"], folds=0).score("R=8", "general").rmse
    free = compare(data, ["R=8"], mappings=["general"], folds=0, recipe="no-prior").score("R=8", "general").rmse
    assert pulled <= 0.0180 < free


@public_data
def test_weights_overfit_and_passes_do_not():
    data = load_public("qlabs-regimes")
    scores = {
        outer: compare(data, [], outer=outer, mappings=["bounded"], fixed=held).score(CROSS_VALIDATION, "bounded").rmse
        for outer, held in (
            ("chinchilla+repetition", DATA_TERM),
            ("chinchilla+overfit", DATA_TERM),
            ("chinchilla+stored-overfit", {**DATA_TERM, "R_D": 15.387756}),
        )
    }  # fmt: skip
    assert scores["chinchilla+stored-overfit"] <= 0.0200
    assert scores["chinchilla+stored-overfit"] < 0.5 * min(
        scores["chinchilla+overfit"], scores["chinchilla+repetition"]
    )


@public_data
@pytest.mark.parametrize("name", ["qlabs-loops-2026", "qlabs-repetition-2026"])
def test_the_published_refits_are_those_of_the_public_runs(name):
    law = find_law(name)
    data = load_public("qlabs-loops" if "loops" in name else "qlabs-regimes")
    assert np.sqrt(np.mean((law(data.points) - data.loss) ** 2)) == pytest.approx(law.rmse, rel=1e-3)
    assert law.resamples is not None
    assert law.fitted_range.size == pytest.approx((data.points.active.min(), data.points.active.max()), rel=1e-5)


def test_the_general_mapping_fits_what_the_bounded_one_fits_when_the_truth_is_bounded():
    from loopscale.fitting import simulate_sweep

    sweep = simulate_sweep(PUBLISHED["looped-moe-2026"], experts=(1,), tokens=(1e11, 3e11, 5e11))
    bounded, general = (fit(sweep, outer="chinchilla", mapping=name, resamples=0) for name in ("bounded", "general"))
    free = fit(sweep, outer="chinchilla", mapping="general", resamples=0, recipe="no-prior")
    assert free.objective <= bounded.objective * (1 + 1e-6)
    assert general.objective >= free.objective
    assert general.coefficients["tail"] < 0.3
    assert not general.prior or MAPPINGS["general"].coefficients[2].prior is not None
    assert "prior" in general.summary()
    assert "prior" not in bounded.summary()


def test_a_fit_keeps_its_prior_in_its_file(tmp_path):
    from loopscale.fitting import Fit, simulate_sweep

    sweep = simulate_sweep(PUBLISHED["looped-moe-2026"], experts=(1,), tokens=(1e11, 3e11, 5e11))
    fitted = fit(sweep, outer="chinchilla", mapping="general", resamples=0)
    fitted.save(tmp_path / "fit.json")
    again = Fit.load(tmp_path / "fit.json")
    assert again.prior
    assert again.problem.penalty(again.optimum) == pytest.approx(fitted.problem.penalty(fitted.optimum))
    paper = fit(sweep, outer="chinchilla", mapping="general", resamples=0, recipe="paper")
    assert not paper.prior
