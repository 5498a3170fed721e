"""Take the pictures of the explorer that the documentation shows: ``python docs/explorer_pictures.py``.

Needs the extras `app` and `dev` and Chromium. Pictures are written to docs/images with few colours, so that they stay
small; the recording is a GIF of a drag over the map, of a step by hand and of the lab.
"""

from __future__ import annotations

import base64
import io
import json
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock
from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "app"), str(ROOT / "tests")]
from browser import chromium, enter, first_view, mapped, open_page, settled, visit  # noqa: E402
from test_run_view import folder_of  # noqa: E402

from loopscale.scaling import Points, published  # noqa: E402
from loopscale.sweep.store import Store  # noqa: E402
from sweeps import open_sweep, write_sweep  # noqa: E402

IMAGES = ROOT / "docs" / "images"
COLOURS = 256
GIF_SIZE = (720, 504)


GRID = "[grid]\nrecurrence = [1, 2, 4, 8]\nseed = [0, 1, 2, 3]\ntokens = [64, 128, 256]\n"


def add_runs(results: Path, runs: range) -> None:
    """Write runs into a sweep's store, with losses of the paper's law: a sweep while it runs."""
    law = published()
    with Store(results) as store:
        for number in runs:
            claim = store.claim()
            assert claim is not None
            size, passes = (2e8, 3.2e8, 4.8e8, 7e8)[number % 4], (1, 2, 4, 8)[number // 4]
            for tokens in (64, 128, 256):
                facts = {"active": size, "loop": 0.6 * size, "total": size, "experts": 1, "recurrence": passes}
                loss = float(law(Points(size, 2e9 * tokens, passes, 1, 0.6 * size, size))) * (1 + 0.001 * (number % 3))
                store.record(claim, tokens, loss, facts | {"tokens": 2e9 * tokens, "validation_loss": loss})
            store.finish(claim)


@contextmanager
def explorer(*options: str) -> Iterator[str]:
    """Run the explorer, and give its address."""
    command = [sys.executable, "-m", "loopscale", "app", "--no-open", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    printed = re.search(r"http://\S+", process.stdout.readline())
    assert printed is not None
    try:
        yield printed[0]
    finally:
        process.terminate()
        process.wait()


def picture(page: Any, height: int | None = None) -> Image.Image:
    """Return what the page shows, to ``height`` pixels of the whole page if it is given."""
    width = page.viewport_size["width"]
    clip = None if height is None else {"x": 0, "y": 0, "width": width, "height": height}
    shot = page.screenshot(full_page=height is not None, clip=clip)
    return Image.open(io.BytesIO(shot)).convert("RGB")


def few_colours(image: Image.Image, colours: int = COLOURS) -> Image.Image:
    """Return the picture with a palette; rare colours, like that of the mark of trust, stay what they are."""
    return image.quantize(colours, Image.Quantize.MAXCOVERAGE, kmeans=5, dither=Image.Dither.NONE)


def save(image: Image.Image, name: str) -> None:
    """Write a small PNG."""
    few_colours(image).save(IMAGES / name, optimize=True)


def stills(browser: Any, address: str) -> None:
    """Take the plan, a withheld answer, the lab, the comparison, a fit in the dark theme, and a phone."""
    page = open_page(browser, address, width=1300, height=900)
    mapped(page)
    page.wait_for_timeout(600)
    save(picture(page, 1330), "explorer.png")
    visit(page, "flops=1e25")
    mapped(page)
    save(picture(page, 820), "explorer-withheld.png")
    visit(page, "view=lab")
    page.wait_for_selector("#two-axes svg")
    save(picture(page, 1160), "explorer-lab.png")
    visit(page, "")
    for memory in ("1 GB", "10 GB"):
        page.click("#share-button")
        page.click("#pin")
        enter(page, "memory", memory)
        page.keyboard.press("Escape")
    page.click("#views button[data-view=compare]")
    page.wait_for_selector("#toast:not(.shown)")
    page.wait_for_timeout(600)
    save(picture(page, 780), "explorer-compare.png")
    page.context.close()
    page = open_page(browser, f"{address}/#view=fit", width=1300, height=900, scheme="dark")
    page.click("#micro-csv")
    page.wait_for_selector("#chart-residuals svg")
    save(picture(page, 1300), "explorer-dark.png")
    page.context.close()
    page = open_page(browser, address, width=390, height=844)
    mapped(page)
    save(picture(page, 1500), "explorer-phone.png")
    page.context.close()


def first(browser: Any, address: str) -> None:
    """Take the first view, which the page's file holds."""
    parts = first_view(browser, address)
    parts["map-plot"] = re.sub(r"(?<=base64,)[^\"]+", smaller, parts["map-plot"])
    path = ROOT / "src" / "loopscale" / "app" / "static" / "first_view.json"
    path.write_text(json.dumps(parts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def smaller(image: re.Match[str]) -> str:
    """Return a picture with few colours, as text."""
    packed = io.BytesIO()
    picture = Image.open(io.BytesIO(base64.b64decode(image[0]))).convert("RGB")
    few_colours(picture, 16).save(packed, "PNG", optimize=True)
    return base64.b64encode(packed.getvalue()).decode()


def preview(browser: Any, address: str) -> None:
    """Take the picture that links to the page are shown with."""
    page = open_page(browser, address, width=1200, height=630)
    mapped(page)
    page.wait_for_timeout(600)
    few_colours(picture(page)).save(ROOT / "src" / "loopscale" / "app" / "static" / "preview.png", optimize=True)
    page.context.close()


def live_sweep(browser: Any) -> None:
    """Take a sweep while it runs, after three refits."""
    sweep, store = open_sweep(write_sweep(Path(tempfile.mkdtemp()), GRID, "demo"))
    store.__exit__(None, None, None)
    add_runs(sweep.results, range(8))
    with explorer("--sweep", str(sweep.results)) as address:
        page = open_page(browser, f"{address}/#view=sweep", width=1300, height=900)
        for done, runs in ((24, range(8, 10)), (30, range(10, 13)), (39, range(0))):
            page.wait_for_selector(f"#sweep-fitted:has-text('Law of {done} losses')")
            add_runs(sweep.results, runs)
        settled(page)
        save(picture(page, 1250), "explorer-sweep.png")
        page.context.close()


def recording(browser: Any, address: str) -> None:
    """Record a drag of the dot over the map, a step by hand, and the lab."""
    page = open_page(browser, address, width=1200, height=840)
    page.emulate_media(reduced_motion="reduce")  # what moves by itself would fill the file
    page.reload()
    mapped(page)
    frames = [picture(page)] * 6
    box = page.locator("#map-dot").bounding_box()
    assert box is not None
    x, y = box["x"] + 13, box["y"] + 13
    page.mouse.move(x, y)
    page.mouse.down()
    for step in range(1, 11):
        page.mouse.move(x - 13 * step, y - step)  # to an answer, not to where one is withheld
        settled(page)
        frames.append(picture(page))
    page.mouse.up()
    settled(page)
    frames += [picture(page)] * 6
    page.click("#step-passes .up")
    settled(page)
    frames += [picture(page)] * 6
    visit(page, "view=lab&loops=1")
    page.wait_for_selector("#lab-grid td")
    for passes in (1, 2, 3, 5, 7, 9, 12):
        page.fill("#lab-passes", str(passes))
        page.dispatch_event("#lab-passes", "input")
        page.wait_for_timeout(60)
        frames += [picture(page)] * 2
    frames += [picture(page)] * 6
    page.context.close()
    small = [few_colours(frame.resize(GIF_SIZE, Image.Resampling.LANCZOS), 64) for frame in frames]
    small[0].save(IMAGES / "explorer.gif", save_all=True, append_images=small[1:], duration=220, loop=0, optimize=True)


def live_run(browser: Any) -> None:
    """Take a training run in its middle; its log is that of a made-up run."""
    folder = folder_of(Path(tempfile.mkdtemp()) / "tiny", range(1, 241))
    log, noise = folder / "metrics.jsonl", random.Random(0)
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    for row in rows:
        row["loss"] += noise.gauss(0, 0.02)
        if row["step"] % 10 == 0:
            row["validation_loss"] = row["loss"] + 0.01
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with FileLock(folder / ".lock"), explorer("--run", str(folder)) as address:
        page = open_page(browser, f"{address}/#view=run", width=1300, height=900)
        page.wait_for_selector("#run-plot svg")
        page.wait_for_timeout(300)
        save(picture(page), "explorer-run.png")
        page.context.close()


def main() -> None:
    """Take all of them."""
    with explorer() as address, chromium() as browser:
        first(browser, address)
        stills(browser, address)
        preview(browser, address)
        recording(browser, address)
        live_sweep(browser)
        live_run(browser)
    for path in sorted(IMAGES.glob("explorer*")):
        print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
