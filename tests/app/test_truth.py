"""The page never shows a number without saying how far it can be trusted."""

import csv
import json
import re
from dataclasses import replace
from urllib.parse import quote

import pytest
from browser import enter, open_page, sentence, settled, trust

from loopscale.fitting import fit, simulate_sweep
from loopscale.fitting.data.public import load_micro
from loopscale.planning.text import TRUST_TEXT
from loopscale.scaling import PUBLISHED

CONFIG = {"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 16,
          "intermediate_size": 4096, "vocab_size": 32000}  # fmt: skip
ANYWAY = {"extrapolate": True, "allow_degenerate": True}
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


CHARTS = ["recurrence", "size", "experts", "best-recurrence", "best-experts", "compute", "designs"]
DENSE = "flops=1e21&memory=&iso=size"  # less than 10x beyond the dense sweep below
OWN = ("micro", "micro-2", "on-a-bound", "dense")


def fitted(name: str):
    """A law of a sweep that ships, of one that leaves a coefficient on its bound, or of a dense one."""
    if name.startswith("micro"):
        return fit(load_micro(name), resamples=20).law
    dense = simulate_sweep(experts=(1,), recurrences=(1,), tokens=(1e11, 2e11, 3e11, 5e11))
    sweep = dense if name == "dense" else replace(dense, loss=dense.loss - 1.5)  # all of the irreducible loss, and more
    return fit(sweep, resamples=20).law


def own_law(client, law) -> str:
    return client.send("/api/laws", law.to_dict()).json["id"]


@pytest.fixture(scope="module")
def own(client) -> dict[str, str]:
    """The ids of the laws that were fitted here."""
    return {name: own_law(client, fitted(name)) for name in OWN}


def losses_have_levels(reply) -> None:
    """Every loss of a plan's reply comes with its level of trust."""
    plan, trusted = reply["plan"], reply["trust"]
    assert trusted["level"] in LEVELS
    assert trusted["title"]
    for row in (
        plan["choice"],
        *plan["rivals"],
        *plan["candidates"],
        *plan["sensitivities"],
        *plan["pareto"]["memory"],
        *plan["pareto"]["inference"],
    ):
        assert row["trust"] in LEVELS
    assert all("trust: " in row["text"] for row in reply["limits"] if row["binding"])
    assert plan["next_best"] is None or plan["next_best"]["trust"] in LEVELS
    assert set(reply["charts"]) == set(CHARTS)
    for chart in reply["charts"].values():
        known = [level for loss, level in zip(chart["loss"], chart["trust"], strict=True) if loss is not None]
        assert set(known) <= set(LEVELS)


@pytest.mark.parametrize("name", [*PUBLISHED, *OWN])
def test_every_answer_of_the_api_has_levels_or_is_withheld(client, own, name):
    law = own.get(name, name)
    rule = "paper" if name in own or PUBLISHED[name].rmse is not None else "loss"
    asked = {"flops": "5e21", "memory": "3GB", "bits": 4, "law": law, "rule": rule, "config": CONFIG}
    first = client.send("/api/plan", asked).json
    if "error" in first:
        assert set(first["overrides"]) <= {"extrapolate", "allow_degenerate"}
        assert first["overrides"]
    else:
        assert first["trust"]["level"] in ("inside", "near", "far")
        assert (first["own"]["loss"] is None) <= (first["own"]["trust"] == "beyond")
    reply = client.send("/api/plan", asked | ANYWAY | {"charts": CHARTS}).json
    losses_have_levels(reply)
    assert reply["own"]["trust"] in LEVELS
    model = {"rung": "1.0B", "tokens": "200B", "extrapolate": True, "allow_degenerate": True, "law": law}
    assert client.send("/api/predict", model).json["trust"]["level"] in LEVELS


def test_downloads_of_a_poor_plan_say_how_poor_it_is(client, own):
    asked = {"flops": "5e21", "memory": "3GB", "bits": 4, "law": own["on-a-bound"], **ANYWAY}
    level = client.send("/api/plan", asked).json["trust"]["level"]
    table = client.send("/api/plan.csv", asked).body.decode()
    assert {row["trust"] for row in csv.DictReader(table.splitlines())} <= {"far", "beyond"}
    report = client.send("/api/plan.html", asked).body.decode()
    assert TRUST_TEXT[level] in report
    assert "degenerate" in report


def test_a_draft_says_what_the_whole_answer_says(client):
    asked = {"flops": "5e21", "memory": "3GB", "bits": 4, "charts": ["recurrence", "designs"]}
    whole, draft = client.send("/api/plan", asked).json, client.send("/api/plan", asked | {"draft": True}).json
    for part in ("trust", "memory", "charts"):
        assert draft[part] == whole[part]
    for part in ("plan", "sentences"):
        assert all(whole[part][name] == value for name, value in draft[part].items())


