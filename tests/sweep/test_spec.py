"""SWEEP.toml: what it may say, and that what it cannot mean is said in one sentence before any time is spent."""

import json

import pytest

from loopscale.core.errors import InputError
from loopscale.sweep.cost import checked
from loopscale.sweep.spec import read_sweep
from sweeps import BASE, open_sweep, write_sweep

SIZES = """[sizes.small]
width = 16
[sizes.large]
width = 32
"""
GRID = '[grid]\nexperts = [1, 4]\nrecurrence = [1, 2]\ntokens = ["1k", 2048]\n'


def test_a_grid_is_every_combination_and_points_of_one_trunk_stay_together(tmp_path):
    sweep = read_sweep(write_sweep(tmp_path, SIZES + GRID))
    assert len(sweep.runs) == 2 * 2 * 2
    assert [run.key for run in sweep.runs[:2]] == ["small-E1-R1-s0", "small-E1-R2-s0"]
    assert all(run.points == {992: 1000.0, 2048: 2048.0} for run in sweep.runs)
    assert {(run.cell.size, run.config.model.width) for run in sweep.runs} == {("small", 16), ("large", 32)}
    assert all(run.config.schedule.kind == "wsd" for run in sweep.runs)


def test_several_grids_and_runs_add_up(tmp_path):
    body = (
        SIZES
        + "[[grid]]\nsize = 'small'\nrecurrence = [1, 2]\ntokens = 1024\n"
        + "[[grid]]\nsize = 'small'\nrecurrence = 1\ntokens = 2048\nseed = [0, 1]\n"
        + "[[runs]]\nsize = '0.3B'\nexperts = 8\nrecurrence = 5\ntokens = '1T'\n"
    )
    found = {run.key: sorted(run.points) for run in read_sweep(write_sweep(tmp_path, body)).runs}
    assert found == {
        "small-E1-R1-s0": [1024, 2048],
        "small-E1-R2-s0": [1024],
        "small-E1-R1-s1": [2048],
        "0.3B-E8-R5-s0": [1_000_000_000_000],
    }


def test_overrides_and_labels_follow_their_conditions(tmp_path):
    body = SIZES + GRID + (
        '[[overrides]]\nset = { "optimizer.learning_rate" = 0.01 }\n'
        '[[overrides]]\nwhen = { size = "large", recurrence = [2, 4] }\nset = { optimizer.learning_rate = 0.002 }\n'
        '[[labels]]\nwhen = { tokens = 2048 }\nlabel = "held-out D"\n'
        '[[labels]]\nwhen = { experts = 4 }\nlabel = "held-out E"\n'
    )  # fmt: skip
    sweep = read_sweep(write_sweep(tmp_path, body))
    rates = {run.key: run.config.optimizer.learning_rate for run in sweep.runs}
    assert {key for key, rate in rates.items() if rate == 0.002} == {"large-E1-R2-s0", "large-E4-R2-s0"}
    assert set(rates.values()) == {0.01, 0.002}
    run = next(run for run in sweep.runs if run.key == "small-E1-R1-s0")
    assert [sweep.label(run, asked) for asked in run.points.values()] == ["", "held-out D"]
    run = next(run for run in sweep.runs if run.key == "small-E4-R1-s0")
    assert [sweep.label(run, asked) for asked in run.points.values()] == ["held-out E", "held-out E"]


@pytest.mark.parametrize("ending", ["csv", "json"])
def test_the_runs_that_next_recommends_are_taken(tmp_path, ending):
    row = {"model": "small", "active": 1e4, "experts": 4.0, "recurrence": 2, "tokens": 2048.0, "flops": 1e9}
    text = json.dumps({"kind": "next-runs", "runs": [row]})
    if ending == "csv":
        text = ",".join(row) + "\n" + ",".join(map(str, row.values())) + "\n"
    path = write_sweep(tmp_path, f'next_runs = "next.{ending}"\n' + SIZES)
    (tmp_path / f"next.{ending}").write_text(text)
    (run,) = read_sweep(path).runs
    assert (run.key, run.points) == ("small-E4-R2-s0", {2048: 2048.0})


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("[grdi]\ntokens = 1024", "unknown field 'grdi' (did you mean 'grid'?)"),
        ("[grid]\ntoken = 1024", "[grid]: unknown field 'token' (did you mean 'tokens'?)"),
        ("[grid]\nrecurrence = 1", "[grid]: field 'tokens' is missing or empty"),
        ("[grid]\ntokens = []", "[grid]: field 'tokens' is missing or empty"),
        ("[grid]\ntokens = 'many'", "field 'tokens': 'many' is not a positive number"),
        ("[grid]\ntokens = 1024\nexperts = 1.5", "field 'experts' holds 1.5; it should be a whole number from 1 up"),
        ("[grid]\ntokens = 1024\nseed = -1", "field 'seed' holds -1; it should be a whole number from 0 up"),
        ("[grid]\ntokens = 1024\nsize = 'smal'\n[sizes.small]\nwidth = 16", "(did you mean 'small'?)"),
        ("[grid]\ntokens = [1024, 1030]", "1024 and 1030 tokens are both 32 steps of 32"),
        ("[sizes.a]\nrecurrence = 2\n[grid]\ntokens = 1024", "'recurrence' is an axis of the grid"),
        ("[grid]\ntokens = 1024\n[[overrides]]\nwhen = { tokens = 1 }\nset = {}", "'when' names 'tokens'"),
        ("[grid]\ntokens = 1024\n[[overrides]]\nset = { 'run.seed' = 1 }", "'run.seed', which is an axis"),
        ("[grid]\ntokens = 1024\n[[overrides]]\nset = { rate = 1 }", 'write it like "optimizer.learning_rate"'),
        (
            "[grid]\ntokens = 1024\n[[overrides]]\nset = { 'optimizer.learning_rat' = 1 }",
            "E = 1, R = 1, seed 0: optimizer: unknown field 'learning_rat' (did you mean 'learning_rate'?)",
        ),
        ("folder = '/tmp/x'\n[grid]\ntokens = 1024", "name a folder beside the file"),
        ("", "it has no run"),
        ("next_runs = 'none.csv'", "none.csv: no such file"),
        ("[grid]\ntokens = 1024\n[[base.callbacks]]\nuse = 'os:path'", "which a sweep never runs"),
    ],
)
def test_what_a_file_cannot_mean_is_said_in_a_sentence(tmp_path, body, said):
    path = write_sweep(tmp_path, body)
    with pytest.raises(InputError) as error:
        read_sweep(path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "[sizes.odd]\nwidth = 20\n[sizes.small]\nwidth = 16\n[grid]\ntokens = 1024",
            "size odd, E = 1, R = 1, seed 0 cannot be trained: [model]: field 'width' is 20, no multiple of",
        ),
        ("[sizes.thin]\nlayers = 2\n[grid]\ntokens = 1024", "which leaves no loop block between prelude and coda"),
    ],
)
def test_an_impossible_cell_is_named_before_any_token_is_made(tmp_path, body, said):
    with pytest.raises(InputError, match="cannot be trained") as error:
        checked(read_sweep(write_sweep(tmp_path, body)), progress=False)
    assert said in str(error.value)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["sweep.toml", "text.txt"]


def test_text_too_short_for_a_batch_is_said_with_its_cell(tmp_path):
    path = write_sweep(tmp_path, "[grid]\ntokens = 1e9", base=BASE.replace("context = 16", "context = 4000000"))
    with pytest.raises(InputError, match=r"size base, E = 1, R = 1, seed 0"):
        open_sweep(path)
