"""The documentation builds without a warning, and none of its links is dead."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[1]
pytest.importorskip("mkdocs")


class Links(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.links += [given[name] for name in ("href", "src") if given.get(name)]
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # the theme's own news
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=quiet)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr  # not with --quiet, under which mkdocs does not count warnings
    return folder


def read(page: Path) -> Links:
    links = Links()
    links.feed(page.read_text(encoding="utf-8"))
    return links


def test_no_link_of_the_site_is_dead(site):
    pages = {page: read(page) for page in site.rglob("*.html") if page.name != "404.html"}
    assert len(pages) > 20
    dead = []
    for page, found in pages.items():
        for link in found.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            anchors = pages[target].anchors if target in pages else set()
            anchor = "" if "=" in parts.fragment else unquote(parts.fragment)  # "flops=5e21" is a view of the explorer
            if not target.exists() or (anchor and target in pages and anchor not in anchors):
                dead.append((str(page.relative_to(site)), link))
    assert not dead


PICTURES = {"index.html": 1, "tutorial.html": 2, "laws.html": 10, "figures.html": 4}
"""The least number of pictures that pages show."""
FIRST = ("index.html", "install.html", "tutorial.html", "planning.html", "fitting.html", "laws.html", "figures.html")


def test_in_a_browser_pages_are_dark_on_request_show_their_pictures_and_are_all_in_the_navigation(site):
    sys.path.insert(0, str(ROOT / "tests" / "app"))
    from browser import chromium

    ground = "() => getComputedStyle(document.body).backgroundColor"
    broken = "() => [...document.images].filter((image) => !image.naturalWidth).map((image) => image.src)"
    links = "() => [...document.querySelectorAll('.md-nav--primary a.md-nav__link[href]')].map((link) => link.href)"
    with chromium() as browser:
        grounds = set()
        for scheme in ("light", "dark"):
            page = browser.new_context(color_scheme=scheme).new_page()
            page.goto((site / "index.html").as_uri())
            grounds.add(page.evaluate(ground))
            page.context.close()
        assert len(grounds) == 2
        page = browser.new_page()
        page.goto((site / "index.html").as_uri())
        before = page.evaluate(ground)
        page.evaluate("() => document.querySelector('label[title=\"Dark mode\"]').click()")
        page.wait_for_function("before => getComputedStyle(document.body).backgroundColor !== before", arg=before)
        listed = {Path(unquote(urlsplit(link).path)) for link in page.evaluate(links)}
        missing = {path for path in site.rglob("*.html") if path.name != "404.html"} - listed
        assert {path.relative_to(site) for path in missing} <= {Path("index.html"), Path("explorer/index.html")}
        for name in FIRST:
            page.goto((site / name).as_uri(), wait_until="load")
            assert page.evaluate(broken) == []
            assert page.locator("article img").count() >= PICTURES.get(name, 0)
            assert page.locator("pre code").count() > 0


def test_the_home_page_has_the_explorer_an_install_line_and_a_command(site):
    text = (site / "index.html").read_text(encoding="utf-8")
    assert '<iframe src="explorer/index.html" title="The explorer"' in text
    assert {path.name for path in (site / "explorer").iterdir()} >= {"index.html", "page.js", "style.css", "lab.js"}
    words = " ".join(re.sub(r"<[^>]+>", "", text).split())
    assert "pip install" in words
    assert "loopscale plan --flops" in words


def test_every_page_of_the_path_leads_to_the_next(site):
    path = ["index", "install", "tutorial", "planning", "laws", "fitting", "prediction", "next", "model", "training"]
    path += ["data", "training-at-scale", "sweeps", "evaluate", "serve", "retrofit", "app", "figures", "faq"]
    assert len(path) <= 19  # the home page and the eighteen that a user reads; other questions and research are apart
    for name, following in pairwise(path):
        text = (site / f"{name}.html").read_text(encoding="utf-8")
        assert re.search(rf'<a href="{following}.html" class="md-footer__link md-footer__link--next"', text), name


def test_equations_are_drawn_when_the_site_is_built(site):
    text = (site / "laws.html").read_text(encoding="utf-8")
    assert "$$" not in text
    assert text.count('<svg role="img" aria-label="') >= 3


def test_the_site_fetches_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert "fonts.googleapis" not in text
        assert 'src="http' not in text


def test_the_api_pages_list_what_the_packages_offer(site):
    plan = (site / "api" / "plan.html").read_text(encoding="utf-8")
    assert plan.index('id="loopscale.planning.plan"') < plan.index('id="loopscale.planning.Budget"')
    for name in ("profiles.joint_optimum", "Budget", "profiles.isoflop_over_recurrence"):
        assert f'id="loopscale.planning.{name}"' in plan


def test_generated_tables_are_the_papers(site):
    results = (site / "results.html").read_text(encoding="utf-8")
    for loss in ("2.1008", "1.9757", "1.8875"):
        assert loss in results
    assert "R* = 5, on 3.26T tokens" in (site / "gaps.html").read_text(encoding="utf-8")
