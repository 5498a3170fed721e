"""A training run while it trains: the API reads its folder."""

import json

import pytest
from browser import facts, findings, open_in, open_page, reached, settled, small_targets
from filelock import FileLock

from conftest import Client
from loopscale.app.run import SHOWN, LiveRun
from loopscale.core.errors import InputError
from loopscale.core.files import write_json
from loopscale.train.config import TrainConfig
from loopscale.train.run_dir import KIND, SCHEMA, SUMMARY

STEPS, STEP_TOKENS = 400, 16 * 128


def folder_of(tmp_path, rows, **extra):
    tmp_path.mkdir(exist_ok=True)
    config = TrainConfig.from_dict({"data": {"context": 128}, "run": {"tokens": STEPS * STEP_TOKENS, "batch": 16}})
    write_json(tmp_path / "run.json", {"kind": KIND, "schema": SCHEMA, "config": config.to_dict()})
    lines = [
        {"step": step, "tokens": step * STEP_TOKENS, "loss": 2 + 3 * step**-0.4, "tokens_per_second": 1000.0,
         "learning_rate": 1e-3, **extra}
        for step in rows
    ]  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def test_a_run_shows_its_losses_and_the_time_left(tmp_path):
    run = LiveRun(folder_of(tmp_path, range(1, 201)))
    with FileLock(tmp_path / ".lock"):
        reply = run.read()
    assert (reply["state"], reply["step"], reply["steps"]) == ("training", 200, STEPS)
    assert reply["seconds_left"] == pytest.approx(200 * STEP_TOKENS / 1000)
    assert len(reply["columns"]["loss"]) == 200
    assert reply["forecast"]["low"] < reply["forecast"]["final"] < reply["forecast"]["high"]
    assert reply["text"].startswith("Training: step 200 of 400")


def test_a_run_without_a_process_is_stopped_and_says_how_to_resume(tmp_path):
    reply = LiveRun(folder_of(tmp_path, range(1, 4))).read()
    assert reply["state"] == "stopped"
    assert "resumes it" in reply["text"]
    assert reply["forecast"] is None


def test_a_run_that_has_just_started_has_no_rows(tmp_path):
    reply = LiveRun(folder_of(tmp_path, ())).read()
    assert (reply["step"], reply["seconds_left"], reply["columns"]["loss"]) == (0, None, [])


def test_a_finished_run_has_its_validation_loss(tmp_path):
    run = LiveRun(folder_of(tmp_path, range(1, STEPS + 1)))
    summary = {"kind": SUMMARY, "schema": 1, "tokens": STEPS * STEP_TOKENS, "validation_loss": 2.25}
    write_json(tmp_path / "summary.json", summary)
    reply = run.read()
    assert (reply["state"], reply["validation_loss"], reply["seconds_left"]) == ("finished", 2.25, None)
    assert reply["text"] == "Finished: validation loss 2.2500 after 400 steps."


def test_a_long_log_is_thinned_and_keeps_its_last_row(tmp_path):
    reply = LiveRun(folder_of(tmp_path, range(1, 7 * SHOWN), validation_loss=3.0)).read()
    assert len(reply["columns"]["step"]) <= SHOWN + 1
    assert reply["columns"]["step"][-1] == 7 * SHOWN - 1


def test_the_law_and_its_alarms_are_shown(tmp_path):
    row = {"forecast": 2.2, "forecast_low": 2.1, "forecast_high": 2.3, "alarm": "the loss is above"}
    reply = LiveRun(folder_of(tmp_path, range(1, 30), **row)).read()
    assert reply["law"] == {"loss": 2.2, "low": 2.1, "high": 2.3}
    assert reply["alarms"][-1] == {"step": 29, "text": "the loss is above"}


def test_another_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"no run\.json"):
        LiveRun(tmp_path)


def test_the_server_answers_with_what_it_documents(own_server, tmp_path, client):
    shown = Client(own_server("--run", str(folder_of(tmp_path, range(1, 50)))).address)
    assert shown.send("/api/choices").json["run"] == tmp_path.name
    reply = shown.send("/api/run")
    assert reply.status == 200, reply.body
    assert reply.json["step"] == 49
    assert client.send("/api/run").status == 404


def test_the_page_draws_the_run_while_it_trains_and_when_it_has_ended(browser, own_server, tmp_path):
    folder = folder_of(tmp_path, range(1, 201), validation_loss=2.5)
    with FileLock(tmp_path / ".lock"):
        page = open_page(browser, f"{own_server('--run', str(folder)).address}/#view=run")
        page.wait_for_selector("#run-plot svg")
        assert page.inner_text("#run-state") == "Training"
        said = facts(page, "#run-stats")
        assert "Progress 50%" in said
        assert "Time left 7 min 1K tokens/s" in said
        assert "Will end at" in said
        assert page.locator("#run-plot .band").count() == 1
        folder_of(tmp_path, range(1, 251), validation_loss=2.5)
        page.wait_for_function("() => document.querySelector('#run-stats').textContent.includes('step 250')")
        for width, height in ((1440, 900), (820, 1180), (390, 844)):
            page.set_viewport_size({"width": width, "height": height})
            for _ in ("one theme", "the other"):
                page.click("#theme")
                assert findings(page) == []
            assert small_targets(page) == []
            assert {"theme", "find"} <= reached(page, 20)
    folder_of(tmp_path, range(1, STEPS + 1), validation_loss=2.5)
    write_json(tmp_path / "summary.json",
               {"kind": SUMMARY, "schema": 1, "tokens": STEPS * STEP_TOKENS, "validation_loss": 2.25})  # fmt: skip
    page.wait_for_function("() => document.querySelector('#run-state').textContent === 'Finished'")
    assert "Validation loss 2.2500" in facts(page, "#run-stats")
    assert page.locator("#run-said code").all_inner_texts() == ["loopscale eval", "loopscale forecast"]
    assert page.locator("#run-plot .band").count() == 0  # nothing is left to forecast
    page.set_viewport_size({"width": 390, "height": 844})
    settled(page)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    assert page.errors == []
    page.context.close()


@pytest.mark.parametrize(("view", "says"), [("run", "Reading the run…"), ("sweep", "Reading the sweep…")])
def test_a_view_that_waits_for_its_first_reading_says_so(browser, address, view, says):
    context = browser.new_context()
    context.route("**/api/choices", lambda route: route.fulfill(json={"sweep": "demo", "run": "demo"}))
    for path in ("run", "sweep?*"):
        context.route(f"**/api/{path}", lambda route: None)  # no answer yet
    page = open_in(context, f"{address}/#view={view}")
    page.wait_for_selector(f"#{view}-tab:not([hidden])")
    assert says in page.inner_text(f"#{view}-view")
    assert page.locator(f"#{view}-view .card:visible").count() == 1  # none is empty
    assert page.locator(f"#{view}-view button:visible").count() == 0  # and none does nothing
    context.close()
