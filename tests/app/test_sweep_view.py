"""A sweep is shown while it runs: progress, losses, and a law fitted to the points so far."""

import sys
from pathlib import Path

import pytest
from browser import findings, open_in, open_page, reached, small_targets

sys.path.insert(0, str(Path(__file__).parents[1] / "sweep"))
from loopscale.app.sweep import LiveSweep
from loopscale.core.errors import LoopscaleError
from loopscale.scaling import PUBLISHED, Points
from sweeps import open_sweep, write_sweep

GRID = "[grid]\nrecurrence = [1, 2, 3]\ntokens = [64, 128]\n"


def facts(recurrence: int, tokens: int) -> dict[str, float]:
    return {"active": 1e6, "loop": 6e5, "total": 1e6, "experts": 1, "recurrence": recurrence, "tokens": tokens}


@pytest.fixture
def folder(tmp_path):
    """The results of three runs, of which one has its losses."""
    sweep, store = open_sweep(write_sweep(tmp_path, GRID))
    with store:
        claim = store.claim()
        for tokens, loss in ((64, 3.0), (128, 2.5)):
            store.record(claim, tokens, loss, facts(1, tokens) | {"validation_loss": loss})
    return sweep.results


def test_a_reading_has_progress_runs_and_losses(folder):
    live = LiveSweep(folder)
    shown = live.read()
    assert shown["text"].startswith("2 of 6 losses;")
    assert shown["points"]["loss"] == [3.0, 2.5]
    assert shown["points"]["flops"][0] == 6 * 1e6 * 64
    assert len(shown["runs"]) == 3
    header, first, *_ = live.csv().splitlines()
    assert header == "run,size,N_loop,N_total,experts,recurrence,tokens,loss,finished"
    assert first.endswith(",64,3.0,True")


def test_a_folder_without_a_sweep_is_refused(tmp_path):
    with pytest.raises(LoopscaleError):
        LiveSweep(tmp_path / "nowhere" / "at" / "all")
    with pytest.raises(LoopscaleError):
        LiveSweep(tmp_path)


def test_the_page_shows_the_sweep_as_points_arrive(browser, own_server, folder, tmp_path):
    page = open_page(browser, f"{own_server('--sweep', str(folder)).address}/#view=sweep")
    page.wait_for_selector("#chart-sweep svg")
    assert "2 of 6 losses" in page.inner_text("#sweep-progress")
    from loopscale.sweep.store import Store

    with Store(folder) as store:
        claim = store.claim()
        store.record(claim, 64, 2.8, facts(2, 64) | {"validation_loss": 2.8})
    page.wait_for_function("() => document.querySelector('#sweep-progress').textContent.includes('3 of 6 losses')")
    assert page.errors == []
    page.context.close()


