"""Faults that the attacks have found, one test each."""

import json
import shutil
from pathlib import Path

import pytest

import loopscale as ls
from loopscale.architecture import ladder_space
from loopscale.cli import main
from loopscale.core.errors import InputError


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
