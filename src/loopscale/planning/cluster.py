"""The devices that train a model, and what a design takes on them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from loopscale.architecture import Architecture
from loopscale.architecture.layers import Size
from loopscale.core.devices import NODE, UTILISATION, find_device
from loopscale.core.errors import InputError
from loopscale.core.quantities import format_bytes, format_days, format_power
from loopscale.planning.compute import time_cost, training_cost
from loopscale.planning.design import Design
from loopscale.planning.job import StepCost, TrainingJob, expected_days
from loopscale.planning.recipes import BATCH, CAPACITY, CONTEXT, padding

PLAIN = {"experts": 1, "offload": False}
"""What a plan counts on: the memory of the devices, each with all experts that it uses."""
LEAST_STEPS = 2000
"""Steps that a run should have at least: shorter ones get smaller batches."""
ENERGY = "board power of the devices; hosts and cooling come on top"
"""What kilowatt-hours count."""


@dataclass(frozen=True)
class ClusterCost:
    """What a training run takes on its devices, at the fastest setting that fits."""

    device: str
    devices: int
    utilisation: float
    """Share of listed rates that training is taken to reach."""
    days: float
    hours: float
    """Device-hours, over all devices."""
    kilowatt_hours: float
    """At the devices' board power: hosts and cooling are not in it."""
    dollars: float | None
    """None where no price was given."""
    flops: float
    """Of the whole run, as devices run it: with output head, attention, expert padding and recomputed blocks."""
    memory: float | None
    """Bytes of each device at the peak; None, like ``layout``, for a model known by its size alone."""
    usable: float
    """Bytes of a device that a chosen setting may take."""
    fits: bool
    layout: str | None
    """How the devices share a step."""

    def text(self, *, brief: bool = False) -> str:
        """Say what training takes; ``brief`` leaves out the arithmetic."""
        share = f"{self.utilisation:.0%}"
        taken = f"{self.devices} {self.device} for {format_days(self.days)}"
        if self.devices == 1:
            taken = f"{self.hours:,.0f} {self.device}-hours"
        if not self.fits and self.memory is not None:
            need = f"{format_bytes(self.memory)} each at least, {format_bytes(self.usable)} usable"
            return f"does not fit on {self.devices} {self.device} ({need}); {taken} if it did"
        if brief:
            money = "" if self.dollars is None else f", ${self.dollars:,.0f}"
            return f"{taken} at {share} of listed rates{money}, {self.kilowatt_hours:,.0f} kWh (boards)"
        money = "" if self.dollars is None else f", {self.dollars:,.0f} dollars"
        each = "" if self.memory is None else f", {format_bytes(self.memory)} each"
        layout = "" if self.layout is None else f", with {self.layout}"
        return (
            f"On {self.devices} {self.device}: {format_days(self.days)}{each}, {self.hours:,.0f} device-hours, "
            f"{self.kilowatt_hours:,.0f} kWh ({ENERGY}){money}, for {format_power(self.flops)} real FLOPs at {share} "
            f"of listed rates (assumed; --utilisation changes it){layout}"
        )


@dataclass(frozen=True)
class Cluster:
    """The devices that train a model."""

    device: str = "h100"
    devices: int = NODE
    utilisation: float = UTILISATION
    """Share of listed rates that training reaches."""

    def job(self, model: Architecture, recurrence: int, tokens: float) -> TrainingJob:
        """Return the training of a model by the paper's recipe as a job on these devices."""
        return self.job_of(model, recurrence, batch_for(tokens, self.devices))

    def job_of(self, model: Architecture, recurrence: int, batch: int) -> TrainingJob:
        """Return the same with so many sequences a step."""
        return TrainingJob(
            model, recurrence, batch, CONTEXT, self.devices, find_device(self.device),
            padding=float(padding(model, CAPACITY)),
        )  # fmt: skip

    def best(self, design: Design) -> tuple[TrainingJob, StepCost, bool] | None:
        """Return a design's job with its fastest setting, and whether it fits; None if it cannot be built."""
        try:
            model = design.architecture()
        except InputError:
            return None
        return _fastest(self, model, design.recurrence, batch_for(design.tokens, self.devices))

    def overhead(self, design: Design) -> tuple[float, bool]:
        """Return how much longer a step takes than its arithmetic without recomputation, and whether it fits."""
        best = self.best(design)
        if best is None:
            return 1.0, True
        job, cost, fits = best
        plain = job.flops_per_token() * job.step_tokens / self.devices / job.device.flops
        return float(max(1.0, cost.seconds / plain)), fits

    def cost(self, design: Design, price: float | None = None) -> ClusterCost:
        """Return what a design takes to train here; ``price`` is in dollars a device-hour."""
        best, device = self.best(design), find_device(self.device)
        if best is None:
            flops = design.train_flops if design.real_train_flops is None else design.real_train_flops
            days = training_cost(flops, self.device, self.devices, self.utilisation).days
            memory, usable, fits, layout = None, TrainingJob.usable_of(device), True, None
        else:
            job, step, fits = best
            steps = design.tokens / job.step_tokens
            days, flops = expected_days(step.seconds, steps, self.utilisation), step.flops * self.devices * steps
            memory, usable, layout = step.memory, job.usable, str(step.layout)
        taken = time_cost(days, self.device, self.devices, price)
        return ClusterCost(
            self.device, self.devices, self.utilisation, days, taken.hours, taken.kilowatt_hours, taken.dollars, flops,
            memory, usable, fits, layout,
        )  # fmt: skip


@lru_cache(maxsize=256)
def _fastest(cluster: Cluster, model: Architecture, recurrence: int, batch: int) -> tuple[TrainingJob, StepCost, bool]:
    """Return what ``Cluster.best`` does; a plan, its training file and the next plan ask for the same."""
    job = cluster.job_of(model, recurrence, batch)
    ranked = job.fastest(PLAIN)
    return job, ranked[0] if ranked else job.least_memory(), bool(ranked)


def batch_for(tokens: float, devices: int) -> int:
    """Return the sequences of a step: the paper's, or fewer for a short run; the devices share them equally."""
    return int(sequences_of(tokens, devices)) * devices


def sequences_of(tokens: float, devices: float) -> Size:
    """Return the sequences of a step for each device."""
    most = np.minimum(BATCH, np.maximum(1, np.floor(tokens / CONTEXT / LEAST_STEPS)))
    return np.maximum(1, np.rint(most / devices))
