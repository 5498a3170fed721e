"""The page never shows a number without saying how far it can be trusted."""

import re
from dataclasses import replace
from urllib.parse import quote

import pytest
from browser import enter, open_page, sentence, settled, trust

from loopscale.fit import fit, simulate_sweep
from loopscale.fit.data.public import load_micro
from loopscale.laws import PUBLISHED

CONFIG = {"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 16,
          "intermediate_size": 4096, "vocab_size": 32000}  # fmt: skip
LEVELS = ("inside", "near", "far", "beyond", "unknown")


@pytest.fixture(scope="module")
def opened(browser, address):
    return open_page(browser, address)


def visit(page, address: str, link: str) -> None:
    """Open a state by its link, with nothing kept from before."""
    page.goto("about:blank")
    page.goto(f"{address}/#{link}")
    settled(page)


def levels_beside_numbers(page) -> None:
    """A headline comes with a banner; without one, the answer is withheld and none of its numbers is shown."""
    assert trust(page) in LEVELS
    if page.is_visible("#sentence"):
        assert page.inner_text("#trust-title") != ""
        assert re.search(r"loss \d", sentence(page))
    else:
        assert page.is_visible("#show-anyway")
        assert page.is_hidden("#facts")
        assert page.is_hidden("#charts")


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_law_comes_with_a_banner(opened, address, name):
    rule = "" if PUBLISHED[name].rmse is not None else "&rule=loss"
    visit(opened, address, f"law={name}{rule}")
    levels_beside_numbers(opened)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_api_gives_a_level_with_every_answer_or_withholds_it(client, name):
    rule = "paper" if PUBLISHED[name].rmse is not None else "loss"
    asked = {"flops": "5e21", "memory": "3GB", "bits": 4, "law": name, "rule": rule, "config": CONFIG}
    for more in ({}, {"draft": True}, {"extrapolate": True}, {"design": "config"}):
        reply = client.send("/api/plan", asked | more).json
        if "error" in reply:
            assert reply["field"] == "extrapolate"
            continue
        assert reply["trust"]["level"] in LEVELS
        assert reply["trust"]["title"]
        if reply.get("own"):
            assert reply["own"]["trust"]["level"] in LEVELS
            assert (reply["own"]["loss"] is None) <= (reply["own"]["trust"]["level"] == "beyond")


def test_a_draft_says_what_the_whole_answer_says(client):
    asked = {"flops": "5e21", "memory": "3GB", "bits": 4, "charts": ["recurrence", "designs"]}
    whole, draft = client.send("/api/plan", asked).json, client.send("/api/plan", asked | {"draft": True}).json
    for part in ("trust", "memory", "speed", "charts"):
        assert draft[part] == whole[part]
    for part in ("plan", "sentences"):
        assert all(whole[part][name] == value for name, value in draft[part].items())


def own_law(client, law) -> str:
    return client.send("/api/laws", law.to_dict()).json["id"]


def test_the_micro_sweeps_law_is_withheld_at_large_scale_until_one_asks(opened, address, client):
    law = fit(load_micro(), outer="joint-moe", mapping="bounded", resamples=0).law
    visit(opened, address, f"law={own_law(client, law)}")
    assert trust(opened) == "beyond"
    assert opened.is_hidden("#sentence")
    assert "10x beyond the data" in opened.inner_text("#withheld")
    assert "--" not in opened.inner_text("#withheld")
    opened.click("#show-anyway")
    opened.wait_for_selector("#sentence", state="visible")
    settled(opened)
    assert trust(opened) == "beyond"
    assert "beyond" in opened.inner_text("#trust")


def test_a_degenerate_law_is_withheld_and_called_degenerate(opened, address, client):
    law = replace(PUBLISHED["looped-moe-2026"], name="poor", note="degenerate: only two sizes")
    visit(opened, address, f"law={own_law(client, law)}")
    assert opened.is_hidden("#sentence")
    assert "degenerate" in opened.inner_text("#withheld")
    opened.click("#show-anyway")
    opened.wait_for_selector("#sentence", state="visible")
    settled(opened)
    assert "degenerate" in opened.inner_text("#trust")


