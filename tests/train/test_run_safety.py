"""A run never reports something it is not: changed lengths, damaged files, two processes, SIGTERM."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from training import corpus, small

from loopscale.cli.verbs import cli
from loopscale.core.errors import InputError, LoopscaleError, MissingExtraError
from loopscale.core.files import checksum, read_json, write_json
from loopscale.train import run_dir
from loopscale.train.checkpoints import Checkpoints, Manifest
from loopscale.train.config import TrainConfig
from loopscale.train.data import corpus as built_in
from loopscale.train.data.stores import open_tokens
from loopscale.train.data.token_store import TokenStore
from loopscale.train.metrics import read_metrics
from loopscale.train.trainer import Trainer, train

STEP = 4 * 32


def of_length(text: Path, steps: int, kind: str = "cosine") -> TrainConfig:
    schedule = {"kind": kind, "cooldown": 0.25}
    return small(text, model={"experts": 1}, schedule=schedule, run={"tokens": steps * STEP})


def test_a_cosine_run_cannot_become_longer_or_shorter(text: Path, tmp_path: Path) -> None:
    train(of_length(text, 8), tmp_path / "run")
    before = (tmp_path / "run" / "run.json").read_text()
    for steps in (16, 4):
        with pytest.raises(InputError, match=r"under the cosine schedule .* start a new run in another folder"):
            train(of_length(text, steps), tmp_path / "run")
    assert (tmp_path / "run" / "run.json").read_text() == before
    (tmp_path / "run" / "run.json").unlink()
    (tmp_path / "run" / "summary.json").unlink()
    with pytest.raises(InputError, match="under the cosine schedule"):
        train(of_length(text, 16), tmp_path / "run")
    (tmp_path / "run" / "run.json").unlink()
    with pytest.raises(InputError, match=r"its schedule\.kind is 'cosine', and this run's is 'constant'"):
        train(of_length(text, 8, "constant"), tmp_path / "run")


def test_a_wsd_run_past_its_cooldown_can_only_be_branched_from(text: Path, tmp_path: Path) -> None:
    train(of_length(text, 16, "wsd"), tmp_path / "run")
    longer = of_length(text, 24, "wsd")
    with pytest.raises(InputError, match=r"only up to step 12, .*--branch"):
        train(longer, tmp_path / "run")
    train(longer, tmp_path / "branch", branch=tmp_path / "run")
    train(longer, tmp_path / "direct")
    rows = read_metrics(tmp_path / "direct" / "metrics.jsonl")
    assert [row["loss"] for row in read_metrics(tmp_path / "branch" / "metrics.jsonl")] == [
        row["loss"] for row in rows[12:]
    ]
    with pytest.raises(InputError, match="no checkpoint to branch from"):
        train(of_length(text, 24), tmp_path / "cosine", branch=tmp_path / "run")


def test_a_run_stopped_before_the_cooldown_may_become_longer(text: Path, tmp_path: Path) -> None:
    Trainer(of_length(text, 16, "wsd"), tmp_path / "run").train(until=6)
    summary = train(of_length(text, 24, "wsd"), tmp_path / "run")
    assert summary is not None
    assert (summary["tokens"], summary["resumes"]) == (24 * STEP, 1)


def test_an_observation_records_what_produced_it(text: Path, tmp_path: Path) -> None:
    config = of_length(text, 6)
    summary = train(config, tmp_path / "run")
    assert summary is not None
    assert summary["config"] == config.to_dict()
    assert summary["schedule"] == "cosine"
    assert summary["data"] == open_tokens(config, progress=False).digest
    assert summary["version"]
    assert summary["resumes"] == 0
    assert read_json(tmp_path / "run" / "summary.json") == summary


def test_the_last_step_is_saved_once(text: Path, tmp_path: Path) -> None:
    trainer = Trainer(of_length(text, 6), tmp_path / "run")
    trainer.train()
    manifest = trainer.checkpoints.path(6) / "manifest.json"
    written = manifest.stat().st_mtime_ns
    trainer.save()
    assert manifest.stat().st_mtime_ns == written


def damaged_store(text: Path, folder: Path) -> tuple[TrainConfig, Path]:
    config = small(text, model={"experts": 1}, data={"folder": str(folder)}, run={"tokens": 3 * STEP})
    open_tokens(config, progress=False)
    return config, folder / "train-00000.bin"


def test_flipped_bytes_in_a_token_shard_are_found(text: Path, tmp_path: Path) -> None:
    config, shard = damaged_store(text, tmp_path / "tokens")
    content = bytearray(shard.read_bytes())
    content[100] ^= 1
    shard.write_bytes(content)
    with pytest.raises(InputError, match=r"train-00000.bin: damaged: .* prepare it again"):
        train(config, tmp_path / "run")


def test_a_shard_changed_after_a_first_run_is_found_although_its_size_and_time_are_kept(
    text: Path, tmp_path: Path
) -> None:
    config, shard = damaged_store(text, tmp_path / "tokens")
    train(config, tmp_path / "first")
    before, content = shard.stat(), bytearray(shard.read_bytes())
    content[100] ^= 1
    shard.write_bytes(content)
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(InputError, match=r"train-00000.bin: damaged"):
        train(config, tmp_path / "second")


def test_an_id_outside_the_vocabulary_is_one_sentence(text: Path, tmp_path: Path) -> None:
    config, shard = damaged_store(text, tmp_path / "tokens")
    ids = np.fromfile(shard, "<u2")
    ids[7] = 9999
    ids.tofile(shard)
    index = read_json(tmp_path / "tokens" / "index.json")
    index["splits"]["train"]["shards"][0]["sha256"] = checksum(shard)
    write_json(tmp_path / "tokens" / "index.json", index)
    with pytest.raises(InputError, match="holds the token id 9999, outside the vocabulary of 257"):
        train(config, tmp_path / "run")


def test_every_run_verifies_its_store_once(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, _ = damaged_store(text, tmp_path / "tokens")
    calls = []
    verify = TokenStore.verify
    monkeypatch.setattr(TokenStore, "verify", lambda store: calls.append(store) or verify(store))
    open_tokens(config, progress=False)
    assert not calls
    for number, name in enumerate(("first", "second"), start=1):
        train(config, tmp_path / name)
        assert len(calls) == number


def test_damaged_lines_of_metrics_are_removed_on_resume(text: Path, tmp_path: Path) -> None:
    config = of_length(text, 9)
    Trainer(config, tmp_path / "run").train(until=6)
    metrics = tmp_path / "run" / "metrics.jsonl"
    lines = metrics.read_bytes().splitlines()
    lines[1:3] = [b'{"step": 2, "loss"', b"\xff\xfe{}", b'["step"]']
    metrics.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(InputError, match="line 2 is not a row of metrics"):
        read_metrics(metrics)
    with pytest.warns(UserWarning, match="line 2 is damaged and was removed"):
        train(config, tmp_path / "run")
    assert [row["step"] for row in read_metrics(metrics)] == [1, 4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("lost", ["recent", "lowest"])
def test_a_manifest_without_a_field_still_resumes(text: Path, tmp_path: Path, lost: str) -> None:
    config = of_length(text, 6)
    Trainer(config, tmp_path / "run").train(until=3)
    manifest = tmp_path / "run" / "checkpoints" / "step-3" / "manifest.json"
    data = read_json(manifest)
    del data["state"]["callbacks"]["LossWatch"][lost]
    write_json(manifest, data)
    assert train(config, tmp_path / "run") is not None


def _hold(folder: Path, ready: str, done: str) -> None:
    with run_dir.locked(folder):
        Path(ready).touch()
        while not Path(done).exists():
            time.sleep(0.01)


def test_two_processes_never_train_in_one_folder(text: Path, tmp_path: Path) -> None:
    config = of_length(text, 3)
    ready, done = tmp_path / "ready", tmp_path / "done"
    child = multiprocessing.get_context("fork").Process(target=_hold, args=(tmp_path / "run", str(ready), str(done)))
    child.start()
    try:
        while not ready.exists() and child.is_alive():
            time.sleep(0.01)
        with pytest.raises(InputError, match="another process is training in this folder"):
            train(config, tmp_path / "run")
    finally:
        done.touch()
        child.join()
    assert train(config, tmp_path / "run") is not None


def test_a_lock_is_waited_for_while_the_killed_process_that_held_it_ends(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of several threads is a zombie before its files are closed; here its lock stays for a second."""
    monkeypatch.setattr(run_dir, "LINGER", 600.0)
    ready, done = tmp_path / "ready", tmp_path / "done"
    child = multiprocessing.get_context("fork").Process(target=_hold, args=(tmp_path / "run", str(ready), str(done)))
    child.start()
    while not ready.exists() and child.is_alive():
        time.sleep(0.01)
    release = threading.Timer(1.0, done.touch)
    release.start()
    assert train(of_length(text, 3), tmp_path / "run") is not None
    assert done.exists()
    child.join()


