"""A fitted law keeps how its data were read, and every later command on the law reads them so."""

import json

import numpy as np
import pytest
from test_reading import columns, rows

import loopscale as ls
from loopscale.core.errors import InputError
from loopscale.core.tables import Table
from loopscale.fitting import Observations, fit
from loopscale.scaling import Reading, ScalingLaw, published

CHOICES = {"columns": {"loss": "c4"}, "units": {"D": 1e6}, "counts": "with-embeddings", "keep": "N < 1B"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A table that needs options to be read, and a law that was fitted to it."""
    monkeypatch.chdir(tmp_path)
    table = columns(c4=[row["loss"] for row in rows()], tokens=[row["D"] / 1e6 for row in rows()])
    del table["loss"]
    Table(table).save("runs.csv")
    fit(Observations.of("runs.csv", **CHOICES), resamples=0, seed=3).law.save("law.json")
    return tmp_path


def test_a_law_says_what_it_was_fitted_to(folder):
    law = ScalingLaw.load("law.json")
    provenance = law.provenance
    assert provenance.reading == Reading("runs.csv", CHOICES["columns"], CHOICES["units"], "with-embeddings", "N < 1B")
    assert (provenance.rows, provenance.seed, provenance.version) == (16, 3, ls.__version__)
    assert provenance.columns_used == {"N_act": "params", "D": "tokens", "loss": "c4", "run": "run"}
    assert provenance.sha256 == Observations.of("runs.csv", **CHOICES).digest
    assert ScalingLaw.from_dict(law.to_dict()) == law


def test_the_law_in_place_of_the_runs_reads_them_the_same_way(folder):
    again, first = Observations.of("law.json"), Observations.of("runs.csv", **CHOICES)
    np.testing.assert_array_equal(again.loss, first.loss)
    assert again.counts == first.counts
    assert again.warnings == ()
    assert fit("law.json", resamples=0).law == fit(first, resamples=0).law


def test_stated_options_overrule_those_of_the_law(folder):
    assert len(Observations.of("law.json", keep="N < 500M")) == 12
    assert Observations.of("law.json", keep="N < 500M").points.tokens.max() == pytest.approx(80 * 410e6)


def test_runs_that_changed_since_the_fit_are_named(folder):
    text = (folder / "runs.csv").read_text().splitlines()
    (folder / "runs.csv").write_text("\n".join(text[:-5]))
    ((problem, remedy), *_) = Observations.of("law.json").warnings
    assert problem == "runs.csv is not what the law was fitted to: 15 rows now, 16 then"
    assert "loopscale fit runs.csv" in remedy


def test_a_law_elsewhere_finds_the_runs_beside_it(folder, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert len(Observations.of(folder / "law.json")) == 16
    (folder / "runs.csv").unlink()
    with pytest.raises(InputError, match=r"law\.json: its runs, 'runs\.csv', are not there; give the table of runs"):
        Observations.of(folder / "law.json")


def test_a_law_without_runs_and_other_files_are_refused(tmp_path):
    published("chinchilla-epoch-2024").save(tmp_path / "law.json")
    with pytest.raises(InputError, match="does not say which file it was fitted to"):
        Observations.of(tmp_path / "law.json")
    (tmp_path / "other.json").write_text(json.dumps({"kind": "plan"}))
    with pytest.raises(InputError, match="a JSON file of kind 'plan' holds no runs"):
        Observations.of(tmp_path / "other.json")


def test_a_named_sweep_and_a_frame_say_so_too():
    assert fit("micro", outer="chinchilla", mapping="none", resamples=0).law.provenance.reading == Reading("micro")
    assert fit(columns(), resamples=0).law.provenance.reading == Reading()
