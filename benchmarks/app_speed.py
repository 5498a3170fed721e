"""How fast the explorer is: a slider's answer, the first page, and many clients at once."""

from __future__ import annotations

import http.client
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from plan_speed import resampled_law

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "app"))
from browser import chromium

CHARTS = ["recurrence", "designs", "best-recurrence", "best-experts"]
"""What the page asks for with every move of a slider."""
MOVES, STARTS, CLIENTS = 60, 5, 200


@contextmanager
def explorer() -> Iterator[str]:
    """Run the command, and give its address as soon as it says it."""
    command = [sys.executable, "-m", "loopscale", "app", "--no-open", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        yield found[0]
    finally:
        process.terminate()
        process.wait()


def send(line: http.client.HTTPConnection, path: str, body: Any) -> tuple[int, Any]:
    """Send JSON, and return status and answer."""
    line.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    reply = line.getresponse()
    return reply.status, json.loads(reply.read())


def slider(address: str) -> None:
    """Time the answers to a drag: plan, words and all charts, under a law with 100 resamples."""
    line = http.client.HTTPConnection(urlsplit(address).netloc)
    _, law = send(line, "/api/laws", resampled_law().to_dict())
    times = []
    for move in range(MOVES):
        asked = {"flops": 1e20 * 1.1**move, "memory": 3e9, "bits": 4, "law": law["id"], "charts": CHARTS}
        began = time.perf_counter()
        status, _ = send(line, "/api/plan", asked)
        times.append(1e3 * (time.perf_counter() - began))
        assert status == 200
    rest = sorted(times[5:])
    print(
        f"answer to a slider's move, law with 100 resamples, four charts: {statistics.median(rest):.1f} ms "
        f"(90% within {rest[int(0.9 * len(rest))]:.1f} ms, n={len(rest)}; wanted: under 50 ms)"
    )


def first_page() -> None:
    """Time from the command to a page with its answer and charts drawn, in a browser that is open already."""
    times = []
    with chromium() as browser:
        page = browser.new_page()
        page.goto("about:blank")
        for _ in range(STARTS):
            began = time.perf_counter()
            with explorer() as address:
                page.goto(address)
                page.wait_for_selector("html[data-ready]")
                page.wait_for_selector("#chart-best-experts svg")
                times.append(time.perf_counter() - began)
    spread = f"{min(times):.2f}–{max(times):.2f} s, n={len(times)}"
    print(f"from the command to the drawn page: {statistics.median(times):.2f} s ({spread}; wanted: under 2 s)")


def crowd(address: str) -> None:
    """Send as many plans at once as there are clients."""

    def one(client: int) -> int:
        line = http.client.HTTPConnection(urlsplit(address).netloc, timeout=120)
        return send(line, "/api/plan", {"flops": 1e21 * (1 + client), "memory": 3e9, "bits": 4})[0]

    began = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(one, range(CLIENTS)))
    took = time.perf_counter() - began
    wrong = sum(status != 200 for status in answers)
    print(f"{CLIENTS} plans at once: {wrong} errors (wanted: none), all answered in {took:.2f} s")


def main() -> None:
    """Print all three."""
    with explorer() as address:
        slider(address)
        crowd(address)
    first_page()


if __name__ == "__main__":
    main()
