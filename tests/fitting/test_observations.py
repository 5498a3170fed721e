"""Observations: columns, units, runs and what is said of a bad row."""

import gzip
import re

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from loopscale.core.errors import InputError
from loopscale.fitting import Observations, simulate_sweep
from loopscale.fitting.data.cells import number_of
from loopscale.fitting.data.columns import SYNONYMS, find_columns
from loopscale.fitting.data.units import detect_units
from loopscale.scaling import Counting, Points

GOOD = {
    "N_act": [1.7e8, 4e8, 4e8], "N_loop": [1.4e8, 3.3e8, 3.3e8], "N_total": [1.7e8, 1.6e9, 1.6e9],
    "E": [1, 4, 4], "R": [1, 2, 2], "D": [1e11, 2e11, 3e11], "loss": [2.5, 2.3, 2.2], "run": ["a", "b", "b"],
}  # fmt: skip


def frame(**changes):
    """Return the good table with columns changed, or left out where None."""
    return pd.DataFrame({name: cells for name, cells in (GOOD | changes).items() if cells is not None})


def refused(**changes):
    """Return what is said of a bad table."""
    with pytest.raises(InputError) as caught:
        Observations.of(frame(**changes), name="runs.csv")
    return str(caught.value)


@pytest.mark.parametrize(
    "make", [pd.DataFrame, pl.DataFrame, pl.LazyFrame, pa.table], ids=["pandas", "polars", "polars-lazy", "arrow"]
)
def test_any_data_frame_will_do(make):
    read = Observations.of(make(GOOD))
    np.testing.assert_array_equal(read.points.total, GOOD["N_total"])
    np.testing.assert_array_equal(read.loss, GOOD["loss"])
    assert (len(read), list(read.runs), read.notes) == (3, ["a", "b"], ())


@pytest.mark.parametrize("name", ["runs.csv", "runs.csv.gz", "runs.tsv", "runs.parquet"])
def test_files_of_every_kind_give_the_same_rows(tmp_path, name):
    path = tmp_path / name
    table = frame()
    match name:
        case "runs.csv":
            path.write_text("\ufeff" + table.to_csv(index=False), encoding="utf-8")
        case "runs.csv.gz":
            path.write_bytes(gzip.compress(table.to_csv(index=False).encode()))
        case "runs.tsv":
            path.write_text(table.to_csv(index=False, sep="\t"))
        case _:
            table.to_parquet(path)
    read = Observations.of(path)
    np.testing.assert_array_equal(read.points.tokens, GOOD["D"])
    assert list(read.run) == GOOD["run"]
    assert read.source == str(path)


def test_a_sweep_written_and_read_again_is_the_same_to_the_last_digit(tmp_path):
    sweep = simulate_sweep()
    sweep.to_csv(tmp_path / "sweep.csv")
    read = Observations.of(tmp_path / "sweep.csv")
    for name in ("active", "tokens", "recurrence", "experts", "loop", "total"):
        np.testing.assert_array_equal(getattr(read.points, name), getattr(sweep.points, name))
    np.testing.assert_array_equal(read.loss, sweep.loss)
    np.testing.assert_array_equal(read.run, sweep.run)
    assert read.finished is not None
    assert read.finished.all()
    assert read.notes == ()


def test_tiny_models_are_not_taken_for_billions_when_written_by_us(tmp_path):
    points = Points(np.array([900.0, 1800.0]), np.array([1e4, 2e4]), np.ones(2), np.ones(2))
    Observations(points, np.array([5.0, 4.0]), np.array(["a", "b"]), "tiny", Counting.WITHOUT_EMBEDDINGS).to_csv(
        tmp_path / "tiny.csv"
    )
    np.testing.assert_array_equal(Observations.of(tmp_path / "tiny.csv").points.active, [900, 1800])


@pytest.mark.parametrize(
    "names",
    [
        ("params", "tokens", "val_loss", "num_loops"),
        ("Model Size (B)", "Training tokens (B)", "Validation Loss", "recurrence"),
        ("n_params_M", "tokens_in_billions", "eval_loss", "r"),
    ],
)
def test_common_names_are_understood(names):
    found = find_columns(names, {}, "runs.csv")
    assert [found[field].name for field in ("active", "tokens", "loss", "recurrence")] == list(names)


