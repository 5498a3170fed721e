"""Faults that the attacks have found, one test each."""

import errno
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from artefacts import MODELS, isoflop_table, run, two_recipes
from mutants import mutated

import loopscale as ls
from loopscale.architecture import ladder_space
from loopscale.cli import main
from loopscale.core.errors import InputError, StorageError
from loopscale.fitting import Observations
from loopscale.fitting.variants import gate
from loopscale.scaling import Points, find_law


def refusal(capsys, *argv: str) -> str:
    """Return the sentence with which a command refuses."""
    with pytest.raises(SystemExit) as stop:
        main([*argv])
    assert stop.value.code == 2
    sentence = capsys.readouterr().err
    assert sentence.count("\n") == 1
    return sentence


def test_brackets_nested_too_deeply_in_a_setting(capsys):
    assert "nested too deeply" in refusal(capsys, "train", "--set", "model.width=" + "[" * 3000)


def test_a_loss_that_is_off_by_hundreds_of_orders_prints_no_warning_of_numpy(tmp_path, recwarn):
    rows = ["N,D,loss"]
    for size in (1e8, 2e8, 3e8, 4e8, 5e8, 6e8):
        rows.append(f"{size:g},{1e19 / 6 / size:g},{3 + (size / 3e8 - 1) ** 2:g}")
    rows[-1] = rows[-1].rpartition(",")[0] + ",1e308"
    (tmp_path / "iso.csv").write_text("\n".join(rows) + "\n")
    with pytest.raises(SystemExit):
        main(["isoflop", str(tmp_path / "iso.csv")])
    assert not [warned for warned in recwarn if issubclass(warned.category, RuntimeWarning)]


def test_columns_chosen_with_brackets_nested_too_deeply():
    schemas = pytest.importorskip("loopscale.app.schemas")
    with pytest.raises(InputError, match="send a JSON object"):
        schemas.chosen_columns("[" * 2000)


def test_a_plan_with_designs_that_serving_leaves_no_compute_is_saved_and_read(tmp_path):
    path = tmp_path / "plan.json"
    plan = ls.plan(flops=2.8e21, serve_tokens=1e12, space=ladder_space(["0.3B", "2.4B"], [1, 4], [2, 8]))
    plan.save(path)
    losses = [row["loss"] for row in json.loads(path.read_text())["candidates"]]
    assert None in losses
    assert ls.load(path).choice == plan.choice


def test_a_generation_config_with_a_recurrence_that_fills_the_memory(files, tmp_path, capsys):
    folder = Path(shutil.copytree(files / "model", tmp_path / "model"))
    (folder / "checksums.json").unlink()
    config = folder / "generation_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "recurrence": 10**9}))
    assert "whole number from 1 to" in refusal(capsys, "generate", str(folder), "--prompt", "x")


def test_a_damaged_database_is_no_server_error(files, tmp_path):
    api = pytest.importorskip("api")
    folder = Path(shutil.copytree(files / "sweepdir" / "tiny", tmp_path / "tiny"))
    client = api.Client(folder)
    try:
        assert client.send("GET", "/api/sweep")[0] == 200
        (folder / "sweep.sqlite").write_bytes(b"SQLite format 3\0" + b"x" * 5000)
        for suffix in ("-wal", "-shm"):
            (folder / f"sweep.sqlite{suffix}").unlink(missing_ok=True)
        status, content = client.send("GET", "/api/sweep")
    finally:
        client.close()
    assert (status, "sweep.sqlite" in content.decode()) == (422, True)


def test_rows_are_kept_beside_a_number_that_overflows(tmp_path, capsys, recwarn):
    rows = "".join(f"{1e8 * k:g},{2e9 * k:g},{4 - k / 10:g}\n" for k in range(1, 9))
    (tmp_path / "runs.csv").write_text(f"N,D,loss\n{rows}2e8,1e300,3.5\n")
    assert "not plausible" in refusal(capsys, "fit", str(tmp_path / "runs.csv"), "--keep", "C > 1")
    assert not [warning for warning in recwarn if warning.category is RuntimeWarning]


