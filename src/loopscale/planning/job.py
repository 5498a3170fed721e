"""A training job on devices: what it really computes, stores and moves, its time, and the fastest way to run it.

All in closed form, without torch. ``loopscale train --estimate`` simulates the same step; tests compare the two. The
explorer's page runs the same formulas: ``app/formulas.py`` traces them, so what it traces uses NumPy's functions where
Python's ``min``, ``max``, ``float`` or ``if`` would decide a number at once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from loopscale.architecture import Architecture
from loopscale.architecture.layers import Layer, MixtureOfExperts, Size
from loopscale.core.quantities import format_bytes
from loopscale.planning.devices import NODE, USABLE, UTILISATION, Device

MARGIN = 0.95
"""Share of the usable memory that a chosen setting may take: the closed form is within a few percent of the step."""
CHUNK = 1 << 24
"""Logits that the loss computes at once."""
STATES, GRADIENT = 12, 4
"""Bytes of a weight in training, in fp32: the weight with two moments of AdamW, and its gradient."""
REDUCES = ("step", "pass", "block")


def padding(model: Architecture, capacity: float) -> Any:
    """Return how many rows drop-and-pad computes for each routed one; a capacity of E holds every row."""
    return np.minimum(capacity, model.experts)


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
class Layout:
    """How devices share a step."""

    accumulate: int = 1
    """Parts in which a device computes its share of a batch."""
    replicas: int = 1
    """Copies of the sharded model."""
    reduce: str = "step"
    """When gradients of the loop are reduced."""
    stored: float = 1.0
    """Share of the block calls whose activations are stored; the others are recomputed in backward."""
    activation_bytes: float | None = None
    """Memory for activations where only some are stored."""
    experts: int = 1
    """Devices that hold the experts of a layer together."""

    def settings(self) -> dict[str, dict[str, Any]]:
        """Return the layout as sections of a training file."""
        run: dict[str, Any] = {"accumulate": self.accumulate}
        if self.stored == 0:
            run["activation_checkpointing"] = True
        elif self.activation_bytes is not None:
            run["activation_memory"] = float(f"{self.activation_bytes:.3g}")
        return {"run": run, "parallel": {"replicas": self.replicas, "reduce": self.reduce}}

    def __str__(self) -> str:
        recomputed = {1.0: "nothing recomputed", 0.0: "all blocks recomputed"}.get(
            self.stored, f"{1 - self.stored:.0%} of the blocks recomputed"
        )
        return f'accumulate = {self.accumulate}, replicas = {self.replicas}, reduce = "{self.reduce}", {recomputed}'


@dataclass(frozen=True)
class StepCost:
    """What one device needs for a step in a layout."""

    layout: Layout
    memory: float
    """Bytes at the peak."""
    flops: float
    moved: float
    """Bytes that it receives from others."""
    compute_seconds: float
    """At the peak of the device."""
    traffic_seconds: float
    """To read and write its own memory."""
    communication_seconds: float

    @property
    def seconds(self) -> float:
        """The least time of a step: arithmetic, memory or communication, whichever takes longest."""
        return step_seconds(self.compute_seconds, self.traffic_seconds, self.communication_seconds)

    def __str__(self) -> str:
        return f"{self.layout}: {format_bytes(self.memory)}, at least {self.seconds:.3g} s a step"


def step_seconds(compute: float, traffic: float, communication: float) -> float:
    """Return the least time of a step: the three overlap at best."""
    return max(compute, traffic, communication)


def expected_days(step: float, steps: float, utilisation: float = UTILISATION) -> float:
    """Return the days of a run whose steps take ``step`` seconds at listed rates, of which it reaches a share."""
    return step * steps / utilisation / 86400


@dataclass(frozen=True)
class Job:
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

    @property
    def step_tokens(self) -> int:
        """Tokens of a step."""
        return self.batch * self.context

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
        return _depth(model.prelude) + R * _depth(model.loop_block) + readouts * _depth(model.coda)

    @cached_property
    def _forward_flops(self) -> tuple[Size, Size]:
        """FLOPs of a token without recomputation, and what recomputing every block adds."""
        plain = self.flops_per_token()
        return plain, self.flops_per_token(1.0) - plain

    @cached_property
    def _weights(self) -> tuple[Size, Size, Size, Size]:
        """All weights, those of the loop, those of prelude and coda, and the embeddings."""
        model, width = self.model, self.model.width
        loop, edges = (
            sum(stack.count * (stack.layer.stored(width) + stack.layer.router(width)) for stack in stacks)
            for stacks in (model.loop_block, (*model.prelude, *model.coda))
        )
        return model.parameters, loop, edges, model.embedding

    @cached_property
    def _block_numbers(self) -> Size:
        """Numbers that backward needs of one token in one block, as counted in a simulated block.

        Of the width: norms with their copies in fp32, queries, attention and its output. An expert's row is gathered,
        and its product is kept before and after the gate; the rows of a token come together in its output.
        """
        stacks = (*self.model.loop_block, *self.model.prelude, *self.model.coda)
        layer: Layer = stacks[0].layer
        width, feed_forward = self.model.width, layer.feed_forward
        attention = 10 * width + layer.attention.cached()
        if isinstance(feed_forward, MixtureOfExperts):
            k = feed_forward.active_experts
            return attention + (1 + 2 * k) * width + self.padding * k * (width + 3 * feed_forward.hidden)
        return attention + 3 * feed_forward.hidden

    def cost(self, layout: Layout) -> StepCost:
        """Return what a step needs in a layout."""
        tokens = self.step_tokens / self.devices
        plain, again = self._forward_flops
        flops = (plain + (1 - layout.stored) * again) * tokens
        within, across = self._moved(layout)
        shards = self.devices / layout.replicas
        communication = within / self._rate(shards) + across / self._rate(self.devices)
        return StepCost(
            layout, self._memory(layout), flops, within + across, flops / self.device.flops,
            self._traffic(layout) / self.device.bandwidth, communication,
        )  # fmt: skip

    def _rate(self, devices: float) -> Size:
        """Return the bytes a second between so many devices: those of a node, or the network's."""
        return np.where(devices > NODE, self.device.network, self.device.link or self.device.network)

    def _moved(self, layout: Layout) -> tuple[Size, Size]:
        """Return the bytes that a device receives in a step within a copy of the model, and from other copies."""
        weights, loop, edges, embedding = self._weights
        shards, replicas, R = self.devices / layout.replicas, layout.replicas, self.recurrence
        gathered = embedding + 2 * edges + 2 * R * loop if layout.reduce == "block" else weights + edges
        once = layout.reduce == "step"
        reduced = weights if once else weights + (R - 1) * loop
        within = layout.accumulate * self.number * gathered + GRADIENT * reduced * (1 if once else layout.accumulate)
        across = 2 * (replicas - 1) / replicas * GRADIENT * reduced / shards
        return within * (shards - 1) / shards, across

    def _traffic(self, layout: Layout) -> Size:
        """Return the bytes that a device reads and writes in its own memory: weights, activations, optimiser."""
        weights, loop, _, _ = self._weights
        used = weights + (self.recurrence - 1) * loop
        activations = self.step_tokens / self.devices * self.calls * self._block_numbers
        states = (2 * self.states + 2 * GRADIENT) * weights * layout.replicas / self.devices
        return 3 * self.number * (layout.accumulate * used + activations) + states

    def _memory(self, layout: Layout) -> Size:
        """Return the bytes of one device at the peak of a step: of the moments that can be it, the largest."""
        weights, loop, edges, embedding = self._weights
        loop /= layout.experts  # those of others are not gathered
        number, R, by_step = self.number, self.recurrence, layout.reduce == "step"
        shards = self.devices / layout.replicas
        sharded = GRADIENT * weights / shards
        block_weights = (loop + edges) / np.maximum(self.model.layers, 1.0)
        tokens = self.step_tokens / self.devices / layout.accumulate
        kept, block = self._kept(tokens), self._block(tokens)
        stored = kept + layout.stored * (self.calls * block - kept)
        backward = self._backward(tokens) + np.where(layout.stored < 1, block, 0.0)
        logits = np.minimum(tokens * self.model.vocabulary, CHUNK) * (number + 4)
        throughout = self.states * weights / shards
        if self.devices == 1 and number == 4:  # nothing is gathered, and gradients are whole
            earlier = GRADIENT * weights if layout.accumulate > 1 else 0.0
            begins = stored + max(logits, backward) + GRADIENT * embedding
            return throughout + max(earlier + begins, GRADIENT * weights + kept + backward)
        throughout += number * (embedding + (2 * block_weights if layout.reduce == "block" else loop))
        if layout.accumulate > 1:  # gradients of earlier parts; those reduced once a step are whole until the last part
            throughout += GRADIENT * weights if by_step else sharded
        own = 0.0 if layout.accumulate > 1 else sharded
        # The loss computes the gradient of the output head at once, in fp32, and keeps it in the type of the products.
        head = number * embedding
        moments = [stored + logits + (GRADIENT + number) * embedding]
        moments.append(stored + backward + head + (number + GRADIENT) * block_weights)
        looped = R * _depth(self.model.loop_block) / self.calls
        before_loop = stored * (1 - looped) / 2
        if by_step:
            # The loop's gradients are summed over passes in the type of the products. When they are reduced, in fp32,
            # its weights are no longer gathered.
            reduced = own * edges / 2 / weights
            moments.append(before_loop + (GRADIENT * loop if own else 0.0) + head + reduced)
            if R > 1:
                later = before_loop + stored * looped * (R - 1) / R
                moments.append(later + backward + number * loop + head + reduced)
        else:
            moments.append(before_loop + head + own + (number + GRADIENT) * block_weights)
        moments.append(own + head + (number + GRADIENT) * embedding)
        return throughout + functools.reduce(np.maximum, moments)

    def _backward(self, tokens: float) -> Size:
        """Return the bytes that the backward of one block needs for a moment: gradients of its products."""
        stacks = (*self.model.loop_block, *self.model.prelude, *self.model.coda)
        feed_forward, rows = stacks[0].layer.feed_forward, 1.0
        if isinstance(feed_forward, MixtureOfExperts):
            rows = self.padding * feed_forward.active_experts
        return self.number * tokens * (3 * rows * feed_forward.hidden + 2 * self.model.width)

    def stored_share(self, accumulate: int, activation_bytes: float) -> float:
        """Return the share of block calls that the trainer stores in a stated memory for activations."""
        tokens = self.step_tokens / self.devices / accumulate
        block, kept = self._block(tokens), self._kept(tokens)
        calls = (activation_bytes - kept - block) / (block - kept / self.calls)
        return float(min(1.0, max(0.0, calls / self.calls)))

    def _block(self, tokens: float) -> Size:
        return self.number * tokens * self._block_numbers

    def _kept(self, tokens: float) -> Size:
        """Return the bytes of the inputs of all block calls, which stay when everything is recomputed."""
        return self.number * tokens * self.calls * self.model.width

    @staticmethod
    def usable_of(device: Device) -> float:
        """Return the bytes of a device that a chosen setting may take."""
        return MARGIN * USABLE * device.memory

    @property
    def usable(self) -> float:
        """Bytes that a chosen setting may take."""
        return self.usable_of(self.device)

    def layouts(self, pinned: Mapping[str, Any] | None = None) -> Iterator[StepCost]:
        """Yield the cost of every layout that fits the device; ``pinned`` are fields of a layout that are set."""
        pinned = pinned or {}
        share = self.batch // self.devices
        for shards in _divisors(self.devices):
            for reduce in REDUCES:
                for parts in _divisors(share):
                    layout = Layout(parts, self.devices // shards, reduce)
                    if any(getattr(layout, name) != value for name, value in pinned.items() if name != "stored"):
                        continue
                    fitted = self._fitted(layout, pinned.get("stored"))
                    if fitted is not None:
                        yield fitted

    def _fitted(self, layout: Layout, stored: float | None) -> StepCost | None:
        """Return a layout that stores as many activations as fit; None where even recomputing all of them does not."""
        if stored is not None:
            fixed = Layout(layout.accumulate, layout.replicas, layout.reduce, stored)
            return self.cost(fixed) if self._memory(fixed) <= self.usable else None
        if self._memory(layout) <= self.usable:
            return self.cost(layout)
        least = Layout(layout.accumulate, layout.replicas, layout.reduce, 0.0)
        spare = self.usable - self._memory(least)
        if spare < 0:
            return None
        tokens = self.step_tokens / self.devices / layout.accumulate
        block, kept = self._block(tokens), self._kept(tokens)
        calls = int(spare / (block - kept / self.calls))
        if calls == 0:
            return self.cost(least)
        allowed = kept + block + calls * (block - kept / self.calls)
        return self.cost(
            Layout(layout.accumulate, layout.replicas, layout.reduce, min(1.0, calls / self.calls), allowed)
        )

    def fastest(self, pinned: Mapping[str, Any] | None = None) -> list[StepCost]:
        """Return the layouts that fit, the fastest first.

        Of those that are equally fast, to a percent, the first is that which would be if nothing overlapped.
        """

        def order(cost: StepCost) -> tuple[int, float, float]:
            together = cost.compute_seconds + cost.traffic_seconds + cost.communication_seconds
            return round(100 * math.log(cost.seconds)), together, cost.memory

        return sorted(self.layouts(pinned), key=order)

    def least_memory(self) -> StepCost:
        """Return the layout that takes the least memory, whether or not it fits."""
        share = self.batch // self.devices
        return min(
            (self.cost(Layout(share, self.devices // shards, reduce, 0.0)) for shards in _divisors(self.devices)
             for reduce in REDUCES),
            key=lambda cost: cost.memory,
        )  # fmt: skip


def _depth(stacks: tuple[Any, ...]) -> Size:
    return sum(stack.count for stack in stacks)


def _divisors(number: int) -> list[int]:
    return [part for part in range(1, number + 1) if number % part == 0]