def test_a_unit_in_the_header_is_applied():
    read = Observations.of(pd.DataFrame({"N (B)": [0.5, 1], "tokens_M": [1e4, 2e4], "loss": [3, 2.5]}))
    np.testing.assert_array_equal(read.points.active, [5e8, 1e9])
    np.testing.assert_array_equal(read.points.tokens, [1e10, 2e10])


def test_a_unit_in_the_cell_is_applied():
    read = Observations.of(pd.DataFrame({"size": ["70M", "1.4B"], "D": ["300B", "0.3T"], "loss": [3, 2.5]}))
    np.testing.assert_allclose(read.points.active, [7e7, 1.4e9])
    np.testing.assert_allclose(read.points.tokens, [3e11, 3e11])


def test_detected_units_are_said():
    read = Observations.of(frame(N_act=[0.17, 0.4, 0.4], N_loop=None, N_total=None, D=[100, 200, 300]))
    np.testing.assert_allclose(read.points.active, [1.7e8, 4e8, 4e8])
    assert "read as billions: N_act (0.17 to 0.4), D (100 to 300)" in read.notes[0]


def test_stated_units_overrule_detection():
    read = Observations.of(pd.DataFrame({"N": [100, 200], "D": [2000, 4000], "loss": [3, 2]}), units={"N": 1e9, "D": 1})
    np.testing.assert_array_equal(read.points.active, [1e11, 2e11])
    np.testing.assert_array_equal(read.points.tokens, [2000, 4000])


@given(st.floats(1e7, 1e11), st.floats(10, 2000), st.sampled_from([1.0, 1e6, 1e9]), st.sampled_from([1.0, 1e9]))
def test_usual_models_are_recognised_in_any_unit(size, tokens_per_parameter, unit_N, unit_D):
    N, D = np.array([size, 2 * size]), np.array([size, 2 * size]) * tokens_per_parameter
    assume(unit_N != 1e6 or 5 <= size / 1e6 <= 2e3)  # how people write such sizes
    assume(2e8 < D.min() < 1e13)
    assert detect_units(N / unit_N, D / unit_D) == (unit_N, unit_D)


def test_routed_experts_are_divided_by_k():
    read = Observations.of(frame(E=None, num_experts=[1, 8, 16], top_k=[2, 2, 2]))
    np.testing.assert_array_equal(read.points.experts, [1, 4, 8])
    assert "E = num_experts / top_k" in read.notes


def test_flops_give_the_tokens_where_no_column_does():
    read = Observations.of(pd.DataFrame({"N": [1e9, 2e9], "Training FLOP": [6e19, 6e20], "loss": [3, 2]}))
    np.testing.assert_allclose(read.points.tokens, [1e10, 5e10])
    assert "D = FLOPs / (6 N_unroll)" in read.notes


def test_rows_without_run_names_are_runs_of_their_own():
    read = Observations.of(frame().drop(columns="run"))
    assert len(read.runs) == 3
    assert any("every row counts as a separate run" in note for note in read.notes)


def test_a_step_column_or_many_rows_of_one_model_make_checkpoints():
    stepped = Observations.of(frame(step=[100, 50, 100]).drop(columns="run"))
    assert len(stepped.runs) == 2
    many = pd.DataFrame({"N": [1e8] * 12 + [4e8] * 12, "D": [*np.linspace(1e9, 2e10, 12)] * 2, "loss": 3.0})
    read = Observations.of(many)
    assert len(read.runs) == 2
    assert any("checkpoints of one run (2 runs)" in note for note in read.notes)


def test_steps_alone_do_not_tell_whether_the_rate_was_annealed():
    assert Observations.of(frame(step=[100, 50, 100])).finished is None
    annealed = Observations.of(frame(step=[100, 50, 100], annealed=["yes", "yes", "yes"]))
    assert annealed.finished.all()


def test_a_status_tells_finished_runs():
    read = Observations.of(frame(status=["finished", "running", "Completed"]))
    assert read.finished is not None
    assert read.finished.tolist() == [True, False, True]


