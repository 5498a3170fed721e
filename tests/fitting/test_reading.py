"""Tables as people have them: exports of trackers, other separators, and readings that look wrong."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import loopscale as ls
from loopscale.core.errors import InputError, MissingExtraError
from loopscale.fitting import Observations, fit
from loopscale.scaling import Counting

SIZES, RATIOS = (70e6, 160e6, 410e6, 760e6, 1.3e9), (10, 20, 40, 80)
HEADER = {"run": "run", "N": "params", "D": "tokens", "loss": "loss"}


def rows(noise: float = 0.002) -> list[dict[str, object]]:
    """Return a dense sweep of 20 runs."""
    random = np.random.default_rng(0)
    return [
        {"run": f"m{N / 1e6:.0f}-{ratio}", "N": N, "D": ratio * N,
         "loss": (1.7 + 480 / N**0.34 + 2100 / (ratio * N) ** 0.37) * np.exp(noise * random.standard_normal())}
        for N in SIZES for ratio in RATIOS
    ]  # fmt: skip


def columns(**other: list[object]) -> dict[str, list[object]]:
    """Return the sweep as columns under usual names; ``other`` replaces or adds some."""
    return {name: [row[key] for row in rows()] for key, name in HEADER.items()} | other


def warned(table: object, **options: object) -> str:
    return " | ".join(problem for problem, _ in Observations.of(table, **options).warnings)


def with_comma(value: float) -> str:
    return f"{value:.3f}".replace(".", ",")


def wandb_table() -> str:
    """Return a runs table as W&B exports it: with a crashed run, missing losses, a duplicate and a diverged run."""
    lines = ["Name,State,Active Params (B),train/tokens,train/loss,eval/loss"]
    lines += [f"{row['run']},finished,{row['N'] / 1e9},{row['D']},{row['loss'] - 0.1},{row['loss']}" for row in rows()]
    lines += [
        lines[3],
        "crash,crashed,0.41,3e9,4.1,3.9",
        "oom,failed,1.3,,,",
        "new,running,0.16,1e9,3.0,",
        "boom,finished,0.76,3.04e10,6.8,6.9",
    ]
    return "\n".join(lines) + "\n"


@pytest.fixture
def wandb(tmp_path):
    path = tmp_path / "wandb.csv"
    path.write_text(wandb_table())
    return path


def test_a_runs_table_of_a_tracker_fits_at_the_first_try(wandb):
    fitted = fit(Observations.of(wandb))
    data = fitted.observations
    assert len(data) == len(data.runs) == 21
    assert data.skipped == ("2 without loss skipped", "1 crashed skipped", "1 duplicate ignored")
    assert data.columns_used["loss"] == "eval/loss"
    assert fitted.law.rmse < 0.02
    assert fitted.r_squared > 0.99


def test_a_diverged_run_is_named_with_its_line_and_how_to_drop_it(wandb):
    fitted = fit(Observations.of(wandb))
    assert fitted.warnings[0].startswith("run 'boom' (line 26) looks diverged: loss 6.9, expected 2.")
    text = fitted.summary()
    expression = text.partition('--keep "')[2].partition('"')[0]
    clean = fit(Observations.of(wandb, keep=expression))
    assert "boom" not in clean.observations.run
    assert clean.law.rmse == pytest.approx(fitted.law.rmse, rel=0.2)
    assert not any("diverged" in text for text in clean.warnings)


def test_a_diverged_run_among_high_losses_is_dropped_by_its_name():
    table = columns()
    table["loss"][-1] = 1.4 * table["loss"][-1]
    fitted = fit(Observations.of(table))
    assert "run != 'm1300-80'" in fitted.summary()
    kept = Observations.of(table, keep="run != 'm1300-80'")
    assert "m1300-80" not in kept.run


def test_semicolons_decimal_commas_comments_and_thousands_are_read(tmp_path):
    path = tmp_path / "semicolons.csv"
    lines = ["# exported 1 May", "run;params;tokens;loss"]
    for row in rows():
        size, tokens = (f"{row[name]:,.0f}".replace(",", ".") for name in ("N", "D"))
        lines.append(f"{row['run']};{size};{tokens};{with_comma(row['loss'])}")
    path.write_text("\n".join(lines))
    read = Observations.of(path)
    np.testing.assert_allclose(read.points.active, [row["N"] for row in rows()])
    np.testing.assert_allclose(read.loss, [row["loss"] for row in rows()], atol=6e-4)
    assert read.place(0) == "line 3"
    assert "commas read as decimal points" in read.notes
    grouped = Observations.of(columns(params=[f"{row['N']:,.0f}" for row in rows()]))
    np.testing.assert_allclose(grouped.points.active, read.points.active)


def test_a_quoted_decimal_comma_is_not_a_thousand(tmp_path):
    path = tmp_path / "quoted.csv"
    cells = [f'{row["run"]},{row["N"]},{row["D"]},"{with_comma(row["loss"])}"' for row in rows()]
    lines = ["run,params,tokens,loss", *cells]
    path.write_text("\n".join(lines))
    assert Observations.of(path).loss.max() < 5


def test_sizes_may_be_written_with_their_unit():
    sizes = [f"{row['N'] / 1e9:g}B" if row["N"] >= 1e9 else f"{row['N'] / 1e6:g}M" for row in rows()]
    read = Observations.of(columns(params=sizes))
    np.testing.assert_allclose(read.points.active, [row["N"] for row in rows()])


def test_dicts_lists_of_dicts_and_frames_give_the_same_rows():
    records = [dict(zip(HEADER.values(), row.values(), strict=True)) for row in rows()]
    reference = Observations.of(columns())
    for table in (records, pd.DataFrame(records), pa.table(columns())):
        read = Observations.of(table)
        np.testing.assert_allclose(read.loss, reference.loss)
        assert read.run.tolist() == reference.run.tolist()
    assert ls.fit(records, resamples=0).law.rmse < 0.02
    with pytest.raises(InputError, match="twice"):
        Observations.of(pd.DataFrame([[1, 2, 3]], columns=["loss", "loss", "N"]))


def test_duplicates_under_name_go_before_the_run_column_is_judged():
    table = {name: [*cells, cells[0]] for name, cells in columns().items()}
    table["Name"] = table.pop("run")
    read = Observations.of(table)
    assert (len(read), read.skipped, read.named_runs) == (20, ("1 duplicate ignored",), True)


def test_the_validation_loss_is_preferred_and_the_columns_are_printed():
    table = columns(eval_loss=[row["loss"] for row in rows()], loss=[row["loss"] - 0.3 for row in rows()])
    fitted = fit(Observations.of(table))
    assert fitted.observations.columns_used == {"N_act": "params", "D": "tokens", "loss": "eval_loss", "run": "run"}
    assert "loss = eval_loss" in fitted.summary()
    only = {name if name != "loss" else "train/loss": cells for name, cells in columns().items()}
    assert "`train/loss` is a training loss" in warned(only)


def test_frames_with_several_levels_are_refused_and_an_index_is_a_column():
    frame = pd.DataFrame(columns())
    assert Observations.of(frame.set_index(["run", "params"])).named_runs
    frame.columns = pd.MultiIndex.from_product([["sweep"], frame.columns])
    with pytest.raises(InputError, match="its columns have several levels; join them first"):
        Observations.of(frame)


def test_a_relation_of_duckdb_is_a_frame():
    duckdb = pytest.importorskip("duckdb")
    relation = duckdb.from_df(pd.DataFrame(columns()))
    np.testing.assert_allclose(Observations.of(relation).loss, [row["loss"] for row in rows()])


class Project:
    """W&B's API as far as it is used: the runs of a project with settings and last values."""

    def __init__(self, runs: list[SimpleNamespace]) -> None:
        self.of = {"lab/sweep": runs}

    def Api(self) -> "Project":
        return self

    def runs(self, path: str) -> list[SimpleNamespace]:
        return self.of[path]


