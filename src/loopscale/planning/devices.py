"""Budgets as people have them: devices, days and money in, FLOPs out; and presets for where a model is to run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from loopscale.architecture import Architecture, rung
from loopscale.core.errors import InputError, nearest, shown
from loopscale.core.quantities import count_of, format_bytes, format_count, fraction_of, parse_count, parse_integers
from loopscale.scaling import costs

if TYPE_CHECKING:
    from loopscale.planning.plan import Plan


@dataclass(frozen=True)
class Device:
    """What a maker states of an accelerator."""

    flops: float
    """Dense bf16 FLOP/s, without sparsity."""
    memory: float
    """Bytes."""
    watts: float
    """Board power, for the energy."""
    bandwidth: float
    """Bytes a second from its memory."""
    link: float | None = None
    """Bytes a second to another device of the node, each way; None where no training step is simulated on it."""
    network: float = 50e9
    """Bytes a second to other nodes, for each device: one port of 400 Gb/s."""


DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        "a100": Device(312e12, 80e9, 400, 2.04e12, 300e9, 25e9),
        "h100": Device(989e12, 80e9, 700, 3.35e12, 450e9),
        "h100-pcie": Device(756e12, 80e9, 350, 2.0e12, 64e9),
        "gh200": Device(989e12, 96e9, 700, 4.0e12, 450e9),
        "h20": Device(148e12, 96e9, 400, 4.0e12, 450e9),
        "h200": Device(989e12, 141e9, 700, 4.8e12, 450e9),
        "b200": Device(2250e12, 180e9, 1000, 8.0e12, 900e9),
        "l40s": Device(362e12, 48e9, 350, 864e9, 32e9, 25e9),
        "rtx4090": Device(165e12, 24e9, 450, 1008e9, 32e9, 12.5e9),
        "mi250x": Device(383e12, 128e9, 560, 3.28e12),
        "mi300x": Device(1307e12, 192e9, 750, 5.3e12, 448e9),
        "tpu-v4": Device(275e12, 32e9, 192, 1.23e12),
        "tpu-v5e": Device(197e12, 16e9, 200, 819e9),
        "tpu-v5p": Device(459e12, 95e9, 350, 2.77e12),
        "tpu-v6e": Device(918e12, 32e9, 300, 1.64e12),
        "trainium2": Device(667e12, 96e9, 500, 2.9e12),
    }
)
PEAK_FLOPS: Mapping[str, float] = MappingProxyType({name: device.flops for name, device in DEVICES.items()})
UTILISATION = 0.4
"""Default share of the peak that training reaches; well-tuned dense training reaches 0.4 to 0.5."""

PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "phone": {"memory": 3e9, "bits": 4.0},
        "laptop-16gb": {"memory": 10e9, "bits": 4.0, "context": 8192},
        "rtx-4090": {"memory": 22e9, "bits": 8.0, "context": 8192},
        "8xh100": {"memory": 576e9, "bits": 16.0, "context": 32768},
    }
)
"""Where the model is to run: the memory that is left for it, the bits of its weights, the context."""


@dataclass(frozen=True)
class Place:
    """What bounds how fast a model generates where it runs."""

    bandwidth: float
    """Bytes a second from memory."""
    flops: float = math.inf
    """Peak FLOP/s; without one, reading the weights is what takes the time."""


PLACES: Mapping[str, Place] = MappingProxyType(
    {
        "phone": Place(51.2e9),
        "laptop-16gb": Place(102.4e9),
        "rtx-4090": Place(DEVICES["rtx4090"].bandwidth, DEVICES["rtx4090"].flops),
        "8xh100": Place(8 * DEVICES["h100"].bandwidth, 8 * DEVICES["h100"].flops),
    }
)
"""How fast the presets' memory is: LPDDR5 at 6400 MT/s with 64 bits (phone) and 128 bits (laptop), else the maker's."""


@dataclass(frozen=True)
class Generation:
    """How fast a design can generate, at most."""

    tokens_per_second: float
    bytes_read: float
    """For one token: the weights of every pass, the output head, and the KV cache."""
    where: str
    text: str


def generation_rate(planned: Plan, where: str = "phone") -> Generation:
    """Return the most tokens a second that the choice of a plan can generate for one sequence, a roofline.

    Every pass reads the weights that the token uses from memory again; the KV cache counts where a context is given.
    Real programs reach a part of it.
    """
    if where not in PLACES:
        raise InputError(f"where {shown(where)} is not known{nearest(where, PLACES)}; choose from {', '.join(PLACES)}")
    choice, budget, place = planned.choice, planned.budget, PLACES[where]
    models = () if planned.evaluated is None else planned.grid.space.models
    head = models[0].vocabulary * choice.width if models and choice.width else 0.0
    read = float((choice.unrolled + head) * budget.bits / 8 + choice.kv_bytes / budget.batch)
    flops = costs.inference_flops(choice.unrolled + head)
    rate = 1 / float(costs.generation_seconds(read, flops, place.bandwidth, place.flops))
    text = (
        f"Generates at most {format_count(rate)} tokens/s on {where} for one sequence (roofline: "
        f"{format_bytes(read)} read per token at {format_bytes(place.bandwidth)}/s)"
    )
    return Generation(rate, read, where, text)


def find_device(name: str) -> Device:
    """Return a device by name."""
    key = name.lower().replace("_", "-").replace(" ", "-")
    key = {"rtx-4090": "rtx4090", "4090": "rtx4090"}.get(key, key)
    if key not in DEVICES:
        raise InputError(f"device {shown(name)} is not known{nearest(key, DEVICES)}; choose from {', '.join(DEVICES)}")
    return DEVICES[key]


def device_called(name: str) -> Device | None:
    """Return the device that a driver calls ``name``, like "NVIDIA H100 80GB HBM3"; None if it is not in the table."""
    words = name.lower().replace("rtx ", "rtx").replace("-", " ").split()
    found = [key for key in DEVICES if set(key.split("-")) <= set(words)]
    return DEVICES[max(found, key=len)] if found else None


def preset(name: str) -> dict[str, Any]:
    """Return the limits of a preset by name."""
    if name not in PRESETS:
        raise InputError(f"preset {shown(name)} is not known{nearest(name, PRESETS)}; choose from {', '.join(PRESETS)}")
    return dict(PRESETS[name])


def device_flops(hours: float | str, device: str, utilisation: float | str = UTILISATION) -> float:
    """Return the training compute of so many device-hours at a utilisation like 0.4 or "40%"."""
    peak = find_device(device).flops
    return count_of(hours, "hours") * 3600 * peak * fraction_of(utilisation, "utilisation")


@dataclass(frozen=True)
class TrainingCost:
    """What a training run takes on given devices."""

    hours: float
    """Device-hours, over all devices."""
    days: float
    """Wall-clock."""
    kilowatt_hours: float
    dollars: float | None
    """None where no price was given."""


def training_cost(
    flops: float, device: str, devices: int = 1, utilisation: float = UTILISATION, price: float | None = None
) -> TrainingCost:
    """Return the device-hours, days, energy and money that ``flops`` take; ``price`` is in dollars a device-hour."""
    found = find_device(device)
    hours = flops / (found.flops * utilisation * 3600)
    return TrainingCost(
        hours, hours / devices / 24, hours * found.watts / 1000, None if price is None else price * hours
    )


def flops_of(reference: Architecture | str, tokens: float | str, recurrence: int = 1) -> float:
    """Return the training compute of a reference model on so many tokens, 6 N_unroll D.

    A reference may be written RUNG:EXPERTS:RECURRENCE, like ``0.6B:8:1``.
    """
    if isinstance(reference, str):
        reference, recurrence = parse_reference(reference)
    return float(costs.train_flops(reference.unrolled(recurrence), count_of(tokens, "tokens")))


def parse_reference(text: str) -> tuple[Architecture, int]:
    """Read a model as RUNG[:EXPERTS[:RECURRENCE]], like ``0.6B:8:1``."""
    parts = text.split(":")
    passes = parse_integers(parts[2], "recurrence") if len(parts) > 2 else (1,)
    if len(parts) > 3 or len(passes) != 1:
        raise InputError(f"{shown(text)} is not RUNG:EXPERTS:RECURRENCE; write it like 0.6B:8:1")
    return rung(parts[0], parse_count(parts[1], "experts") if len(parts) > 1 else 1), passes[0]