def test_repeated_rows_are_counted():
    twice = pd.concat([frame(), frame().tail(1)])
    read = Observations.of(twice)
    assert len(read) == 3
    assert "1 duplicate row ignored" in read.notes


def test_empty_cells_pass_only_where_the_row_can_do_without():
    read = Observations.of(frame(N_loop=[None, 3e8, 3e8], N_total=[None, 1.6e9, 1.6e9]))
    assert read.points.loop is not None
    assert read.points.total is not None
    assert (read.points.loop[0], read.points.total[0]) == (0, 1.7e8)
    assert "row 2, column 'N_loop' is empty" in refused(N_loop=[1e8, None, 3e8])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"loss": None}, "runs.csv: no column for loss; columns are N_act, N_loop, N_total, E, R, D, run"),
        ({"loss": None, "los": [1, 2, 3]}, "no column for loss (did you mean 'los'?)"),
        ({"N_act": None}, "no column for N_act (active)"),
        ({"loss": [2.5, "high", 2.2]}, "row 2, column 'loss' is 'high'; it should be a number"),
        ({"loss": [2.5, -1, 2.2]}, "row 2, column 'loss' is -1; it should be finite and above zero"),
        ({"loss": [2.5, 2, np.inf]}, "row 3, column 'loss' is inf"),
        ({"loss": [0, 2, 2]}, "row 1, column 'loss' is 0"),
        ({"R": [1, 0.5, 2]}, "row 2, column 'R' is 0.5; it should be finite and 1 or more"),
        ({"E": [1, 4, 0]}, "row 3, column 'E' is 0"),
        ({"N_loop": [1e8, 5e8, 1e8]}, "row 2, column 'N_loop' is 5e+08, above N_act = 4e+08"),
        ({"N_total": [1.7e8, 2e8, 1e9]}, "row 2, column 'N_total' is 2e+08, below N_act = 4e+08"),
        ({"D": [1e11, -2, 1e11]}, "row 2, column 'D' is -2"),
    ],
)
def test_a_bad_table_is_named_by_row_and_column(changes, said):
    assert said in refused(**changes)


CRASHED = """Name,params,tokens,eval/loss,state
a,100000000,2000000000,3.2,finished
b,100000000,4000000000,,crashed
"c
d",200000000,,3.0,finished

e,200000000,4000000000,NaN,crashed
f,400000000,8000000000,high,failed
g,400000000,8000000000,2.7,finished
"""
COMPLETE = "state == 'finished'"


def written(tmp_path, text):
    """Return the path of a CSV file with this text."""
    (tmp_path / "wandb.csv").write_text(text)
    return tmp_path / "wandb.csv"


def test_rows_without_a_loss_or_tokens_are_left_out_and_counted(tmp_path):
    read = Observations.of(written(tmp_path, CRASHED.replace("high", "")), columns={"loss": "eval/loss"})
    assert read.run.tolist() == ["a", "g"]
    assert "4 rows skipped: no loss, lines 3, 7 and 8; no tokens, line 4" in read.notes
    assert [read.place(k) for k in range(2)] == ["line 2", "line 9"]


def test_strict_reading_refuses_a_row_without_a_loss(tmp_path):
    with pytest.raises(InputError, match=r"wandb.csv: line 3, column 'eval/loss' \(loss\) is empty or not a number"):
        Observations.of(written(tmp_path, CRASHED.replace("high", "")), columns={"loss": "eval/loss"}, strict=True)


def test_rows_are_chosen_before_their_cells_are_judged(tmp_path):
    path = written(tmp_path, CRASHED)
    with pytest.raises(InputError, match=r"line 8, column 'eval/loss' .* is 'high'; it should be a number"):
        Observations.of(path, columns={"loss": "eval/loss"})
    for expression in (COMPLETE, "loss > 0", "N > 1B or loss < 6"):
        read = Observations.of(path, columns={"loss": "eval/loss"}, keep=expression)
        assert read.run.tolist() == ["a", "g"], expression
    assert "3 of 6 rows kept by state == 'finished'" in Observations.of(
        path, columns={"loss": "eval/loss"}, keep=COMPLETE
    ).notes  # fmt: skip


