"""A soak of the explorer: a steady rate of requests with fits and uploads.

No server error, memory that stays, and no file or process left behind. It also states the processor time of a request,
in the server and in its jobs, which other work on the machine does not change.

python tests/attack/soak.py --seconds 3600 --rate 50 --log soak.jsonl
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from loopscale.fitting.data.public import simulate_sweep

JSON = "application/json"
PLAN = {"flops": "5e21", "memory": "3GB", "bits": "int4", "extrapolate": True, "top": 10}
PREDICT = {"rung": "1.0B", "experts": 8, "recurrence": 2, "tokens": "500B", "extrapolate": True}


def request(draw: random.Random, csv: bytes, jobs: list[str]) -> tuple[str, str, bytes, str]:
    """Draw a request: mostly plans and predictions, some uploads, rarely a fit; some are wrong."""
    kind = draw.choices(["predict", "plan", "read", "preview", "job", "fit", "wrong"], [40, 15, 25, 8, 8, 0.2, 4])[0]
    if kind == "predict":
        return (
            "POST",
            "/api/predict",
            json.dumps(PREDICT | {"recurrence": draw.randint(1, 8)}).encode(),
            "application/json",
        )
    if kind == "plan":
        return (
            "POST",
            "/api/plan",
            json.dumps(PLAN | {"flops": f"{draw.uniform(1, 9):.2f}e21"}).encode(),
            "application/json",
        )
    if kind == "preview":
        return "POST", "/api/preview", csv, "text/csv"
    if kind == "fit":
        return "POST", "/api/fit?resamples=10", csv, "text/csv"
    if kind == "job" and jobs:
        identity = draw.choice(jobs)
        return draw.choices(["GET", "DELETE"], [20, 1])[0], f"/api/jobs/{identity}", b"", JSON
    if kind == "wrong":
        return "POST", draw.choice(["/api/plan", "/api/fit", "/api/laws"]), draw.randbytes(300), JSON
    return "GET", draw.choice(["/", "/api/choices", "/api/laws", "/api/template.csv"]), b"", JSON


async def send(address: str, method: str, path: str, body: bytes, kind: str) -> tuple[int, bytes]:
    """Send one request over a connection of its own; return status and content."""
    split = urlsplit(address)
    reader, writer = await asyncio.open_connection(split.hostname, split.port)
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: {split.netloc}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n"
    )
    try:
        writer.write((head + "connection: close\r\n\r\n").encode() + body)
        await writer.drain()
        reply = await reader.read()
    finally:
        writer.close()
    first, _, rest = reply.partition(b"\r\n")
    return int(first.split()[1]), rest.partition(b"\r\n\r\n")[2]


def memory(process: psutil.Process) -> int:
    """Return the bytes of the server itself; jobs are processes that end."""
    return int(process.memory_info().rss)


async def load(
    address: str, process: psutil.Process, seconds: float, rate: float, first: float, log: Path | None
) -> dict[str, Any]:
    """Send requests at a steady rate; measure memory after ``first`` seconds and at its highest later on."""
    draw, statuses, jobs = random.Random(0), Counter[int](), list[str]()
    csv = simulate_sweep(recurrences=(1, 2, 4), tokens=[1e11, 2e11, 3e11, 4e11, 5e11]).csv().encode()
    start, pending, sent = time.monotonic(), set[asyncio.Task[None]](), 0
    early = highest = fits = 0
    slowest = logged = 0.0

    async def one() -> None:
        nonlocal fits, slowest
        method, path, body, kind = request(draw, csv, jobs)
        began = time.monotonic()
        try:
            status, content = await send(address, method, path, body, kind)
        except (OSError, IndexError, ValueError):
            statuses[0] += 1
            return
        finally:
            slowest = max(slowest, time.monotonic() - began)
        statuses[status] += 1
        if path.startswith("/api/fit") and status == 202:
            fits += 1
            jobs[:] = [*jobs[-20:], json.loads(content[content.index(b"{") : content.rindex(b"}") + 1])["id"]]

    while (elapsed := time.monotonic() - start) < seconds:
        if elapsed >= first:
            early = early or memory(process)
            highest = max(highest, memory(process))
        if log is not None and elapsed >= logged:
            row = {"seconds": round(elapsed), "memory": memory(process), "fits": fits, "slowest": round(slowest, 2)}
            row |= {"statuses": dict(sorted(statuses.items())), "handles": process.num_fds()}
            with log.open("a") as file:
                file.write(json.dumps(row) + "\n")
            logged += 60.0
        while sent < elapsed * rate and len(pending) < 200:
            task = asyncio.create_task(one())
            pending.add(task)
            task.add_done_callback(pending.discard)
            sent += 1
        await asyncio.sleep(0.02)
    await asyncio.gather(*pending)
    return {
        "requests": sum(statuses.values()), "rate": sum(statuses.values()) / (time.monotonic() - start),
        "statuses": dict(sorted(statuses.items())), "early": early, "highest": highest, "fits": fits,
        "slowest": slowest,
        "server_errors": sum(count for status, count in statuses.items() if status >= 500 or status == 0),
    }  # fmt: skip


def soak(seconds: float, rate: float, first: float = 60.0, log: Path | None = None) -> dict[str, Any]:
    """Start an explorer in an empty folder, soak it, stop it; return what was measured and what it left behind."""
    command = [sys.executable, "-m", "loopscale", "app", "--no-open", "--port", "0"]
    with tempfile.TemporaryDirectory() as name:
        environment = {**os.environ, "TMPDIR": name, "HOME": name}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=name, env=environment) as server:
            assert server.stdout is not None
            address = re.search(r"http://\S+", server.stdout.readline())
            assert address is not None
            process = psutil.Process(server.pid)
            try:
                result = asyncio.run(load(address[0], process, seconds, rate, first, log))
                times = process.cpu_times()
                result["server_ms"] = 1e3 * (times.user + times.system) / result["requests"]
                result["jobs_ms"] = 1e3 * (times.children_user + times.children_system) / result["requests"]
                jobs = process.children(recursive=True)
            finally:
                server.terminate()
                server.wait(timeout=60)
        result["processes_left"] = len(psutil.wait_procs(jobs, timeout=10)[1])
        result["files_left"] = sorted(str(path.relative_to(name)) for path in Path(name).rglob("*") if path.is_file())
    result["growth"] = result["highest"] / result["early"]
    result["exit"] = server.returncode
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--first", type=float, default=60.0, help="seconds after which memory is measured first")
    parser.add_argument("--log", type=Path, help="a row a minute is added here")
    given = parser.parse_args()
    print(json.dumps(soak(given.seconds, given.rate, given.first, given.log), indent=1))
