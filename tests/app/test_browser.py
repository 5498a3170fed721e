"""What people do in the explorer's Plan view, done in a real browser; the page comes from a disk, without a server."""

import gzip
import itertools
import json
import re

import pytest
from browser import (
    enter,
    facts,
    findings,
    mapped,
    open_in,
    open_page,
    reached,
    sentence,
    settled,
    small_letters,
    small_targets,
    trust,
    visit,
)  # fmt: skip

from loopscale.app.page import export_page
from loopscale.core.quantities import format_count
from loopscale.planning import plan
from loopscale.planning.cluster import Cluster
from loopscale.planning.design import card_size, experts_text
from loopscale.scaling import PUBLISHED
from loopscale.scaling.published import DEFAULT, with_uncertainty

BEST = plan(flops=5e21, memory=3e9, bits=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The page as `loopscale app --export` writes it."""
    path = tmp_path_factory.mktemp("page")
    export_page(path)
    return path


@pytest.fixture(scope="module")
def opened(browser, folder):
    """The page, opened once."""
    return open_page(browser, f"file://{folder}/index.html", width=1440)


@pytest.fixture
def page(opened):
    """The page in its first state, with nothing kept; at the end, nothing may have gone wrong in it."""
    opened.evaluate("() => localStorage.clear()")
    visit(opened, "")
    opened.errors.clear()
    yield opened
    assert opened.errors == []


def box(page, selector: str) -> dict[str, float]:
    return page.locator(selector).first.bounding_box()


SIZES = [(1440, 900), (1024, 768), (768, 1024), (390, 844)]
"""A desktop, a tablet in both positions, and a phone."""


@pytest.mark.parametrize(("width", "height"), [*SIZES, (820, 1180)])
def test_the_first_screen_has_the_question_the_answer_the_model_and_the_map(browser, folder, width, height):
    page = open_page(browser, f"file://{folder}/index.html", width=width, height=height)
    mapped(page)
    parts = ("#sentence", "#loss-line", "#trust-line", "#stories", "#drawing svg", "#steppers", "#map-plot")
    places = {part: box(page, part) for part in parts}
    for part, place in places.items():
        assert place["y"] >= 0
        assert place["y"] + place["height"] <= 900, part
    for (name, a), (other, b) in itertools.combinations(places.items(), 2):
        apart = a["x"] + a["width"] <= b["x"] or b["x"] + b["width"] <= a["x"]
        assert apart or a["y"] + a["height"] <= b["y"] or b["y"] + b["height"] <= a["y"], (name, other)
    said = sentence(page)
    assert "5e21 FLOPs" in said
    assert "3 GB on a phone" in said
    assert "4 bits" in said
    assert small_targets(page) == []
    assert small_letters(page) == []
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    page.context.close()


def test_the_answer_is_that_of_python_in_one_convention_of_size(page):
    choice = BEST.choice
    assert card_size(choice.active_parameters) in sentence(page)
    assert experts_text(choice.experts_active, choice.experts_total) in sentence(page)
    assert "loop it twice" in sentence(page)
    shown = page.inner_text("#loss")
    assert abs(float(shown) - choice.loss) <= 0.5 * 10.0 ** -len(shown.partition(".")[2]) + 1e-12
    assert f"Training tokens {format_count(choice.tokens)}" in facts(page)
    assert "2.71 GB of 3 GB" in facts(page)
    assert f"{format_count(Cluster().cost(choice).days)} days on 8 H100 at 40%" in facts(page)
    assert trust(page) == BEST.trust.level
    assert card_size(choice.total_parameters) in page.inner_text("#model-note")


def test_a_refused_value_keeps_the_last_answer_with_the_message_at_the_field(page):
    page.wait_for_selector(".whatif:has-text('size in between')")
    before, tall = page.inner_text("#train"), page.evaluate("() => document.body.scrollHeight")
    enter(page, "flops", "5x")
    assert "is not a value" in page.inner_text("#in-flops-note")
    assert page.get_attribute("#in-flops", "aria-invalid") == "true"
    assert "write it like 5e21" in page.inner_text("#message")
    assert page.inner_text("#train") == before
    assert "stale" in page.get_attribute("#plan-view", "class")
    assert page.is_visible("#map-plot canvas")
    assert abs(page.evaluate("() => document.body.scrollHeight") - tall) < 10
    assert "no answer" in page.title()
    enter(page, "flops", "5e21")
    assert page.inner_text("#message") == ""
    assert "stale" not in page.get_attribute("#plan-view", "class")


def test_a_withheld_answer_leaves_the_map_with_a_question_mark_and_no_interval_once_shown(page):
    enter(page, "flops", "1e25")
    page.keyboard.press("Escape")
    mapped(page)
    assert "the law saw up to 500B" in page.inner_text("#message")
    assert page.inner_text("#map-dot") == "?"
    assert "no answer" in page.title()
    assert page.is_visible("#map-plot canvas")
    page.click("#show-anyway")
    settled(page)
    assert trust(page) == "beyond"
    assert page.inner_text("#interval") == ""
    assert re.fullmatch(r"\d\.\d\d", page.inner_text("#loss"))
    page.click("#trust-line .link")
    page.wait_for_selector("#sure dl")
    assert "no interval so far beyond the data" in page.inner_text("#sure")
    assert "refits choose" not in page.inner_text("#sure")


def test_a_link_to_a_refused_budget_shows_what_it_says(page):
    visit(page, "flops=5e21&memory=10MB&bits=4&where=")
    assert "Nothing fits in 10 MB at 4 bits" in page.inner_text("#message")
    assert "10 MB" in sentence(page)
    page.click("#chip-place")
    assert "tokens/s" in facts(page)  # the greyed answer is that of the first view, with its device
    assert page.input_value("#in-memory") == "10MB"
    assert page.get_attribute("#in-memory", "aria-invalid") == "true"
    slider = page.locator(".popover input[type=range]").first
    assert slider.input_value() == "0"  # its low end, as the text says
    enter(page, "memory", "3 GB")
    assert 300 < float(slider.input_value()) < 450


def test_the_place_that_was_chosen_is_shown_and_speed_is_that_of_a_model_that_fits(page):
    page.click("#chip-place")
    page.click("[data-place=laptop-16gb]")
    settled(page)
    assert "10 GB on a laptop" in sentence(page)
    assert "tokens/s on a laptop" in facts(page)
    enter(page, "memory", "6 GB")
    assert "on a laptop" not in sentence(page)
    for link in ("where=&bandwidth=&memory=20+GB&bits=8", "serve_tokens=1T&bits=8&memory=20+GB"):
        visit(page, link)  # nobody chose a device there
        assert "tokens/s" not in facts(page)


def test_compute_comes_from_gpus_and_days(page):
    page.click("#chip-compute")
    page.click(".popover details summary")
    assert "H100" in page.inner_text("#in-device")  # as the sentence writes it
    page.fill("#in-gpus", "8")
    page.fill("#in-days", "14")
    page.click("text=Use these devices")
    settled(page)
    assert "8 H100 for 14 days" in sentence(page)
    assert "14 days on 8 H100 at 40%" in facts(page)
    assert "--gpus 8 --device h100 --days 14" in command(page)


def test_enter_in_the_fields_of_the_devices_is_enough(page):
    page.click("#chip-compute")
    page.click(".popover details summary")
    for name, value in (("gpus", "16"), ("days", "7")):
        page.fill(f"#in-{name}", value)
        page.press(f"#in-{name}", "Enter")
        settled(page)
    assert "16 H100 for 7 days" in sentence(page)
    assert "7 days on 16 H100 at 40%" in facts(page)


def test_gpus_without_days_are_taken_for_the_days_that_the_field_shows(page):
    page.click("#chip-compute")
    page.click(".popover details summary")
    days = page.get_attribute("#in-days", "placeholder")
    page.fill("#in-gpus", "16")
    page.press("#in-gpus", "Enter")
    settled(page)
    assert f"16 H100 for {days} days" in sentence(page)
    assert page.inner_text("#message") == ""
    page.fill("#in-gpus", "")
    page.press("#in-gpus", "Enter")
    settled(page)
    assert "5e21 FLOPs" in page.inner_text("#chip-compute")
    visit(page, "gpus=8")
    assert f"8 H100 for {days} days" in sentence(page)


def test_the_origin_of_the_intervals_is_stated_once(page):
    origin = with_uncertainty(DEFAULT).resampled_by
    assert "simulated copy" in origin
    mapped(page)
    page.click("#trust-line .link")
    page.wait_for_selector("#sure dl")
    page.evaluate("() => document.querySelectorAll('details').forEach((fold) => (fold.open = true))")
    settled(page)
    assert page.inner_text("body").count(origin) == 1
    assert "refits" not in page.inner_text("#loss-line")


@pytest.mark.parametrize(
    ("link", "says"),
    [
        ("cache=1MB&where=&bandwidth=", "“On-chip cache” changes nothing alone"),
        ("gpus=-1&days=14", "GPUs should be a whole number above zero"),
        ("gpus=8&days=14&utilisation=140%25", "utilisation should be above 0 and at most 1".capitalize()),
        ("law=own-nowhere", "This browser does not have the law nowhere"),
        ("design=9.9B:8:2", "is no design"),
        ("passes=99", "Passes should be 1 to 32"),
        ("law=chinchilla-epoch-2024&flops=1e21&where=&experts=8", "has no term for experts"),
        ("law=chinchilla-epoch-2024&flops=1e21&where=&passes=4", "has no term for passes"),
    ],
)
def test_what_is_wrong_is_said_in_the_words_of_the_page(page, link, says):
    visit(page, link)
    assert says in page.inner_text("#message")
    assert "`" not in page.inner_text("body")
    assert page.is_visible("#drawing svg")


def command(page) -> str:
    page.keyboard.press("Escape")
    if page.get_attribute("#texts", "open") is None:
        page.click("#texts summary")
    return page.inner_text("#texts pre >> nth=0")


def test_the_command_and_the_python_are_those_of_the_scenario(page):
    visit(page, "flops=3e21&memory=2GB&bits=8&where=&bandwidth=&context=8192")
    assert command(page) == ("loopscale plan --flops 3e21 --memory 2GB --bits 8 --context 8192 --law looped-moe-2026")
    python = page.inner_text("#texts pre >> nth=1")
    assert "flops=3e21," in python
    visit(page, "")
    assert "--for phone" in command(page)


@pytest.mark.parametrize("width", [1440, 1280, 1200, 1100, 1000, 900, 820, 390])
def test_the_steppers_stand_side_by_side_at_any_width(browser, folder, width):
    page = open_page(browser, f"file://{folder}/index.html#memory=280MB&where=", width=width)
    places = [box(page, f"#step-{name}") for name in ("size", "experts", "passes")]
    assert len({place["y"] for place in places}) == 1
    for left, right in itertools.pairwise(places):
        assert left["x"] + left["width"] <= right["x"]
    assert places[-1]["x"] + places[-1]["width"] <= box(page, "#model")["x"] + box(page, "#model")["width"]
    page.context.close()


def test_steps_by_hand_say_their_price_and_what_does_not_fit(page):
    assert "too big" in page.inner_text("#step-size .up")
    page.click("#step-passes .up")
    settled(page)
    assert "loop it 3 times" in sentence(page)
    assert "nats against the best" in page.inner_text("#model-price")
    page.click("#step-size .up")
    settled(page)
    assert "does not fit: needs" in page.inner_text("#model-price")
    page.click("#back-to-best")
    settled(page)
    assert "loop it twice" in sentence(page)


def test_what_if_names_the_answer_between_the_sizes_and_goes_there(page):
    page.wait_for_selector(".whatif:has-text('size in between')")
    text = page.inner_text(".whatif:has-text('size in between')")
    between = plan(flops=5e21, memory=3e9, bits=4, space=_continuous())
    assert f"−{BEST.choice.loss - between.choice.loss:.3f}" in text
    page.click(".whatif:has-text('Twice the memory')")
    settled(page)
    assert "6 GB" in sentence(page)


def test_what_if_compares_with_the_best_where_a_design_by_hand_does_not_fit(page):
    gain = ".whatif:has-text('Twice the memory') b"
    page.wait_for_selector(gain)
    before = page.inner_text(gain)
    visit(page, "design=2.4B:16:4")
    page.wait_for_selector(gain)
    assert page.inner_text(gain) == before


def _continuous():
    from loopscale.architecture import continuous_space

    return continuous_space(free=["size", "experts", "recurrence"])


def test_one_mark_of_one_colour_is_the_model_at_hand_everywhere(page):
    mapped(page)
    stroke = "all => all.map((mark) => getComputedStyle(mark).stroke)"
    marks = set(page.eval_on_selector_all("#multiples .mine, #drawing .arcs path", stroke))
    dot = page.eval_on_selector("#map-dot", "dot => getComputedStyle(dot).borderTopColor")
    assert marks == {dot}
    assert "★" not in page.inner_text("#plan-view")


def test_designs_that_miss_a_limit_are_faded_and_say_which(page):
    assert page.locator("#over-experts .point.faded").count() > 0
    assert "dashed: needs" in page.text_content("#over-experts .miss")
    assert page.locator("#multiples .mine").count() == 4


TEXTS = """svgs => svgs.flatMap((svg) => {
    const boxes = [...svg.querySelectorAll('text')].map((text) => [text.textContent, text.getBoundingClientRect()]);
    return boxes.flatMap(([one, a], k) => boxes.slice(k + 1)
        .filter(([, b]) => a.left < b.right && b.left < a.right && a.top + 2 < b.bottom - 2 && b.top + 2 < a.bottom - 2)
        .map(([other]) => `${one} | ${other}`));
})"""
"""Texts of a drawing that lie on one another."""


@pytest.mark.parametrize("link", ["", "design=2.4B:16:4", "flops=5e21&memory=3GB&where=&context=8192&tokens=300B"])
def test_no_text_of_a_small_chart_lies_on_another_or_on_the_curve(page, link):
    visit(page, link)
    assert page.eval_on_selector_all("#multiples figure:not([hidden]) svg", TEXTS) == []
    for miss in page.locator("#multiples .miss").all():
        clip = miss.locator("xpath=..").locator("clipPath rect")
        assert float(miss.get_attribute("y")) < float(clip.get_attribute("y"))  # curves are cut off below it


def test_names_on_the_map_give_way_to_the_dot_and_to_pins(page):
    visit(page, "where=&bandwidth=&memory=20+GB&bits=8")
    mapped(page)
    page.click("#share-button")
    page.click("#pin")
    settled(page)
    covered = """() => { const dot = document.querySelector('#map-dot').getBoundingClientRect();
        return [...document.querySelectorAll('#map-plot .labels text')].filter((text) => {
            const a = text.getBoundingClientRect();
            return a.left < dot.right && dot.left < a.right && a.top + 3 < dot.bottom && dot.top < a.bottom - 3;
        }).map((text) => getComputedStyle(text).visibility); }"""
    assert "visible" not in page.evaluate(covered)
    assert page.locator("#map-plot .labels text:not(.covered)").count() > 5
    enter(page, "memory", "2 GB")  # where they were covered, they are seen again
    page.keyboard.press("Escape")
    mapped(page)
    assert page.locator("#map-plot .labels text.covered").count() <= 2


def test_the_legend_of_the_map_explains_what_is_blank(page):
    mapped(page)
    assert "no model" not in page.inner_text("#map-legend")
    visit(page, "flops=5e21&tokens=300B")
    mapped(page)
    assert "no model" in page.inner_text("#map-legend")


def test_sizes_beyond_the_data_say_in_which_convention(page):
    visit(page, "design=2.4B:16:4")
    assert "2.4B model" in sentence(page)
    assert "active parameters without embeddings, the law saw up to 755M" in page.inner_text("#trust-line")


def test_charts_are_read_above_the_plot_and_a_click_takes_the_design(page):
    plot = page.locator("#over-passes svg")
    place = plot.bounding_box()
    plot.hover(position={"x": place["width"] * 0.9, "y": 60})
    assert "loss" in page.inner_text("#over-passes .readout")
    plot.click(position={"x": place["width"] * 0.9, "y": 60})
    settled(page)
    assert "design=" in page.url


def test_a_message_moves_nothing_below_it(page):
    mapped(page)
    before = box(page, "#map-plot")
    for link in ("flops=5x", "flops=1e25"):
        visit(page, link)
        assert page.inner_text("#message").strip()
        assert box(page, "#map-plot") == before, link


def test_memory_beyond_the_limit_is_marked_where_it_is_stated(page):
    assert "over" not in page.get_attribute("#stat-memory", "class")
    visit(page, "design=2.4B:16:4")
    assert "over" in page.get_attribute("#stat-memory", "class")


def test_a_law_without_recurrence_has_no_chart_of_passes(page):
    visit(page, "law=chinchilla-epoch-2024&flops=1e21&memory=&where=&bandwidth=")
    mapped(page)
    assert "loop" not in sentence(page)  # it says nothing about passes
    assert page.locator("#steppers :is(.down, .up):visible").count() == 0  # sizes are free, the rest is fixed
    assert page.locator("#map-plot .labels text").count() == 0
    assert "2 layers" not in page.inner_text("#drawing")  # it knows no layers either
    assert "2/16" not in page.inner_text("#map-legend")
    assert page.is_hidden("#over-passes")
    assert page.is_hidden("#over-experts")
    assert page.is_visible("#over-size")
    assert page.locator("#over-size .mine").count() == 1
    size = re.search(r"a (\S+) dense model", sentence(page))[1]
    assert page.inner_text("#step-size output") == size  # one size is written one way
    assert f"{size} now" in page.inner_text("#over-size .readout")
    assert size in page.inner_text("#map-readout")
    page.wait_for_selector(".whatif")
    assert "bits instead" not in page.inner_text("#whatifs")  # without a limit they change nothing
    page.click("#trust-line .link")
    page.wait_for_selector("#sure dl")
    assert re.search(r"Any size from \S+ to \S+ is a tie", page.inner_text("#sure"))
    assert "0.0000 nats" not in page.inner_text("#sure")
    assert "refits choose" not in page.inner_text("#sure")  # of neighbouring sizes, which are one design


def test_between_the_rungs_sizes_are_named_by_their_parameters(page):
    visit(page, "continuous=1")
    assert not re.search(r"\bd\d{3,}", page.inner_text("#plan-view"))
    assert page.locator("#over-size .mine").count() == 1
    assert f"{page.inner_text('#step-size output')} now" == page.inner_text("#over-size .readout")
    assert "dashed: needs" in page.text_content("#over-size .miss")
    assert page.locator("#over-size .band").count() == 1


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_published_law_says_how_far_it_can_be_trusted(page, name):
    rule = "" if PUBLISHED[name].eps is not None else "&rule=loss"
    visit(page, f"law={name}{rule}&flops=1e21&where=&bandwidth=")
    assert trust(page) in ("inside", "near", "far", "beyond")
    said = page.inner_text("#trust-line")
    assert ("the law saw" in said) or ("Inside the" in said) or ("does not state the whole range" in said)


def test_tokens_alone_are_a_budget(page):
    visit(page, "flops=&tokens=300B")
    assert page.inner_text("#message") == ""
    assert "300B tokens" in sentence(page)
    assert "Training tokens 300B" in facts(page)


@pytest.mark.parametrize("text", ["1e21 FLOPs", "1 e21", "1e21"])
def test_the_unit_beside_a_field_may_be_repeated(page, text):
    enter(page, "flops", text)
    assert page.inner_text("#message") == ""
    assert "1e21 FLOPs" in sentence(page)


def test_the_dot_is_dragged_and_that_is_one_step_of_undo(page):
    mapped(page)
    dot = box(page, "#map-dot")
    page.mouse.move(dot["x"] + 13, dot["y"] + 13)
    page.mouse.down()
    for step in range(20):
        page.mouse.move(dot["x"] + 13 - 4 * step, dot["y"] + 13 - 2 * step)
    page.mouse.up()
    settled(page)
    moved = sentence(page)
    assert "3 GB on a phone" not in moved
    page.click("#undo")
    settled(page)
    assert "3 GB on a phone" in sentence(page)
    page.click("#redo")
    settled(page)
    assert sentence(page) == moved


def test_ten_presses_are_one_entry_of_the_history(browser, folder):
    page = open_page(browser, f"file://{folder}/index.html")
    mapped(page)
    page.focus("#map-dot")
    entries = page.evaluate("() => history.length")
    for _ in range(10):
        page.keyboard.press("ArrowUp")
    settled(page)
    assert page.evaluate("() => history.length") == entries + 1
    page.keyboard.press("Control+z")
    settled(page)
    page.wait_for_function("() => document.querySelector('#chip-compute').textContent === '5e21 FLOPs'")
    page.context.close()


def test_enter_and_leaving_the_field_are_one_change(browser, folder):
    page = open_in(browser.new_context(), f"file://{folder}/index.html")
    page.click("#chip-compute")
    entries = page.evaluate("() => history.length")
    page.fill("#in-flops", "2e21")
    page.press("#in-flops", "Enter")
    page.wait_for_timeout(2100)  # longer than changes of one control are joined
    page.press("#in-flops", "Tab")
    settled(page)
    assert page.evaluate("() => history.length") == entries + 1
    assert "2e21 FLOPs" in sentence(page)
    page.click("#chip-place")
    page.click("[data-place=phone]")  # which is chosen already
    settled(page)
    assert page.evaluate("() => history.length") == entries + 1
    page.context.close()


def test_a_link_restores_everything_and_is_short(page, browser):
    link = "flops=2e22&memory=1+GB&bits=4&where=&bandwidth=&design=0.6B:8:3"
    visit(page, link)
    said = sentence(page)
    page.click("#share-button")
    page.click("#copy-link")
    shared = page.evaluate("() => navigator.clipboard.readText()")
    assert len(shared) < 250
    other = open_page(browser, shared)
    assert sentence(other) == said
    other.context.close()


def test_two_tabs_keep_one_list_of_pins(page):
    other = open_in(page.context, page.url)
    for tab, memory in ((page, "2 GB"), (other, "5 GB")):
        enter(tab, "memory", memory)
        tab.keyboard.press("Escape")
        tab.click("#share-button")
        tab.click("#pin")
        settled(tab)
    page.wait_for_function("() => document.querySelectorAll('#map-plot .ghosts circle').length === 2")
    third = open_in(page.context, page.url.partition("#")[0])
    third.click("#views button[data-view=compare]")
    assert third.locator("#compare-table thead th").count() == 4
    other.close()
    third.close()


def test_scenarios_are_compared_by_what_differs_and_each_law_has_its_own_scale(page):
    page.click("#views button[data-view=compare]")
    assert page.inner_text("#compare-table caption") == "Nothing is pinned yet."
    assert page.is_hidden("#compare-charts")
    page.click("#pin-now")
    assert page.is_hidden("#compare-empty")
    page.click("#views button[data-view=plan]")
    page.click("#chip-law")
    page.select_option("#law", "joint-moe-2025")
    page.keyboard.press("Escape")
    settled(page)
    page.click("#views button[data-view=compare]")
    assert page.is_visible("#compare-note")
    assert "further facts are the same in all" in page.inner_text("#compare-table caption")
    panels = page.locator("#compare-charts figure")
    assert panels.count() == 2
    assert panels.locator(".mine").count() == panels.nth(0).locator(".mine").count() == 1  # the current answer alone
    for width in (820, 390, 1440):  # the letters are not scaled down
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function(
            "() => [...document.querySelectorAll('#compare-charts svg')]"
            ".every((svg) => svg.getBoundingClientRect().width / svg.viewBox.baseVal.width > 0.99)"
        )
    rows = page.locator("#compare-table tbody tr td:first-child").all_inner_texts()
    assert "law" in rows
    assert "bits per weight" not in rows
    unexplained = "rows => rows.filter((row) => !row.cells[0].querySelector('[data-term]')).length"
    assert page.eval_on_selector_all("#compare-table tbody tr", unexplained) == 0
    page.hover("#compare-table [data-term=days]")
    assert "40% of the listed speed" in page.inner_text("#term-note")


def test_a_pinned_budget_without_an_answer_has_none_in_compare_either(page):
    mapped(page)
    for link in ("flops=5e21&memory=1+GB&where=", "flops=5e22&memory=30+GB&where=", ""):
        page.evaluate("link => { location.hash = link }", link)
        settled(page)
        page.click("#share-button")
        page.click("#pin")
        settled(page)
    page.click("#views button[data-view=compare]")
    cells = "rows => rows.map((row) => [...row.cells].map((cell) => cell.innerText.trim()))"
    rows = {name: values for name, *values in page.eval_on_selector_all("#compare-table tbody tr", cells)}
    assert [value.startswith("no answer: too far") for value in rows["loss"]] == [False, False, True, False]
    assert [bool(value) for value in rows["design"]] == [True, True, False, True]
    assert rows["measured range"][1] == "slightly beyond"
    assert page.locator("#compare-table thead small").nth(1).inner_text() == "5e22, 30 GB"  # of no model
    panel = page.locator("#compare-charts svg text").all_text_contents()
    assert [name for name in panel if name.isalpha()] == ["now", "A", "C"]
    assert panel[1] == rows["loss"][0]  # one number, written one way
    assert small_targets(page) == []


def test_an_image_and_the_table_of_designs_can_be_taken_away(page, tmp_path):
    mapped(page)
    page.click("#texts summary")
    for name, check in (("image", b"\x89PNG"), ("plan-csv", b"rung,experts")):
        page.click("#download-button")
        with page.expect_download() as waiting:
            page.click(f"#{name}")
        waiting.value.save_as(tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(check)
    page.click("#download-button")
    with page.expect_download() as waiting:
        page.click("#law-json")
    waiting.value.save_as(tmp_path / "law.json")
    from loopscale.scaling import ScalingLaw

    law = json.loads((tmp_path / "law.json").read_text())
    assert ScalingLaw.from_dict(law).coefficients == PUBLISHED["looped-moe-2026"].coefficients


def test_a_law_file_of_ones_own_is_opened_without_a_server(page, tmp_path):
    law = PUBLISHED["looped-moe-2026"].to_dict() | {"name": "mine", "rmse": 0.002}
    (tmp_path / "law.json").write_text(json.dumps(law))
    page.click("#chip-law")
    page.set_input_files("#law-file", tmp_path / "law.json")
    page.wait_for_function("() => document.querySelector('#chip-law').textContent === 'Law: mine'")
    (tmp_path / "law.json").write_text("{}")
    page.click("#chip-law")
    page.set_input_files("#law-file", tmp_path / "law.json")
    page.wait_for_selector(".popover .field-note:has-text('not a law file')")


def test_stories_are_links_and_the_tour_has_four_steps(page):
    hrefs = page.eval_on_selector_all("#stories a", "links => links.map((link) => link.getAttribute('href'))")
    assert len(hrefs) == 5
    for href in hrefs:
        visit(page, href.removeprefix("#"))
        assert page.inner_text("#message") == ""
    page.click("#tour")
    for step in range(4):
        assert f"{step + 1} of 4" in page.inner_text(".tour h3")
        page.click(".tour .primary")
    assert page.locator(".tour").count() == 0


NEEDED = {
    "plan": {"chip-compute", "chip-place", "chip-bits", "map-dot", "more-limits"},
    "lab": {"lab-passes", "lab-word"},
    "compare": {"scroll"},
    "fit": {"theme"},
}
"""What the Tab key has to reach in each view of a page from a disk; there, a fit needs a server."""


@pytest.mark.parametrize("view", NEEDED)
def test_the_keyboard_reaches_everything_and_focus_is_never_hidden(page, view):
    visit(page, "" if view == "plan" else f"view={view}")
    assert NEEDED[view] <= reached(page)


@pytest.mark.parametrize("view", NEEDED)
def test_targets_are_at_least_24_pixels(page, view):
    visit(page, "" if view == "plan" else f"view={view}")
    assert small_targets(page) == []


def test_the_buttons_are_few_and_named(page):
    assert page.inner_text("#theme") in ("Dark", "Light")
    assert "theme" in page.get_attribute("#theme", "aria-label")
    page.click("#texts summary")
    page.wait_for_selector("#texts pre")
    assert page.locator("#texts .actions button").all_inner_texts() == ["Copy ▾", "Download ▾"]
    page.click("#alternatives summary")
    page.click("#limits summary")
    assert "" not in [text.strip() for text in page.locator("th").all_inner_texts()]


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_and_nothing_overflows_at_any_size_in_both_themes(browser, folder, width, height, scheme):
    page = open_page(browser, f"file://{folder}/index.html", width=width, height=height, scheme=scheme)
    mapped(page)
    page.click("#sure summary")
    page.click("#alternatives summary")
    page.click("#chip-compute")
    assert findings(page) == []
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    for view in ("compare", "fit", "lab"):
        page.keyboard.press("Escape")
        page.click(f"#views button[data-view={view}]")
        assert findings(page) == []
    page.context.close()


def test_words_of_the_trade_are_explained_on_hover_on_focus_and_on_tap(page):
    mapped(page)
    known = set(page.eval_on_selector_all("[data-term]", "words => words.map((word) => word.dataset.term)"))
    needed = {"loss", "tokens", "days", "memory", "speed", "trust", "size", "experts", "passes", "loop"}
    assert needed <= known
    for number in range(page.locator("#plan-view [data-term]:visible").count()):
        word = page.locator("#plan-view [data-term]:visible").nth(number)
        word.hover()
        assert page.is_visible("#term-note.shown")
        assert len(page.inner_text("#term-note")) > 20  # none is without its explanation
    page.mouse.move(2, 2)
    page.wait_for_selector("#term-note:not(.shown)", state="attached")
    page.focus("#stat-loss .term")
    assert "nats per token" in page.inner_text("#term-note")
    page.keyboard.press("Escape")
    assert not page.is_visible("#term-note.shown")
    page.click("#step-experts .term")
    assert "router" in page.inner_text("#term-note.shown")


def test_everything_can_be_done_by_typing_its_name(page):
    page.keyboard.press("Control+k")
    page.keyboard.type("laptop")
    page.keyboard.press("Enter")
    settled(page)
    assert "on a laptop" in sentence(page)
    page.keyboard.press("/")
    page.keyboard.type("batch")
    page.keyboard.press("Enter")
    assert page.evaluate("() => document.activeElement.id") == "in-batch"
    page.keyboard.press("Escape")
    page.click("#find")
    assert findings(page) == []
    page.errors.clear()  # axe tries to read the style sheet, which a page from a disk may not
    page.keyboard.press("Escape")
    assert page.locator("#palette").count() == 0


def test_a_refusal_is_seen_wherever_one_has_scrolled_to(page):
    page.evaluate("() => window.scrollTo(0, 900)")
    page.wait_for_function("() => document.querySelector('#message').classList.contains('afar')")
    page.evaluate("() => { location.hash = 'flops=5x' }")
    page.wait_for_function("() => document.querySelector('#message').textContent.includes('5x')")
    place = box(page, "#message")
    assert 0 <= place["y"] < 200


LATE = """window.IntersectionObserver = class {
    constructor(seen) { this.seen = seen; }
    observe() { setTimeout(() => this.seen([{ isIntersecting: false }, { isIntersecting: true }])); }
};"""


def test_the_message_stays_in_its_place_where_that_is_seen(browser, folder):
    """A busy browser reports several changes at once; the last one holds."""
    context = browser.new_context()
    context.add_init_script(LATE)
    page = open_in(context, f"file://{folder}/index.html#flops=5x")
    page.wait_for_function("() => document.querySelector('#message').textContent.includes('5x')")
    assert "afar" not in (page.get_attribute("#message", "class") or "")
    context.close()


def test_a_finger_scrolls_over_the_map_and_a_tap_goes_there(browser, folder):
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True)
    page = open_in(context, f"file://{folder}/index.html")
    mapped(page)
    page.locator("#map-plot").scroll_into_view_if_needed()
    assert page.evaluate("() => getComputedStyle(document.querySelector('#map-plot')).touchAction") != "none"
    place = box(page, "#map-plot")
    page.touchscreen.tap(place["x"] + place["width"] * 0.8, place["y"] + place["height"] * 0.3)
    settled(page)
    assert "on a phone" not in sentence(page)
    context.close()


def test_the_page_introduces_itself_to_those_who_link_to_it(page):
    said = page.eval_on_selector_all("meta[property^='og:']", "all => all.map((m) => m.getAttribute('property'))")
    assert {"og:title", "og:description", "og:image"} <= set(said)
    page.click("#share-button")
    page.click("#copy-embed")
    assert page.evaluate("() => navigator.clipboard.readText()").startswith("<iframe src=")


def test_columns_out_of_sight_make_no_row_tall_on_a_phone(browser, folder):
    page = open_page(browser, f"file://{folder}/index.html", width=390, height=844)
    page.click("#alternatives summary")
    page.click("#limits summary")
    rows = page.locator("#table tbody tr, #limits-table tbody tr").evaluate_all(
        "rows => rows.map((row) => row.getBoundingClientRect().height)"
    )
    assert max(rows) < 60  # two lines
    page.context.close()


def test_the_menu_of_a_phone_lies_in_the_window(browser, folder):
    page = open_page(browser, f"file://{folder}/index.html", width=390, height=844)
    page.click("#share-button")
    for item in ("#copy-link", "#copy-embed", "#save-image", "#pin"):
        place = box(page, item)
        assert place["y"] >= 0
        assert place["y"] + place["height"] <= 844
    page.context.close()


def test_motion_stops_where_it_is_not_wanted(browser, folder):
    context = browser.new_context(reduced_motion="reduce")
    page = open_in(context, f"file://{folder}/index.html")
    assert page.locator("animateMotion").count() == 0
    context.close()


def test_the_page_is_small_and_asks_for_nothing_but_its_own_files(browser, folder):
    sizes = {path.name: len(gzip.compress(path.read_bytes(), 9)) for path in folder.iterdir() if path.is_file()}
    first = sum(size for name, size in sizes.items() if name != "preview.png" and not name.startswith("lab"))
    assert first <= 250_000
    context = browser.new_context()
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    page = open_in(context, f"file://{folder}/index.html")
    mapped(page)
    assert all(address.startswith(f"file://{folder}/") for address in asked)
    context.close()


def test_it_works_below_a_sub_path(browser, folder, tmp_path):
    import functools
    import http.server
    import threading

    (tmp_path / "some" / "where").mkdir(parents=True)
    export_page(tmp_path / "some" / "where")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    handler.log_message = lambda *_: None  # type: ignore[attr-defined]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/some/where/"
        context = browser.new_context()
        asked: list[str] = []
        context.on("request", lambda request: asked.append(request.url))
        page = open_in(context, address)
        mapped(page)
        assert "loop it twice" in sentence(page)
        assert all(each.startswith(address) for each in asked)
        context.close()
        server.shutdown()