def test_sigterm_writes_a_checkpoint_and_the_command_resumes(text: Path, tmp_path: Path) -> None:
    toml = tmp_path / "run.toml"
    toml.write_text(
        f'[model]\nwidth = 16\nhead_size = 8\n[data]\nfiles = ["{text}"]\ncontext = 32\nvalidation = 0.2\n'
        '[run]\ntokens = "100M"\nbatch = 4\nlog_every = 1\ncheckpoint_every = 0\n'
    )
    command = [sys.executable, "-m", "loopscale", "train", str(toml), "--out", "run", "--quiet"]
    child = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "run" / "metrics.jsonl"
    while child.poll() is None and not (metrics.is_file() and metrics.stat().st_size):
        time.sleep(0.05)
    child.send_signal(signal.SIGTERM)
    _, said = child.communicate()
    assert child.returncode == 143, said
    assert "Traceback" not in said
    steps = sorted((tmp_path / "run" / "checkpoints").iterdir())
    assert len(steps) == 1
    assert steps[0].name == f"step-{read_metrics(metrics)[-1]['step']}"


@pytest.mark.parametrize("every", [0, 1])
def test_ctrl_c_says_where_the_command_continues(every: int, text: Path, tmp_path: Path) -> None:
    toml = tmp_path / "run.toml"
    toml.write_text(
        f'[model]\nwidth = 16\nhead_size = 8\n[data]\nfiles = ["{text}"]\ncontext = 32\nvalidation = 0.2\n'
        f'[run]\ntokens = "100M"\nbatch = 4\nlog_every = 1\ncheckpoint_every = {every}\n'
    )
    child = subprocess.Popen(
        [sys.executable, "-m", "loopscale", "train", str(toml), "--out", "run", "--quiet"], cwd=tmp_path, text=True,
        stderr=subprocess.PIPE, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    metrics = tmp_path / "run" / "metrics.jsonl"
    while child.poll() is None and not (metrics.is_file() and len(metrics.read_bytes().splitlines()) > 3):
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    _, printed = child.communicate()
    assert child.returncode == 130, printed
    assert "Traceback" not in printed
    expected = (
        r"rerun the command to resume from step \d+" if every else "no checkpoint yet, so the command starts again"
    )
    assert re.search(f"^run: stopped; .*{expected}", printed, re.M)


def test_ctrl_c_while_a_checkpoint_is_written_is_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints, tensors = Checkpoints(tmp_path, keep=2), {"weight": torch.ones(3)}
    checkpoints.save(Manifest(1, {}, {}), tensors)

    def interrupted(descriptor: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            checkpoints.save(Manifest(2, {}, {}), tensors)
    assert checkpoints.steps() == [1]
    checkpoints.save(Manifest(3, {}, {}), tensors)
    assert checkpoints.steps() == [3, 1]


def test_check_says_how_often_a_run_reads_its_text(text: Path, tmp_path: Path) -> None:
    toml = tmp_path / "run.toml"
    settings = f'[data]\nfiles = ["{text}"]\ncontext = 32\nvalidation = 0.2\nfolder = "{tmp_path / "tokens"}"\n'
    toml.write_text(f'{settings}[run]\ntokens = "1M"\nbatch = 4\n')
    printed = " ".join(CliRunner().invoke(cli, ["train", str(toml), "--check"]).output.split())
    tokens, times = re.search(r"([\d,]+) tokens to train on.*reads them ([\d,.]+) times", printed).groups()
    assert float(times.replace(",", "")) == pytest.approx(1e6 / int(tokens.replace(",", "")), rel=0.01)


def test_an_empty_validation_split_is_found_by_check(tmp_path: Path) -> None:
    text = corpus(tmp_path / "text", documents=10)
    toml = tmp_path / "run.toml"
    toml.write_text(f'[data]\nfiles = ["{text}"]\ncontext = 32\nvalidation = 0\nfolder = "{tmp_path / "tokens"}"\n')
    result = CliRunner().invoke(cli, ["train", str(toml), "--check"])
    assert isinstance(result.exception, LoopscaleError)
    assert "raise [data] validation (now 0.0)" in str(result.exception)


@pytest.mark.parametrize(
    ("schedule", "tokens", "said"),
    [
        ("warmup_steps = 0", "100", "a step has 512: the run has 1 step, 512 tokens"),
        ("warmup_steps = 30", "20k", "the learning rate rises for 30 steps, and the run has 39"),
        ("warmup_steps = 3", "20k", ""),
    ],
)
def test_a_run_whose_length_or_warm_up_is_not_as_asked_is_warned_of(
    tmp_path: Path, schedule: str, tokens: str, said: str
) -> None:
    text, toml = corpus(tmp_path / "text"), tmp_path / "run.toml"
    data = f'[data]\nfiles = ["{text}"]\ncontext = 32\nfolder = "{tmp_path / "tokens"}"\n'
    toml.write_text(f'{data}[schedule]\n{schedule}\n[run]\ntokens = "{tokens}"\n')
    result = CliRunner().invoke(cli, ["train", str(toml), "--check"])
    assert result.exit_code == 0, result.output
    assert said in result.stderr
    assert ("warning: " in result.stderr) == bool(said)


def test_the_built_in_corpus_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(built_in, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'loopscale\[corpus\]', or give your own text"):
        built_in.identity()
