"""How fast the explorer is: repaints while dragging, answers, the first chart, bytes, accessibility, many clients."""

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
from browser import chromium, open_page, serious_findings, settled

CHARTS = ["recurrence", "designs", "best-recurrence", "best-experts"]
"""What the page asks for with a whole answer."""
LIGHT = {"draft": True, "charts": CHARTS[:2]}
"""What it asks for with most moves of a slider."""
MOVES, STARTS, CLIENTS, DRAGS = 60, 5, 200, 5


@contextmanager
def explorer() -> Iterator[str]:
    """Run the command, and give its address as soon as it prints it."""
    command = [sys.executable, "-m", "loopscale", "app", "--no-open", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        printed = re.search(r"http://\S+", process.stdout.readline())
        assert printed is not None
        yield printed[0]
    finally:
        process.terminate()
        process.wait()


def send(line: http.client.HTTPConnection, path: str, body: Any) -> tuple[int, Any]:
    """Send JSON, and return status and answer."""
    line.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    reply = line.getresponse()
    return reply.status, json.loads(reply.read())


def own_law(address: str) -> str:
    """Send a law with 100 resampled laws and return its id."""
    line = http.client.HTTPConnection(urlsplit(address).netloc)
    return str(send(line, "/api/laws", resampled_law().to_dict())[1]["id"])


def slider(address: str) -> None:
    """Time the answers to a drag under a law with 100 resampled laws: the light ones, and the whole one at its end."""
    line, law = http.client.HTTPConnection(urlsplit(address).netloc), own_law(address)
    for name, more in {"light answer while dragging": LIGHT, "whole answer": {"charts": CHARTS}}.items():
        times = []
        for move in range(MOVES):
            asked = {"flops": 1e21 * 1.03**move, "memory": 3e9, "bits": 4, "law": law, "centre": 5e21}
            began = time.perf_counter()
            status, _ = send(line, "/api/plan", asked | {"extrapolate": True} | more)
            times.append(1e3 * (time.perf_counter() - began))
            assert status == 200
        rest = sorted(times[5:])
        print(
            f"{name}, law with 100 resampled laws: {statistics.median(rest):.1f} ms "
            f"(90% within {rest[int(0.9 * len(rest))]:.1f} ms, n={len(rest)}; wanted: under 50 ms)"
        )


COUNT = """() => {
    window.repaints = 0;
    new MutationObserver(() => { window.repaints += 1; }).observe(
        document.querySelector('#chart-isoflop .lines'), { attributes: true, subtree: true, childList: true });
}"""


def repaints(address: str) -> None:
    """Count how often the page redraws its charts while a slider is dragged."""
    rates = []
    with chromium() as browser:
        page = open_page(browser, f"{address}/#law={own_law(address)}&extrapolate=1")
        page.evaluate(COUNT)
        box = page.locator("#in-flops-slider").bounding_box()
        assert box is not None
        middle = box["y"] + box["height"] / 2
        for _ in range(DRAGS):
            page.mouse.move(box["x"] + box["width"] * 0.42, middle)
            page.mouse.down()
            page.evaluate("() => { window.repaints = 0; }")
            began, step = time.perf_counter(), 0
            while time.perf_counter() - began < 2:
                step += 1
                page.mouse.move(box["x"] + box["width"] * (0.42 + 0.001 * (step % 100)), middle)
            rates.append(page.evaluate("() => window.repaints") / (time.perf_counter() - began))
            page.mouse.up()
            settled(page)
    spread = f"{min(rates):.1f}–{max(rates):.1f}, n={len(rates)}"
    print(
        f"repaints a second while dragging, 100 resampled laws: {statistics.median(rates):.1f} ({spread}; wanted: 20)"
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


def transferred(address: str) -> None:
    """Add up the bytes that a browser receives until the first charts are drawn."""
    with chromium() as browser:
        page = browser.new_context().new_page()
        session = page.context.new_cdp_session(page)
        session.send("Network.enable")
        sizes: list[float] = []
        session.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
        page.goto(address)
        page.wait_for_selector("#chart-best-experts svg")
        settled(page)
    print(f"bytes to the first chart: {sum(sizes) / 1e3:.0f} kB in {len(sizes)} files (wanted: under 300 kB)")


def accessibility(address: str) -> None:
    """Count what axe-core finds that is serious, in both themes and on a phone."""
    found = 0
    with chromium() as browser:
        for scheme in ("light", "dark"):
            for width in (1300, 390):
                page = open_page(browser, address, scheme=scheme, width=width)
                found += len(serious_findings(page))
                page.context.close()
    print(f"serious findings of axe-core, two themes, two widths: {found} (wanted: none)")


def crowd(address: str) -> None:
    """Send as many plans at once as there are clients."""

    def one(client: int) -> int:
        line = http.client.HTTPConnection(urlsplit(address).netloc, timeout=120)
        return send(line, "/api/plan", {"flops": 1e21 * (1 + client / 50), "memory": 3e9, "bits": 4})[0]

    began = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(one, range(CLIENTS)))
    took = time.perf_counter() - began
    wrong = sum(status != 200 for status in answers)
    print(f"{CLIENTS} plans at once: {wrong} errors (wanted: none), all answered in {took:.2f} s")


def main() -> None:
    """Print all of them."""
    with explorer() as address:
        slider(address)
        repaints(address)
        transferred(address)
        accessibility(address)
        crowd(address)
    first_page()


if __name__ == "__main__":
    main()
