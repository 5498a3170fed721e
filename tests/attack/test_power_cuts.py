"""A power cut at any moment leaves the old or the new, never a half: files, results, tokens, checkpoints, runs."""

import json
import os
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from power import Recorder, survey

import loopscale as ls
from loopscale.core.files import write_bytes
from loopscale.scaling import published


def none_failed(outcome: tuple[int, list[str]], least: int) -> None:
    trials, failures = outcome
    print(f"{trials} simulated power cuts")
    assert not failures, f"{len(failures)} of {trials}: " + "\n".join(failures[:5])
    assert trials >= least


@pytest.fixture
def root(tmp_path) -> Path:
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


def test_a_saved_law_is_the_old_or_the_new_one(root, tmp_path):
    old, new = published(), replace(published(), note="new")
    old.save(root / "law.json")

    def save(recorder: Recorder) -> None:
        new.save(root / "law.json")
        recorder.promise("saved")

    def check(folder: Path, moment) -> None:
        read = ls.load(folder / "law.json")
        assert read.note in ((new.note,) if moment.promises else (old.note, new.note))

    none_failed(survey(root, save, check, tmp_path / "cut"), 5)


def test_a_result_is_there_whole_or_not_at_all(root, tmp_path):
    def add(recorder: Recorder) -> None:
        from loopscale.evaluate.store import Key, Result, ResultStore, Score

        ResultStore(root).add(Result(Key("c" * 64, "task", 2, {}), {"acc,none": Score(0.5)}, samples=10, seconds=1.0))
        recorder.promise("added")

    def check(folder: Path, moment) -> None:
        results = [ls.load(path) for path in folder.glob("*/*.result.json")]
        assert len(results) >= len(moment.promises)

    none_failed(survey(root, add, check, tmp_path / "cut"), 5)


def test_a_write_that_is_not_synced_is_found_out(root, tmp_path):
    """The simulation can fail: a plain rename without a sync leaves an empty file."""
    (root / "x").write_bytes(b"old")

    def careless(recorder: Recorder) -> None:
        (root / "y").write_bytes(b"new")
        (root / "y").replace(root / "x")

    def check(folder: Path, moment) -> None:
        assert (folder / "x").read_bytes() in (b"old", b"new")

    trials, failures = survey(root, careless, check, tmp_path / "cut")
    assert 0 < len(failures) < trials

    def careful(recorder: Recorder) -> None:
        write_bytes(root / "x", b"newer")

    def careful_check(folder: Path, moment) -> None:
        assert (folder / "x").read_bytes() in (b"new", b"newer")

    none_failed(survey(root, careful, careful_check, tmp_path / "cut"), 4)


@pytest.fixture
def text(tmp_path) -> Path:
    from artefacts import make_text

    make_text(tmp_path)
    return tmp_path / "text"


def small(text: Path, folder: Path, **run):
    from loopscale.train.config import TrainConfig

    return TrainConfig.from_dict({
        "model": {"width": 16, "layers": 3, "head_size": 8, "experts": 2, "recurrence": 2},
        "data": {"files": [str(text)], "context": 16, "validation": 0.2, "folder": str(folder)},
        "schedule": {"warmup_steps": 2},
        "run": {"tokens": 6 * 64, "batch": 4, "log_every": 1, "checkpoint_every": 2, "validation_sequences": 4} | run,
    })  # fmt: skip


def test_a_token_store_is_complete_or_made_again(root, text, tmp_path):
    pytest.importorskip("torch")
    from loopscale.train.data.stores import open_tokens
    from loopscale.train.data.token_store import TokenStore

    def make(recorder: Recorder) -> None:
        open_tokens(small(text, root / "tokens"), progress=False)
        recorder.promise("made")

    digests = set()

    def check(folder: Path, moment) -> None:
        if moment.promises:
            assert (folder / "tokens" / "index.json").is_file()
        if (folder / "tokens").is_dir() and any((folder / "tokens").iterdir()):
            TokenStore.open(folder / "tokens").verify()
        digests.add(open_tokens(small(text, folder / "tokens"), progress=False).digest)
        assert len(digests) == 1

    none_failed(survey(root, make, check, tmp_path / "cut", random_cuts=1), 10)


