"""Every run compares the tokens that it reads with their checksums; copies of files are the same files."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from training import corpus, small

from loopscale.core.errors import InputError
from loopscale.train.callbacks import data_check
from loopscale.train.data.prepare import DataSource, prepare
from loopscale.train.trainer import Trainer


def change_unseen(shard: Path, change) -> None:
    """Change a file's content; its size and time stay as they were."""
    before = shard.stat()
    shard.write_bytes(change(np.fromfile(shard, np.uint16)).tobytes())
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert shard.stat().st_size == before.st_size


def shuffled(ids):
    return np.random.default_rng(0).permutation(ids)


def too_large(ids):
    return np.full_like(ids, 60_000)


@pytest.mark.parametrize("beside", [False, True], ids=["before the first step", "beside training"])
@pytest.mark.parametrize("change", [shuffled, too_large])
def test_a_shard_that_changed_after_its_preparation_is_refused(tmp_path, monkeypatch, change, beside):
    config = small(corpus(tmp_path / "text"))
    Trainer(config, tmp_path / "first").train(until=1)
    change_unseen(next((tmp_path / "tokens").glob("train-*.bin")), change)
    if beside:
        monkeypatch.setattr(data_check, "AT_ONCE", 0)
    with pytest.raises(InputError, match=r"train-00000\.bin: damaged"):
        Trainer(config, tmp_path / "second").train()
    assert not [*(tmp_path / "second").glob("checkpoints/step-*"), *(tmp_path / "second").glob("summary.json")]


def test_a_copy_with_other_times_is_the_same_text(tmp_path):
    text = corpus(tmp_path / "first" / "text")
    made = prepare(DataSource((str(text),)), tmp_path / "first" / "tokens")
    shutil.copytree(tmp_path / "first", tmp_path / "copy", copy_function=shutil.copyfile)
    copied = prepare(DataSource((str(tmp_path / "copy" / "text"),)), tmp_path / "copy" / "tokens")
    assert copied.digest == made.digest


def test_a_copy_with_another_letter_is_another_text(tmp_path):
    text = corpus(tmp_path / "text")
    prepare(DataSource((str(text),)), tmp_path / "tokens")
    first = text / "0.txt"
    first.write_text(first.read_text().replace("0", "1", 1))
    with pytest.raises(InputError, match=r"the files have changed, first 0\.txt"):
        prepare(DataSource((str(text),)), tmp_path / "tokens")