def test_the_runs_of_a_wandb_project_are_read(monkeypatch):
    runs = [
        SimpleNamespace(name=row["run"], id=f"id{k}", state="finished", config={"model": {"params": row["N"]}},
                        summary={"_step": 9, "train/tokens": row["D"], "eval/loss": row["loss"], "hist": [1, 2]})
        for k, row in enumerate(rows())
    ]  # fmt: skip
    runs.append(SimpleNamespace(name="m70-10", id="again", state="crashed", config={}, summary={}))
    monkeypatch.setitem(sys.modules, "wandb", Project(runs))
    read = Observations.of("wandb:lab/sweep")
    np.testing.assert_allclose(read.loss, [row["loss"] for row in rows()])
    np.testing.assert_allclose(read.points.active, [row["N"] for row in rows()])
    assert read.run[0] == "m70-10 (id0)"
    assert read.skipped == ("1 without loss skipped",)
    with pytest.raises(InputError, match="wandb:lab/other: cannot be read"):
        Observations.of("wandb:lab/other")


def test_the_settings_of_a_wandb_project_come_with_its_runs(monkeypatch):
    asked = []

    class Lazy(Project):
        """The API of newer versions, which by default fetches the settings of each run separately."""

        def runs(self, path: str, lazy: bool = True) -> list[SimpleNamespace]:
            asked.append(lazy)
            return super().runs(path)

    runs = [
        SimpleNamespace(name=row["run"], id=f"id{k}", state="finished", config={"params": row["N"]},
                        summary={"train/tokens": row["D"], "eval/loss": row["loss"]})
        for k, row in enumerate(rows())
    ]  # fmt: skip
    monkeypatch.setitem(sys.modules, "wandb", Lazy(runs))
    assert len(Observations.of("wandb:lab/sweep")) == len(runs)
    assert asked == [False]


