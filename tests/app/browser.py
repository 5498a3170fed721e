"""How the tests start Debian's Chromium."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

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
    page = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme).new_page()
    page.errors = []
    page.on("console", lambda said: page.errors.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.set_default_timeout(60_000)
    page.goto(address)
    settled(page)
    return page


def settled(page: Page) -> None:
    """Wait until the page has started and shows the answer to all that was done to it."""
    page.wait_for_function("() => document.documentElement.dataset.ready && !document.querySelector('[aria-busy]')")
