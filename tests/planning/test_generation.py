"""Tokens a second: a roofline over what one token reads."""

import pytest

from loopscale.architecture import rung
from loopscale.core.errors import InputError
from loopscale.planning import DEVICES, PLACES, PRESETS, generation_rate, ladder_space, plan
from loopscale.planning.devices import device_called


def one(recurrence: int, **limits):
    return plan(flops=5e21, bits=4, space=ladder_space(["1.0B"], [8], [recurrence]), extrapolate=True, **limits)


def test_one_token_reads_the_weights_of_every_pass_and_the_output_head():
    model = rung("1.0B", experts=8)
    for passes in (1, 3):
        read = (model.active + (passes - 1) * model.loop + model.vocabulary * model.width) / 2
        rate = generation_rate(one(passes), "phone")
        assert rate.bytes_read == pytest.approx(read)
        assert rate.tokens_per_second == pytest.approx(PLACES["phone"].bandwidth / read)


def test_a_context_adds_the_cache_of_one_sequence():
    bare, long = one(2, memory=1e10), one(2, memory=1e10, context=8192)
    more = generation_rate(long).bytes_read - generation_rate(bare).bytes_read
    assert more == pytest.approx(long.choice.kv_bytes)
    batch = one(2, memory=1e10, context=8192, batch=4)
    assert generation_rate(batch).bytes_read == pytest.approx(generation_rate(long).bytes_read)


def test_every_preset_has_a_speed_and_an_unknown_place_is_named():
    assert set(PLACES) == set(PRESETS)
    assert all(device.bandwidth > 0 for device in DEVICES.values())
    with pytest.raises(InputError, match="where 'fone' is not known"):
        generation_rate(one(1), "fone")


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
