"""Every number of the API says how far it can be trusted."""

import csv
from dataclasses import replace

import pytest

from loopscale.fitting import fit, simulate_sweep
from loopscale.fitting.data.public import load_micro
from loopscale.scaling import PUBLISHED

CONFIG = {"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 16,
          "intermediate_size": 4096, "vocab_size": 32000}  # fmt: skip
ANYWAY = {"extrapolate": True, "allow_degenerate": True}
LEVELS = ("inside", "near", "far", "beyond", "unknown")
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
    reply = client.send("/api/plan", asked | ANYWAY).json
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
    assert f"Trust: {level}: " in report
    assert "degenerate" in report
