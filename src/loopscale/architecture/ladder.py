"""The paper's ladder of models, its extension by the same rules, and the ladder between its rungs."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from loopscale.architecture.architecture import Architecture, Stack
from loopscale.architecture.layers import Attention, FeedForward, Layer, MixtureOfExperts
from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError, nearest, shown
from loopscale.core.numerics import geometric_bisection

VOCABULARY = 202_048
HEAD_SIZE = 64
KV_HEADS = 4
EDGE_LAYERS = 2
"""Layers of the prelude, and of the coda."""

RUNGS: dict[str, int] = {"0.3B": 768, "0.6B": 1024, "1.0B": 1280, "1.6B": 1536, "2.4B": 1792}
"""Width by name; the name is the active size with embeddings."""
RUNG_EXPERTS = (1, 2, 4, 8, 16, 32)
RUNG_RECURRENCES = tuple(range(1, 11))
"""The design space of the joint optimum: 5 x 6 x 10 = 300 candidates."""


def depth_rule(width: Any) -> Any:
    """Return the layers that go with a width: all five rungs lie on 3 d_m / 128 + 2."""
    return 3 * width / 128 + 2


@lru_cache(maxsize=4096)
def rung(name: str, experts: float = 1, active_experts: int = 2) -> Architecture:
    """Return a rung of the ladder: ``rung("0.3B", experts=8)``.

    ``active_experts`` is k, which the paper leaves open; with k = 1 normalised gates give the router no gradient.
    """
    name = rung_name(name)
    width = RUNGS[name] if name in RUNGS else extended_rungs()[name]
    return at_width(width, experts=experts, active_experts=active_experts, name=name)


def rung_name(text: str) -> str:
    """Return the rung that ``text`` names: ``1.0B``, ``1B``, ``1.0`` and ``1`` are one."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*b?\s*", text, re.IGNORECASE)
    name = f"{float(match[1]):.1f}B" if match and float(match[1]) == round(float(match[1]), 1) else text
    if name not in RUNGS and name not in extended_rungs():
        raise InputError(
            f"rung {shown(text)} is not on the ladder{nearest(text, RUNGS)}; choose from {', '.join(RUNGS)}, or from "
            f"its extension by the same rule ({', '.join(list(extended_rungs())[7:10])}, ...)"
        )
    return name


@lru_cache(maxsize=1)
def extended_rungs() -> dict[str, int]:
    """Return the ladder continued by its own rule, width by name, from 0.1B to more than 1T active.

    The paper's rungs are 256 apart in width; so are these up to a width of 8,192, and 512 apart from there.
    """
    widths = [*range(256, 8192, 256), *range(8192, 16385, 512)]
    names = {width: name for name, width in RUNGS.items()}
    rungs = {}
    for width in widths:
        model = at_width(width)
        rungs[names.get(width, f"{(model.active + model.embedding) / 1e9:.1f}B")] = width
    return rungs


def at_width(
    width: int,
    layers: int | None = None,
    *,
    experts: float = 1,
    active_experts: int = 2,
    vocabulary: int = VOCABULARY,
    name: str | None = None,
) -> Architecture:
    """Return a model of any width and depth by the ladder's rules; the depth follows the width unless given."""
    step = HEAD_SIZE * KV_HEADS
    if width < step or width % step:
        raise InputError(f"width {shown(width)} does not give whole groups of heads; it should be a multiple of {step}")
    depth = round(depth_rule(width)) if layers is None else layers
    if depth < 2 * EDGE_LAYERS:
        raise InputError(f"layers {depth} leave no room for the prelude and the coda; give {2 * EDGE_LAYERS} or more")
    routed = _routed(experts, active_experts)
    block: FeedForward | MixtureOfExperts = FeedForward(4 * width)
    if routed > active_experts:
        if 4 * width % active_experts:
            raise InputError(f"active experts {active_experts} do not divide the feed-forward width {4 * width}")
        block = MixtureOfExperts(routed, active_experts, 4 * width // active_experts)
    layer = Layer(Attention(width // HEAD_SIZE, KV_HEADS, HEAD_SIZE), block)
    return Architecture(
        width=width,
        vocabulary=vocabulary,
        tied=True,
        prelude=(Stack(layer, EDGE_LAYERS),),
        loop_block=(Stack(layer, depth - 2 * EDGE_LAYERS),),
        coda=(Stack(layer, EDGE_LAYERS),),
        other=width,  # the final norm
        name=name or f"d{width}x{depth}",
    )


def continuous(width: ArrayLike, experts: ArrayLike) -> Architecture:
    """Return the ladder between its rungs: real widths and depths, as arrays, for counts and costs only.

    At a rung's width it is that rung exactly; such a model cannot be built elsewhere.
    """
    d, E = np.broadcast_arrays(np.asarray(width, float), np.asarray(experts, float))
    if np.any(~(d > 0)) or np.any(~(E >= 1)):
        raise InputError("the continuous ladder takes widths above zero and experts of 1 or more")
    return between_rungs(d, E)


def between_rungs(d: Any, E: Any) -> Architecture:
    """Return the model of real widths ``d`` and experts ``E``, which broadcast."""
    attention = Attention(d / HEAD_SIZE, KV_HEADS, HEAD_SIZE)
    # E experts of which one is active: with k active ones of 1/k the width each, stored and active are the same.
    layer = Layer(attention, MixtureOfExperts(E, 1, 4 * d))
    edge = Stack(layer, EDGE_LAYERS)
    inner = Stack(layer, np.maximum(depth_rule(d) - 2 * EDGE_LAYERS, 0.0))
    return Architecture(d, VOCABULARY, True, (edge,), (inner,), (edge,), other=d, name="continuous")


def width_for_active(active: ArrayLike) -> FloatArray:
    """Return the continuous width whose model has that many active weights, without embeddings."""
    wanted = np.asarray(active, float)
    if np.any(~(wanted > 0)):
        raise InputError("the continuous ladder takes active sizes above zero")
    return geometric_bisection(lambda width: continuous(width, 1).active < wanted, np.full(wanted.shape, 1.0), 1e6)


def _routed(experts: float, active_experts: int) -> int:
    if active_experts < 1:
        raise InputError(f"active experts (k) is {active_experts}; it should be 1 or more")
    routed = experts * active_experts
    if not (np.isfinite(experts) and experts >= 1 and abs(routed - round(routed)) < 1e-9):
        raise InputError(
            f"experts (E) is {experts}; it should be 1 or more, and E x k a whole number of routed experts "
            f"(k = {active_experts} here)"
        )
    return round(routed)
