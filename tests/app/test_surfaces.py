"""One budget and one design read the same on the command line, in Python, over HTTP, in the report and on the page."""

import json

import pytest
from browser import open_page, settled

from loopscale.cli import main
from loopscale.planning import FIELDS, Design, plan
from loopscale.planning.design import card_size, experts_text

BASE = {"flops": "5e21", "memory": "3 GB", "bits": "4", "context": "8192", "bandwidth": "51.2 GB/s"}
VALUES = {
    "flops": "3e21",
    "real_flops": "4e21",
    "tokens": "300B",
    "max_tokens": "200B",
    "unique_tokens": "50B",
    "memory": "2 GB",
    "bits": "8",
    "context": "32768",
    "batch": "4",
    "kv_bits": "8",
    "kept_passes": "1",
    "kept_window": "512",
    "min_speed": "80",
    "bandwidth": "30 GB/s",
    "cache": "2 GB",
    "inference_flops": "1B",
    "serve_tokens": "1T",
}
"""A value that changes the answer or its costs; a field that is not listed takes its control's start."""


def printed(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit):
        main(arguments)
    return capsys.readouterr().out


def key(choice) -> tuple:
    facts = choice.to_dict() if isinstance(choice, Design) else choice
    names = ("label", "loss", "tokens", "weight_bytes", "kv_bytes", "train_flops", "tokens_per_second")
    return tuple(facts[name] for name in names)


@pytest.fixture(scope="module")
def page(browser, address):
    return open_page(browser, address)


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_of_the_budget_means_the_same_everywhere(capsys, client, page, address, name):
    value = VALUES.get(name, FIELDS[name].slider.start)
    asked = {**BASE, name: value}
    in_python = plan(**asked, extrapolate=True)
    options = [word for field, value in asked.items() for word in (FIELDS[field].option, value)]
    on_the_line = json.loads(printed(capsys, "plan", *options, "--extrapolate", "--json"))
    reply = client.send("/api/plan", asked | {"extrapolate": True}).json
    assert on_the_line == reply["plan"]
    assert on_the_line == json.loads(json.dumps(in_python.to_dict()))
    page.goto("about:blank")
    page.goto(f"{address}/#extrapolate=1&" + "&".join(f"{field}={value}" for field, value in BASE.items()))
    settled(page)
    if not page.is_visible(f"#in-{name}"):
        page.click("#more-limits summary")
    page.fill(f"#in-{name}", value)
    with page.expect_response(lambda reply: "/api/plan" in reply.url) as waiting:
        page.press(f"#in-{name}", "Enter")
    settled(page)
    assert key(waiting.value.json()["plan"]["choice"]) == key(in_python.choice)
    assert page.inner_text("#sentence") == in_python.to_dict()["sentences"]["answer"]
    assert FIELDS[name].label.lower() in page.inner_text("#given").lower()


def test_a_field_that_is_wrong_is_named_by_each_surface_in_its_own_terms(capsys, client, page, address):
    with pytest.raises(SystemExit):
        main(["plan", "--flops", "5e21", "--min-speed", "20"])
    assert (
        "--min-speed: a speed is that of a device; give its memory bandwidth with --bandwidth"
        in capsys.readouterr().err
    )
    refused = client.send("/api/plan", {"flops": 5e21, "min_speed": 20}).json
    assert refused["field"] == "min_speed"
    assert refused["remedy"] == "give its memory bandwidth with `bandwidth`"
    page.goto("about:blank")
    page.goto(f"{address}/#min_speed=20")
    settled(page)
    said = page.inner_text("#in-min_speed-said")
    assert said == "a speed is that of a device; give its memory bandwidth with Memory bandwidth"


def test_a_design_has_the_same_sizes_and_experts_in_every_text(capsys, client, page, address, tmp_path):
    made = plan(flops=5e21, memory=3e9, bits=4)
    choice = made.choice
    active, total = card_size(choice.active_parameters), card_size(choice.total_parameters)
    experts = experts_text(choice.experts_active, choice.experts_total)
    assert (active, total, experts) == ("1.0B", "5.4B", "2 of 16 experts")
    report = tmp_path / "plan.md"
    text = printed(capsys, "plan", "--flops", "5e21", "--memory", "3GB", "--bits", "4", "--report", str(report))
    size = ("--rung", choice.rung, "--experts", f"{choice.experts:g}")
    looped = ("--recurrence", str(choice.recurrence))
    predicted = printed(capsys, "predict", *size, *looped, "--tokens", "500B")
    for where in (text, predicted):
        assert f"{active} MoE · {experts} · looped 2x" in where
        assert f"{total} total, {active} active" in where
    assert f"{active}-active, {total}-total MoE ({experts}), looped twice" in " ".join(report.read_text().split())
    built = choice.architecture()
    assert float(built.parameters) == choice.total_parameters
    assert (built.active_experts, built.routed_experts) == (choice.experts_active, choice.experts_total)
    counted = printed(capsys, "count", *size, *looped)
    for words in (active, total, experts):
        assert words in counted
    page.goto("about:blank")
    page.goto(address)
    settled(page)
    facts = {name: page.inner_text(f"#facts [data-name='{name}'] .value") for name in
             ("Active parameters", "Total parameters", "Experts")}  # fmt: skip
    assert facts == {
        "Active parameters": active,
        "Total parameters": total,
        "Experts": experts.removesuffix(" experts"),
    }
    row = page.locator("#table tbody tr").first
    assert row.locator("[data-name=active]").inner_text() == active
    assert row.locator("[data-name=experts]").inner_text() == "2/16"
    assert client.send("/api/predict", {"rung": choice.rung, "experts": choice.experts, "recurrence": choice.recurrence,
                                        "tokens": "500B"}).json["label"] == choice.label  # fmt: skip
