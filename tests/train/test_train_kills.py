"""A run killed at random moments, disks that fill up, files that rot: nothing is lost, nothing differs."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_trainer import losses, same, weights
from training import small

from loopscale.core.errors import InputError, StorageError
from loopscale.train.checkpoints import verify
from loopscale.train.trainer import Trainer, train

KILLS = 20


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="plain"),
        pytest.param({"optimizer": {"name": "muon"}}, id="muon", marks=pytest.mark.slow),
        pytest.param({"run": {"precision": "bf16"}}, id="bf16", marks=pytest.mark.slow),
        pytest.param({"run": {"precision": "bf16-weights", "ema": 0.9}}, id="bf16-weights", marks=pytest.mark.slow),
    ],
)
def test_twenty_random_kills_leave_the_run_that_was_never_killed(
    text: Path, tmp_path: Path, settings: dict[str, dict[str, Any]]
) -> None:
    run = {"tokens": 150 * 4 * 32, "async_checkpoints": True, **settings.get("run", {})}
    config = small(text, **{**settings, "run": run})
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["loopscale.train.trainer"])

    def finish(out: Path) -> None:
        """Train to the end in a process like the killed ones: this one may have another number of threads."""
        child = context.Process(target=train, args=(config, out))
        child.start()
        child.join()
        assert child.exitcode == 0

    finish(tmp_path / "whole")
    draw, killed = random.Random(0), 0
    while killed < KILLS:
        child = context.Process(target=train, args=(config, tmp_path / "killed"))
        child.start()
        child.join(draw.uniform(0.2, 1.2))
        if child.exitcode is None:
            os.kill(child.pid, signal.SIGKILL)
            killed += 1
        child.join()
        assert child.exitcode in (0, -signal.SIGKILL)
        if child.exitcode == 0 and killed < KILLS:  # it got to its end: start over for the kills that are left
            assert losses(tmp_path / "killed") == losses(tmp_path / "whole")
            shutil.rmtree(tmp_path / "killed")
    finish(tmp_path / "killed")
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")
    assert same(weights(tmp_path / "killed"), weights(tmp_path / "whole"))


def test_a_damaged_checkpoint_is_passed_over(text: Path, tmp_path: Path) -> None:
    config = small(text, run={"tokens": 12 * 4 * 32})
    train(config, tmp_path / "whole")
    trainer = Trainer(config, tmp_path / "hurt")
    trainer.train(until=9)
    shard = next((tmp_path / "hurt" / "checkpoints" / "step-9").glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-8] + b"\0" * 8)
    with pytest.raises(InputError, match="damaged"):
        verify(shard.parent)
    with pytest.warns(UserWarning, match="trying the one before"):
        train(config, tmp_path / "hurt")
    assert same(weights(tmp_path / "hurt"), weights(tmp_path / "whole"))


def test_only_the_last_checkpoints_are_kept(text: Path, tmp_path: Path) -> None:
    train(small(text, run={"tokens": 12 * 4 * 32, "keep": 2}), tmp_path / "run")
    assert sorted(each.name for each in (tmp_path / "run" / "checkpoints").iterdir()) == ["step-12", "step-9"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 600 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(folder)], capture_output=True
    ).returncode:
        pytest.skip("mounting a small disk needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_gives_one_sentence_and_the_last_checkpoint_stays(
    text: Path, tmp_path: Path, small_disk: Path
) -> None:
    config = small(text, run={"tokens": 12 * 4 * 32, "keep": 9})
    with pytest.raises(StorageError, match="No space left on device") as error:
        train(config, small_disk / "run")
    assert "the checkpoint of step" in str(error.value)
    assert "\n" not in str(error.value)
    train(config, tmp_path / "whole")
    shutil.copytree(small_disk / "run", tmp_path / "moved", ignore=shutil.ignore_patterns(".*"))
    train(config, tmp_path / "moved")
    assert same(weights(tmp_path / "moved"), weights(tmp_path / "whole"))


def test_a_folder_that_cannot_be_written_gives_one_sentence(text: Path, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(InputError, match="Read-only file system"):
        train(small(text), small_disk / "run")


def test_the_command_trains_and_says_where_the_model_is(text: Path, tmp_path: Path) -> None:
    toml = tmp_path / "tiny.toml"
    toml.write_text(f'[model]\nwidth = 16\nhead_size = 8\n[data]\nfiles = ["{text}"]\ncontext = 32\nvalidation = 0.2\n')
    command = [sys.executable, "-m", "loopscale.train", str(toml), "--set", "run.tokens=2k", "--out", "out", "--quiet"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Saved out/model" in done.stdout
    wrong = subprocess.run([*command, "--set", "run.sed=1"], cwd=tmp_path, capture_output=True, text=True)
    assert wrong.returncode == 2
    assert wrong.stderr.strip() == f"loopscale: {toml}: run: unknown field 'sed' (did you mean 'seed'?)"