def panels_have_levels(page) -> None:
    """Banner, table, charts and exports of the Plan view carry a level; so do all scenarios of the Compare view."""
    levels_beside_numbers(page)
    rows = page.locator("#table tbody tr")
    assert rows.count() == page.locator("#table tbody tr [data-level]").count() > 0
    for chart in ("isoflop", "pareto", "best-recurrence", "best-experts"):
        page.focus(f"#chart-{chart} .plot")
        page.keyboard.press("ArrowRight")
        assert re.search(rf"trust: ({'|'.join(LEVELS)})", page.inner_text(f"#chart-{chart} .tip"))
    page.click("#views button[data-view=compare]")
    settled(page)
    scenarios = page.locator("#sides li").count()
    assert scenarios == page.locator("#sides li [data-level]").count() > 0
    assert page.locator("#compare-table tr", has_text="trust").locator("[data-side]").count() == scenarios


def plan_with(page, address, folder, name, link="") -> None:
    """Open a state by its link, then the file of a law, as people do."""
    visit(page, address, link)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(fitted(name).to_dict()))
    page.set_input_files("#law-file", path)
    page.wait_for_function("() => location.hash.includes('law=own-')")
    settled(page)


def test_the_micro_sweeps_law_is_withheld_at_large_scale_until_one_asks(opened, address, tmp_path):
    plan_with(opened, address, tmp_path, "micro")
    assert trust(opened) == "beyond"
    assert opened.is_hidden("#sentence")
    assert "10x beyond the data" in opened.inner_text("#withheld")
    assert "--" not in opened.inner_text("#withheld")
    opened.click("#show-anyway")
    opened.wait_for_selector("#sentence", state="visible")
    settled(opened)
    assert trust(opened) == "beyond"
    assert "beyond" in opened.inner_text("#trust")
    panels_have_levels(opened)


@pytest.mark.parametrize("name", ["micro-2", "on-a-bound"])
def test_a_degenerate_law_is_withheld_and_called_degenerate(opened, address, tmp_path, name):
    plan_with(opened, address, tmp_path, name, "memory=")
    assert opened.is_hidden("#sentence")
    said = opened.inner_text("#withheld")
    assert "is degenerate: " in said
    assert "c ended on" in said
    opened.click("#show-anyway")
    opened.wait_for_selector("#sentence", state="visible")
    settled(opened)
    assert trust(opened) in ("far", "beyond")
    assert "degenerate" in opened.inner_text("#trust")
    panels_have_levels(opened)


def test_a_dense_law_has_a_banner_too(opened, address, tmp_path):
    plan_with(opened, address, tmp_path, "dense", DENSE)
    assert opened.is_visible("#sentence")
    panels_have_levels(opened)


def test_the_pareto_line_has_the_band_of_the_plan(client, own):
    asked = {"flops": "5e21", "bits": 4, "charts": ["designs"], **ANYWAY}
    for law, kind in (("looped-moe-2026", "law"), (own["micro"], "predictive")):
        reply = client.send("/api/plan", asked | {"law": law}).json
        drawn = reply["charts"]["designs"]
        assert set(drawn["interval"]) == {kind}
        for cost, rows in reply["plan"]["pareto"].items():
            ends = zip(drawn["loss_low"], drawn["loss_high"], strict=True)
            on_line = [pair for pair, flag in zip(ends, drawn[f"on_{cost}_front"], strict=True) if flag]
            assert sorted(on_line) == sorted((row["loss_low"], row["loss_high"]) for row in rows)


@pytest.mark.parametrize(("law", "says"), [("looped-moe-2026", "of the curve"), ("dense", "for one new run")])
def test_bands_are_drawn_and_named_for_what_they_are(opened, address, tmp_path, law, says):
    plan_with(opened, address, tmp_path, law, DENSE) if law in OWN else visit(opened, address, "")
    for chart in ("isoflop", "pareto"):
        assert opened.locator(f"#chart-{chart} .bands path").count() == 1
        assert f"Bands: 90%, {says}" in opened.inner_text(f"#chart-{chart} .hint")
    opened.focus("#chart-pareto .plot")
    opened.keyboard.press("ArrowRight")
    assert f"90% {says}: " in opened.inner_text("#chart-pareto .tip")
    assert f"90% {says}: " in opened.inner_text("#facts [data-name='Predicted loss']")
    opened.click("#views button[data-view=compare]")
    settled(opened)
    assert f"90% {says}: " in opened.inner_text("#compare-table")


def test_a_law_without_resamples_draws_no_band_and_says_why(opened, address):
    visit(opened, address, "law=kaplan-2020&memory=&rule=loss&extrapolate=1")
    outside = """() => [...document.querySelectorAll('#chart-pareto svg text')].filter((text) =>
        text.getBoundingClientRect().right > text.closest('svg').getBoundingClientRect().right + 1).length"""
    assert opened.evaluate(outside) == 0
    assert opened.locator("#chart-pareto .bands path").count() == 0
    assert "Bands: none" in opened.inner_text("#chart-pareto .hint")
    assert "not published" in opened.inner_text("#chart-pareto .hint")


def test_absurd_compute_is_withheld(opened, address):
    visit(opened, address, "flops=1e26&memory=")
    assert trust(opened) == "beyond"
    assert opened.is_hidden("#sentence")
    highest = "() => { const s = document.querySelector('#in-flops-slider'); return Number(s.value) / Number(s.max); }"
    opened.wait_for_function(f"() => ({highest})() > 0.9")  # the slider stands where the link says


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
    visit(opened, address, "max_tokens=100B")
    assert "unspent" in opened.inner_text("#limits-note")
