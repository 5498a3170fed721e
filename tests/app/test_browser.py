"""What people do in the explorer, done in a real browser."""

import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from browser import chromium, open_page, settled

from loopscale.fit.data import public
from loopscale.laws import PUBLISHED

CHARTS = ("isoflop", "pareto", "best-recurrence", "best-experts")
# A link that says nothing is the first state; the number makes it another link than the one before.
AGAIN = """() => new Promise((done) => {
    addEventListener("hashchange", () => requestAnimationFrame(done), { once: true });
    location.hash = `again=${performance.now()}`;
})"""
FIRST = (
    "Train a 1.0B-active, 5.4B-total MoE (1 of 8 experts active), looped twice, on 589B tokens: predicted loss 1.9757†"
)


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def opened(browser, address):
    """The explorer, opened once."""
    return open_page(browser, address)


@pytest.fixture
def page(opened):
    """The explorer in its first state; at the end, nothing may have gone wrong in it."""
    opened.evaluate(AGAIN)
    settled(opened)
    assert sentence(opened) == FIRST
    opened.errors.clear()
    yield opened
    opened.wait_for_timeout(50)
    assert opened.errors == []


@pytest.fixture(scope="module")
def sweep_file(tmp_path_factory, sweep_csv) -> Path:
    path = tmp_path_factory.mktemp("sweep") / "my sweep.csv"
    path.write_bytes(sweep_csv)
    return path


def drawing(page, chart: str) -> str:
    return page.inner_html(f"#chart-{chart} .plot")


def sentence(page) -> str:
    return page.inner_text("#sentence").replace("\n", " ")


def changed(page, before: str) -> None:
    page.wait_for_function("before => document.querySelector('#sentence').textContent !== before", arg=before)


def test_the_first_sight_is_an_answer(page):
    assert sentence(page) == FIRST
    assert page.inner_text("#given") == "With 5e21 FLOPs of training compute, 3 GB of memory, weights in 4 bits:"
    assert all(page.locator(f"#chart-{chart} svg").count() == 1 for chart in CHARTS)
    rows = page.locator("#table tbody tr").all_inner_texts()
    assert "chosen" in rows[0]
    assert any("needs 5.23 GB of memory" in row for row in rows)
    assert any("pass 3 raises the loss by 0.0011" in row for row in rows)


def test_dragging_a_slider_changes_answer_charts_and_link(page):
    before, drawings = sentence(page), [drawing(page, chart) for chart in CHARTS]
    box = page.locator("#in-flops-slider").bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.46, middle)
    page.mouse.down()
    seen = set()
    for part in range(46, 90, 4):
        page.mouse.move(box["x"] + box["width"] * part / 100, middle)
        page.wait_for_timeout(60)
        seen.add(sentence(page))
    page.mouse.up()
    changed(page, before)
    assert len(seen) > 2, "the answer follows while the mouse is still down"
    page.wait_for_function("() => location.hash.includes('flops=')")
    settled(page)
    assert all(drawing(page, chart) != old for chart, old in zip(CHARTS, drawings, strict=True))


def test_the_keyboard_is_enough(page):
    page.focus("#in-memory-slider")
    for _ in range(12):
        page.keyboard.press("ArrowRight")
    changed(page, FIRST)
    assert page.input_value("#in-memory") != "3 GB"
    page.focus("#in-flops")
    page.keyboard.press("Control+a")
    page.keyboard.insert_text("1e20")  # at once: what is half typed is no amount, and the server would say so
    page.wait_for_function("() => document.querySelector('#given').textContent.includes('1e20 FLOPs')")
    page.focus("#views button[data-view=fit]")
    page.keyboard.press("Enter")
    assert page.is_visible("#drop")


def test_every_budget_can_be_switched_on_and_off(page):
    says = {
        "context": "a context of 8192",
        "tokens": "500B tokens to train on",
        "serve": "1T tokens to serve",
        "inference": "2B FLOPs a generated token",
    }
    for name, words in says.items():
        page.check(f".control[data-name={name}] .switch")
        page.wait_for_function("words => document.querySelector('#given').textContent.includes(words)", arg=words)
        page.uncheck(f".control[data-name={name}] .switch")
        page.wait_for_function("words => !document.querySelector('#given').textContent.includes(words)", arg=words)


