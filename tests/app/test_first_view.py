"""The page's file holds the first view: it is seen before the script has come, and nothing jumps when it does."""

import base64
import io
import json
import re

import numpy as np
import pytest
from browser import first_view, mapped, open_in
from PIL import Image

from loopscale.app.page import STATIC, export_page

IMAGE = re.compile(r'(?<=base64,)[^"]+')


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The page as `loopscale app --export` writes it."""
    folder = tmp_path_factory.mktemp("page")
    export_page(folder)
    return f"file://{folder}/index.html"


def pixels(text: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB"), dtype=float)


def test_the_file_holds_what_the_script_draws(browser, address):
    """If it does not, `python docs/explorer_pictures.py` takes it anew."""
    drawn, kept = first_view(browser, address), json.loads((STATIC / "first_view.json").read_text())
    maps = [IMAGE.findall(parts["map-plot"]) for parts in (drawn, kept)]
    assert len(maps[0]) == len(maps[1]) == 2
    for now, before in zip(*maps, strict=True):  # which have fewer colours there
        assert np.abs(pixels(now) - pixels(before)).mean() < 3
    for parts in (drawn, kept):
        parts["map-plot"] = IMAGE.sub("", parts["map-plot"])
    assert drawn == kept


def test_the_answer_and_the_map_are_seen_before_the_script_has_come(browser, address):
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    context.route("**/page.js", lambda route: route.abort())
    page = context.new_page()
    page.goto(address)
    assert "loop it twice" in page.inner_text("#sentence")
    assert "1.976" in page.inner_text("#loss")
    assert page.is_visible("#map-plot img.light")
    assert page.is_hidden("#map-plot img.dark")
    assert page.evaluate("() => document.body.inert")  # nothing can be pressed that would do nothing
    context.close()


def test_a_link_elsewhere_shows_nothing_of_the_first_view(browser, address):
    context = browser.new_context()
    context.route("**/page.js", lambda route: route.abort())
    page = context.new_page()
    page.goto(f"{address}#flops=1e22")
    assert page.is_hidden("#sentence")
    context.close()


JUMPS = """window.jumps = [];
new PerformanceObserver((list) => {
    for (const entry of list.getEntries())
        jumps.push([entry.value, ...entry.sources.map(({ node }) => node?.id || node?.className || node?.nodeName)]);
}).observe({ type: "layout-shift", buffered: true });"""


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (1024, 768), (768, 1024), (390, 844)])
@pytest.mark.parametrize("link", ["", "flops=1e22", "flops=1e25", "flops=5x"])
def test_nothing_jumps_while_the_page_is_drawn(browser, address, width, height, link):
    context = browser.new_context(viewport={"width": width, "height": height})
    context.add_init_script(JUMPS)
    page = open_in(context, f"{address}#{link}")
    mapped(page)
    jumps = page.evaluate("() => jumps")
    assert sum(jump[0] for jump in jumps) < 0.02, jumps  # browsers call 0.1 a good page
    assert page.errors == []
    context.close()


def test_the_recording_of_the_manual_keeps_the_colours_of_the_page():
    docs = STATIC.parents[3] / "docs"
    frame = np.asarray(Image.open(docs / "images" / "explorer.gif").convert("RGB"), dtype=float)
    style = (STATIC / "style.css").read_text()
    for name in ("r6", "r3", "mine", "near"):  # weights, embeddings, your model, trust
        colour = np.array([*bytes.fromhex(re.search(rf"--{name}: #(\w+)", style)[1])])
        assert (np.abs(frame - colour).max(axis=2) <= 24).sum() > 10, name
