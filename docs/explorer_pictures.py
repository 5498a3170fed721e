"""Take the pictures of the explorer that the documentation shows: ``python docs/explorer_pictures.py``.

Needs the extras `app` and `dev` and Chromium. Pictures are written to docs/images with few colours, so that they stay
small; the recording is a GIF of a drag, of pinned scenarios and of a fit.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / "app"), str(ROOT / "tests")]
from browser import chromium, enter, open_page, settled  # noqa: E402

from loopscale.scaling import Points, published  # noqa: E402
from loopscale.sweep.store import Store  # noqa: E402
from sweeps import open_sweep, write_sweep  # noqa: E402

IMAGES = ROOT / "docs" / "images"
COLOURS = 160
GIF_SIZE = (800, 560)


GRID = "[grid]\nrecurrence = [1, 2, 4, 8]\nseed = [0, 1, 2, 3]\ntokens = [64, 128, 256]\n"
CONFIG = {
    "model_type": "qwen3_moe", "hidden_size": 1280, "num_hidden_layers": 24, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 3072, "moe_intermediate_size": 640,
    "num_experts": 64, "num_experts_per_tok": 8, "vocab_size": 50000,
}  # fmt: skip


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


def save(image: Image.Image, name: str) -> None:
    """Write a small PNG."""
    image.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(IMAGES / name, optimize=True)


def stills(browser: Any, address: str) -> None:
    """Take the plan in both themes, the comparison, a withheld answer, and a phone."""
    page = open_page(browser, address, width=1300, height=900)
    save(picture(page, 1500), "explorer.png")
    page.click("#pin")
    enter(page, "memory", "10GB")
    config = Path(tempfile.mkdtemp()) / "config.json"
    config.write_text(json.dumps(CONFIG), encoding="utf-8")
    page.set_input_files("#config-file", config)
    page.click("#table tr.own button")
    page.click("#views button[data-view=compare]")
    settled(page)
    page.wait_for_selector("#toast:not(.shown)")
    page.wait_for_timeout(600)
    save(picture(page, 1400), "explorer-compare.png")
    page.context.close()
    page = open_page(browser, f"{address}/#view=fit", width=1300, height=900, scheme="dark")
    page.click("#micro-csv")
    page.wait_for_selector("#chart-residuals svg")
    save(picture(page, 1300), "explorer-dark.png")
    page.click("#plan-with")
    settled(page)
    save(picture(page, 620), "explorer-withheld.png")
    page.context.close()
    page = open_page(browser, address, width=390, height=844)
    save(picture(page, 1500), "explorer-phone.png")
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
    """Record a drag of the compute, a change of memory, and the comparison."""
    page = open_page(browser, address, width=1120, height=784)
    frames = [picture(page)] * 6
    box = page.locator("#in-flops-slider").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.47, middle)
    page.mouse.down()
    for step in range(16):
        page.mouse.move(box["x"] + box["width"] * (0.47 - 0.004 * step), middle)
        settled(page)
        frames.append(picture(page))
    page.mouse.up()
    settled(page)
    frames += [picture(page)] * 4
    page.evaluate("() => scrollTo(0, 620)")
    frames += [picture(page)] * 8
    page.evaluate("() => scrollTo(0, 0)")
    page.click("#pin")
    enter(page, "memory", "10GB")
    frames += [picture(page)] * 6
    page.click("#views button[data-view=compare]")
    settled(page)
    page.mouse.move(0, 0)
    frames += [picture(page)] * 8
    page.context.close()
    small = [
        frame.resize(GIF_SIZE, Image.Resampling.LANCZOS).quantize(48, dither=Image.Dither.NONE) for frame in frames
    ]
    small[0].save(IMAGES / "explorer.gif", save_all=True, append_images=small[1:], duration=220, loop=0, optimize=True)


def main() -> None:
    """Take all of them."""
    with explorer() as address, chromium() as browser:
        stills(browser, address)
        recording(browser, address)
        live_sweep(browser)
    for path in sorted(IMAGES.glob("explorer*")):
        print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
