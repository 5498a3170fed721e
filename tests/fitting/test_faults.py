"""Mistakes that real sweeps brought to light, each with the file that shows it."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from plain import fit

import loopscale as ls
from loopscale.core.errors import InputError
from loopscale.fitting import Observations, simulate_sweep
from loopscale.fitting.data.keep import matching_rows
from loopscale.planning import Budget, plan
from warning_trials import simulated


def dense(rows=24, seed=0, noise=0.003, **columns):
    """A dense sweep as a data frame, with columns added or replaced."""
    data = simulated(rows, seed, noise=noise)
    table = {"params": data.points.active, "tokens": data.points.tokens, "loss": data.loss}
    return pd.DataFrame({name: cells for name, cells in (table | columns).items() if cells is not None})


def notes(table, **options):
    return " | ".join(Observations.of(table, **options).notes)


def test_one_diverged_run_does_not_move_eps():
    data = simulated(27, 1)
    loss = data.loss.copy()
    loss[3] *= 2.5
    sound, diverged = fit(data).law, fit(replace(data, loss=loss)).law
    assert diverged.rmse == pytest.approx(sound.rmse, rel=0.5)
    assert diverged.eps == pytest.approx(sound.eps, rel=0.5)
    assert plan(Budget(flops=5e21), law=replace(diverged, counts="without-embeddings")).eps < 0.05


def test_a_law_that_misses_its_data_says_so_first():
    random = np.random.default_rng(0)
    table = dense(60, loss=3 + random.random(60))
    warnings = fit(table).warnings
    assert warnings[0].startswith("lack of fit: R² is")


def test_a_bend_in_the_residuals_is_reported():
    assert any("trend along" in text for text in fit(simulated(60, 3, "C", 0.002)).warnings)


@pytest.mark.parametrize("runs", [6, 8, 12, 24])
def test_clean_small_sweeps_rarely_warn(runs):
    words = [" ".join(fit(simulated(runs, seed)).warnings) for seed in range(20)]
    assert sum("outlier" in text for text in words) <= 2
    assert sum("lack of fit" in text for text in words) <= 2


def test_a_default_count_is_called_an_assumption():
    assert "assumed without embeddings" in fit(dense()).summary()
    assert "; without embeddings" in fit(Observations.of(dense(), counts="without-embeddings")).summary()


def test_the_column_that_leaves_out_embeddings_wins_and_says_so():
    table = dense()
    table["non_embedding_params"] = 0.9 * table["params"]
    read = Observations.of(table)
    np.testing.assert_allclose(read.points.active, 0.9 * table["params"])
    assert not read.counts_assumed


def test_active_and_total_parameters_are_told_apart():
    table = dense(tokens=None, params=None)
    Na = np.geomspace(1e8, 1e9, 24)
    table = table.assign(N=4 * Na, Na=Na, D=40 * Na, nume=16, topk=2)
    read = Observations.of(table)
    np.testing.assert_allclose(read.points.active, Na)
    np.testing.assert_allclose(read.points.total, 4 * Na)
    assert set(read.points.experts) == {8.0}


@pytest.mark.parametrize("column", ["experiment", "model"])
def test_a_group_of_runs_is_not_a_run(column):
    read = Observations.of(dense(**{column: ["a", "b"] * 12}))
    assert len(read.runs) == 24
    assert any("has duplicates" in note for note in read.notes)


def test_a_model_column_with_one_row_each_names_runs():
    read = Observations.of(dense(model=[f"m{k}" for k in range(24)]))
    assert read.run[3] == "m3"


def test_twenty_independent_rows_without_names_are_twenty_runs():
    sizes = np.repeat([1e8, 2e8, 4e8, 8e8, 1.6e9], 4)
    table = pd.DataFrame({"N": sizes, "D": sizes * np.tile([10, 20, 40, 80], 5), "loss": np.linspace(4, 3, 20)})
    assert len(Observations.of(table).runs) == 20


def test_the_best_over_learning_rates_is_kept():
    table = pd.concat([dense(12, loss=None).assign(loss=3.0 + 0.1 * lr, lr=lr) for lr in (1, 2, 3)])
    best = Observations.of(table, best_of=True)
    assert len(best) == 12
    np.testing.assert_allclose(best.loss, 3.1)


def test_checkpoints_without_a_step_column_are_called_mid_schedule():
    data = simulate_sweep(experts=(1,), recurrences=(1,))
    said = " ".join(fit(replace(data, finished=None)).warnings)
    assert "33 of 36 rows come before the last row of their run; unless the learning rate was annealed" in said
    assert "mid-schedule" not in " ".join(fit(data).warnings)


@pytest.mark.parametrize("runs", [6, 7])
def test_tiny_sweeps_are_fitted_with_intervals(runs):
    tiny = ls.fit(simulated(runs, 2), resamples=20)
    assert "too few runs to leave any out" in " ".join(tiny.summary(verbose=True).split())
    prediction = tiny.predict(5e9, 1e11)
    assert prediction.low < prediction.value < prediction.high


def test_too_few_rows_say_what_helps():
    with pytest.raises(InputError, match=r"5 rows cannot determine 5 coefficients .* tie the exponents"):
        fit(simulated(5, 0))
    assert fit(simulated(5, 0), tie={"alpha": "beta"}).law.coefficients["alpha"] < 0


def test_a_row_repeated_ten_times_counts_once():
    table = dense()
    repeated = pd.concat([table, *[table.tail(1)] * 10])
    read = Observations.of(repeated)
    assert len(read) == 24
    assert "10 duplicate rows ignored" in read.notes


@pytest.mark.parametrize(("column", "value"), [("params", 1.44e15), ("tokens", 16.5)])
def test_a_row_in_another_unit_is_refused_by_row(column, value):
    table = dense()
    table.loc[6, column] = value
    with pytest.raises(InputError, match=rf"row 7, column '{column}'.* not plausible"):
        Observations.of(table)


def test_the_sign_that_papers_print_is_refused_with_the_right_one():
    with pytest.raises(InputError, match=r"alpha is 0.34; exponents are negative here .* write -0.34"):
        fit(dense(), fixed={"alpha": 0.34})


def test_bits_per_byte_are_read_and_named():
    table = dense(loss=None)
    table["bpb"] = dense()["loss"] / 3
    fitted = fit(table)
    assert "bits per byte" in fitted.summary()
    assert "nats" not in fitted.summary()


def test_json_lines_are_read(tmp_path):
    table = dense()
    path = tmp_path / "runs.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in table.to_dict("records")))
    assert fit(path).objective == pytest.approx(fit(table).objective)
    path.write_text("{}\nnot json\n")
    with pytest.raises(InputError, match="line 2 is not a JSON object"):
        fit(path)


def test_weights_and_known_noise_count():
    table = dense(24, 5)
    table.loc[2, "loss"] *= 1.2
    even = fit(table, delta=1e3)
    weighted = fit(table.assign(weight=[1e-6 if k == 2 else 1 for k in range(24)]), delta=1e3)
    known = fit(table.assign(loss_std=[10.0 if k == 2 else 0.01 for k in range(24)]), delta=1e3)
    clean = fit(table.drop(index=2), delta=1e3)
    kept = np.arange(24) != 2
    points = Observations.of(table).points.rows(kept)
    expected = clean.law(points)
    for close in (weighted, known):
        np.testing.assert_allclose(close.law(points), expected, rtol=1e-4)
    assert np.abs(even.law(points) / expected - 1).max() > 1e-3


@pytest.mark.parametrize(
    ("expression", "rows"),
    [("D/N >= 20", 2), ("N > 100M and D < 1T", 2), ("not width == 512", 1), ("name = 'a'", 1), ("log10(N) < 8.5", 1),
     ("2 <= D/N < 30", 2)],
)  # fmt: skip
def test_rows_are_kept_by_an_expression(expression, rows):
    columns = {"N": np.array([1e8, 1e9, 2e9]), "D": np.array([2e9, 3e10, 4e9]), "width": np.array([512.0, 512, 768]),
               "name": np.array(["a", "b", "c"])}  # fmt: skip
    assert matching_rows(expression, columns).sum() == rows


@pytest.mark.parametrize(
    "expression",
    ["__import__('os')", "N.real > 1", "(lambda: 1)()", "N > 'a'", "N", "[N]", "N >", "Q > 1", "N > 1e30", "exec('1')",
     "", "N if D else 1", "f'{N}'", "True", "(" * 500 + "N" + ")" * 500],
)  # fmt: skip
def test_other_expressions_are_refused_in_a_sentence(expression):
    with pytest.raises(InputError):
        matching_rows(expression, {"N": np.array([1e8, 1e9]), "D": np.array([2e9, 3e10])})


def test_a_column_of_the_file_can_be_named():
    table = dense(width=[256, 512] * 12)
    assert len(Observations.of(table, keep="width == 512")) == 12
    with pytest.raises(InputError, match="did you mean 'width'"):
        Observations.of(table, keep="widht == 512")


def test_a_prediction_takes_a_size_and_tokens():
    told = ls.predict(N="7B", D="140B", law="chinchilla-epoch-2024")
    assert (told.design.active, told.design.tokens) == (7e9, 140e9)
    assert 1.8 < told.loss < 2.5


def test_an_annealed_endpoint_is_not_called_mid_schedule():
    data = simulate_sweep(experts=(1,), recurrences=(1,))
    assert "mid-schedule" not in " ".join(fit(replace(data, finished=np.ones(len(data), dtype=bool))).warnings)
