"""Files that version 0.2 wrote (``tests/saved_by_0_2``) are read, with the numbers that they had there."""

from __future__ import annotations

import csv
import io
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

import loopscale as ls
from loopscale.core.errors import InputError
from loopscale.core.files import read_json
from loopscale.fitting import Fit
from loopscale.scaling import Points
from loopscale.sweep.database import FILE
from loopscale.sweep.export import table
from loopscale.sweep.spec import Sweep, read_sweep
from loopscale.sweep.store import Store
from loopscale.train import run_dir
from loopscale.train.config import TrainConfig
from loopscale.train.data.stores import model_config
from loopscale.train.data.token_store import TokenStore
from loopscale.train.identity import ADDED, first_difference, identity

SAVED = Path(__file__).parent / "saved_by_0_2"
POINT = Points(active=1e9, tokens=5e10, recurrence=2, experts=1, loop=8e8, total=1e9)


def test_a_law_predicts_what_it_predicted():
    assert np.isclose(float(np.squeeze(ls.ScalingLaw.load(SAVED / "law.json")(POINT))), 2.3242529814178736, rtol=1e-14)


def test_a_fit_holds_its_law():
    fit = Fit.load(SAVED / "fit.json")
    assert fit.law.coefficients == ls.ScalingLaw.load(SAVED / "law.json").coefficients
    assert len(fit.resamples) == 5


def test_a_run_is_the_one_of_its_training_file(tmp_path):
    for name in ("run.json", "summary.json"):
        shutil.copy(SAVED / name, tmp_path)
    stored = run_dir.stored_config(tmp_path)
    assert stored is not None
    assert first_difference(stored, TrainConfig.read(SAVED / "tiny.toml")) is None
    summary = run_dir.read_summary(tmp_path)
    assert summary is not None
    assert summary["tokens"] == 10240
    assert TrainConfig.from_dict(summary["config"]) == stored


def test_a_checkpoint_resumes_as_the_same_run():
    saved, config = read_json(SAVED / "identity.json"), TrainConfig.read(SAVED / "tiny.toml")

    class Text(TokenStore):
        """The tokens of the run, as far as an identity needs them."""

        digest, vocabulary, end = saved["data"], 257, saved["eos_token_id"]

        def __init__(self) -> None:
            pass

    wanted = identity(config, model_config(config, Text()), Text())
    saved = ADDED | saved
    assert {name: (saved.get(name), value) for name, value in wanted.items() if saved.get(name) != value} == {}


def opened(folder: Path, text: str) -> tuple[Sweep, Store]:
    (folder / "sweep.toml").write_text(text, encoding="utf-8")
    sweep = read_sweep(folder / "sweep.toml")
    sweep.results.mkdir()
    database = sqlite3.connect(sweep.results / FILE)
    database.executescript((SAVED / "sweep.sql").read_text(encoding="utf-8"))
    database.close()
    return sweep, Store(sweep.results)


def test_a_sweep_exports_its_observations(tmp_path):
    exported, left_out = table(*opened(tmp_path, (SAVED / "sweep.toml").read_text(encoding="utf-8")))
    assert not left_out
    with (SAVED / "sweep.csv").open(encoding="utf-8") as file:
        for before, now in zip(csv.DictReader(file), csv.DictReader(io.StringIO(exported.csv())), strict=True):
            assert {name: now[name] for name in before} == before


def test_a_sweep_whose_file_has_changed_says_so(tmp_path):
    changed = (SAVED / "sweep.toml").read_text(encoding="utf-8") + "[base.optimizer]\nclip = 0.5\n"
    with pytest.raises(InputError, match=r"none of the 2 results belongs .* clip = 1\.0; the sweep's file says 0\.5"):
        table(*opened(tmp_path, changed))
