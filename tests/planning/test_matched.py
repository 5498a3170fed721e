"""Two designs on equal terms."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopscale.architecture import ladder_space
from loopscale.core.errors import InputError
from loopscale.planning import Budget, evaluate
from loopscale.planning.matching import matched
from loopscale.scaling import find_law, published

DESIGNS = st.builds(
    lambda name, E, R: f"{name}:{E}:{R}",
    st.sampled_from(["0.3B", "0.6B", "1.0B"]), st.sampled_from([1, 2, 8, 16]), st.sampled_from([1, 2, 4]),
)  # fmt: skip


@settings(max_examples=20, deadline=None)
@given(DESIGNS, DESIGNS, st.floats(21, 22))
def test_matched_comparisons_are_antisymmetric(first, second, log_flops):
    there = matched(first, second, 10**log_flops, published(), extrapolate=True)
    back = matched(second, first, 10**log_flops, published(), extrapolate=True)
    for one, other in zip(there.rows, back.rows, strict=True):
        assert one["difference"] == pytest.approx(-other["difference"], abs=1e-12)
        assert (one["low"] is None) == (one["trust"] == "beyond")
        if one["low"] is not None:
            assert one["low"] == pytest.approx(-other["high"], abs=1e-12)
    assert (there.compute is None) == (back.compute is None)
    if there.compute is not None:
        assert there.compute == pytest.approx(1 / back.compute, rel=1e-9)


def test_at_equal_compute_the_losses_are_the_plans():
    found = matched("0.3B:8:4", "0.6B:8:1", "5e21")
    grid = evaluate(find_law(), ladder_space(["0.3B", "0.6B"], [8], [1, 4]), Budget(flops=5e21), resamples=False)
    assert found.rows[0]["first_loss"] == pytest.approx(grid.loss_ZFSKP[0, 0, 0, 0, 1], rel=1e-12)
    assert found.rows[0]["second_loss"] == pytest.approx(grid.loss_ZFSKP[0, 0, 1, 0, 0], rel=1e-12)


def test_looping_wins_at_equal_parameters_and_loses_at_equal_kv_memory():
    rows = {row["condition"]: row for row in matched("0.3B:8:4", "0.6B:8:1", "5e21", extrapolate=True).rows}
    assert rows["total parameters"]["difference"] < 0
    assert rows["total parameters"]["first_active"] == pytest.approx(
        rows["total parameters"]["second_active"], rel=1e-6
    )
    assert rows["KV memory"]["difference"] > 0


def test_more_experts_are_worth_compute_with_an_interval():
    found = matched("1.0B:2:1", "1.0B:1:1", "3e21")
    assert found.compute > 1
    assert found.compute_interval[0] < found.compute < found.compute_interval[1]


def test_a_resized_design_beyond_the_data_is_withheld():
    rows = {row["condition"]: row for row in matched("0.3B:8:4", "0.6B:8:1", "5e21").rows}
    assert rows["KV memory"]["trust"] == "beyond"
    assert rows["KV memory"]["difference"] is None
    with pytest.raises(InputError, match="no answer"):
        matched("0.3B:8:4", "0.6B:8:1", "1e24")


def test_outside_the_data_the_interval_is_for_one_run_of_each():
    rows = {row["condition"]: row for row in matched("0.3B:8:4", "0.6B:8:1", 1e21).rows}
    inside, outside = rows["training FLOPs"], rows["total parameters"]
    assert (inside["trust"], inside["interval"]) == ("inside", "the curve")
    assert (outside["trust"], outside["interval"]) == ("near", "one run of each")
    assert outside["high"] - outside["low"] > 5 * (inside["high"] - inside["low"])


def test_the_interval_of_a_multiplier_widens_with_the_distance_from_the_data():
    widths = []
    for flops in (1e21, 3e21):
        low, high = matched("0.3B:8:4", "0.6B:8:1", flops).compute_interval
        widths.append(high / low)
    assert widths[1] > 3 * widths[0] > 3