def test_a_wandb_project_without_the_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingExtraError, match="pip install wandb, or download the runs table as CSV"):
        Observations.of("wandb:lab/sweep")


def test_a_history_gives_the_last_loss_of_each_run(tmp_path):
    lines = ["run,params,_step,_timestamp,train/tokens,train/loss,eval/loss"]
    for row in rows():
        for step in (1, 2):  # losses of training and validation are logged at steps of their own
            lines.append(f"{row['run']},{row['N']},{step},0,{row['D'] * step / 2},5,")
            lines.append(f"{row['run']},,{step},0,,,{row['loss'] if step == 2 else 6}")
    path = tmp_path / "history.csv"
    path.write_text("\n".join(lines))
    for read in (Observations.of(path), Observations.of(pd.read_csv(path))):
        np.testing.assert_allclose(read.loss, [row["loss"] for row in rows()])
        np.testing.assert_allclose(read.points.tokens, [row["D"] for row in rows()])
        assert "a history of 80 steps: the last loss of 20 runs" in read.notes
    assert Observations.of(path).place(0) == "line 5"


def test_a_chart_over_tokens_of_runs_named_by_size_is_read(tmp_path):
    names = [f"{row['N'] / 1e6:g}M-x{k}" for k, row in enumerate(rows())]
    header = ["train/tokens", *(f"{name} - eval/loss{end}" for name in names for end in ("", "__MIN", "__MAX"))]
    lines = [",".join(f'"{name}"' for name in header)]
    for k, row in enumerate(rows()):
        cells = (f"{row['loss']}" if j // 3 == k else "" for j in range(3 * len(names)))
        lines.append(",".join([f"{row['D']}", *cells]))
    path = tmp_path / "chart.csv"
    path.write_text("\n".join(lines))
    read = Observations.of(path)
    np.testing.assert_allclose(read.points.active, [row["N"] for row in rows()])
    np.testing.assert_allclose(read.points.tokens, [row["D"] for row in rows()])
    assert "a W&B chart: sizes are from the names of runs" in read.notes


def test_a_chart_export_is_refused_with_where_the_sizes_are(tmp_path):
    path = tmp_path / "history.csv"
    path.write_text('"Step","a - eval/loss","a - eval/loss__MIN","a - eval/loss__MAX"\n1,3,3,3\n')
    with pytest.raises(InputError, match="runs table"):
        Observations.of(path)


CONFIG = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1000,
          "num_key_value_heads": 4, "tie_word_embeddings": True}  # fmt: skip


