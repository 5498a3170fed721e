"""The server listens to this machine alone, answers to its own name, and keeps within its limits."""

import asyncio
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from conftest import Client
from loopscale.app.jobs import Job, Jobs
from loopscale.app.problems import RefusalError
from loopscale.app.security import Limits
from loopscale.cli import main
from loopscale.cli.network import listen


def raw(address: str, text: str, more: bytes = b"") -> str:
    """Send a request as it stands, and return the whole reply."""
    where = urlsplit(address)
    with socket.create_connection((where.hostname, where.port), timeout=600) as line:
        line.sendall(text.replace("\n", "\r\n").encode() + more)
        return line.recv(100_000).decode()


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "evil.example:80",
        "",
        "[",
        "10.0.0.1",
        "evil.example@127.0.0.1",
        "127.0.0.1:1:2",
        "127.0.0.1/x",
    ],
)
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


@pytest.mark.parametrize("scheme", ["https", "file", "ftp"])
def test_another_scheme_is_another_origin(client, address, scheme):
    origin = address.replace("http", scheme, 1)
    assert client.send("/api/plan", {"flops": 1e21}, origin=origin).status == 403


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
        jobs = Jobs(Limits(job_seconds=0.05, workers=1, waiting=1), lambda *_: None)
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
        jobs = Jobs(Limits(), lambda *_: None)
        job = jobs.start("fit", {"csv": sweep_csv.decode(), "options": {"resamples": 1000}})
        while job.stage in ("Waiting for a free worker", "Starting"):
            await asyncio.sleep(0.01)
        jobs.cancel(job.id)
        await jobs.close()
        assert job.state == "cancelled"

    asyncio.run(story())
    children = subprocess.run(["ps", "--ppid", str(os.getpid()), "-o", "args"], capture_output=True, text=True).stdout
    assert "loopscale.app.worker" not in children


def test_every_command_of_the_manual_starts_a_server_or_writes_the_page(monkeypatch, tmp_path):
    """The tests of the pages do not run what does not end."""
    manual = Path(__file__).parents[2] / "docs" / "app.md"
    shown = [line for line in manual.read_text(encoding="utf-8").splitlines() if line.startswith("    loopscale app")]
    served: list[object] = []
    monkeypatch.setattr("uvicorn.Server.run", lambda _, sockets: served.append(sockets[0].close()))
    monkeypatch.setattr("loopscale.app.server.create_app", lambda *_, **__: None)
    monkeypatch.setattr("loopscale.cli.app.listen", lambda _, __, usual: listen("127.0.0.1", 0, usual))
    monkeypatch.chdir(tmp_path)
    for line in shown:
        with pytest.raises(SystemExit) as stop:
            main([*shlex.split(line, comments=True)[1:], "--no-open"])
        assert stop.value.code == 0, line
    assert (len(shown), len(served)) == (6, 5)
    assert (tmp_path / "page" / "index.html").exists()


def test_other_machines_need_a_token_or_an_explicit_choice(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["app", "--host", "0.0.0.0", "--no-open"])
    assert stop.value.code == 2
    assert "--token SECRET, or --insecure" in capsys.readouterr().err


def test_the_commands_of_the_manual_are_accepted(monkeypatch, tmp_path, capsys):
    import uvicorn

    from loopscale.app import server
    from loopscale.cli import app

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(app, "listen", lambda *_: socket.create_server(("127.0.0.1", 0)))
    monkeypatch.setattr(app.webbrowser, "open", lambda _: None)
    monkeypatch.setattr(server, "create_app", lambda *_, **__: None)
    monkeypatch.setattr(uvicorn.Server, "run", lambda *_, **__: None)
    manual = (Path(__file__).parents[2] / "docs" / "app.md").read_text()
    commands = re.findall(r"^    loopscale (app.*?)(?:  #.*)?$", manual, re.MULTILINE)
    assert len(commands) >= 6
    for command in commands:
        with pytest.raises(SystemExit) as stop:
            main(command.split())
        assert stop.value.code == 0, command


