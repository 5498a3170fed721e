"""How fast the explorer is: repaints while dragging, the first chart, bytes, accessibility, many clients of the API."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from loopscale.app.page import STATIC, export_page

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "app"))
from browser import chromium, findings, mapped, open_page, settled

STARTS, CLIENTS, DRAGS, SECONDS = 9, 200, 5, 2.0
LATER = ("lab.js", "lab-experts.js", "preview.png")
"""Files that the first view does not load."""


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


FRAMES = """() => {
    window.drawn = 0;
    new MutationObserver(() => { window.changed = true; }).observe(
        document.querySelector('#over-passes .plot'), { subtree: true, childList: true });
    const frame = () => {
        window.drawn += Number(Boolean(window.changed));
        window.changed = false;
        requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
}"""


def repaints(folder: Path) -> None:
    """Count the frames in which the page has redrawn itself while the dot is dragged over the map."""
    rates = []
    with chromium() as browser:
        page = open_page(browser, f"file://{folder}/index.html", width=1440)
        mapped(page)
        page.evaluate(FRAMES)
        box = page.locator("#map-dot").bounding_box()
        assert box is not None
        x, y = box["x"] + 13, box["y"] + 13
        for _ in range(DRAGS):
            page.mouse.move(x, y)
            page.mouse.down()
            page.evaluate("() => { window.drawn = 0; }")
            began, step = time.perf_counter(), 0
            while time.perf_counter() - began < SECONDS:
                step += 1
                page.mouse.move(x - (step % 160), y - (step % 40))
            rates.append(page.evaluate("() => window.drawn") / (time.perf_counter() - began))
            page.mouse.up()
            settled(page)
    spread = f"{min(rates):.1f}–{max(rates):.1f}, n={len(rates)}"
    print(f"repaints a second while dragging: {statistics.median(rates):.1f} ({spread}; wanted: 50)")


SEEN = """const look = () => {
    if (window.seen || !document.querySelector('SELECTOR')) return;
    window.seen = 1;
    requestAnimationFrame(() => {
        const painted = new MessageChannel();
        painted.port1.onmessage = () => { window.seen = performance.now(); };
        painted.port2.postMessage(0);
    });
};
new MutationObserver(look).observe(document, { childList: true, subtree: true, attributes: true });"""
"""Notes when something is first painted, in milliseconds since the page's start."""


def first_chart(folder: Path) -> None:
    """Time until the first map is painted, beside a page that loads the same files and shows nothing.

    The page's file holds the first view. So the time until the script has drawn it anew, and answers, is shown too.
    """
    empty = folder / "empty"
    export_page(empty)
    text = (empty / "page.js").read_text(encoding="utf-8")
    starting = "if (linked()) start();\nelse afterFrame(start);\n"
    assert starting in text
    (empty / "page.js").write_text(text.replace(starting, "document.body.dataset.loaded = 1;\n"), encoding="utf-8")
    (empty / "index.html").write_text((STATIC / "index.html").read_text(encoding="utf-8"), encoding="utf-8")
    kinds = {
        "empty": (empty, "", "body[data-loaded]"),
        "chart": (folder, "", "#map-legend .key"),
        "live": (folder, "", "html[data-ready]"),
        "map": (folder, "", "#map-plot[data-drawn]"),
        "linked": (folder, "#flops=1e22", "html[data-ready]"),
    }
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    with chromium() as browser:
        for _ in range(STARTS):
            for kind, (path, link, wait) in kinds.items():
                page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
                page.add_init_script(SEEN.replace("SELECTOR", wait))
                page.goto(f"file://{path}/index.html{link}")
                times[kind].append(float(page.wait_for_function("() => window.seen > 1 && window.seen").json_value()))
                page.context.close()
    empty_ms, *others = (statistics.median(times[kind]) for kind in kinds)
    texts = [f"{ms:.0f} ms, {ms / empty_ms:.2f}x" for ms in others]
    print(
        f"first map painted: {texts[0]} an empty page with the same files ({empty_ms:.0f} ms; wanted: 1.5x); the "
        f"script has drawn the answer: {texts[1]}, and the map: {texts[2]}; a link elsewhere: {texts[3]} (n={STARTS})"
    )


def size(folder: Path) -> None:
    """Add up the compressed files that the first view loads."""
    files = [path for path in folder.iterdir() if path.is_file() and path.name not in LATER]
    total = sum(len(gzip.compress(path.read_bytes(), 9)) for path in files)
    print(f"to the first chart: {total / 1e3:.0f} kB compressed in {len(files)} files (wanted: at most 250 kB)")


def accessibility(folder: Path) -> None:
    """Count what axe-core finds above minor, in both themes and on a phone."""
    found = 0
    with chromium() as browser:
        for scheme in ("light", "dark"):
            for width in (1440, 390):
                page = open_page(browser, f"file://{folder}/index.html", scheme=scheme, width=width)
                found += len(findings(page))
                page.context.close()
    print(f"findings of axe-core above minor, two themes, two widths: {found} (wanted: none)")


def send(line: http.client.HTTPConnection, path: str, body: Any) -> tuple[int, Any]:
    """Send JSON, and return status and answer."""
    line.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    reply = line.getresponse()
    return reply.status, json.loads(reply.read())


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
    print(f"{CLIENTS} plans at once over HTTP: {wrong} errors (wanted: none), all answered in {took:.2f} s")


def main() -> None:
    """Print all of them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export_page(folder)
        size(folder)
        first_chart(folder)
        repaints(folder)
        accessibility(folder)
    with explorer() as address:
        crowd(address)


if __name__ == "__main__":
    main()