def test_a_table_without_any_complete_row_is_refused(tmp_path):
    with pytest.raises(InputError, match="no row is complete: no loss, lines 2 and 3"):
        Observations.of(written(tmp_path, "N,D,loss\n1e8,2e9,\n2e8,4e9,nan\n"))


@pytest.mark.parametrize("header", ["run", "Name", "model"])
def test_repeats_go_before_the_run_column_is_judged(tmp_path, header):
    rows = [f"r{k},{N},{D},{3 - k / 10}" for k, (N, D) in enumerate([(1e8, 2e9), (2e8, 4e9), (4e8, 8e9)])]
    path = written(tmp_path, "\n".join([f"{header},params,tokens,loss", *rows, rows[1], rows[2]]))
    read = Observations.of(path)
    assert read.run.tolist() == ["r0", "r1", "r2"]
    assert "2 duplicate rows ignored" in read.notes


def test_columns_in_memory_are_read_like_a_frame():
    read = Observations.of({"N": [1e8, 2e8], "D": [2e9, 4e9], "loss": [3.0, 2.8]}, name="mine")
    assert (len(read), read.name, read.source) == (2, "mine", "mine")
    with pytest.raises(InputError, match="mine: its columns have different lengths"):
        Observations.of({"N": [1e8, 2e8], "D": [2e9], "loss": [3.0, 2.8]}, name="mine")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is empty"),
        ("N,D,loss\n", "no rows below the header"),
        ("N,D,loss\n1e9,2e10\n", "line 2 has 2 cells; the header has 3"),
        ("N,N,loss\n1,2,3\n", "column 'N' is there twice"),
    ],
)
def test_a_broken_csv_is_named(tmp_path, text, said):
    path = tmp_path / "runs.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=re.escape(said)):
        Observations.of(path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("missing.csv", None, "no such file"),
        ("missing.parquet", None, "no such file"),
        ("runs.xlsx", b"x", "give .csv"),
        ("runs.parquet", b"not parquet", "not a Parquet file"),
        ("runs.csv.gz", b"not gzip", "cannot be read"),
        ("runs.csv", b"\xff\xfe\x00", "not UTF-8"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, content, said):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=said) as caught:
        Observations.of(tmp_path / name)
    assert name in str(caught.value)


def test_chosen_columns_and_units_must_exist():
    with pytest.raises(InputError, match=r"column 'lss' for loss is not there \(did you mean 'loss'\?\)"):
        Observations.of(frame(), columns={"loss": "lss"})
    with pytest.raises(InputError, match="'losss'"):
        Observations.of(frame(), columns={"losss": "loss"})
    with pytest.raises(InputError, match="units are for"):
        Observations.of(frame(), units={"loss": 1e9})
    read = Observations.of(frame(c4=[3.0, 2.9, 2.8]), columns={"loss": "c4"})
    np.testing.assert_array_equal(read.loss, [3.0, 2.9, 2.8])


def test_something_that_is_no_frame_is_refused():
    with pytest.raises(InputError, match="not a data frame"):
        Observations.of([1, 2, 3])


def test_every_synonym_belongs_to_one_field():
    listed = [name for names in SYNONYMS.values() for name in names]
    assert len(listed) == len(set(listed))


def test_rows_are_chosen_by_mask_and_by_index():
    sweep = simulate_sweep()
    looped = sweep.where(sweep.points.recurrence > 1)
    assert looped.points.recurrence.min() == 2
    again = sweep.where(np.array([3, 3, 5]))
    assert (len(again), again.loss[0], len(again.runs)) == (3, again.loss[1], 1)


def test_observations_of_different_lengths_are_refused():
    points = Points(np.array([1e8, 2e8]), np.array([1e10, 1e10]), np.ones(2), np.ones(2))
    with pytest.raises(InputError, match="one entry for each of 3 losses"):
        Observations(points, np.ones(3), np.array(["a", "b", "c"]), "here", Counting.WITHOUT_EMBEDDINGS)
    with pytest.raises(InputError, match="row 2: loss is nan"):
        Observations(points, np.array([1.0, np.nan]), np.array(["a", "b"]), "here", Counting.WITHOUT_EMBEDDINGS)


def test_a_whole_number_that_no_float_can_hold_is_no_number():
    assert number_of(10**400) is None
    assert number_of(10**40) == (1e40, False)
