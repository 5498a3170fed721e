"""The Fit view and what needs the server, in a real browser."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from browser import facts, mapped, open_in, open_page, settled

from loopscale.architecture import architecture_space, from_config
from loopscale.cli import demo
from loopscale.core.quantities import count_of
from loopscale.fitting.data.public import load_micro
from loopscale.planning import plan
from loopscale.scaling import published


@pytest.fixture(scope="module")
def opened(browser, address):
    """The explorer, opened once."""
    return open_page(browser, address)


@pytest.fixture
def page(opened, address):
    """The explorer in its first state, with nothing kept; at the end, nothing may have gone wrong in it."""
    opened.goto(f"{address}/icon.svg")
    opened.evaluate("() => localStorage.clear()")
    opened.goto(address)
    settled(opened)
    opened.errors.clear()
    yield opened
    assert opened.errors == []


@pytest.fixture(scope="module")
def sweep_file(tmp_path_factory, sweep_csv) -> Path:
    path = tmp_path_factory.mktemp("sweep") / "my sweep.csv"
    path.write_bytes(sweep_csv)
    return path


def fit_file(page, path: Path) -> None:
    """Choose a file in the Fit view, look at its preview and fit it."""
    page.click("#views button[data-view=fit]")
    page.set_input_files("#csv-file", path)
    page.click("#start-fit")
    page.wait_for_selector("#chart-residuals svg")


def test_a_sweep_is_previewed_fitted_compared_extended_and_planned_with(page, sweep_file):
    fit_file(page, sweep_file)
    assert "144 losses of 36 runs" in facts(page, "#fit-result")
    law_is_drawn(page)
    page.fill("#slices", "R=8")
    page.click("#compare-mappings")
    page.wait_for_selector("#chart-held-out svg")
    assert "R=8" in page.inner_text("#scores")
    page.fill("#decades", "0.5")
    page.click("#start-backtest")
    page.wait_for_selector("#chart-backtest svg")
    assert "predictive intervals cover" in page.inner_text("#chart-backtest")
    page.click("#choose-runs")
    page.wait_for_selector("#runs tbody tr")
    assert "time on one h100" in page.inner_text("#runs")


def law_is_drawn(page) -> None:
    """The law with its points and band, a target that the keyboard moves, and intervals of the coefficients."""
    assert page.locator("#chart-law .band").count() == 1
    drawn = page.eval_on_selector_all("#chart-law .dots", "paths => paths.map((path) => path.getAttribute('d'))")
    assert "".join(drawn).count("M") == 144
    said = page.inner_text("#forecast-said")
    assert re.search(r"x beyond the data: loss \d\.\d+, 90% of runs \d\.\d+ to \d\.\d+, with", said)
    page.focus("#target")
    page.keyboard.press("ArrowLeft")
    assert page.inner_text("#forecast-said") != said
    page.keyboard.press("End")
    last = page.inner_text("#forecast-said")
    page.select_option("#curve-kind", "1")
    assert page.inner_text("#forecast-said") != last
    assert page.locator("#fit-result svg.span").count() >= 5
    exponent = page.locator("#fit-result tr", has_text="exponent of the parameters").first.locator("td")
    low, high = re.findall(r"\S*\d", exponent.nth(4).inner_text())
    assert 0 < float(low) < float(exponent.nth(2).inner_text()) < float(high)  # as papers print it
    assert not re.search(r"\b[ER]=\d", page.inner_text("#chart-residuals"))


def test_planning_with_a_fitted_law_moves_the_budget_into_its_range_and_says_so(page):
    page.click("#views button[data-view=fit]")
    page.evaluate("() => { document.querySelector('#fit-resamples').value = 10 }")
    page.click("#micro-csv")
    page.wait_for_selector("#fit-result:not([hidden]) #plan-with")
    page.click("#plan-with")
    settled(page)
    assert "The compute was moved" in page.inner_text("#toast")
    assert "own-micro" in page.url
    assert len(page.url) < 400  # the link names the law
    assert page.inner_text("#message") == ""  # it is answered
    page.click("#undo")
    page.click("#views button[data-view=plan]")
    settled(page)
    assert "5e21 FLOPs" in page.inner_text("#sentence")


def test_a_fit_is_kept_over_a_reload_and_in_a_second_tab(page, address, sweep_file):
    fit_file(page, sweep_file)
    page.wait_for_function("() => location.hash.includes('fit=own-')")
    page.reload()
    settled(page)
    page.wait_for_selector("#chart-residuals svg")
    assert "144 losses of 36 runs" in facts(page, "#fit-result")
    other = open_in(page.context, address)
    other.click("#chip-law")
    assert "yours: my sweep" in other.inner_text("#law")
    other.close()


def test_passes_without_the_loops_parameters_ask_for_the_share_that_loops(page, tmp_path, sweep_csv):
    rows = [line.split(",") for line in sweep_csv.decode().splitlines()]
    kept = [k for k, name in enumerate(rows[0]) if not name.startswith("N_loop")]
    (tmp_path / "no-loop.csv").write_text("\n".join(",".join(row[k] for k in kept) for row in rows))
    page.click("#views button[data-view=fit]")
    page.set_input_files("#csv-file", tmp_path / "no-loop.csv")
    page.wait_for_selector("#loop-share")
    assert "N_loop" in page.inner_text("#drop")  # the column is asked for before a file is chosen
    assert "parameters of the loop block" in page.inner_text("#preview .note-box")
    page.fill("#loop-share", "200%")
    page.click("#start-fit")
    page.wait_for_selector("#share-problem:not([hidden])")
    assert page.inner_text("#share-problem") == "“200%” is no share; write it like 85%, up to 100%."
    assert page.get_attribute("#loop-share", "aria-invalid") == "true"
    assert page.is_visible("#preview-table")  # the file stays after a refusal
    page.fill("#loop-share", "80%")
    page.click("#start-fit")
    page.wait_for_selector("#chart-residuals svg")
    assert "80% of the active parameters" in page.inner_text("#fit-result")


CONFIG = {
    "model_type": "qwen3_moe", "hidden_size": 1280, "num_hidden_layers": 24, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 64, "intermediate_size": 3072, "moe_intermediate_size": 640,
    "num_experts": 64, "num_experts_per_tok": 8, "vocab_size": 50000,
}  # fmt: skip


def test_ones_own_config_is_judged_under_the_same_budget(page, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    page.click("#share-button")
    with page.expect_file_chooser() as waiting:
        page.click("#open-config")
    waiting.value.set_files(tmp_path / "config.json")
    page.wait_for_selector(".whatif:has-text('config.json')")
    own = plan(flops=5e21, memory=3e9, bits=4, space=architecture_space([from_config(CONFIG)], [1]))
    best = plan(flops=5e21, memory=3e9, bits=4)
    assert f"{own.choice.loss - best.choice.loss:+.3f}" in page.inner_text(".whatif:has-text('config.json')")


def test_plan_report_and_training_file_come_from_the_server(page, tmp_path):
    page.click("#texts summary")
    for name, says in (("plan-json", '"kind": "plan"'), ("plan-report", "<!doctype html>")):
        page.click("#download-button")
        with page.expect_download() as waiting:
            page.click(f"#{name}")
        waiting.value.save_as(tmp_path / name)
        assert says in (tmp_path / name).read_text().lower() or says in (tmp_path / name).read_text()
    page.click("#copy-button")
    page.click("#copy-config")
    page.wait_for_function("() => document.querySelector('#toast').textContent.includes('copied')")
    assert "[model]" in page.evaluate("() => navigator.clipboard.readText()")


def test_plans_go_on_without_the_server(browser, own_server):
    server = own_server()
    page = open_page(browser, server.address)
    server.stop()
    page.press("#map-dot", "ArrowUp")
    settled(page)
    assert "5e21" not in page.inner_text("#chip-compute")
    assert page.inner_text("#message") == ""
    page.click("#views button[data-view=fit]")
    page.click("#micro-csv")
    page.wait_for_function("() => document.querySelector('#fit-problem').textContent.includes('does not answer')")
    assert page.inner_text("#fit-problem code") == "loopscale app"
    page.context.close()


def test_fits_go_on_when_the_server_is_back(browser, own_server, sweep_file):
    server = own_server()
    page = open_page(browser, f"{server.address}/#view=fit")
    server.stop()
    page.set_input_files("#csv-file", sweep_file)
    page.wait_for_function("() => document.querySelector('#fit-problem').textContent.includes('does not answer')")
    own_server("--port", server.address.rpartition(":")[2])
    page.set_input_files("#csv-file", sweep_file)
    page.wait_for_selector("#start-fit:not([disabled])")
    assert page.is_hidden("#fit-problem")
    page.context.close()


def test_a_drag_on_a_served_page_sends_no_request(page):
    mapped(page)
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    dot = page.locator("#map-dot").bounding_box()
    page.mouse.move(dot["x"] + 13, dot["y"] + 13)
    page.mouse.down()
    for step in range(10):
        page.mouse.move(dot["x"] + 13 - 4 * step, dot["y"] + 13 - 8 * step)  # up to answers that are withheld
    page.mouse.up()
    settled(page)
    assert "5e21 FLOPs" not in page.inner_text("#chip-compute")
    assert not [address for address in sent if "/api/" in address]


def test_a_link_that_opens_on_this_machine_alone_says_so(page):
    page.click("#share-button")
    page.click("#copy-link")
    page.wait_for_function("() => document.querySelector('#toast').textContent.includes('opens on this machine')")
    assert page.inner_text("#toast code") == "loopscale app --export"


def test_next_runs_for_tiny_models_are_tiny(page):
    page.click("#views button[data-view=fit]")
    page.evaluate("() => { document.querySelector('#fit-resamples').value = 10 }")
    page.click("#micro-csv")
    page.wait_for_selector("#fit-result:not([hidden]) #choose-runs")
    page.click("#choose-runs")
    page.wait_for_selector("#runs tbody tr")
    largest = max(load_micro().points.active)
    sizes = [count_of(text, "size") for text in page.locator("#runs td[data-name=size]").all_inner_texts()]
    assert max(sizes) <= 2 * largest
    tokens = [count_of(text, "tokens") for text in page.locator("#runs td[data-name=tokens]").all_inner_texts()]
    assert all(count > size for count, size in zip(tokens, sizes, strict=True))


def test_a_simulated_sweep_is_offered_and_called_so(page):
    page.click("#views button[data-view=fit]")
    assert page.inner_text("#example-csv") == "Try a simulated sweep"
    page.click("#example-csv")
    page.wait_for_selector("#fit-result h2:has-text('simulated')")


@pytest.fixture(scope="module")
def result(client, sweep_csv) -> dict[str, object]:
    """A small fit, as the API answers it."""
    return client.job(client.send("/api/fit?name=simulated&resamples=20", sweep_csv))


def shown(browser, address, job, **result):
    """The Fit view with the result of a job that was changed on its way."""
    context = browser.new_context(viewport={"width": 1300, "height": 900})
    context.route("**/api/fit?*", lambda route: route.fulfill(json=job | {"result": job["result"] | result}))
    page = open_in(context, f"{address}/#view=fit")
    page.click("#micro-csv")
    page.wait_for_selector("#chart-residuals svg")
    return page


def test_no_second_fit_is_started_while_one_runs(browser, address):
    job = {"id": "1", "state": "running", "stage": "Fitting", "done": 0, "total": 0}
    context = browser.new_context()
    for path in ("fit?*", "jobs/1"):
        context.route(f"**/api/{path}", lambda route: route.fulfill(json=job))
    page = open_in(context, f"{address}/#view=fit")
    page.click("#micro-csv")
    page.wait_for_selector("#fit-progress button")
    assert page.is_disabled("#micro-csv")
    assert page.is_disabled("#choose-csv")
    job["state"] = "cancelled"
    page.wait_for_selector("#micro-csv:not([disabled])")
    context.close()


def test_twenty_thousand_rows_show_where_they_lie_densely(browser, address, result):
    points = {name: (column * 140)[:20_000] for name, column in result["result"]["points"].items()}
    page = shown(browser, address, result, points=points, rows=20_000)
    for chart in ("#chart-observed", "#chart-residuals"):
        faint = page.eval_on_selector_all(f"{chart} .dots", "all => all.map((path) => Number(path.style.opacity))")
        assert min(faint) <= 0.15
        assert len(faint) < 40  # a few paths; thousands of elements would take long to draw
    assert page.errors == []
    page.context.close()


def test_a_degenerate_fit_looks_like_one(browser, address, result):
    law = result["result"]["law"] | {"degenerate": ["alpha and beta cannot be separated"]}
    page = shown(browser, address, result, law=law)
    problem = page.locator("#fit-result .degenerate .problem")
    assert "must not be used for predictions" in problem.inner_text()
    assert "degenerate" in page.get_attribute("#chart-law", "class")  # and so does its forecast
    assert page.get_attribute("#plan-with", "class") == ""
    page.context.close()
    page = shown(browser, address, result)
    assert page.get_attribute("#plan-with", "class") == "primary"
    assert page.evaluate("() => getComputedStyle(document.querySelector('#fit-result h2')).outlineStyle") == "none"
    page.context.close()


def test_residuals_are_drawn_along_axes_that_vary_and_warnings_have_no_backquotes(browser, address, result):
    points = result["result"]["points"]
    dense = {**points, "recurrence": [1] * len(points["observed"])}
    page = shown(
        browser, address, result, points=dense,
        warnings=["a loss of 0.67 in `loss` is low"], notes=["`name` has duplicates"],
    )  # fmt: skip
    assert "Read as: name has duplicates." in page.inner_text("#fit-result")
    assert "`" not in page.inner_text("#fit-view")
    assert page.locator("#residual-axis button").all_inner_texts() == ["size", "tokens", "experts"]
    assert page.get_attribute("#residual-axis button[data-value=size]", "aria-pressed") == "true"
    assert page.inner_text("#fit-result .warnings") == "A loss of 0.67 in loss is low."
    assert page.inner_text("#fit-result .warnings code") == "loss"
    name = page.locator("#chart-residuals .axis-name").nth(1).bounding_box()
    numbers = page.locator("#chart-residuals .grid text").evaluate_all(
        "all => all.map((e) => e.getBoundingClientRect().x)"
    )
    assert name["x"] + name["width"] <= min(numbers)  # the axis's name lies beside its numbers
    assert page.errors == []
    page.context.close()


def test_charts_of_a_fit_are_read_above_the_plot_and_saved_with_their_title(browser, address, result, tmp_path):
    page = shown(browser, address, result)
    page.locator("#chart-observed").scroll_into_view_if_needed()
    plot = page.locator("#chart-observed .plot svg").bounding_box()
    page.mouse.move(plot["x"] + plot["width"] / 2, plot["y"] + plot["height"] / 2)
    read = page.locator("#chart-observed .readout")
    assert re.search(r"tokens: observed \d\.\d+, predicted \d\.\d+", read.inner_text())
    place = read.bounding_box()
    assert place["y"] + place["height"] <= plot["y"] + 1  # it covers no point
    before = read.inner_text()
    page.focus("#chart-observed .plot")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert read.inner_text() not in ("", before)
    with page.expect_download() as waiting:
        page.click("#chart-observed .downloads button:has-text('SVG')")
    waiting.value.save_as(tmp_path / "chart.svg")
    texts = re.findall(r"<text ([^>]*)>([^<]*)", (tmp_path / "chart.svg").read_text())
    assert texts[0][1] == page.inner_text("#chart-observed h3") == "Predicted against observed"
    assert min(float(re.search(r'\bx="([-\d.]+)"', name)[1]) for name, _ in texts) >= 8  # none left of the title
    assert page.errors == []
    page.context.close()


def test_files_of_a_spreadsheet_and_runs_that_diverged_are_read(page, tmp_path, sweep_csv):
    lines = sweep_csv.decode().splitlines()
    place = lines[0].split(",").index("loss")
    for number, word in ((3, "diverged"), (4, "NaN")):
        cells = lines[number].split(",")
        lines[number] = ",".join([*cells[:place], word, *cells[place + 1 :]])
    european = [line.replace(",", ";").replace(".", ",") for line in lines]
    (tmp_path / "european.csv").write_text("\n".join(european))
    page.click("#views button[data-view=fit]")
    page.set_input_files("#csv-file", tmp_path / "european.csv")
    page.wait_for_selector("#start-fit:not([disabled])")
    said = page.inner_text("#preview")
    assert "2 rows skipped" in said
    assert "line" in said
    assert page.locator("#preview .problem").count() == 0


WRONG = {
    b"\x1f\x8b\x08 packed": "This is a gzip archive; send it unpacked, as CSV text.",
    b"\xff\xfe\x00": "byte 1 is not UTF-8 text",
}


def test_a_column_that_is_named_in_a_note_has_no_backquotes(page, tmp_path, sweep_csv):
    head, *rows = sweep_csv.decode().splitlines()
    named = [f"model {k % 2},{row.partition(',')[2]}" for k, row in enumerate(rows)]
    (tmp_path / "runs.csv").write_text("\n".join([f"name,{head.partition(',')[2]}", *named]))
    page.click("#views button[data-view=fit]")
    page.set_input_files("#csv-file", tmp_path / "runs.csv")
    page.wait_for_selector("#start-fit:not([disabled])")
    assert "name has duplicates" in page.inner_text("#preview")
    assert "`" not in page.inner_text("#preview")


def test_a_file_that_is_not_csv_is_refused_in_a_sentence(browser, address, tmp_path):
    page = open_page(browser, f"{address}/#view=fit")
    for content, says in WRONG.items():
        (tmp_path / "wrong.csv").write_bytes(content)
        page.set_input_files("#csv-file", tmp_path / "wrong.csv")
        page.wait_for_function(
            "says => document.querySelector('#fit-problem').textContent.toLowerCase().includes(says)", arg=says.lower()
        )
        assert page.inner_text("#fit-problem").startswith("wrong.csv: ")
        assert page.is_hidden("#fit-result")
    page.context.close()


def test_columns_are_previewed_and_mapped_by_drop_down(page, tmp_path, sweep_csv):
    lines = sweep_csv.decode().replace("loss", "quality", 1).splitlines()
    quality = lines[0].split(",").index("quality")
    cells = lines[20].split(",")
    cells[quality] = str(1.2 * float(cells[quality]))  # an outlier
    (tmp_path / "odd.csv").write_text("\n".join([*lines[:20], ",".join(cells), *lines[21:]]))
    page.click("#views button[data-view=fit]")
    page.set_input_files("#csv-file", tmp_path / "odd.csv")
    page.wait_for_selector("#preview .problem")
    said = page.inner_text("#preview .problem")
    assert said.startswith("No column for loss")
    assert "choose the column below" in said
    assert "columns=" not in said
    assert page.locator("#preview-table tbody tr").count() == 5
    heads = page.locator("#preview-table thead th").all_inner_texts()
    assert [head for head in heads if "(not used)" in head] == ["quality (not used)"]
    assert page.is_disabled("#start-fit")
    page.select_option("#column-loss", "quality")
    page.wait_for_selector("#start-fit:not([disabled])")
    page.click("#start-fit")
    page.wait_for_selector("#chart-residuals svg")
    assert "144 losses of 36 runs" in facts(page, "#fit-result")
    assert "1 outlier beyond" in page.inner_text("#fit-result .warnings")
    assert page.locator("#outliers tbody tr").count() == 1


def test_a_downloaded_report_fits_a_phone_and_follows_its_dark_mode(browser, client, tmp_path):
    report = client.send("/api/plan.html", {"flops": "5e21", "memory": "3GB", "bits": 4}).body
    (tmp_path / "plan.html").write_bytes(report)
    grounds = set()
    for scheme in ("light", "dark"):
        page = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme=scheme).new_page()
        page.goto((tmp_path / "plan.html").as_uri())
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
        assert page.locator("img").count() == 0
        assert page.locator("figure svg").count() > 0
        grounds.add(page.evaluate("() => getComputedStyle(document.body).backgroundColor"))
        said = page.inner_text("body")
        assert "Trust" in said
        assert "loopscale plan --flops 5e21 --memory 3GB --bits 4 --law looped-moe-2026" in said
        assert not re.search(r"\bTrue\b|\bFalse\b|\d{3}e\+", said)
        page.context.close()
    assert len(grounds) == 2


def test_the_demo_report_answers_whether_looping_pays_and_fits_a_phone_in_both_themes(browser, tmp_path):
    micro = load_micro("micro-all")
    p, first = micro.points, np.array([run.endswith("-s0") for run in micro.run])
    like_demo = first & (p.active == p.active.min()) & (p.experts <= 2) & np.isin(p.recurrence, (1, 2, 4))
    seen = micro.where(like_demo & (np.abs(p.tokens / 8e5 - 1) < 0.01))
    law, curves = demo._fit(), demo.isoflop_over_recurrence(published(), [5e21], demo.ladder_space(["1.0B"], [8]))
    panels = [demo.Panel(curves, demo.draw_isoflop_over_recurrence)]
    best = plan(flops=5e21, memory=3e9, bits=4)
    found = demo._loop_at_work(), seen, law, demo._compare(seen, law), demo._equal_compute(seen, law)
    demo._report(tmp_path, best, panels, *found)
    grounds = set()
    for scheme in ("light", "dark"):
        page = browser.new_context(viewport={"width": 390, "height": 844}, color_scheme=scheme).new_page()
        page.goto((tmp_path / "report.html").as_uri())
        said = page.inner_text("body")
        assert re.search(r"Does looping pay at equal compute\? .* 90% interval [+−-]\d\.\d{4} to [+−-]\d\.\d{4}", said)
        assert "Trust: near" in said or "near:" in said
        assert not re.search(r"\bTrue\b|\bFalse\b|\bNone\b|\d{3}e\+|\d\.\d{7}", said)
        assert str(tmp_path) not in page.content()
        signs_agree(page)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
        assert page.locator("img").count() == 0
        assert page.locator("figure svg").count() >= 2
        ink = "() => getComputedStyle(document.querySelector('figure svg text')).fill"
        grounds.add((page.evaluate("() => getComputedStyle(document.body).backgroundColor"), page.evaluate(ink)))
        page.context.close()
    assert len({ground for ground, _ in grounds}) == len({ink for _, ink in grounds}) == 2


def signs_agree(page) -> None:
    """In every table a difference has the sign of the losses beside it: minus is a lower loss."""
    tables = page.eval_on_selector_all(
        "table",
        "all => all.map((one) => [...one.rows].map((row) => [...row.cells].map((cell) => cell.innerText.trim())))",
    )
    number = lambda text: float(text.split()[0].replace("−", "-"))  # noqa: E731
    compared = 0
    for head, *rows in tables:
        column = next((k for k, name in enumerate(head) if name in ("minus R=1", "difference to R=1")), None)
        if column is None:
            continue
        loss = next(k for k, name in enumerate(head) if name in ("loss", "predicted loss"))
        without = {row[0]: number(row[loss]) for row in rows if row[1] == "1"}
        for row in rows:
            if row[1] != "1":
                assert number(row[column]) == pytest.approx(number(row[loss]) - without[row[0]], abs=2e-4), row
                compared += 1
    assert compared >= 4
    assert "(a minus is a lower loss)" in " ".join(page.inner_text("body").split())
    assert "gain over" not in page.inner_text("body")
