"""Tokens a second: a roofline over what one token reads, as a fact of a design and as a limit."""

import pytest

from loopscale.architecture import ladder_space, rung
from loopscale.core.devices import DEVICES, device_called
from loopscale.core.errors import InputError
from loopscale.planning import PRESETS, plan, search

PHONE = PRESETS["phone"]["bandwidth"]


def one(recurrence: int, **limits):
    space = ladder_space(["1.0B"], [8], [recurrence])
    return plan(flops=5e21, bits=4, space=space, extrapolate=True, **{"bandwidth": PHONE, **limits}).choice


def test_one_token_reads_the_weights_of_every_pass_and_the_output_head():
    model = rung("1.0B", experts=8)
    for passes in (1, 3):
        read = (model.active + (passes - 1) * model.loop + model.vocabulary * model.width) / 2
        assert one(passes).bytes_per_token == pytest.approx(read)
        assert one(passes).tokens_per_second == pytest.approx(PHONE / read)


def test_a_context_adds_the_cache_of_one_sequence():
    bare, long = one(2, memory=1e10), one(2, memory=1e10, context=8192)
    assert long.bytes_per_token - bare.bytes_per_token == pytest.approx(long.kv_bytes)
    batch = one(2, memory=1e10, context=8192, batch=4)
    assert batch.bytes_per_token == pytest.approx(long.bytes_per_token)


def test_passes_that_share_a_cache_read_it_each():
    own, shared = one(3, context=8192), one(3, context=8192, kept_passes=1)
    assert shared.kv_bytes < own.kv_bytes
    assert shared.bytes_per_token == own.bytes_per_token


def test_a_loop_that_fits_the_cache_of_the_chip_is_read_once():
    model = rung("1.0B", experts=8)
    stored = float(model.total * model.loop / model.active) / 2
    assert one(3, cache=stored * 1.01).bytes_per_token == pytest.approx(one(1).bytes_per_token)
    assert one(3, cache=stored * 0.99).bytes_per_token == one(3).bytes_per_token


def test_a_least_speed_rules_out_what_is_slower_and_says_how_fast_it_is():
    limits = {"flops": 5e21, "memory": 3e9, "bits": 4, "bandwidth": PHONE}
    free, fast = search(**limits), search(**limits, min_speed=80)
    assert free.choice.tokens_per_second < 80 <= fast.choice.tokens_per_second
    slow = next(design for design in fast.candidates() if design.label == free.choice.label)
    assert slow.ruled_out_by == "min_speed"
    assert slow.verdict == f"generates {slow.tokens_per_second:.3g} tokens/s"
    assert plan(**limits, min_speed=80).binding[0] in ("min_speed", "memory")
    half = plan(**limits, min_speed=40)
    price = {row.limit: row for row in plan(**limits, min_speed=80).sensitivities}["min_speed"]
    assert price.saved == pytest.approx(fast.choice.loss - half.choice.loss)
    assert price.used == pytest.approx(fast.choice.tokens_per_second)


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({"min_speed": 20}, "min_speed: a speed is that of a device; give its memory bandwidth with `bandwidth`"),
        ({"min_speed": 1e6, "bandwidth": PHONE}, "min_speed: nothing generates 1M tokens/s at 51.2 GB/s; the fastest"),
    ],
)
def test_a_speed_that_cannot_be_says_why(limits, sentence):
    with pytest.raises(InputError, match=sentence):
        plan(flops=5e21, **limits)


def test_every_preset_has_a_bandwidth_and_every_device_too():
    assert all(preset["bandwidth"] > 0 for preset in PRESETS.values())
    assert all(device.bandwidth > 0 for device in DEVICES.values())
    assert plan(flops=5e21).choice.tokens_per_second is None


@pytest.mark.parametrize(
    ("called", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA H200", "h200"),
        ("Tesla T4", None),
    ],
)
def test_a_device_is_found_by_what_its_driver_calls_it(called, name):
    assert device_called(called) == (DEVICES[name] if name else None)
