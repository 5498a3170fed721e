"""A flipped bit in a file that we read back is found with a sentence, or changes nothing."""

import random

import pytest
from flips import attack, folder_files, json_files, judge_sweep, swap_attack, sweep_files

from loopscale.cli import main
from loopscale.verify import Outcome, verify


def wrong(verdicts) -> list[tuple[str, str]]:
    return [verdict for verdict in verdicts if verdict[1] not in ("found", "harmless")]


def test_in_saved_files(files):
    verdicts = attack(list(json_files(files)), 200)
    assert not wrong(verdicts), verdicts
    assert sum(count for (_, verdict), count in verdicts.items() if verdict == "found") > 150


def test_in_runs_models_checkpoints_and_tokens(files):
    verdicts = attack(list(folder_files(files)), 80)
    assert not wrong(verdicts), verdicts
    assert {kind for kind, verdict in verdicts if verdict == "found"} == {"checkpoint", "model", "run", "tokens"}


def test_in_the_database_of_a_sweep(files, tmp_path):
    draw = random.Random(0)
    verdicts = {judge_sweep(files / "tiny", tmp_path / "copy", draw) for _ in range(25)}
    assert verdicts <= {"found", "harmless"}


def test_what_was_just_written_is_good(files, monkeypatch):
    monkeypatch.chdir(files)  # where the run was trained: its tokens are verified too
    for path in (files / "law.json", files / "plan.json", files / "results", files / "run", files / "tiny"):
        outcomes = {check.outcome for check in verify(path)}
        assert outcomes == {Outcome.GOOD}, list(verify(path))


def test_damage_is_reported_with_exit_code_1(files, tmp_path, capsys):
    path = tmp_path / "law.json"
    path.write_text((files / "law.json").read_text().replace("0.19", "0.18", 1))
    with pytest.raises(SystemExit) as stop:
        main(["verify", str(path)])
    assert stop.value.code == 1
    assert "checksum differs" in " ".join(capsys.readouterr().out.split())


def test_an_edited_law_is_refused_until_its_checksum_is_removed(files, tmp_path, capsys):
    import json

    path = tmp_path / "law.json"
    data = json.loads((files / "law.json").read_text())
    data["note"] = "mine"
    path.write_text(json.dumps(data))
    plan = ["plan", "--flops", "5e21", "--law", str(path)]
    with pytest.raises(SystemExit) as stop:
        main(plan)
    assert stop.value.code == 2
    assert "remove its field 'checksum'" in capsys.readouterr().err
    del data["checksum"]
    path.write_text(json.dumps(data))
    with pytest.raises(SystemExit) as stop:
        main(plan)
    assert stop.value.code == 0


def test_files_of_equal_size_that_were_swapped(files):
    every = [*json_files(files), *folder_files(files), *sweep_files(files)]
    verdicts = swap_attack(every, 20)
    assert not wrong(verdicts), verdicts