def test_a_dense_law_has_a_banner_too(opened, address, client):
    dense = fit(simulate_sweep(experts=(1,), recurrences=(1,), tokens=(1e11, 2e11, 3e11, 5e11)), resamples=0)
    visit(opened, address, f"law={own_law(client, dense.law)}&memory=")
    levels_beside_numbers(opened)


def test_absurd_compute_is_withheld(opened, address):
    visit(opened, address, "flops=1e26&memory=")
    assert trust(opened) == "beyond"
    assert opened.is_hidden("#sentence")


def test_equal_whole_numbers_are_drawn_at_the_same_height(opened, address):
    visit(opened, address, "law=looped-moe-2026&flops=1e21")
    heights = opened.evaluate(
        """() => [...document.querySelectorAll('#chart-best-recurrence .lines path')].flatMap((path) =>
        [...path.getAttribute('d').matchAll(/[,V](-?[0-9.]+)/g)].map((found) => Number(found[1])))"""
    )
    ticks = opened.evaluate(
        """() => [...document.querySelectorAll('#chart-best-recurrence .axes text[text-anchor=end]')]
        .filter((text) => /^[0-9]+$/.test(text.textContent)).map((text) =>
        [Number(text.textContent), Number(text.getAttribute('y')) - 4])"""
    )
    (low, bottom), (high, top) = ticks[0], ticks[-1]
    passes = [low + (bottom - height) * (high - low) / (bottom - top) for height in heights]
    assert max(abs(value - round(value)) for value in passes) < 0.01


def test_a_star_says_what_it_marks(opened, address):
    visit(opened, address, "")
    assert "★ last pass that gains at least ε" in opened.inner_text("#chart-isoflop .hint")
    opened.click("#iso-axis [data-value=size]")
    settled(opened)
    assert "★ lowest loss of its line" in opened.inner_text("#chart-isoflop .hint")


def test_the_fitted_range_is_shaded_in_every_chart_that_leaves_it(opened, address):
    visit(opened, address, "")
    for chart in ("isoflop", "best-recurrence", "best-experts"):
        assert opened.locator(f"#chart-{chart} .shade rect").count() > 0
        assert "haded" in opened.inner_text(f"#chart-{chart} .hint")


def test_a_choice_at_the_edge_of_the_search_is_marked(opened, address):
    visit(opened, address, "rungs=0.3B,0.6B&memory=")
    assert opened.is_visible("#edge")
    assert "size 0.6B is the largest that you allowed" in opened.inner_text("#edge")
    enter(opened, "memory", "200MB")
    assert "largest that you allowed" not in opened.inner_text("#edge")


def test_losses_of_different_laws_are_never_subtracted(opened, address):
    pins = '[{"name":"other law","query":"law=iso-depth-2026&extrapolate=1"}]'
    visit(opened, address, f"view=compare&pins={quote(pins)}")
    assert opened.is_visible("#compare-note")
    row = opened.locator("#compare-table tr", has_text="predicted loss")
    assert "not comparable" in row.inner_text()
    assert not re.search(r"[+−]\d\.\d{4}", row.inner_text())


def test_tooltips_and_exports_carry_the_trust(opened, address, tmp_path):
    visit(opened, address, "")
    opened.focus("#chart-pareto .plot")
    opened.keyboard.press("ArrowRight")
    assert "outside the range the law was fitted on: tokens" in opened.inner_text("#chart-pareto .tip")
    for kind, says in (("SVG", "Trust in the choice: near"), ("CSV", "extrapolated")):
        with opened.expect_download() as waiting:
            opened.click(f"#chart-pareto .downloads button >> text={kind}")
        waiting.value.save_as(tmp_path / kind)
        assert says in " ".join((tmp_path / kind).read_text().replace("</text>", " ").split())


def test_unspent_compute_is_said(opened, address):
    visit(opened, address, "tokens=100B")
    assert "unspent" in opened.inner_text("#limits-note")
