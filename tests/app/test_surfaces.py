"""One budget and one design read the same on the command line, in Python, over HTTP, in the report and on the page."""

import json
import random

import pytest
from browser import facts, open_page, visit
from engine import PLANNER, run_node
from test_engine import PLAN, differences, python_plan, random_task

from loopscale.cli import main
from loopscale.core.quantities import format_bytes, format_count, format_size
from loopscale.planning import FIELDS, plan
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
    # The link replaces what the first view sets; a field is written as the page writes it.
    visit(page, "extrapolate=1&where=&" + "&".join(f"{field}={value}" for field, value in asked.items()))
    assert page.inner_text("#message") == ""
    shown = page.inner_text("#loss")
    assert abs(float(shown) - in_python.choice.loss) <= 0.5 * 10.0 ** -len(shown.partition(".")[2]) + 1e-12
    said = facts(page)
    assert f"Training tokens {format_count(in_python.choice.tokens)}" in said
    assert f"{format_bytes(in_python.choice.memory)} of" in said
    assert page.get_attribute("#trust-line", "data-level") == in_python.trust.level
    if name not in ("flops", "memory", "bits"):
        assert FIELDS[name].label in page.inner_text("#sentence")


def check_random_scenarios(capsys, client, count: int, seed: int) -> None:
    """The command line, Python, the API and the page's planner give one answer."""
    rng = random.Random(seed)
    tasks = [task for task in (random_task(rng) for _ in range(count)) if "rungs" not in task["options"]]
    for task, on_the_page in zip(tasks, run_node(PLAN, tasks, *PLANNER), strict=True):
        in_python = python_plan(task)
        assert not differences(in_python, on_the_page), task
        devices = task.get("devices", {})
        given = [(FIELDS[name].option, repr(value)) for name, value in task["limits"].items()]
        given += [(f"--{name}", str(value)) for name, value in (task["options"] | devices).items()]
        options = [word for pair in given for word in pair]
        body = {**task["limits"], **task["options"], **devices, "law": task["law"], "extrapolate": True}
        reply = client.send("/api/plan", body).json
        printed_text = printed(capsys, "plan", *options, "--law", task["law"], "--extrapolate", "--json")
        if "refused" in in_python:
            assert "error" in reply
            assert printed_text == ""
        else:
            assert json.loads(printed_text) == reply["plan"]
            assert reply["plan"]["choice"]["label"] == in_python["choice"]["label"]
            assert reply["plan"]["choice"]["loss"] == in_python["choice"]["loss"]
            for part in ("weight_bytes", "kv_bytes"):  # of the memory
                assert reply["plan"]["choice"][part] == in_python["choice"][part]
            assert reply["plan"]["trust"]["level"] == in_python["trust"]["level"]
            if devices:
                assert reply["plan"]["devices"]["days"] == in_python["days"]


def test_random_scenarios_have_one_answer_on_every_surface(capsys, client):
    check_random_scenarios(capsys, client, 12, seed=11)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12, 20))
def test_two_hundred_random_scenarios_have_one_answer_on_every_surface(capsys, client, seed):
    check_random_scenarios(capsys, client, 36, seed)  # of which about 26 are compared


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
    visit(page, "min_speed=20&bandwidth=&where=")
    assert page.inner_text("#message").startswith("A speed is that of a device; choose a device")


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
    for words in (format_size(choice.active_parameters), format_size(choice.total_parameters), experts):
        assert words in counted  # exact where plans round
    visit(page, "")
    assert f"a {active} model with {experts}" in page.inner_text("#sentence")
    assert f"stores {total} parameters and uses {active}" in page.inner_text("#model-note")
    assert client.send("/api/predict", {"rung": choice.rung, "experts": choice.experts, "recurrence": choice.recurrence,
                                        "tokens": "500B"}).json["label"] == choice.label  # fmt: skip


@pytest.mark.parametrize(
    ("link", "asked"),
    [
        ("flops=3e21&memory=2GB&bits=8&context=8192", {"flops": 3e21, "memory": 2e9, "bits": 8, "context": 8192}),
        (
            "flops=1.25e21&memory=3GB&bits=4&max_tokens=300B&eps=0.001",
            {"flops": 1.25e21, "memory": 3e9, "bits": 4, "max_tokens": 3e11, "eps": 0.001},
        ),
        (
            "flops=5e21&memory=3GB&bits=4&experts=1,8&passes=2",
            {"flops": 5e21, "memory": 3e9, "bits": 4, "experts": [1, 8], "recurrences": [1, 2]},
        ),
        (
            "gpus=16&days=14&device=a100&utilisation=50%25&flops=&memory=3GB&bits=4",
            {"gpus": 16, "days": 14, "device": "a100", "utilisation": "50%", "memory": 3e9, "bits": 4},
        ),
    ],
)
def test_the_page_copies_the_command_and_the_python_of_the_api(client, page, link, asked):
    visit(page, f"where=&bandwidth=&{link}")
    if page.get_attribute("#texts", "open") is None:
        page.click("#texts summary")
    page.wait_for_selector("#texts pre")
    copied = client.send("/api/plan", asked).json["copy"]
    assert page.inner_text("#texts pre >> nth=0") == copied["command"]
    assert page.inner_text("#texts pre >> nth=1").strip() == copied["python"].strip()
