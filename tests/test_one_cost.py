"""One job costs the same on every surface: plan, predict, count, sweep plan, train --check and --estimate, the API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient

from loopscale.app.server import create_app
from loopscale.cli.verbs import cli

TOKENS = 20_000 * 3072 * 2048
"""A whole number of steps of the paper's batch."""
MODEL = {"rung": "0.3B", "experts": 8, "recurrence": 3}
GPUS, DEVICE = 16, "a100"
ON = ("--gpus", str(GPUS), "--device", DEVICE)
SIZE = ("--rung", "0.3B", "--experts", "8", "--recurrence", "3")


def answer(*arguments: str) -> Any:
    done = CliRunner().invoke(cli, [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def predicted() -> dict[str, Any]:
    return answer("predict", *SIZE, "--tokens", str(TOKENS), *ON, "--price", "2")


def written(folder: Path, **run: object) -> str:
    """Write the job as a training file by the paper's recipe; its text is the built-in corpus."""
    sections = {
        "recipe": {"name": "paper"},
        "model": MODEL | {"vocab_size": 202_048},
        "run": {"tokens": TOKENS, **run},
    }
    lines = [f"[{name}]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in values.items())
             for name, values in sections.items()]  # fmt: skip
    path = folder / "train.toml"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def agree(predicted: dict[str, Any], **shown: float) -> None:
    devices = predicted["devices"]
    expected = {
        "paper": predicted["train_flops"],
        "real": predicted["real_train_flops"],
        "device_flops": devices["flops"],
        "memory": devices["memory"],
        "days": devices["days"],
        "dollars": devices["dollars"],
    }
    assert shown == pytest.approx({name: expected[name] for name in shown}, rel=1e-3)


def test_real_cost_is_more_than_the_papers_and_recomputation_more_than_real(predicted: dict[str, Any]) -> None:
    assert predicted["devices"]["flops"] >= predicted["real_train_flops"] > predicted["train_flops"]
    hours = predicted["devices"]["hours"]
    assert predicted["devices"]["dollars"] == pytest.approx(2 * hours)
    assert predicted["devices"]["days"] * 24 * GPUS == pytest.approx(hours)


def test_a_plan_of_that_design(predicted: dict[str, Any]) -> None:
    plan = answer("plan", *SIZE, "--tokens", str(TOKENS), "--device", DEVICE, "--price", "2", "--rule", "loss")
    same = answer("predict", *SIZE, "--tokens", str(TOKENS), "--device", DEVICE, "--gpus", "8", "--price", "2")
    devices, choice = plan["devices"], plan["choice"]
    assert plan["real_train_flops"]["flops"] == pytest.approx(choice["real_train_flops"])
    agree(
        same, paper=choice["train_flops"], real=choice["real_train_flops"], device_flops=devices["flops"],
        memory=devices["memory"], days=devices["days"], dollars=devices["dollars"],
    )  # fmt: skip


def test_a_plan_of_those_device_hours_is_that_job(predicted: dict[str, Any]) -> None:
    days = predicted["devices"]["days"]
    plan = answer("plan", *SIZE, *ON, "--days", str(days), "--rule", "loss")
    assert plan["choice"]["tokens"] == pytest.approx(TOKENS, rel=1e-3)
    agree(predicted, days=plan["devices"]["days"], memory=plan["devices"]["memory"])


def test_real_compute_buys_the_tokens_that_cost_it(predicted: dict[str, Any]) -> None:
    back = answer("predict", *SIZE, "--real-flops", str(predicted["real_train_flops"]))
    assert back["tokens"] == pytest.approx(TOKENS)
    assert back["loss"] == pytest.approx(predicted["loss"])


def test_counts(predicted: dict[str, Any]) -> None:
    counts = answer("count", *SIZE)
    per_token = counts["train_flops_per_token"], counts["real_train_flops_per_token"]
    agree(predicted, paper=TOKENS * per_token[0], real=TOKENS * per_token[1])


def test_the_check_of_a_training_file(predicted: dict[str, Any], tmp_path: Path) -> None:
    check = answer("train", written(tmp_path), "--check", *ON)
    agree(
        predicted, paper=check["training_flops"], real=check["real_training_flops"],
        device_flops=check["device_flops"], memory=check["memory"], days=check["days"],
    )  # fmt: skip


def test_the_simulated_estimate(predicted: dict[str, Any], tmp_path: Path) -> None:
    estimate = answer("train", written(tmp_path), "--estimate", *ON, "--price", "2")
    agree(predicted, device_flops=estimate["flops"] * GPUS * 20_000, days=estimate["days"], dollars=estimate["cost"])
    assert estimate["peak_bytes"] == pytest.approx(predicted["devices"]["memory"], rel=0.1)
    assert estimate["fits"]


def test_the_plan_of_a_sweep(predicted: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(
        f"""
        [sweep]
        name = "one"
        [resources]
        gpus = 8
        nodes = {GPUS // 8}
        [grid]
        size = "0.3B"
        experts = 8
        recurrence = 3
        tokens = {TOKENS}
        [base.recipe]
        name = "paper"
        [base.model]
        vocab_size = 202048
        """
    )
    (row,) = answer("sweep", "plan", str(path), "--device", DEVICE)["runs"]
    agree(
        predicted, paper=row["flops"], memory=row["memory"], days=row["seconds"] / 86400, real=row["real_flops"],
    )  # fmt: skip


def test_the_api(predicted: dict[str, Any]) -> None:
    with TestClient(create_app(), base_url="http://localhost") as client:
        body = {"rung": "0.3B", "experts": 8, "recurrence": 3, "tokens": TOKENS}
        reply = client.post("/api/predict", json=body).json()
        plan = client.post("/api/plan", json={"rungs": ["0.3B"], "experts": [8], "recurrences": [3], "tokens": TOKENS})
    agree(predicted, paper=reply["train_flops"], real=reply["real_train_flops"])
    agree(predicted, real=plan.json()["plan"]["choice"]["real_train_flops"])


def test_count_reads_in_a_training_file_whether_every_pass_has_a_loss(tmp_path) -> None:
    file = tmp_path / "train.toml"
    file.write_text(
        "[model]\nwidth = 64\nlayers = 3\nedge_layers = 1\nrecurrence = 3\nloop_loss_weights = [1.0]\n"
        "[data]\ncontext = 128\n[run]\ntokens = 20480\nbatch = 8\n"
    )
    checked = answer("train", str(file), "--check", "--out", str(tmp_path / "run"))
    counted = answer("count", str(file))["real_train_flops_per_token"] * checked["tokens"]
    assert counted == pytest.approx(checked["device_flops"]) == pytest.approx(checked["real_training_flops"], rel=0.01)
