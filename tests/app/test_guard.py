"""The server listens to this machine alone, answers to its own name, and keeps within its limits."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from loopscale.app.jobs import Jobs
from loopscale.app.problems import RefusalError
from loopscale.app.security import Limits


def raw(address: str, text: str, more: bytes = b"") -> str:
    """Send a request as it stands, and return the whole reply."""
    where = urlsplit(address)
    with socket.create_connection((where.hostname, where.port), timeout=600) as line:
        line.sendall(text.replace("\n", "\r\n").encode() + more)
        line.settimeout(60)
        return line.recv(100_000).decode()


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "evil.example:80", "", "[", "10.0.0.1"])
def test_foreign_hosts_are_refused(address, host):
    reply = raw(address, f"GET /api/laws HTTP/1.1\nHost: {host}\nConnection: close\n\n")
    assert " 403 " in reply or " 400 " in reply


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "https://127.0.0.1.evil.example", "null", "http://127.0.0.1:1"]
)
def test_foreign_origins_are_refused(client, origin):
    for answer in (client.send("/api/laws", origin=origin), client.send("/api/plan", {"flops": 1e21}, origin=origin)):
        assert answer.status == 403
        assert "may not use this server" in answer.json["error"]


def test_the_page_itself_is_no_foreigner(client, address):
    assert client.send("/api/plan", {"flops": 1e21}, origin=address).status == 200


def test_it_listens_on_loopback_only(address):
    assert urlsplit(address).hostname == "127.0.0.1"
    port = urlsplit(address).port
    listening = Path("/proc/net/tcp").read_text().splitlines()[1:]
    bound = [
        line.split()[1] for line in listening if line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A"
    ]
    assert bound == [f"0100007F:{port:04X}"]


def test_pages_bring_nothing_from_elsewhere(client):
    page = client.send("/")
    assert page.headers["content-security-policy"].startswith("default-src 'self'")
    assert page.headers["x-content-type-options"] == "nosniff"
    assert b"http://" not in page.body.replace(b"http://www.w3.org", b"")
    assert b"https://" not in page.body


def test_a_port_that_is_taken_is_told_in_a_sentence(address):
    port = str(urlsplit(address).port)
    command = [sys.executable, "-m", "loopscale", "app", "--no-open", "--port", port]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 2
    assert f"127.0.0.1:{port} cannot be listened on" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_body_without_end_is_cut_off(address):
    piece, where = b"10000\r\n" + b"x" * 0x10000 + b"\r\n", urlsplit(address)
    with socket.create_connection((where.hostname, where.port), timeout=600) as line:
        line.sendall(b"POST /api/fit HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            line.sendall(piece * 4000)  # 262 MB


def test_jobs_are_limited_in_time_and_number(sweep_csv):
    async def story() -> None:
        jobs = Jobs(Limits(job_seconds=0.05, workers=1, waiting=1), lambda job: None)
        task = {"csv": sweep_csv.decode(), "options": {}}
        first, _ = jobs.start("fit", task), jobs.start("fit", task)
        with pytest.raises(RefusalError, match="2 jobs are under way or waiting"):
            jobs.start("fit", task)
        await first.running
        assert first.state == "failed"
        assert first.error == "it took longer than 0.05 seconds and was stopped"
        await jobs.close()

    asyncio.run(story())


def test_a_cancelled_job_leaves_no_process(sweep_csv):
    async def story() -> None:
        jobs = Jobs(Limits(), lambda job: None)
        job = jobs.start("fit", {"csv": sweep_csv.decode(), "options": {"resamples": 1000}})
        while job.stage in ("Waiting for a free worker", "Starting"):
            await asyncio.sleep(0.01)
        jobs.cancel(job.id)
        await jobs.close()
        assert job.state == "cancelled"

    asyncio.run(story())
    children = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "args"], capture_output=True, text=True).stdout
    assert "loopscale.app.worker" not in children