def test_runs_of_one_budget_have_no_trend_with_compute():
    law, sizes = find_law("chinchilla-epoch-2024"), np.array([2e8, 3e8, 5e8, 8e8])
    tokens = 1e20 / (6 * sizes) * (1 + 1e-7 * np.arange(4))  # equal but for the last digits
    rows = zip(sizes, tokens, law(Points(sizes, tokens)) - 0.01, strict=True)
    table = "N,D,loss\n" + "".join(f"{N:.9g},{D:.9g},{loss:.6g}\n" for N, D, loss in rows)
    trend = gate(Observations.from_csv(table, name="runs"), law, resamples=20).compute
    assert trend.speedup > 1
    assert trend.per_decade is None


def test_a_condition_with_a_number_that_no_float_holds(tmp_path, capsys):
    (tmp_path / "runs.csv").write_text("N,D,loss\n1e8,2e9,3.5\n")
    assert "too large" in refusal(capsys, "fit", str(tmp_path / "runs.csv"), "--keep", f"N > {10**400}")


@pytest.mark.parametrize("loss", ["-1", "0", "1e300"])
def test_a_loss_that_is_none_beside_accuracies(tmp_path, capsys, loss):
    (tmp_path / "models.csv").write_text(MODELS.replace("3.150,", f"{loss},"))
    argv = ("downstream", str(tmp_path / "models.csv"), "--accuracy", "acc")
    assert "losses are above zero" in refusal(capsys, *argv)
    (tmp_path / "models.csv").write_text(MODELS)
    assert "not a list of losses" in refusal(capsys, *argv, "--at", "-1")


def test_a_log_without_rows(tmp_path, capsys):
    (tmp_path / "log.csv").write_text("step,loss\n")
    assert "no rows" in refusal(capsys, "forecast", str(tmp_path / "log.csv"), "--running", "--steps", "9")


def test_what_fits_and_forecasts_write_is_not_called_damaged(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("groups.csv").write_text(two_recipes(isoflop_table()))
    Path("iso.csv").write_text(isoflop_table())
    assert run("fit", "groups.csv", "--group", "recipe", "--resamples", "2", "--starts", "1", "--out", "laws.json") == 0
    assert run("forecast", "iso.csv", "--flops", "1e22", "--register", "sealed.json") == 0
    assert run("predict", "--rung", "0.3B", "--tokens", "500B", "--register", "registered.json") == 0
    for name in ("laws.json", "sealed.json", "registered.json"):
        assert run("verify", name) == 0, name
    sealed = json.loads(Path("sealed.json").read_text())
    del sealed["checksum"]
    Path("sealed.json").write_text(json.dumps(sealed | {"date": "2020-01-01"}))
    assert run("verify", "sealed.json") == 1  # by its own hash


def test_reports_of_engines_are_compared_or_refused(made, tmp_path):
    conformance = pytest.importorskip("loopscale.model.conformance")
    golden = json.loads((made / "golden.json").read_text())
    golden.pop("checksum")
    path, verdicts = tmp_path / "report.json", set[str]()
    for seed in range(60):
        path.write_text(json.dumps(mutated(golden, random.Random(seed))))
        try:
            conformance.compare(golden, conformance.read_golden(path))
            verdicts.add("compared")
        except InputError:
            verdicts.add("refused")
    assert verdicts == {"compared", "refused"}


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "full"), OSError("9 requested and 4 written")]
)
@pytest.mark.parametrize("is_folder", [True, False])
def test_an_interrupted_conversion_or_export_leaves_nothing(tmp_path, error, is_folder):
    pytest.importorskip("torch")
    from loopscale.cli.writing import written_whole

    def write() -> None:
        with written_whole(tmp_path / "model") as written:
            if is_folder:
                written.mkdir()
            (written / "config.json" if is_folder else written).write_text("half")
            raise error

    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else StorageError):
        write()
    assert not list(tmp_path.iterdir())