def test_a_folder_of_hugging_face_runs_is_read(tmp_path):
    for width in (64, 128, 256):
        for tokens in (1e7, 1e8):
            folder = tmp_path / f"w{width}-{tokens:.0e}" / "checkpoint-200"
            folder.mkdir(parents=True)
            (folder / "config.json").write_text(
                json.dumps(CONFIG | {"hidden_size": width, "intermediate_size": 4 * width})
            )
            state = {"num_input_tokens_seen": tokens, "total_flos": 1e15, "log_history": [
                {"loss": 5.0, "step": 100}, {"eval_loss": 4.0 - width / 200, "step": 200}]}  # fmt: skip
            (folder / "trainer_state.json").write_text(json.dumps(state))
            older = folder.parent / "checkpoint-100"
            older.mkdir()
            (older / "trainer_state.json").write_text(json.dumps({"log_history": [{"eval_loss": 9.0}]}))
    read = Observations.of(str(tmp_path))
    assert len(read) == 6
    assert read.columns_used["loss"] == "eval_loss"
    assert sorted(set(read.points.tokens)) == [1e7, 1e8]
    assert len(set(read.points.active)) == 3
    assert read.loss.max() < 4
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "trainer_state.json").write_text("[]")
    with pytest.raises(InputError, match="log_history"):
        Observations.of(str(tmp_path))


def test_a_folder_of_tensorboard_runs_is_read(tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    for k, row in enumerate(rows()[:4]):
        with tensorboard.SummaryWriter(str(tmp_path / f"run{k}")) as writer:
            for step, share in enumerate((0.5, 1.0)):
                writer.add_scalar("tokens", share * row["D"], step)
                writer.add_scalar("params", row["N"], step)
                writer.add_scalar("eval/loss", row["loss"] / share**0.1, step)
    read = Observations.of(str(tmp_path))
    assert sorted(read.run) == ["run0", "run1", "run2", "run3"]
    np.testing.assert_allclose(sorted(read.loss), sorted(row["loss"] for row in rows()[:4]), rtol=1e-5)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"params": [row["D"] for row in rows()], "tokens": [row["N"] for row in rows()]}, "tokens per parameter"),
        ({"loss": [np.exp(row["loss"]) for row in rows()]}, "high for nats"),
        ({"loss": [0.3 * row["loss"] for row in rows()]}, "low for nats"),
        ({"epochs": [4] * 20}, "`epochs` is not used"),
        ({"E": [1, 2, 3, 4] * 5}, "looks like an epoch"),
        ({"E": [4] * 20, "total_params": [row["N"] for row in rows()]}, "N_total equals N_act"),
        ({"params": [row["N"] / 1e6 for row in rows()], "tokens": [row["D"] / 1e9 for row in rows()]}, ""),
        ({"params": [7, 13, 34, 70] * 5, "tokens": [0.15, 0.3, 0.7, 1.5] * 5}, "billions and trillions"),
        ({"tokens": [20, 40, 80, 160] * 5}, "`tokens` looks like tokens per parameter (20 to 160)"),
        ({"tokens": list(RATIOS) * 5, "params": [row["N"] / 1e9 for row in rows()]}, "tokens per parameter (10 to 80)"),
        ({"tokens": [round(row["D"] / 1e9) + 1 for row in rows()]}, "read as billions (2 to 105) beside raw parameter"),
        ({"loss": [row["loss"] / np.log(2) for row in rows()]}, "losses are 1.40 times"),
        (
            {"params": [row["N"] / 1e3 for row in rows()], "tokens": [row["D"] / 1e3 for row in rows()]},
            "models of 410K parameters seldom reach a loss of 2.66",
        ),
        ({"E": [1, 2, 4, 8] * 5}, "looks like an epoch"),
    ],
)
def test_readings_that_look_wrong_warn(changed, problem):
    found = warned(columns(**changed))
    assert problem in found
    assert bool(found) == bool(problem)
    assert "|" not in found, "one cause, one warning"


def test_a_plain_table_warns_of_nothing():
    assert warned(columns()) == ""


