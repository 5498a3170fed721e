"""A training job on devices: what it really computes, stores and moves, its time, and the fastest way to run it.

All in closed form, without torch. ``loopscale train --estimate`` simulates the same step; tests compare the two. The
explorer's page runs the same formulas: ``app/formulas`` traces them, so what it traces uses NumPy's functions where
Python's ``min``, ``max``, ``float`` or ``if`` would decide a number at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from loopscale.architecture import Architecture
from loopscale.architecture.layers import Layer, MixtureOfExperts, Size
from loopscale.core.devices import HOST_BANDWIDTH, HOST_LINK, NODE, USABLE, UTILISATION, Device
from loopscale.core.quantities import format_bytes
from loopscale.planning.layouts import REDUCES, Layout, divisors, layouts
from loopscale.planning.step_memory import FP32, GRADIENT, Activations, host_bytes, peak_bytes, stored_numbers

MARGIN = 0.95
"""Share of the usable memory that a chosen setting may take: the closed form is within a few percent of the step."""
STATES = 3 * FP32
"""Bytes of a weight in training with two moments of AdamW, all in fp32."""


def real_flops_per_token(
    model: Architecture,
    shares: Mapping[int, float],
    *,
    context: int,
    padding: float = 1.0,
    per_loop_supervision: bool = False,
    backprop_passes: int | None = None,
    recomputed: float = 0.0,
) -> float:
    """Return the training FLOPs of a token with everything that runs, on average over a run.

    ``shares`` is the fraction of the steps at each R. Output head, attention and routers are counted, the read-outs of
    per-loop supervision, the padding of experts, and blocks that are recomputed.
    """
    mean: float = sum(
        share
        * model.real_train_flops_per_token(
            passes,
            context=context,
            per_loop_supervision=per_loop_supervision,
            backprop_passes=backprop_passes,
            padding=padding,
            recomputed=recomputed,
        )
        for passes, share in shares.items()
    )
    return mean


@dataclass(frozen=True)
class StepCost:
    """What one device needs for a step in a layout."""

    layout: Layout
    memory: float
    """Bytes at the peak."""
    host_memory: float
    """Bytes in the memory of the host, for one device; 0 without offload."""
    flops: float
    moved: float
    """Bytes that it receives from others."""
    compute_seconds: float
    """At the peak of the device."""
    traffic_seconds: float
    """To read and write its own memory."""
    communication_seconds: float
    """To receive from other devices, and to copy to and from the host."""
    copy_seconds: float
    """The copies alone, with offload."""
    host_seconds: float
    """The optimiser on the host, with offload; the device waits for it."""

    @property
    def seconds(self) -> float:
        """The least time of a step: arithmetic, memory or communication, whichever takes longest."""
        return float(
            step_seconds(self.compute_seconds, self.traffic_seconds, self.communication_seconds, self.host_seconds)
        )

    def __str__(self) -> str:
        return f"{self.layout}: {format_bytes(self.memory)}, at least {self.seconds:.3g} s a step"


def step_seconds(compute: float, traffic: float, communication: float, host: float = 0.0) -> Any:
    """Return the least time of a step: the first three overlap at best, and the device waits for the host."""
    return np.maximum(np.maximum(compute, traffic), communication) + host


def expected_days(step: float, steps: float, utilisation: float = UTILISATION) -> float:
    """Return the days of a run whose steps take ``step`` seconds at listed rates, of which it reaches a share."""
    return step * steps / utilisation / 86400


@dataclass(frozen=True)
class Weights:
    """The weights of a model by where they are used."""

    all: Size
    loop: Size
    edges: Size
    """Prelude and coda."""
    embedding: Size
    experts: Size
    """Those of all experts."""
    layers: Size

    @classmethod
    def of(cls, model: Architecture) -> Weights:
        """Count the weights of a model."""
        width = model.width
        loop, edges = (
            sum(stack.count * (stack.layer.stored(width) + stack.layer.router(width)) for stack in stacks)
            for stacks in (model.loop_block, (*model.prelude, *model.coda))
        )
        experts = sum(
            stack.count * 3 * stack.layer.feed_forward.routed * stack.layer.feed_forward.hidden * width  # matrices
            for stack in _stacks(model)
            if isinstance(stack.layer.feed_forward, MixtureOfExperts)
        )
        return cls(model.parameters, loop, edges, model.embedding, experts, np.maximum(model.layers, 1.0))

    def _gathered(self, layout: Layout) -> Size:
        """Return the share of the blocks' weights that a device gathers: experts that others hold are not."""
        if layout.experts == 1:
            return 1.0
        return 1 - self.experts / (self.loop + self.edges) * (1 - 1 / layout.experts)

    def missing(self, layout: Layout, shards: float) -> Size:
        """Return the share of the blocks' weights that a device receives when it gathers them: all but its shard.

        Devices that hold experts together shard their part of the experts over fewer devices.
        """
        if layout.experts == 1:
            return 1 - 1 / shards
        experts = self.experts / (self.loop + self.edges)
        return (1 - experts) * (1 - 1 / shards) + experts / layout.experts * (1 - layout.experts / shards)

    def own_loop(self, layout: Layout) -> Size:
        """Return the weights of the loop that a device gathers."""
        return self.loop * self._gathered(layout)

    def own_edges(self, layout: Layout) -> Size:
        """Return the weights of prelude and coda that a device gathers."""
        return self.edges * self._gathered(layout)

    def own(self, layout: Layout) -> Size:
        """Return all weights that a device gathers."""
        return self.embedding + self.own_loop(layout) + self.own_edges(layout)

    def block(self, layout: Layout) -> Size:
        """Return those of one block."""
        return (self.own_loop(layout) + self.own_edges(layout)) / self.layers


