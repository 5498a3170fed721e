"""The memory of one device at the peak of a training step, in closed form.

Nothing here is fitted: every number is a tensor of the model's block or of the trainer's step, and is named. The
counts of a block are compared with a real block by a test; the peak with simulated steps, within 10%. The explorer's
page runs traces of these formulas (see ``job.py``).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from loopscale.architecture.layers import Layer, MixtureOfExperts, Size

if TYPE_CHECKING:
    from loopscale.planning.job import TrainingJob
    from loopscale.planning.layouts import Layout

FP32 = 4
"""Bytes of a number in fp32."""
GRADIENT = FP32
"""Bytes of the gradient of a weight: gradients are summed and reduced in fp32."""
CHUNK = 1 << 24
"""Logits that the loss computes at once."""

NORM = 4
"""Numbers of the width that a norm keeps for backward: its input in fp32 (as two), the normed input, and its output,
which the next product reads."""
ATTENTION = 2
"""Numbers of the width that attention keeps beside keys and values: queries and its output."""
ROUTER = 1
"""Numbers of the width that a router adds: it reads the norm's output in fp32, not in the type of the products."""
ROUTED = 2
"""Rows of the width that each expert of a token adds: the token's row in the order of the experts, and the expert's
output in the order of the tokens."""
GATED = 3
"""Rows of an expert's hidden width: the gate and the other half of the product, and what they give together."""


def stored_numbers(layer: Layer, width: Size, padding: Size) -> Size:
    """Return the numbers that backward needs of one token in one block."""
    numbers = (2 * NORM + ATTENTION) * width + layer.attention.cached()
    feed_forward = layer.feed_forward
    if not isinstance(feed_forward, MixtureOfExperts):
        return numbers + GATED * feed_forward.hidden
    k = feed_forward.active_experts
    # Drop-and-pad computes `padding` rows for each routed one; each has its input and its products.
    return numbers + (ROUTER + ROUTED * k) * width + padding * k * (width + GATED * feed_forward.hidden)


def gradient_numbers(layer: Layer, width: Size, padding: Size) -> Size:
    """Return the numbers of one token that the backward of a block makes for a moment: gradients of its products."""
    feed_forward, rows = layer.feed_forward, 1.0
    if isinstance(feed_forward, MixtureOfExperts):
        rows = padding * feed_forward.active_experts
    return GATED * rows * feed_forward.hidden + 2 * width  # and of the block's input and output


@dataclass(frozen=True)
class Activations:
    """Bytes of activations on one device, for the tokens that it computes at once."""

    block: Size
    """What backward needs of one block call."""
    inputs: Size
    """The inputs of all block calls, which stay when everything is recomputed."""
    moment: Size
    """What the backward of one block makes for a moment."""
    calls: Size

    @classmethod
    def of(cls, job: TrainingJob, accumulate: int) -> Activations:
        """Return the activations of a job whose device computes its share in ``accumulate`` parts."""
        layer, width, bytes_each = job.layer, job.model.width, job.number * job.part_tokens(accumulate)
        return cls(
            bytes_each * stored_numbers(layer, width, job.padding),
            bytes_each * job.calls * width,
            bytes_each * gradient_numbers(layer, width, job.padding),
            job.calls,
        )

    def stored(self, share: float) -> Size:
        """Return the bytes at the end of forward when a share of the block calls keeps its activations."""
        return self.inputs + share * (self.calls * self.block - self.inputs)

    def backward(self, share: float) -> Size:
        """Return the bytes of a block's backward; a block that is recomputed has its activations again."""
        return self.moment + np.where(share < 1, self.block, 0.0)

    @property
    def each(self) -> Size:
        """What one more stored call takes."""
        return self.block - self.inputs / self.calls

    def allowance(self, calls: float) -> Size:
        """Return the memory for activations that lets the trainer store so many calls: one is recomputed at a time."""
        return self.inputs + self.block + calls * self.each


def host_bytes(job: TrainingJob, layout: Layout) -> Size:
    """Return the bytes of the host for one device: with offload, its shards of weights, optimiser and gradients."""
    return (job.states + GRADIENT) * job.weights.all * layout.replicas / job.devices if layout.offload else 0.0


def peak_bytes(job: TrainingJob, layout: Layout) -> Size:
    """Return the bytes of one device at the peak of a step: of the moments that can be it, the largest."""
    activations = Activations.of(job, layout.accumulate)
    stored, backward = activations.stored(layout.stored), activations.backward(layout.stored)
    weights, number = job.weights, job.number
    logits = np.minimum(job.part_tokens(layout.accumulate) * job.model.vocabulary, CHUNK) * (number + FP32)
    throughout = 0.0 if layout.offload else job.states * weights.all * layout.replicas / job.devices
    if number == FP32 and job.devices == 1 and not layout.offload:  # nothing is gathered, and gradients are whole
        earlier = GRADIENT * weights.all if layout.accumulate > 1 else 0.0
        begins = stored + np.maximum(logits, backward) + GRADIENT * weights.embedding
        return throughout + np.maximum(earlier + begins, GRADIENT * weights.all + activations.inputs + backward)
    moments = _moments(job, layout, stored, backward, logits)
    return throughout + _gathered(job, layout) + functools.reduce(np.maximum, moments)


def _gathered(job: TrainingJob, layout: Layout) -> Size:
    """Return the bytes of gathered weights and of the gradients of earlier parts, both there throughout a part."""
    weights = job.weights
    loop = 2 * weights.block(layout) if layout.reduce == "block" else weights.own_loop(layout)
    gathered = job.number * (weights.embedding + loop)
    if layout.accumulate == 1:
        return gathered
    if layout.reduce == "step":  # reduced once a step: whole until the last part
        return gathered + GRADIENT * weights.own(layout)
    return gathered + (0.0 if layout.offload else _sharded_gradients(job, layout))


def _sharded_gradients(job: TrainingJob, layout: Layout) -> Size:
    return GRADIENT * job.weights.all * layout.replicas / job.devices


def _moments(job: TrainingJob, layout: Layout, stored: Size, backward: Size, logits: Size) -> list[Size]:
    """Return what a step adds at each moment that can be its peak."""
    weights, number, R = job.weights, job.number, job.recurrence
    block, loop, embedding = weights.block(layout), weights.own_loop(layout), weights.embedding
    # Gradients of this part that are reduced already, sharded; those of later parts are added to the first part's.
    own = 0.0 if layout.accumulate > 1 else _sharded_gradients(job, layout)
    # The loss computes the gradient of the output head at once, in fp32, and keeps it in the type of the products.
    head = number * embedding
    in_loop = R * job.loop_layers / job.calls
    before_loop = stored * (1 - in_loop) / 2
    moments = [
        stored + logits + (GRADIENT + number) * embedding,  # the loss
        stored + backward + head + (number + GRADIENT) * block,  # the backward of the last block
        own + head + (number + GRADIENT) * embedding,  # the embedding's gradient, at the end
    ]
    if layout.reduce != "step":
        return [*moments, before_loop + head + own + (number + GRADIENT) * block]
    # The loop's gradients are summed over passes in the type of the products. When they are reduced, in fp32, its
    # weights are no longer gathered.
    reduced = own * weights.edges / 2 / weights.all
    moments.append(before_loop + (0.0 if layout.accumulate > 1 else GRADIENT * loop) + head + reduced)
    if R > 1:
        later = before_loop + stored * in_loop * (R - 1) / R
        moments.append(later + backward + number * loop + head + reduced)
    return moments