@pytest.mark.parametrize("background", [False, True], ids=["synchronous", "asynchronous"])
def test_a_run_continues_from_every_cut_to_the_same_end(root, text, tmp_path, background):
    """Every checkpoint that has its name is complete, the latest that was reported is there, the end is the same."""
    torch = pytest.importorskip("torch")
    from loopscale.train.checkpoints import Checkpoints, verify
    from loopscale.train.trainer import Trainer, train
    from loopscale.verify import Outcome
    from loopscale.verify import verify as verify_folder

    config = small(text, tmp_path / "tokens", keep=1, async_checkpoints=background)
    wanted = train(config, tmp_path / "whole")
    assert wanted is not None

    def operate(recorder: Recorder) -> None:
        trainer = Trainer(config, root / "run")
        written = trainer.checkpoints._write

        def write(manifest, *rest):
            written(manifest, *rest)
            recorder.promise(manifest.step)

        trainer.checkpoints._write = write
        trainer.train()
        trainer.save()
        trainer.finish()
        recorder.promise("finished")

    resumed = 0

    def check(folder: Path, moment) -> None:
        nonlocal resumed
        run = folder / "run"
        steps = Checkpoints(run / "checkpoints", 1).steps()
        for step in steps:
            verify(run / "checkpoints" / f"step-{step}")
        reported = [promise for promise in moment.promises if promise != "finished"]
        assert max(steps, default=0) >= max(reported, default=0)
        if "finished" in moment.promises or (run / "summary.json").is_file():
            assert {found.outcome for found in verify_folder(run)} <= {Outcome.GOOD, Outcome.UNKNOWN}
            assert (run / "model" / "model.safetensors").is_file()
        if moment.event in ("rename", "end") and resumed < RESUMED:
            resumed += 1
            finish(run)

    def finish(run: Path) -> None:
        with warnings.catch_warnings(record=True) as warned:
            summary = train(config, run)
        assert summary is not None
        assert not [one for one in warned if "trying the one before" in str(one.message)]
        assert summary["validation_loss"] == wanted["validation_loss"]
        rows = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert rows == list(range(1, config.steps + 1))
        own, other = _weights(run), _weights(tmp_path / "whole")
        assert all(torch.equal(own[name], other[name]) for name in other)

    none_failed(survey(root, operate, check, tmp_path / "cut", random_cuts=1), 60)
    assert resumed


def test_a_sweep_counts_no_point_whose_summary_could_be_lost(root, tmp_path, monkeypatch):
    """SQLite syncs its own files; what it says must rest on summaries that are on the disk before."""
    pytest.importorskip("torch")
    from loopscale.sweep.spec import read_sweep
    from loopscale.sweep.store import Assignment, Store, run_folder
    from loopscale.sweep.worker import work
    from loopscale.train.run_dir import read_summary
    from sweeps import open_sweep, write_sweep

    path = write_sweep(tmp_path, f'folder = "{root.name}/tiny"\n[grid]\ntokens = [64, 128]\n')
    sweep, store = open_sweep(path)
    with store:
        pass
    counted = set()

    def operate(recorder: Recorder) -> None:
        assert work(Assignment(str(sweep.root), sweep.folder, "session", False)) is None

    def check(folder: Path, moment) -> None:
        with Store(folder / "tiny") as found:
            rows = list(found.observations())
        for key, tokens, loss, _ in rows:
            summary = read_summary(run_folder(folder / "tiny", key) / f"D{tokens}")
            assert summary is not None
            assert summary["validation_loss"] == loss
        counted.add(len(rows))

    assert read_sweep(path).results == root / "tiny"
    none_failed(survey(root, operate, check, tmp_path / "cut", durable="sweep.sqlite", random_cuts=1), 60)
    assert counted == {0, 1, 2}


RESUMED = int(os.environ.get("LOOPSCALE_RESUMED", "5"))
"""Cuts from which a run is trained to its end; ``make attack`` takes all."""


def _weights(run: Path):
    from safetensors.torch import load_file

    return load_file(run / "model" / "model.safetensors")