def test_charts_turn_to_other_axes_and_costs(page):
    turns = (
        ("iso-axis", "size", "isoflop"),
        ("iso-axis", "experts", "isoflop"),
        ("pareto-cost", "inference", "pareto"),
    )
    for group, value, chart in turns:
        before = drawing(page, chart)
        page.click(f"#{group} [data-value={value}]")
        other = "([chart, before]) => document.querySelector(`#chart-${chart} .plot`).innerHTML !== before"
        page.wait_for_function(other, arg=[chart, before])


def test_pointing_at_a_design_says_what_it_is(page):
    box = page.locator("#chart-pareto svg").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] * 0.55)
    page.wait_for_selector("#chart-pareto [aria-label=tip] text")
    assert "loss" in page.locator("#chart-pareto [aria-label=tip]").text_content()


def test_a_sweep_is_dropped_in_fitted_compared_extended_and_planned_with(page, browser, address, sweep_file):
    page.click("#views button[data-view=fit]")
    page.set_input_files("#csv-file", sweep_file)
    page.wait_for_selector("#chart-residuals svg")
    assert "my sweep: joint MoE law, sparsity-conditional recurrence" in page.inner_text("#fit-result")
    assert "144 losses of 36 runs" in page.inner_text("#fit-result")
    page.fill("#slices", "R=8")
    page.click("#compare-mappings")
    page.wait_for_selector("#scores")
    assert "R=8" in page.inner_text("#scores")
    page.click("#choose-runs")
    page.wait_for_selector("#runs tbody tr")
    page.click("#plan-with")
    page.wait_for_selector("#chart-best-experts svg")
    page.wait_for_function("() => document.querySelector('#certainty').textContent.includes('100 resampled laws')")
    page.wait_for_function("() => location.hash.includes('own=')")
    settled(page)
    answer, certainty = sentence(page), page.inner_text("#certainty")
    # The link carries the fitted law to somebody else's browser.
    other = open_page(browser, address + "/" + urlsplit(page.url)._replace(scheme="", netloc="", path="").geturl())
    assert sentence(other) == answer
    assert other.inner_text("#certainty") == certainty
    assert other.errors == []
    other.context.close()


def test_a_simulated_sweep_is_offered_and_called_so(page):
    page.click("#views button[data-view=fit]")
    assert page.inner_text("#example-csv") == "Try a simulated sweep"
    page.click("#example-csv")
    page.wait_for_selector("#fit-result h2:has-text('simulated: joint MoE law, sparsity-conditional recurrence')")


def test_the_shipped_micro_sweep_is_uploaded_fitted_and_planned_with(page):
    page.click("#views button[data-view=fit]")
    page.set_input_files("#csv-file", Path(public.__file__).with_name("micro-sweep.csv"))
    page.wait_for_selector("#chart-residuals svg")
    assert f"{len(public.load_micro('micro-all'))} losses" in page.inner_text("#fit-result")
    page.click("#micro-csv")
    page.wait_for_function(
        "said => document.querySelector('#fit-result').textContent.includes(said)",
        arg=f"{len(public.load_micro())} losses",
    )
    page.click("#plan-with")
    page.wait_for_function("() => document.querySelector('#certainty').textContent.includes('law micro')")
    assert page.errors == []


WRONG = {
    b"\x1f\x8b\x08 packed": "This is a gzip archive; send it unpacked, as CSV text.",
    b"a,b\n1,2\n": "no column for loss; columns are a, b",
    b"\xff\xfe\x00": "byte 1 is not UTF-8 text",
}


def test_a_wrong_file_is_told_in_a_sentence(browser, address, tmp_path):
    page = open_page(browser, f"{address}/#view=fit")
    for content, says in WRONG.items():
        (tmp_path / "wrong.csv").write_bytes(content)
        page.set_input_files("#csv-file", tmp_path / "wrong.csv")
        page.wait_for_function(
            "says => document.querySelector('#fit-problem').textContent.toLowerCase().includes(says)", arg=says.lower()
        )
        assert page.inner_text("#fit-problem").startswith("Wrong: ")  # the file's name
        assert page.is_hidden("#fit-result")
    page.context.close()


def test_ones_own_law_is_planned_with_and_what_is_wrong_is_told_in_place(browser, address, tmp_path):
    page = open_page(browser, address)
    law = PUBLISHED["looped-moe-2026"].to_dict() | {"name": "mine"}
    (tmp_path / "mine.json").write_text(json.dumps(law))
    (tmp_path / "bad.json").write_text(json.dumps(law | {"colour": "blue"}))
    page.set_input_files("#law-file", tmp_path / "mine.json")
    page.wait_for_function("() => document.querySelector('#certainty').textContent.includes('law mine')")
    page.set_input_files("#law-file", tmp_path / "bad.json")
    page.wait_for_selector("#problem:not([hidden])")
    assert page.inner_text("#problem").startswith("Law: unknown field 'colour'")
    page.fill("#in-memory", "a lot")
    page.wait_for_selector("#in-memory[aria-invalid=true]")
    assert "'a lot' is not an amount of memory; write it like 3GB" in page.inner_text("#problem")
    page.fill("#in-memory", "10GB")
    page.wait_for_selector("#problem[hidden]", state="attached")
    settled(page)
    assert "1.6B" in sentence(page)
    page.context.close()


