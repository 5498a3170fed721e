"""Sweeps to try a fit on: the simulated one, and the public ones by source and checksum."""

import hashlib
import http.server
import os
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from loopscale.architecture import rung
from loopscale.core.errors import InputError
from loopscale.core.files import cache_folder
from loopscale.fitting.data.downloads import PUBLIC_FILES, PublicFile, fetch, rows_checksum
from loopscale.fitting.data.looped import TABLES
from loopscale.fitting.data.public import load_public, load_table, simulate_sweep
from loopscale.scaling import Counting, published

FOLDER = os.environ.get("LOOPSCALE_DATA", "")
public_data = pytest.mark.skipif(not FOLDER, reason="LOOPSCALE_DATA names no folder with the public sweeps")
CONTENT = b"N,D,loss\n1e9,2e10,2.5\n"


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Serve one small file over loopback, with no data folder and an empty cache."""
    monkeypatch.delenv("LOOPSCALE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "www").mkdir()
    (tmp_path / "www" / "there.csv").write_bytes(CONTENT)
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path / "www")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield PublicFile(
        file="small.csv",
        origin="a test",
        licence="none",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        url=f"http://127.0.0.1:{server.server_port}/there.csv",
    )
    server.shutdown()
    server.server_close()


def test_the_papers_sweep_is_1080_points_of_90_runs():
    sweep = simulate_sweep()
    assert (len(sweep), len(sweep.runs)) == (1080, 90)
    assert sweep.source.startswith("simulated from looped-moe-2026")
    assert sweep.counts is Counting.WITHOUT_EMBEDDINGS
    assert set(sweep.points.active) == {rung(name).active for name in ("0.3B", "0.6B", "1.0B")}
    assert (sweep.points.tokens.min(), sweep.points.tokens.max()) == (1e11, 5e11)


def test_without_noise_the_sweep_is_the_law_itself():
    sweep = simulate_sweep(noise=0.0)
    np.testing.assert_array_equal(sweep.loss, published()(sweep.points))


def test_noise_is_what_was_asked_for_in_nats():
    residual = lambda sweep: sweep.loss - published()(sweep.points)  # noqa: E731
    assert np.std(residual(simulate_sweep(noise=0.0037))) == pytest.approx(0.0037, rel=0.1)
    shifts = residual(simulate_sweep(noise=0.0, run_noise=0.01)).reshape(90, 12)
    assert np.ptp(shifts, axis=1).max() < 1e-12
    assert np.std(shifts[:, 0]) == pytest.approx(0.01, rel=0.25)


def test_a_further_slice_leaves_the_other_runs_as_they_were():
    sweep = simulate_sweep(run_noise=0.002, seed=3)
    wider = simulate_sweep(run_noise=0.002, seed=3, recurrences=(1, 2, 3, 4, 6, 8, 16))
    np.testing.assert_array_equal(wider.where(wider.points.recurrence < 16).loss, sweep.loss)
    assert len(wider) == 1080 + 180


def test_other_seeds_draw_other_noise():
    assert not np.any(simulate_sweep(seed=1).loss == simulate_sweep(seed=2).loss)


def test_a_dense_law_simulates_a_dense_sweep():
    sweep = simulate_sweep(published().at_one_expert(), experts=(1,))
    assert len(sweep) == 3 * 6 * 12
    np.testing.assert_array_equal(sweep.points.m, 1.0)


def test_a_law_with_embeddings_gets_counts_with_embeddings():
    sweep = simulate_sweep(published("joint-moe-2025"), recurrences=(1,))
    assert sweep.counts is Counting.WITH_EMBEDDINGS
    assert sweep.points.active.min() == rung("0.3B").active + rung("0.3B").embedding


@pytest.mark.parametrize("bad", [{"rungs": ()}, {"noise": -1.0}, {"rungs": ("0.4B",)}, {"recurrences": (0,)}])
def test_a_sweep_that_cannot_be_is_refused(bad):
    with pytest.raises(InputError):
        simulate_sweep(**bad)


def test_a_download_is_checked_and_kept(served):
    assert fetch(served) == CONTENT
    assert (cache_folder() / "small.csv").read_bytes() == CONTENT
    assert fetch(replace(served, url="http://127.0.0.1:9/never-asked")) == CONTENT


def test_a_download_of_other_bytes_is_refused_and_not_kept(served):
    with pytest.raises(InputError, match=r"there\.csv: SHA-256 differs from that of small\.csv from a test"):
        fetch(replace(served, sha256="0" * 64))
    assert not (cache_folder() / "small.csv").exists()


def test_a_spoiled_cache_is_noticed(served):
    fetch(served)
    (cache_folder() / "small.csv").write_bytes(CONTENT + b"\n")
    with pytest.raises(InputError, match="remove the file to download it again"):
        fetch(served)


def test_a_failed_download_says_what_to_do(served):
    with pytest.raises(InputError, match=r"download failed: .*fetch it by hand into a folder"):
        fetch(replace(served, url=served.url.replace("there", "nowhere")))


def test_the_named_folder_is_read_instead_of_the_network(served, tmp_path, monkeypatch):
    monkeypatch.setenv("LOOPSCALE_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"small\.csv: no such file in the folder that LOOPSCALE_DATA names; get it"):
        fetch(served)
    (tmp_path / "small.csv").write_bytes(CONTENT)
    assert fetch(served) == CONTENT


def test_a_set_that_was_read_off_a_figure_has_nothing_to_download(served):
    assert PUBLIC_FILES["isodepth"].url is None
    with pytest.raises(InputError, match=r"published nowhere as a file.*LOOPSCALE_DATA"):
        load_public("isodepth")


def test_the_repository_holds_none_of_the_public_files():
    root = Path(__file__).parents[2]
    sums = {each.sha256 for each in PUBLIC_FILES.values()}
    found = [path for folder in ("src", "tests", "docs", "benchmarks") for path in (root / folder).rglob("*.csv*")]
    assert not [path for path in found if hashlib.sha256(path.read_bytes()).hexdigest() in sums]
    assert not [path for path in found if rows_checksum(path.read_bytes()) in sums]


def test_an_unknown_set_or_option_is_named():
    with pytest.raises(InputError, match=r"'epoch-chinchila' is not known .did you mean 'epoch-chinchilla'"):
        load_public("epoch-chinchila")
    with pytest.raises(InputError, match="clark-routing: option 'variant' is unknown; it takes router, every_step"):
        load_public("clark-routing", variant="baseline")


@public_data
def test_epoch_has_240_points_once_the_five_highest_are_dropped():
    data, whole = load_public("epoch-chinchilla"), load_public("epoch-chinchilla", drop_highest=0)
    assert (len(data), len(whole)) == (240, 245)
    assert data.loss.max() < np.sort(whole.loss)[-5]
    assert (data.points.tokens.min(), data.points.tokens.max()) == pytest.approx((8.19e8, 3.18e11), rel=0.01)


@public_data
@pytest.mark.parametrize(("router", "runs"), [("S-Base", 58), ("RL-R", 59), ("Hash", 56)])
def test_clark_has_the_runs_of_each_router_with_the_dense_ones(router, runs):
    last, every = (
        load_public("clark-routing", router=router),
        load_public("clark-routing", router=router, every_step=True),
    )
    assert len(last) == len(last.runs) == len(every.runs) == runs
    assert (last.points.experts.min(), last.points.experts.max()) == (1, 512)
    assert every.finished.sum() == runs < len(every)
    assert np.ptp(last.points.tokens) / last.points.tokens.min() < 0.01


@public_data
@pytest.mark.parametrize(("variant", "runs"), [("baseline", 116), ("hyperconn", 80), ("trunc_bptt", 80)])
def test_isodepth_has_the_runs_of_each_variant(variant, runs):
    data = load_public("isodepth", variant=variant)
    assert len(data) == len(data.runs) == runs
    assert set(data.points.recurrence) == {1, 2, 4, 8}
    assert np.all(data.points.loop < data.points.active)


@public_data
def test_a_router_or_variant_that_is_not_there_is_named():
    with pytest.raises(InputError, match="choose from Hash, RL-R, S-Base"):
        load_public("clark-routing", router="Switch")
    with pytest.raises(InputError, match="choose from baseline, hyperconn, trunc_bptt"):
        load_public("isodepth", variant="main")


@pytest.mark.parametrize("name", [name for name, source in PUBLIC_FILES.items() if source.otherwise])
def test_a_sweep_without_an_address_says_where_its_data_come_from(name, monkeypatch, tmp_path):
    monkeypatch.delenv("LOOPSCALE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(InputError, match=r"(https://github\.com/|kschwethelm/looped_nanochat).*LOOPSCALE_DATA"):
        load_table(name) if name in TABLES else (load_table if name in TABLES else load_public)(name)
