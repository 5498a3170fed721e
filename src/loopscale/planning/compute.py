"""Compute as people have it: devices, days, money or a reference model in, FLOPs out, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from loopscale.architecture import Architecture, rung
from loopscale.core.devices import UTILISATION, find_device, utilisation_of
from loopscale.core.errors import InputError, shown
from loopscale.core.quantities import count_of, days_of, parse_integers
from loopscale.scaling import costs

if TYPE_CHECKING:
    from loopscale.planning.design import Design


def device_flops(hours: float | str, device: str, utilisation: float | str | None = None) -> float:
    """Return the training compute of so many device-hours at a utilisation."""
    return flops_of_hours(count_of(hours, "hours"), find_device(device).flops, utilisation_of(utilisation))


def flops_of_hours(hours: float, rate: float, utilisation: float) -> float:
    """Return the FLOPs of so many device-hours at a share of the listed rate, in FLOP/s."""
    return hours * 3600 * rate * utilisation


def hours_of_flops(flops: float, rate: float, utilisation: float) -> float:
    """Return the device-hours that so many FLOPs take."""
    return flops / (rate * utilisation * 3600)


def device_hours(gpus: int | None, days: float | str | None, *, flops_stated: bool = False) -> float | None:
    """Return the hours that devices train in all, where the compute is stated by them; it is stated once."""
    if gpus is None and days is None:
        return None
    if gpus is None or days is None:
        missing, stated = ("gpus", "days") if gpus is None else ("days", "gpus")
        raise InputError("missing", field=missing, remedy=f"give `{missing}` with `{stated}`")
    if flops_stated:
        raise InputError("`gpus` and `flops` both state the compute; give one", field="gpus")
    return gpus * days_of(days, "days") * 24


@dataclass(frozen=True)
class TrainingCost:
    """What a training run takes on given devices."""

    hours: float
    """Device-hours, over all devices."""
    days: float
    """Wall-clock."""
    kilowatt_hours: float
    """At the devices' board power: hosts and cooling are not in it."""
    dollars: float | None
    """None where no price was given."""


def training_cost(
    flops: float, device: str, devices: int = 1, utilisation: float = UTILISATION, price: float | None = None
) -> TrainingCost:
    """Return the device-hours, days, energy and money that ``flops`` take; ``price`` is in dollars a device-hour."""
    hours = hours_of_flops(flops, find_device(device).flops, utilisation)
    return time_cost(hours / devices / 24, device, devices, price)


def time_cost(days: float, device: str, devices: int, price: float | None = None) -> TrainingCost:
    """Return what devices cost over so many days."""
    hours = days * 24 * devices
    watts = find_device(device).watts
    return TrainingCost(hours, days, hours * watts / 1000, None if price is None else price * hours)


def first_token_seconds(design: Design, prompt: int, rate: float, bandwidth: float | None = None) -> float:
    """Return the least time to read a prompt and give its first token, at ``rate`` FLOP/s.

    Every token of the prompt goes through all passes, with attention to those before it; the output head is needed
    once. A short prompt is bound by reading the weights.
    """
    model, R = design.architecture(), design.recurrence
    head = 2.0 * model.width * model.vocabulary
    forward = float(model.real_train_flops_per_token(R, context=prompt)) / 3 - head
    reading = 0.0 if bandwidth is None else design.bytes_per_token / bandwidth
    return float(max((forward * prompt + head) / rate, reading))


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
    return rung(parts[0], count_of(parts[1], "experts") if len(parts) > 1 else 1), passes[0]
