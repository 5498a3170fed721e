"""How the tests drive Debian's Chromium."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# A refused plan is an ordinary answer, which browsers log all the same.
EXPECTED = "the server responded with a status of 4"


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless browser."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert path is not None, "the explorer's tests need Chromium: apt-get install chromium"
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


def open_page(browser: Browser, address: str, *, width: int = 1300, height: int = 900, scheme: str = "light") -> Page:
    """The explorer in a fresh profile, drawn; what goes wrong in it is kept in ``page.errors``."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    return open_in(context, address)


def open_in(context: Any, address: str) -> Page:
    """The explorer in another tab of the same profile."""
    page = context.new_page()
    page.errors = []
    page.on("console", lambda line: _note(page, line.text) if line.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.set_default_timeout(180_000)  # a loaded machine may be slow
    page.goto(address)
    settled(page)
    return page


def _note(page: Any, text: str) -> None:
    if EXPECTED not in text:
        page.errors.append(text)


def settled(page: Page) -> None:
    """Wait until the page has started and shows the answer to everything that was done to it."""
    page.wait_for_function(
        "() => document.documentElement.dataset.ready && !document.documentElement.dataset.busy"
        " && !document.querySelector('[aria-busy]')"
    )


def mapped(page: Page) -> None:
    """Wait until the map is drawn."""
    settled(page)
    page.wait_for_function("() => document.querySelector('#map-plot').dataset.drawn")


def sentence(page: Page) -> str:
    """The question and its answer."""
    return " ".join(page.inner_text("#sentence").split())


def facts(page: Page, place: str = "#loss-line") -> str:
    """The answer in numbers, each with its name."""
    return " ".join(page.inner_text(place).split())


def trust(page: Page) -> str:
    """The level of trust that stands under the answer."""
    return page.get_attribute("#trust-line", "data-level")


def visit(page: Page, link: str) -> None:
    """Open a state by its link, with nothing kept from before."""
    address = page.url.partition("#")[0]
    page.goto("about:blank")
    page.goto(f"{address}#{link}")
    settled(page)


CHIPS = {"flops": "#chip-compute", "memory": "#chip-place", "context": "#chip-place", "bits": "#chip-bits"}


def enter(page: Page, name: str, value: str) -> None:
    """Write a budget and press Enter."""
    if not page.is_visible(f"#in-{name}"):
        page.click(CHIPS.get(name, "#more-limits"))
        for fold in page.query_selector_all(".popover details:not([open]) > summary"):
            fold.click()
    page.fill(f"#in-{name}", value)
    page.press(f"#in-{name}", "Enter")
    settled(page)


FIRST = (
    "share",
    "sentence",
    "loss-line",
    "trust-line",
    "stories",
    "model-price",
    "drawing",
    "model-note",
    "steppers",
    "memory",
)
FIRST_MAP = ("map-readout", "map-legend")
# Which experts a picture lights is left to chance.
CHANCE = "let drawn = 1; Math.random = () => (drawn = (drawn * 16807) % 2147483647) / 2147483647;"


def first_view(browser: Browser, address: str) -> dict[str, str]:
    """What the page draws for the first view, by element, as the page's own file holds it."""
    context = browser.new_context(
        viewport={"width": 1440, "height": 900}, color_scheme="light", reduced_motion="reduce"
    )
    context.add_init_script(CHANCE)
    page = open_in(context, address)
    mapped(page)
    parts = {name: page.inner_html(f"#{name}") for name in (*FIRST, *FIRST_MAP)}
    place = page.get_attribute("#map-plot canvas", "style")
    images = ""
    for theme in ("light", "dark"):
        url = page.evaluate("() => document.querySelector('#map-plot canvas').toDataURL()")
        images += f'<img class="{theme}" alt="" style="{place}" src="{url}">'
        page.click("#theme")
    page.evaluate("() => document.querySelector('#map-dot').removeAttribute('id')")
    drawn = page.evaluate(
        "() => ['svg', '.dot-handle'].map((part) => document.querySelector(`#map-plot ${part}`).outerHTML)"
    )
    parts["map-plot"] = f'<div class="first">{images}{"".join(drawn)}</div>'
    context.close()
    return parts


def small_targets(page: Page) -> list[str]:
    """What can be pressed in the view at hand and is smaller than 24 pixels; words within a text may be."""
    return page.evaluate(
        """() => [...document.querySelectorAll('main:not([hidden]), header')]
        .flatMap((part) => [...part.querySelectorAll('button, input, select, summary, a')])
        .filter((e) => e.offsetParent && !e.closest('#sentence') && !e.matches('p .term, p a, label input'))
        .map((e) => [e.id || e.className || e.textContent, e.getBoundingClientRect()])
        .filter(([, b]) => b.width < 23.5 || b.height < 23.5).map(([name, b]) => `${name} ${b.width}x${b.height}`)"""
    )


def small_letters(page: Page) -> list[str]:
    """Texts of the first drawings that are seen below 9.5 pixels, as drawings that are scaled down have them."""
    return page.evaluate(
        """() => [...document.querySelectorAll('#drawing text, #map-plot text')].map((e) => {
            const svg = e.ownerSVGElement, scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
            return [e.textContent, parseFloat(getComputedStyle(e).fontSize) * scale];
        }).filter(([, size]) => size < 9.5).map(([text, size]) => `${text} ${size}`)"""
    )


def reached(page: Page, presses: int = 60) -> set[str]:
    """What the Tab key reaches, forwards and back; none of it may lie under the header or outside of the window."""
    page.evaluate("() => { document.activeElement.blur(); scrollTo(0, 0); }")
    names = set()
    for key in ["Tab"] * presses + ["Shift+Tab"] * presses:
        page.keyboard.press(key)
        name, part, y, top = page.evaluate(
            """() => { const e = document.activeElement, b = e.getBoundingClientRect();
            return [e.id || e.className || e.textContent, e.closest('header, main, body').localName,
                    b.top, document.querySelector('header.top').getBoundingClientRect().bottom]; }"""
        )
        if part == "body":
            continue
        names.add(name)
        assert part == "header" or top - 2 <= y < page.viewport_size["height"], (name, y, top)
    return names


def findings(page: Page) -> list[str]:
    """What axe-core finds above minor."""
    import axe_playwright_python

    page.evaluate((Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text())
    found = page.evaluate("() => axe.run()")["violations"]
    return [f"{rule['id']}: {node['target']}" for rule in found if rule["impact"] != "minor" for node in rule["nodes"]]