def _stacks(model: Architecture) -> tuple[Any, ...]:
    return (*model.loop_block, *model.prelude, *model.coda)


@dataclass(frozen=True)
class TrainingJob:
    """A training run on devices."""

    model: Architecture
    recurrence: int
    batch: int
    """Sequences of a step, over all devices."""
    context: int
    devices: int
    device: Device
    padding: float = 1.0
    per_loop_supervision: bool = False
    backprop_passes: int | None = None
    shares: Mapping[int, float] = field(default_factory=dict)
    """The fraction of the steps at each R; empty for ``recurrence`` throughout."""
    number: int = 2
    """Bytes of a number in products: 2 for bf16."""
    states: float = STATES
    """Bytes of a weight with what the optimiser keeps of it."""
    drops: bool = True
    """Whether experts drop and pad: only then devices can hold experts together without reading counts."""

    @property
    def step_tokens(self) -> int:
        """Tokens of a step."""
        return self.batch * self.context

    def part_tokens(self, accumulate: int) -> float:
        """Return the tokens that a device computes at once, in so many parts."""
        return self.step_tokens / self.devices / accumulate

    def flops_per_token(self, recomputed: float = 0.0) -> Size:
        """Return the real training FLOPs of a token."""
        return real_flops_per_token(
            self.model, self.shares or {self.recurrence: 1.0}, context=self.context, padding=self.padding,
            per_loop_supervision=self.per_loop_supervision, backprop_passes=self.backprop_passes,
            recomputed=recomputed,
        )  # fmt: skip

    @cached_property
    def calls(self) -> Size:
        """How many times a block runs in one training forward."""
        model, R = self.model, self.recurrence
        readouts = R if self.per_loop_supervision else 1
        return _depth(model.prelude) + R * self.loop_layers + readouts * _depth(model.coda)

    @cached_property
    def loop_layers(self) -> Size:
        """Layers of the loop block."""
        return _depth(self.model.loop_block)

    @property
    def layer(self) -> Layer:
        """A layer of the model; all have the same shape in training."""
        layer: Layer = _stacks(self.model)[0].layer
        return layer

    @cached_property
    def weights(self) -> Weights:
        """The weights of the model."""
        return Weights.of(self.model)

    @cached_property
    def _forward_flops(self) -> tuple[Size, Size]:
        """FLOPs of a token without recomputation, and what recomputing every block adds."""
        plain = self.flops_per_token()
        return plain, self.flops_per_token(1.0) - plain

    def cost(self, layout: Layout) -> StepCost:
        """Return what a step needs in a layout."""
        tokens = self.step_tokens / self.devices
        plain, again = self._forward_flops
        flops = (plain + (1 - layout.stored) * again) * tokens
        within, across = self._moved(layout)
        exchanged, host = self._exchanged(layout), host_bytes(self, layout)
        communication = within / self._rate(self.devices / layout.replicas) + across / self._rate(self.devices)
        if layout.experts > 1:
            communication += exchanged / self._rate(layout.experts)
        copied = self._copied(layout) / HOST_LINK if layout.offload else 0.0
        return StepCost(
            layout, peak_bytes(self, layout), host, flops, within + across + exchanged, flops / self.device.flops,
            self._traffic(layout) / self.device.bandwidth, communication + copied, copied,
            2 * host / HOST_BANDWIDTH,  # the optimiser reads and writes all that the host holds
        )  # fmt: skip

    def _rate(self, devices: float) -> Size:
        """Return the bytes a second between so many devices: those of a node, or the network's."""
        return np.where(devices > NODE, self.device.network, self.device.link or self.device.network)

    def _moved(self, layout: Layout) -> tuple[Size, Size]:
        """Return the bytes that a device receives in a step within a copy of the model, and from other copies."""
        weights, replicas, R = self.weights, layout.replicas, self.recurrence
        shards, once = self.devices / replicas, layout.reduce == "step"
        missing = weights.missing(layout, shards)
        loop, edges = weights.loop * missing, weights.edges * missing
        embedding = weights.embedding * (1 - 1 / shards)
        gathered = embedding + 2 * edges + (2 * R if layout.reduce == "block" else 1) * loop
        reduced = embedding + edges + (1 if once else R) * loop
        within = layout.accumulate * self.number * gathered + GRADIENT * reduced * (1 if once else layout.accumulate)
        summed = weights.all + (0 if once else R - 1) * weights.loop
        return within, 2 * (replicas - 1) / replicas * GRADIENT * summed / shards

    def _exchanged(self, layout: Layout) -> Size:
        """Return the bytes of tokens that a device receives from those that hold experts with it.

        Every computed row is sent to its expert and back, in forward and in backward; a block that is recomputed sends
        its rows once more.
        """
        feed_forward = self.layer.feed_forward
        if layout.experts == 1 or not isinstance(feed_forward, MixtureOfExperts):
            return 0.0
        rows = self.step_tokens / self.devices * self.padding * feed_forward.active_experts
        times = 4 + 2 * (1 - layout.stored)
        away = (layout.experts - 1) / layout.experts
        return times * self.calls * rows * self.model.width * self.number * away

    def _copied(self, layout: Layout) -> Size:
        """Return the bytes between a device and its host: shards in fp32 whenever they are gathered, and gradients."""
        weights, R = self.weights, self.recurrence
        times = 2 * R if layout.reduce == "block" else 1
        gathered = weights.embedding + 2 * weights.edges + times * weights.loop
        return layout.accumulate * (FP32 * gathered + GRADIENT * weights.all) * layout.replicas / self.devices

    def _traffic(self, layout: Layout) -> Size:
        """Return the bytes that a device reads and writes in its own memory: weights, activations, optimiser."""
        used = self.weights.all + (self.recurrence - 1) * self.weights.loop
        numbers = stored_numbers(self.layer, self.model.width, self.padding)
        activations = self.step_tokens / self.devices * self.calls * numbers
        states = (2 * self.states + 2 * GRADIENT) * self.weights.all * layout.replicas / self.devices
        return 3 * self.number * (layout.accumulate * used + activations) + (0.0 if layout.offload else states)

    def stored_share(self, accumulate: int, activation_bytes: float) -> float:
        """Return the share of block calls that the trainer stores in a stated memory for activations."""
        activations = Activations.of(self, accumulate)
        calls = (activation_bytes - activations.allowance(0)) / activations.each
        return float(min(1.0, max(0.0, calls / self.calls)))

    @staticmethod
    def usable_of(device: Device) -> float:
        """Return the bytes of a device that a chosen setting may take."""
        return MARGIN * USABLE * device.memory

    @property
    def usable(self) -> float:
        """Bytes that a chosen setting may take."""
        return self.usable_of(self.device)

    def fitting(self, pinned: Mapping[str, Any] | None = None) -> list[StepCost]:
        """Return the cost of every layout that fits the device; ``pinned`` are fields of a layout that are set.

        Devices hold experts together, and weights go to the host, only where nothing fits without.
        """
        pinned, sequences = pinned or {}, self.batch // self.devices
        groups = [pinned["experts"]] if "experts" in pinned else self._groups()
        for experts, offload in (([1], False), (groups, False), ([1, *groups], True)):
            ways = layouts(self.devices, sequences, experts, offload=offload)
            allowed = (layout for layout in ways if layout.keeps_to(pinned))
            fitted = [self._fitted(layout, pinned.get("stored")) for layout in allowed]
            if fits := [cost for cost in fitted if cost is not None]:
                return fits
        return []

    def _groups(self) -> list[int]:
        """Return the numbers of devices of a node that can hold the experts of a layer together."""
        feed_forward = self.layer.feed_forward
        if not isinstance(feed_forward, MixtureOfExperts) or not self.drops:
            return []
        return [n for n in divisors(self.devices) if 1 < n <= NODE and feed_forward.routed % n == 0]

    def _fits(self, layout: Layout) -> bool:
        room = USABLE * self.device.host_memory
        return bool(peak_bytes(self, layout) <= self.usable and host_bytes(self, layout) <= room)

    def _fitted(self, layout: Layout, stored: float | None) -> StepCost | None:
        """Return a layout that stores as many activations as fit; None where even recomputing all of them does not."""
        if stored is not None:
            layout = replace(layout, stored=stored)
            return self.cost(layout) if self._fits(layout) else None
        if self._fits(layout):
            return self.cost(layout)
        least = replace(layout, stored=0.0)
        if not self._fits(least):
            return None
        activations = Activations.of(self, layout.accumulate)
        calls = int((self.usable - peak_bytes(self, least)) / activations.each)
        if calls == 0:
            return self.cost(least)
        share, allowed = float(min(1.0, calls / self.calls)), float(activations.allowance(calls))
        return self.cost(replace(layout, stored=share, activation_bytes=allowed))

    def fastest(self, pinned: Mapping[str, Any] | None = None) -> list[StepCost]:
        """Return the layouts that fit, the fastest first.

        Of those that are equally fast, to a percent, the first is that which would be if nothing overlapped.
        """

        def order(cost: StepCost) -> tuple[int, float, float]:
            together = cost.compute_seconds + cost.traffic_seconds + cost.communication_seconds
            return round(100 * math.log(cost.seconds)), together, cost.memory

        return sorted(self.fitting(pinned), key=order)

    def least_memory(self) -> StepCost:
        """Return the layout that takes the least memory of the devices alone, whether or not it fits."""
        return self.cost(min(self._least_layouts(), key=lambda layout: peak_bytes(self, layout)))

    def least_bytes(self) -> float:
        """Return the least bytes of a device that the job takes without the memory of the host."""
        return float(min(peak_bytes(self, layout) for layout in self._least_layouts()))

    def _least_layouts(self) -> list[Layout]:
        """Return the layouts that can take the least: all devices share one copy, and compute a sequence at a time."""
        return [Layout(max(1, self.batch // self.devices), 1, reduce, 0.0) for reduce in REDUCES]


def _depth(stacks: tuple[Any, ...]) -> Size:
    return sum(stack.count for stack in stacks)
