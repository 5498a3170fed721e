"""Rows with labels of their own train like text: exactly resumed, on many processes, in sweeps; only labels count."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from loopscale.cli.verbs import cli
from loopscale.core.errors import InputError
from loopscale.evaluate import read_checkpoint
from loopscale.model.loading import load_model
from loopscale.train.config import TrainConfig
from loopscale.train.data.batches import IGNORED
from loopscale.train.data.stores import open_tokens
from loopscale.train.metrics import read_metrics
from loopscale.train.trainer import Trainer, open_batches, train

TASK: dict[str, Any] = {"task": "s3", "difficulty": 6}


def settings(data: dict[str, Any], **sections: dict[str, Any]) -> TrainConfig:
    """Return a run of twelve quick steps."""
    values: dict[str, Any] = {
        "model": {"width": 16, "layers": 1, "edge_layers": 0, "head_size": 8, "experts": 2, "recurrence": 2},
        "data": data,
        "optimizer": {"learning_rate": 0.01, "eps": 1e-8},
        "run": {"tokens": 12 * 8 * 7, "batch": 8, "log_every": 1, "checkpoint_every": 3, "validation_sequences": 64},
    }
    for name, section in sections.items():
        values.setdefault(name, {}).update(section)
    return TrainConfig.from_dict(values)


def rows(path: Path, *objects: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(one) + "\n" for one in objects))
    return str(path)


def losses(out: Path) -> list[float]:
    return [row["loss"] for row in read_metrics(out / "metrics.jsonl")]


def completions(tmp_path: Path) -> dict[str, Any]:
    objects = [{"prompt": f"{a}+{b}=", "completion": str(a + b)} for a in range(12) for b in range(12)]
    file = rows(tmp_path / "sums.jsonl", *objects)
    return {
        "files": [file], "format": "completion", "context": 12, "validation": 0.2, "folder": str(tmp_path / "rows"),
    }  # fmt: skip


def test_the_context_and_the_vocabulary_follow_from_the_task(tmp_path: Path) -> None:
    config = settings(TASK)
    store = open_tokens(config, progress=False)
    assert config.data.context == 7
    assert store.vocabulary == 7
    assert TrainConfig.from_dict(config.to_dict()) == config


def test_only_answers_are_targets_and_each_stands_where_the_model_says_it() -> None:
    config = settings(TASK)
    task = config.task
    assert task is not None
    training, _ = open_batches(config, open_tokens(config, progress=False))
    batch = training.batch(3)
    assert (batch.ids[:, -1] == task.end).all()
    # The model compares what it says after a token with the label of the next.
    assert (batch.labels[:, 1:] == task.solve(batch.ids[:, :-1])).all()
    assert (batch.labels[:, 0] == IGNORED).all()


@pytest.mark.parametrize("data", [TASK, {"task": "facts", "difficulty": 50}, {"task": "hops"}])
def test_a_batch_is_a_function_of_seed_and_step_on_any_number_of_processes(data: dict[str, Any]) -> None:
    config = settings(data)
    for batches in open_batches(config, open_tokens(config, progress=False)):
        whole = batches.batch(5)
        parts = [batches.batch(5, rank=rank, ranks=4) for rank in range(4)]
        assert (np.concatenate([part.ids for part in parts]) == whole.ids).all()
        assert (np.concatenate([part.labels for part in parts]) == whole.labels).all()
        assert (batches.batch(6).ids != whole.ids).any()


def test_an_epoch_of_facts_has_every_fact_once() -> None:
    config = settings({"task": "facts", "difficulty": 64})
    training, validation = open_batches(config, open_tokens(config, progress=False))
    for batches in (training, validation):
        keys = np.concatenate([batches.batch(step).ids[:, :2] for step in range(8)])
        assert len(np.unique(keys, axis=0)) == 64


@pytest.mark.parametrize("source", ["task", "facts", "completion"])
def test_a_stopped_run_resumes_bit_for_bit(tmp_path: Path, source: str) -> None:
    data = {"task": TASK, "facts": {"task": "facts", "difficulty": 50}, "completion": completions(tmp_path)}[source]
    config = settings(data, model={"random_recurrence": "poisson"})
    train(config, tmp_path / "whole")
    Trainer(config, tmp_path / "stopped").train(until=7)
    train(config, tmp_path / "stopped")
    assert losses(tmp_path / "stopped") == losses(tmp_path / "whole")
    one, other = (load_model(tmp_path / name / "model").state_dict() for name in ("whole", "stopped"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_on_a_task_learns_what_labels_ask(tmp_path: Path) -> None:
    config = settings(
        {"task": "z2", "difficulty": 6}, model={"experts": 1, "residual_init": "zero"}, run={"tokens": 150 * 8 * 7}
    )
    summary = train(config, tmp_path / "run")
    assert summary is not None
    assert summary["validation_loss"] < 0.69  # the first answer alone is certain


def test_a_completion_is_the_target_and_its_prompt_is_not(tmp_path: Path) -> None:
    config = settings(completions(tmp_path))
    training, _ = open_batches(config, open_tokens(config, progress=False))
    batch = training.batch(0)
    for ids, labels in zip(batch.ids, batch.labels, strict=True):
        text = bytes(int(token) for token in ids if token < 256).decode()
        prompt, completion = text.split("=")
        targets = [int(token) for token in labels if token != IGNORED]
        assert bytes(targets[:-1]).decode() == completion == str(sum(map(int, prompt.split("+"))))
        assert targets[-1] == 256


def test_ids_and_labels_are_taken_as_they_are(tmp_path: Path) -> None:
    objects = [{"input_ids": [5, 6, 7, number], "labels": [-100, -100, 8, 9]} for number in range(40)]
    data = {"files": [rows(tmp_path / "ids.jsonl", *objects)], "format": "labels", "context": 6, "validation": 0.2}
    config = settings({**data, "folder": str(tmp_path / "rows")})
    training, validation = open_batches(config, open_tokens(config, progress=False))
    batch = training.batch(0)
    assert (batch.ids[:, :3] == [5, 6, 7]).all()
    assert (batch.ids[:, 4:] == 256).all()
    assert (batch.labels == [-100, -100, 8, 9, -100, -100]).all()
    held = {int(row[3]) for step in range(validation.steps_per_epoch) for row in validation.batch(step).ids}
    trained = {int(row[3]) for step in range(training.steps_per_epoch) for row in training.batch(step).ids}
    assert held.isdisjoint(trained)
    assert len(held | trained) == 40


def test_parquet_rows_are_those_of_jsonl(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    objects = [{"prompt": f"{number} ", "completion": str(number * number)} for number in range(30)]
    rows(tmp_path / "a.jsonl", *objects)
    parquet.write_table(pa.Table.from_pylist(objects), tmp_path / "a.parquet")
    digests = set()
    for name in ("a.jsonl", "a.parquet"):
        config = settings(
            {"files": [str(tmp_path / name)], "format": "completion", "folder": str(tmp_path / f"{name}s")}
        )
        digests.add(open_tokens(config, progress=False).digest)
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"prompt": "a"}, "row 2: there is no field 'completion'"),
        ({"prompt": "a", "completion": 3}, "row 2: field 'completion' is 3; it should be text"),
        ([1], "row 2: found"),
    ],
)
def test_a_bad_row_is_refused_by_its_number(tmp_path: Path, row: Any, problem: str) -> None:
    file = rows(tmp_path / "a.jsonl", {"prompt": "a", "completion": "b"}, row)
    config = settings({"files": [file], "format": "completion", "folder": str(tmp_path / "rows")})
    with pytest.raises(InputError, match=problem):
        open_tokens(config, progress=False)


def test_rows_of_another_source_in_the_same_folder_are_refused(tmp_path: Path) -> None:
    data = completions(tmp_path)
    open_tokens(settings(data), progress=False)
    with pytest.raises(InputError, match="its rows are of another source: validation was"):
        open_tokens(settings({**data, "validation": 0.3}), progress=False)


def test_an_id_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    file = rows(tmp_path / "a.jsonl", {"input_ids": [1, 999], "labels": [-100, 3]})
    config = settings({"files": [file], "format": "labels", "folder": str(tmp_path / "rows")})
    with pytest.raises(InputError, match="the id 999, outside the vocabulary of 257"):
        open_tokens(config, progress=False)


def test_a_row_longer_than_the_context_is_refused(tmp_path: Path) -> None:
    file = rows(tmp_path / "a.jsonl", *({"prompt": f"{number:030d}", "completion": "b"} for number in range(20)))
    config = settings(
        {"files": [file], "format": "completion", "context": 16, "validation": 0.3, "folder": str(tmp_path / "rows")}
    )
    with pytest.raises(InputError, match="more than \\[data\\] context"):
        Trainer(config, tmp_path / "run").train(until=1)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"task": "hop"}, "did you mean 'hops'"),
        ({"task": "s3", "files": ["a.txt"]}, "has its own tokens"),
        ({"task": "s3", "tokenizer": "train:300"}, "has its own tokens"),
        ({"task": "s3", "context": 64}, "leave 'context' out"),
        ({"task": "s3", "document_mask": True}, "'document_mask' is for packed text"),
        ({"difficulty": 3}, "belong to a 'task'"),
        ({"format": "completion"}, "is for 'files' of rows"),
        ({"format": "labels", "files": ["a.jsonl"], "tokenizer": "train:300"}, "hold no text to train a tokenizer"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(data: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        settings(data)


def test_benchmarks_in_text_are_refused_for_a_task(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'eval_tasks' asks questions in text"):
        settings(TASK, run={"eval_tasks": "local"})
    train(settings(TASK), tmp_path / "run")
    with pytest.raises(InputError, match="was trained on the task 's3' and reads no text"):
        read_checkpoint(tmp_path / "run")


def test_a_sweep_trains_a_task_at_each_recurrence(tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(
        "[sweep]\nname = 'words'\n"
        "[base.data]\ntask = 's3'\ndifficulty = 6\n"
        "[base.run]\nbatch = 8\n"
        "[sizes.tiny]\nwidth = 16\nlayers = 1\nedge_layers = 0\nhead_size = 8\n"
        "[grid]\nsize = ['tiny']\nexperts = [1]\nrecurrence = [1, 2]\ntokens = [560]\nseed = [0]\n"
    )
    result = CliRunner().invoke(cli, ["sweep", "run", str(tmp_path / "sweep.toml"), "--workers", "1"])
    assert result.exit_code == 0, result.output
    exported = CliRunner().invoke(cli, ["sweep", "export", str(tmp_path / "sweep.toml")])
    assert exported.exit_code == 0, exported.output


def test_two_processes_train_a_task_as_one(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(settings(TASK).to_dict()))
    text = (
        "import json, sys; from loopscale.train.config import TrainConfig; from loopscale.train.trainer import train; "
    )
    text += "train(TrainConfig.from_dict(json.load(open('run.json'))), sys.argv[1])"
    (tmp_path / "run.py").write_text(text)
    many = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "run.py", "two"]
    for arguments in (["run.py", "one"], many):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-4000:]
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-4)