def test_the_law_is_refitted_as_points_arrive_and_its_uncertainty_is_drawn(browser, own_server, tmp_path):
    grid = "[grid]\nrecurrence = [1, 2, 4]\nseed = [0, 1, 2, 3]\ntokens = [64, 128, 256]\n"
    sweep, store = open_sweep(write_sweep(tmp_path, grid))
    law, sizes = PUBLISHED["looped-moe-2026"], (2e8, 4e8, 7e8)

    def add(runs: range) -> None:
        for number in runs:
            claim = store.claim()
            size, passes = sizes[number % 3], (1, 2, 4)[number // 3 % 3]
            for tokens in (64, 128, 256):
                seen = {"active": size, "loop": 0.6 * size, "total": size, "experts": 1, "recurrence": passes}
                loss = float(law(Points(size, 2e9 * tokens, passes, 1, 0.6 * size, size)) * (1 + 1e-3 * (number % 2)))
                store.record(claim, tokens, loss, seen | {"tokens": 2e9 * tokens, "validation_loss": loss})

    with store:
        add(range(6))
        page = open_page(browser, f"{own_server('--sweep', str(sweep.results)).address}/#view=sweep")
        page.wait_for_function("() => document.querySelector('#sweep-fitted').textContent.includes('Law of 18 losses')")
        assert page.is_hidden("#chart-uncertainty")  # one point is no chart
        assert "90% interval" in page.inner_text("#sweep-fitted")
        assert "mid-schedule" not in page.inner_text("#sweep-view")  # every D of a sweep ends with its own schedule
        add(range(6, 9))
        page.wait_for_function("() => document.querySelector('#sweep-fitted').textContent.includes('Law of 27 losses')")
        page.wait_for_selector("#chart-uncertainty svg")
        assert page.locator("#chart-uncertainty .dots").count() >= 1
        assert page.is_hidden("#sweep-fit-problem")
        assert page.errors == []
        page.context.close()


FITTED = {
    "law_id": "a",
    "rows": 24,
    "form": "a law",
    "law": {"rmse": 0.01, "degenerate": []},
    "warnings": [],
    "fixed": [],
}


def answering(reply):
    """Answer a request without the server: with text as it is, with anything else as JSON."""
    told = {"body": reply, "content_type": "text/csv"} if isinstance(reply, str) else {"json": reply}
    return lambda route: route.fulfill(**told)


@pytest.mark.parametrize(
    ("width", "degenerate", "coefficients", "says"),
    [
        (0.02, ["kappa2 is not identifiable"], 5, "Not enough yet: 24 losses do not determine a law."),
        (22.0, [], 11, "Not enough yet: 24 losses do not determine a law. A law with 11 coefficients wants about 3"),
        (22.0, [], 5, "More of the same kind will not help."),
        (0.02, [], 5, "Law of 24 losses: a law; RMSE 0.0100 nats; 90% interval 2% wide"),
    ],
)
def test_a_law_that_the_losses_do_not_determine_is_not_shown_as_one(
    browser, address, width, degenerate, coefficients, says
):
    progress = {"observations": 24, "share": 0.5}
    reading = {"progress": progress, "enough": True, "text": "24 of 48 losses.", "runs": [], "points": {}, "law": "",
               "widths": {"a": width}}  # fmt: skip
    result = FITTED | {
        "law": {"rmse": 0.01, "degenerate": degenerate},
        "coefficients": dict.fromkeys(map(str, range(coefficients)), 1.0),
    }
    context = browser.new_context()
    for path, reply in {
        "choices": {"sweep": "demo", "run": None}, "sweep?*": reading, "sweep.csv": "run,loss",
        "fit?*": {"id": "1", "state": "done", "result": result},
    }.items():  # fmt: skip
        context.route(f"**/api/{path}", answering(reply))
    page = open_in(context, f"{address}/#view=sweep")
    page.wait_for_selector("#sweep-fitted:not([hidden])")
    said = page.inner_text("#sweep-fitted")
    assert says in said
    assert "`" not in page.inner_text("#sweep-view")
    assert ("loopscale next" in said) == bool(width > 0.2 or degenerate)
    assert ("9 more may do" in said) == (coefficients == 11)
    context.close()


def ended(browser, address, enough=True, **options):
    """The view of a sweep that has ended."""
    seen = {"run": ["a", "b"], "flops": [1e15, 2e15], "loss": [3.0, 2.8], "size": [1e6, 1e6], "tokens": [1e8, 2e8],
            "experts": [1, 1], "recurrence": [1, 2]}  # fmt: skip
    runs = [{"key": "a", "state": "done", "share": 1.0, "points": 1, "loss": 3.0, "error": ""}]
    reading = {"progress": {"observations": 2, "share": 1}, "enough": enough, "text": "2 of 2 losses.", "runs": runs,
               "points": seen, "law": "A law needs at least 8 losses; there are 2.", "widths": {"a": 0.02}}  # fmt: skip
    context = browser.new_context(**options)
    for path, reply in {
        "choices": {"sweep": "demo", "run": None}, "sweep?*": reading, "sweep.csv": "run,loss",
        "fit?*": {"id": "1", "state": "done", "result": FITTED | {"rows": 2, "coefficients": {}}},
    }.items():  # fmt: skip
        context.route(f"**/api/{path}", answering(reply))
    page = open_in(context, f"{address}/#view=sweep")
    page.wait_for_selector("#chart-sweep svg")
    return page


def test_a_sweep_of_too_few_losses_offers_no_fit(browser, address):
    page = ended(browser, address, enough=False)
    assert page.inner_text("#sweep-law") == "The sweep is finished. A law needs at least 8 losses; there are 2."
    assert page.is_disabled("#sweep-fit")
    page.context.close()


def test_a_sweep_that_has_ended_says_so_and_what_comes_next(browser, address):
    page = ended(browser, address)
    assert "The sweep is finished" in page.inner_text("#sweep-law")
    assert "loopscale fit" in page.inner_text("#sweep-law")
    assert page.inner_text("#sweep-fit") == "Open the fit"
    assert page.is_hidden("#sweep-auto-label")
    assert "so far" not in page.inner_text("#sweep-view")
    assert page.inner_text("#sweep-law code") == "loopscale fit"
    plot = page.locator("#chart-sweep .plot svg").bounding_box()
    page.mouse.move(plot["x"] + plot["width"] - 20, plot["y"] + plot["height"] / 2)
    read = page.locator("#chart-sweep .readout")
    assert "tokens: loss 2.8000" in read.inner_text()
    assert read.bounding_box()["y"] < plot["y"]
    page.context.close()


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (820, 1180), (390, 844)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_sweep_is_accessible_at_any_size_in_both_themes(browser, address, width, height, scheme):
    page = ended(browser, address, viewport={"width": width, "height": height}, color_scheme=scheme)
    assert findings(page) == []
    assert small_targets(page) == []
    assert {"sweep-fit", "plot", "scroll"} <= reached(page, 30)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    page.context.close()


def test_without_a_sweep_there_is_no_tab_and_the_api_says_how_to_get_one(client):
    assert client.send("/api/choices").json["sweep"] is None
    refusal = client.send("/api/sweep")
    assert refusal.status == 404
    assert "loopscale app --sweep FOLDER" in refusal.json["error"]
