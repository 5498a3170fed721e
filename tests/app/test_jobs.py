"""Sweeps are fitted in processes of their own, with progress; bad files are refused when they are sent."""

import asyncio
import gzip
import io
import sys
import zipfile

import pytest

from loopscale.app import jobs
from loopscale.app.security import Limits
from loopscale.fitting import Observations, fit


def zipped(content: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("runs.csv", content)
    return out.getvalue()


@pytest.fixture(scope="module")
def fitted(client, sweep_csv):
    return client.job(client.send("/api/fit?name=simulated&resamples=20", sweep_csv))


def test_a_fit_is_the_librarys(fitted, sweep_csv):
    assert fitted["state"] == "done"
    data = Observations.from_csv(sweep_csv.decode())
    law = fit(data, resamples=20).law
    assert fitted["result"]["coefficients"] == pytest.approx(dict(law.coefficients))
    assert fitted["result"]["law"]["resamples"] == pytest.approx(law.resamples)
    assert fitted["result"]["rows"] == len(data)
    assert fitted["result"]["slices"] == ["R=8", "E=16", "N>546M", "D>428B"]


def test_a_fitted_law_plans_at_once(client, fitted):
    asked = {"flops": "5e21", "memory": "3GB", "bits": 4, "law": fitted["result"]["law_id"]}
    answer = client.send("/api/plan", asked).json
    assert answer["plan"]["law"] == "simulated"
    assert 0 < answer["plan"]["agreement"] <= 1
    again = client.send("/api/plan", asked | {"law": fitted["result"]["law"]}).json
    assert again == answer


def test_mappings_are_compared_on_held_out_rows(client, fitted):
    job = client.job(client.send(f"/api/fits/{fitted['id']}/compare", {"hold_out": ["R=8"], "folds": 0}))
    assert job["state"] == "done"
    scores = {score["mapping"]: score["rmse"] for score in job["result"]["scores"]}
    assert scores["sparsity-conditional"] < scores["linear"]


def test_the_runs_to_add_stay_within_their_budget(client, fitted):
    plan = {"flops": "5e21", "memory": "3GB", "bits": 4}
    job = client.job(client.send(f"/api/fits/{fitted['id']}/next", {"budget": "1e21", "plan": plan, "most": 5}))
    assert job["state"] == "done"
    assert 0 < len(job["result"]["runs"]) <= 5
    assert job["result"]["runs"][-1]["cumulative_flops"] <= 1e21
    assert job["result"]["after"] < job["result"]["before"]


def test_a_job_that_cannot_succeed_says_why(client, fitted):
    job = client.job(client.send(f"/api/fits/{fitted['id']}/compare", {"hold_out": ["R=99"]}))
    assert job["state"] == "failed"
    assert "slice 'R=99' selects no row; R in the data: 1, 2, 4, 8" in job["error"]


@pytest.mark.parametrize(
    ("make", "status", "says"),
    [
        (gzip.compress, 415, "this is a gzip archive; send it unpacked"),
        (zipped, 415, "this is a zip archive or a spreadsheet"),
        (lambda csv: b"PAR1" + csv, 415, "this is a Parquet file"),
        (lambda csv: csv + b"\xff\xfe", 422, "is not UTF-8 text"),
        (lambda csv: csv.decode().encode("utf-16"), 422, "is not UTF-8 text"),
        (lambda csv: csv + b"\0", 422, "NUL"),
        (lambda csv: b"", 422, "the file is empty"),
        (lambda csv: b"../../etc/passwd", 422, "no column for loss"),
        (lambda csv: b"hello\nworld", 422, "loss"),
        (lambda csv: csv.replace(csv.splitlines()[3].split(b",")[7], b"high"), 422, "line 4"),
        (lambda csv: csv.splitlines()[0] + b"\n" + b"x,1,1,1,1,1,1,1,True\n" * 20_010, 413, "more than 20,000 rows"),
        (lambda csv: csv * 2 + b"x" * 4_000_000, 413, "larger than 4 MB"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_sweep_is_refused_in_a_sentence(client, sweep_csv, make, status, says):
    answer = client.send("/api/fit?name=runs.csv", make(sweep_csv))
    assert answer.status == status, answer.body
    assert says in answer.json["error"]
    assert "\n" not in answer.json["error"]


def test_a_refusal_names_the_field_that_the_page_should_mark(client, sweep_csv):
    answer = client.send("/api/fit?name=runs.csv", sweep_csv.replace(b"loss", b"quality", 1))
    assert answer.json["field"] == "loss"
    assert answer.json["error"].startswith("runs.csv: no column for loss")
    assert answer.json["error"].endswith("choose the column below")


def test_rows_without_a_loss_are_skipped_and_counted_in_the_preview(client, sweep_csv):
    first = sweep_csv.splitlines()[1]
    crashed = b",".join([*first.split(b",")[:7], b"", *first.split(b",")[8:]])
    preview = client.send("/api/preview?name=runs.csv", sweep_csv.replace(first, crashed)).json
    assert preview["problem"] is None
    assert "1 row skipped: no loss, line 2" in preview["notes"]


@pytest.mark.parametrize("name", ["../../runs", "a/b", "", "x" * 100, "a%00b", "a%5Cb"])
def test_a_name_cannot_be_a_path(client, sweep_csv, name):
    assert client.send(f"/api/fit?name={name}", sweep_csv).status == 422


def test_unknown_jobs_are_said_to_be_gone(client):
    for answer in (client.send("/api/jobs/none"), client.send("/api/fits/none/compare", {})):
        assert answer.status == 404
        assert "send the data again" in answer.json["error"]


def test_a_long_fit_does_not_stall_the_sliders_and_can_be_stopped(client, sweep_csv):
    long = client.send("/api/fit?resamples=1000", sweep_csv).json["id"]
    for exponent in range(10):
        assert client.send("/api/plan", {"flops": 1e20 * 2**exponent, "extrapolate": True}).status == 200
    assert client.send(f"/api/jobs/{long}").json["state"] in ("waiting", "running")
    assert client.send(f"/api/jobs/{long}", method="DELETE").json["state"] == "cancelled"
    assert client.send(f"/api/jobs/{long}").json["state"] == "cancelled"


def test_a_worker_that_has_answered_ends_by_itself(tmp_path, monkeypatch):
    """To kill one that has ended takes its exit code from asyncio, which then writes a warning for every job."""
    late = """
import os, sys, time
print('{"result": 1}', flush=True)
os.close(1)
time.sleep(0.3)
open(sys.argv[1], "w")
"""

    async def worker() -> asyncio.subprocess.Process:
        pipes = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
        return await asyncio.create_subprocess_exec(sys.executable, "-c", late, str(tmp_path / "ended"), **pipes)

    async def run() -> jobs.Job:
        job = jobs.Jobs(Limits(), lambda kind, result: None).start("fit", {})
        assert job.running is not None
        await job.running
        return job

    monkeypatch.setattr(jobs, "_worker", worker)
    assert asyncio.run(run()).state == "done"
    assert (tmp_path / "ended").is_file()


@pytest.mark.parametrize("ending", ["\n", "\r", "\r\n"])
@pytest.mark.parametrize("route", ["/api/preview?name=a.csv", "/api/fit?name=a.csv"])
def test_too_many_rows_are_refused_whatever_ends_them(client, route, ending):
    answer = client.send(
        route, ending.join(["N,D,loss"] + ["1e8,2e9,3"] * 20_001).encode(), **{"content-type": "text/csv"}
    )
    assert (answer.status, "more than 20,000 rows" in answer.json["error"]) == (413, True)


@pytest.mark.parametrize("route", ["/api/preview?name=a.csv", "/api/fit?name=a.csv"])
def test_too_many_columns_are_refused(client, route):
    answer = client.send(route, b"# wide\n" + b"a," * 200_000, **{"content-type": "text/csv"})
    assert (answer.status, "more than 2,000 columns" in answer.json["error"]) == (413, True)
