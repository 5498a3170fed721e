"""What rounded weights cost: a small law that agrees with its measurements and says when there is nothing to count."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from click.testing import CliRunner

from loopscale.cli.plan import plan_command
from loopscale.core.errors import InputError
from loopscale.planning.rounding import MEASURED, rounding_cost

PLAN = ["--flops", "5e21", "--memory", "3GB", "--bits", "int4"]


def test_nine_of_ten_measurements_lie_in_the_interval_within_their_error() -> None:
    inside = []
    for ratio, bits, cost, error in MEASURED:
        law = rounding_cost(bits, ratio, 1.0)
        assert law.low < law.cost < law.high < 4 * law.low
        inside.append(law.low - error < cost < law.high + error)
    assert 0.85 <= sum(inside) / len(inside) <= 1


def test_each_bit_less_costs_about_four_times_as_much() -> None:
    costs = [rounding_cost(bits, 200e9, 1e9).cost for bits in (8, 7, 6, 5, 4, 3)]
    assert all(3.5 < more / less < 4.5 for less, more in pairwise(costs))


def test_more_tokens_for_each_parameter_make_it_dearer_and_16_bits_cost_nothing() -> None:
    assert rounding_cost(4, 2000e9, 1e9).cost > rounding_cost("int4", 20e9, 1e9).cost
    assert rounding_cost("bf16", 20e9, 1e9).high == 0
    with pytest.raises(InputError):
        rounding_cost("int", 20e9, 1e9)


def test_a_plan_states_it_only_when_asked() -> None:
    plain = CliRunner().invoke(plan_command, PLAN)
    asked = CliRunner().invoke(plan_command, [*PLAN, "--rounding"])
    assert plain.exit_code == asked.exit_code == 0
    assert "  rounding  " not in plain.output
    assert len(asked.output.splitlines()) <= 22
    row = json.loads(CliRunner().invoke(plan_command, [*PLAN, "--rounding", "--json"]).output)
    cost = row["rounding"]
    assert f"rounding  about {cost['cost']:+.3f} nats at 4 bits" in asked.output
    choice = row["choice"]
    assert cost == pytest.approx(vars(rounding_cost(4, choice["tokens"], choice["total_parameters"])))