def test_counts_in_thousands_can_be_stated():
    table = columns(params=[row["N"] / 1e3 for row in rows()], tokens=[row["D"] / 1e3 for row in rows()])
    assert warned(table, units={"N": 1e3, "D": 1e3}) == ""


def test_few_tokens_are_believed_where_both_headers_state_their_units():
    few = columns(tokens=[row["N"] / 2 for row in rows()])
    assert "tokens per parameter" in warned(few)
    stated = {{"params": "N_act (raw)", "tokens": "D (raw)"}.get(name, name): cells for name, cells in few.items()}
    assert "tokens per parameter" not in warned(stated)


@pytest.mark.parametrize("counting", list(Counting))
def test_a_column_may_state_what_parameters_count(counting):
    read = Observations.of(columns(counting=[counting.value] * 20))
    assert (read.counts, read.counts_assumed) == (counting, False)
    assert Observations.of(columns(counting=["other"] * 20)).counts_assumed


def test_a_dense_table_may_call_its_size_a_total():
    table = columns()
    table["N_total"] = table.pop("params")
    read = Observations.of(table)
    np.testing.assert_allclose(read.points.active, [row["N"] for row in rows()])
    assert read.columns_used["N_act"] == "N_total"


def test_rows_without_a_run_column_say_what_counts_as_a_run():
    table = columns()
    del table["run"]
    assert "every row counts as a run" in fit(Observations.of(table)).summary()
    assert "every row counts as a run" not in fit(Observations.of(columns())).summary()


def test_an_overfitted_run_is_not_called_diverged():
    repeated = [4.5 if k == 7 else row["loss"] for k, row in enumerate(rows())]
    unique = [row["D"] / (20 if k == 7 else 1) for k, row in enumerate(rows())]
    for table, said in ((columns(loss=repeated), True), (columns(loss=repeated, unique_tokens=unique), False)):
        fitted = fit(Observations.of(table), outer="chinchilla")
        assert any("diverged" in text for text in fitted.warnings) is said


def test_evenly_spaced_rows_without_a_run_look_like_checkpoints():
    table = {"params": np.repeat(SIZES, 6), "tokens": np.tile(np.arange(1, 7) * 1e10, 5), "loss": np.full(30, 3.0)}
    assert "look like checkpoints" in warned({name: list(cells) for name, cells in table.items()})


def test_compute_in_other_units_is_refused_and_can_be_stated():
    table = columns(flops=[6 * row["N"] * row["D"] / 1e18 for row in rows()])
    del table["tokens"]
    with pytest.raises(InputError, match=r"gives D = .* tokens, which is not plausible; .*flops=1e18"):
        Observations.of(table)
    read = Observations.of(table, units={"flops": 1e18})
    np.testing.assert_allclose(read.points.tokens, [row["D"] for row in rows()])


def test_unique_tokens_in_other_units_are_refused():
    with pytest.raises(InputError, match=r"unique_tokens.*not plausible"):
        Observations.of(columns(unique_tokens=[0.2] * 20), units={"U": 1.0})


def test_trillions_of_tokens_beside_raw_sizes_are_read():
    table = columns(params=[1e9, 3e9, 7e9, 13e9] * 5, tokens=[0.1, 0.3, 0.7, 1.4] * 5)
    assert Observations.of(table).points.tokens.max() == pytest.approx(1.4e12)


def test_an_exit_code_of_zero_is_a_finished_run():
    assert Observations.of(columns(status=[0] * 20)).finished.all()
    assert not Observations.of(columns(finished=[0] * 20)).finished.any()


def test_few_rows_for_the_coefficients_warn():
    table = {name: cells[::3] for name, cells in columns().items()}
    assert any("7 rows for 5 coefficients" in text for text in fit(Observations.of(table)).warnings)


@pytest.mark.parametrize("scale", [1.0, 1e9])
def test_a_column_of_zeros_has_no_unit(scale):
    table = columns(params=[row["N"] / scale for row in rows()], N_loop=[0.0] * len(rows()))
    read = Observations.of(table)
    assert "N_loop" not in " ".join(read.notes)
    np.testing.assert_allclose(read.points.active, [row["N"] for row in rows()])