def test_a_server_with_a_token_answers_only_those_who_know_it(own_server):
    address = own_server("--token", "correct-horse").address
    client = Client(address.partition("/?")[0])
    assert client.send("/api/laws").status == 401
    assert client.send("/api/laws?token=wrong-horse").status == 401
    assert client.send("/api/laws", authorization="Bearer correct-horse").status == 200
    page = client.send("/?token=correct-horse")
    assert page.status == 200
    cookie = page.headers["set-cookie"].partition(";")[0]
    assert client.send("/api/laws", cookie=cookie).status == 200


def test_a_request_head_that_does_not_arrive_ends_the_connection(monkeypatch):
    class Transport:
        closed = False

        def close(self) -> None:
            self.closed = True

        def is_closing(self) -> bool:
            return self.closed

        def get_extra_info(self, name: str) -> None:
            return None

        def set_protocol(self, protocol: object) -> None: ...

        def pause_reading(self) -> None: ...

    async def half_open() -> bool:
        import uvicorn
        from uvicorn.server import ServerState

        from loopscale.app import security

        monkeypatch.setattr(security, "HEAD_SECONDS", 0.01)
        config = uvicorn.Config(lambda *_: None)
        config.load()
        protocol = security.timed_protocol()(config=config, server_state=ServerState(), app_state={})
        transport = Transport()
        protocol.connection_made(transport)
        protocol.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n")
        while not transport.closed:
            await asyncio.sleep(0.01)
        return transport.closed

    assert asyncio.run(half_open())


def ended(job, state: str):
    job.end(state)
    return job


def test_a_job_that_is_cancelled_or_fails_keeps_no_data():
    assert ended(Job("fit", {"csv": "x"}), "cancelled").task == {}
    assert ended(Job("fit", {"csv": "x"}), "failed").task == {}
    assert ended(Job("fit", {"csv": "x"}), "done").task == {"csv": "x"}


def test_results_are_kept_packed_and_given_whole():
    seen = []
    jobs, job = Jobs(Limits(), lambda kind, result: seen.append(kind)), Job("fit", {})
    result = {"law": {"A": 0.1}, "points": [0.25] * 10_000}
    jobs._take(job, {"result": result})
    assert (job.state, json.loads(job.json())["result"], seen) == ("done", result, ["fit"])
    assert len(job.result) < 10_000


def test_jobs_always_end_and_nobody_is_kept_out_by_the_jobs_of_others():
    async def scenario() -> None:
        jobs = Jobs(Limits(client_jobs=2, abandoned_seconds=0.0, workers=1, waiting=1), lambda *_: None)

        async def broken(job: Job) -> None:
            raise RuntimeError("unexpected")

        jobs._work = broken
        job = jobs.start("fit", {"csv": "x"}, "a")
        assert job.running is not None
        await job.running
        assert (job.state, job.task) == ("failed", {})

        async def endless(job: Job) -> None:
            await asyncio.Event().wait()

        jobs._work = endless
        abandoned = [jobs.start("fit", {}, "a") for _ in range(5)]  # each stops the one before, which nobody asks for
        assert [job.state for job in abandoned[:-1]] == ["cancelled"] * 4
        await jobs.close()

    asyncio.run(scenario())


def test_one_client_has_a_quota_of_jobs():
    async def scenario() -> None:
        jobs = Jobs(Limits(client_jobs=2), lambda *_: None)

        async def endless(job: Job) -> None:
            await asyncio.Event().wait()

        jobs._work = endless
        for _ in range(2):
            jobs.start("fit", {}, "a")
        with pytest.raises(RefusalError, match="of your jobs"):
            jobs.start("fit", {}, "a")
        jobs.start("fit", {}, "b")
        await jobs.close()

    asyncio.run(scenario())