def test_the_shared_link_restores_the_state(browser, address, page):
    page.fill("#in-memory", "10GB")
    page.click("#iso-axis [data-value=size]")
    page.click("#table-mode [data-value=candidates]")
    page.check(".control[data-name=context] .switch")
    said = "() => ['memory=', 'iso=', 'table=', 'context='].every((part) => location.hash.includes(part))"
    page.wait_for_function(said)
    page.wait_for_function("() => document.querySelector('#given').textContent.includes('context')")
    assert parse_qs(urlsplit(page.url).fragment) == {
        "memory": ["10GB"], "iso": ["size"], "table": ["candidates"], "context": ["8192"]
    }  # fmt: skip
    settled(page)
    other = open_page(browser, page.url)
    assert sentence(other) == sentence(page)
    assert other.inner_text("#table") == page.inner_text("#table")
    assert other.get_attribute("#iso-axis [data-value=size]", "aria-pressed") == "true"
    assert other.errors == []
    other.context.close()


def test_two_laws_or_two_designs_stand_side_by_side(page):
    page.locator("#table tbody tr", has_text="needs 5.23 GB").locator("button").click()
    page.wait_for_selector("#chart-compare svg")
    told = page.inner_text("#compare-table")
    assert "1.0B E=8 R=2" in told
    assert "1.0B E=16 R=2" in told
    assert "needs 5.23 GB of memory" in told
    page.select_option("#design-B", "")
    page.select_option("#law-B", "iso-depth-2026")
    page.wait_for_function("() => document.querySelector('#compare-table').textContent.includes('2.4B E=1 R=1')")


def test_plan_table_and_figures_can_be_taken_away(page, tmp_path):
    def taken(selector: str) -> bytes:
        with page.expect_download() as waiting:
            page.click(selector)
        path = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(path)
        return path.read_bytes()

    assert json.loads(taken("#plan-json"))["choice"]["rung"] == "1.0B"
    assert len(taken("#plan-csv").splitlines()) == 301
    assert taken("#chart-pareto .downloads button >> text=SVG").startswith(b"<svg")
    assert taken("#chart-pareto .downloads button >> text=PNG").startswith(b"\x89PNG")
    assert taken("#chart-isoflop .downloads button >> text=CSV").startswith(b"flops,rung,active,experts,recurrence")


def test_light_and_dark_follow_the_system_and_the_button(browser, address):
    page = open_page(browser, address, scheme="dark")
    ground = "() => getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.click("#theme")
    light = page.evaluate(ground)
    assert (dark, light) == ("rgb(17, 20, 24)", "rgb(246, 247, 249)")
    page.reload()
    settled(page)
    assert page.evaluate(ground) == light
    assert page.errors == []
    page.context.close()


def test_a_phone_shows_it_whole(browser, address):
    page = open_page(browser, address, width=390, height=844)
    for view in ("plan", "fit", "compare"):
        page.click(f"#views button[data-view={view}]")
        page.wait_for_timeout(200)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    page.click("#views button[data-view=plan]")
    assert "needs 5.23 GB of memory" in page.inner_text("#table")
    page.locator("#in-inference-slider").scroll_into_view_if_needed()
    page.wait_for_selector("#glance.shown")
    assert page.inner_text("#glance") == "1.0B E=8 R=2 · loss 1.9757"
    page.locator("#in-flops-slider").click(position={"x": 200, "y": 18})
    page.wait_for_function("() => !document.querySelector('#glance').textContent.startsWith('1.0B E=8 R=2')")
    assert page.errors == []
    page.context.close()


def test_every_control_has_a_name(page):
    unnamed = page.evaluate("""() => [...document.querySelectorAll('button, input, select')].filter((each) =>
        !each.hidden && !each.labels?.length && !each.getAttribute('aria-label') && !each.textContent.trim()
        && !each.closest('label') && each.id !== 'glance').map((each) => each.outerHTML)""")
    assert unnamed == []
