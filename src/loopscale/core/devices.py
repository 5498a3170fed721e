"""The one table of devices: what makers state of accelerators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from loopscale.core.errors import InputError, nearest, shown
from loopscale.core.quantities import fraction_of


@dataclass(frozen=True)
class Device:
    """What a maker states of an accelerator."""

    flops: float
    """Dense bf16 FLOP/s, without sparsity."""
    memory: float
    """Bytes that programs can use: a B200 has 192 GB, of which makers of servers state 180."""
    watts: float
    """Board power, for the energy."""
    bandwidth: float
    """Bytes a second from its memory."""
    link: float | None = None
    """Bytes a second to another device of the node, each way; None where no training step is simulated on it."""
    network: float = 50e9
    """Bytes a second to other nodes, for each device: one port of 400 Gb/s."""
    host_memory: float = 250e9
    """Bytes of the host for each device: a server of eight has 2 TB."""


DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        "a100": Device(312e12, 80e9, 400, 2.04e12, 300e9, 25e9),
        "h100": Device(989e12, 80e9, 700, 3.35e12, 450e9),
        "h100-96gb": Device(989e12, 96e9, 700, 3.35e12, 450e9),
        "h100-pcie": Device(756e12, 80e9, 350, 2.0e12, 64e9),
        "gh200": Device(989e12, 96e9, 700, 4.0e12, 450e9),
        "h20": Device(148e12, 96e9, 400, 4.0e12, 450e9),
        "h200": Device(989e12, 141e9, 700, 4.8e12, 450e9),
        "b200": Device(2250e12, 180e9, 1000, 8.0e12, 900e9),
        "l40s": Device(362e12, 48e9, 350, 864e9, 32e9, 25e9, 192e9),
        "rtx4090": Device(165e12, 24e9, 450, 1008e9, 32e9, 12.5e9, 64e9),
        "mi250x": Device(383e12, 128e9, 560, 3.28e12),
        "mi300x": Device(1307e12, 192e9, 750, 5.3e12, 448e9),
        "tpu-v4": Device(275e12, 32e9, 192, 1.23e12),
        "tpu-v5e": Device(197e12, 16e9, 200, 819e9),
        "tpu-v5p": Device(459e12, 95e9, 350, 2.77e12),
        "tpu-v6e": Device(918e12, 32e9, 300, 1.64e12),
        "trainium2": Device(667e12, 96e9, 500, 2.9e12),
    }
)
UTILISATION = 0.4
"""Default share of the listed rates that training reaches; well-tuned dense training reaches 0.4 to 0.5."""
NODE = 8
"""Devices of a node, which are connected by fast links."""
HOST_LINK = 32e9
"""Bytes a second between a device and its host: PCIe 4.0 with 16 lanes."""
HOST_BANDWIDTH = 40e9
"""Bytes a second of the host's memory for each device: a server of eight has eight channels or more of DDR4."""
USABLE = 0.94
"""Fraction of a device's memory that tensors can use; the rest is for the driver, libraries and fragmentation."""


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
    named = [key for key in DEVICES if set(key.split("-")) <= set(words)]
    return DEVICES[max(named, key=len)] if named else None


def utilisation_of(stated: float | str | None) -> float:
    """Return the share of listed rates that training reaches, stated like 0.4 or "40%"; the usual one for None."""
    return UTILISATION if stated is None else fraction_of(stated, "utilisation")
