# Copyright 2026 the loopscale authors. Licensed under the Apache License, Version 2.0.
"""The KV cache of a loop: one slot for each (pass, layer), or fewer by policy.

The cache itself is one of Transformers' own. ``kept_passes`` makes the passes share a ring of slots; ``kept_window``
drops the keys of later passes for older tokens; early exit fills the slots of passes that a token did not run.

Shapes: B batch, b rows of it that are computed, T tokens, N heads, h head size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from .config import LoopedMoEConfig
from .errors import InputError


class SlotUse(NamedTuple):
    """How one call of a layer uses its slot beyond appending keys and values."""

    replace: bool = False
    """Overwrite what this forward wrote to the slot before."""
    first: int | None = None
    """The slot of the first pass, which has the positions that this slot no longer holds."""
    rows_b: Tensor | None = None
    """The rows of the batch that the layer computes; None for all."""
    source: int = 0
    """With ``rows_b``: the slot that holds the last keys and values of the other rows."""


def update(cache: Cache, slot: int, use: SlotUse, key_BNTh: Tensor, value_BNTh: Tensor) -> tuple[Tensor, Tensor]:
    """Write new keys and values to a slot; return those that the layer attends to."""
    new = key_BNTh.shape[2]
    if use.rows_b is not None:
        others: Any = cache.layers[use.source]
        key_BNTh = others.keys[..., -new:, :].index_copy(0, use.rows_b, key_BNTh)
        value_BNTh = others.values[..., -new:, :].index_copy(0, use.rows_b, value_BNTh)
    if use.replace:
        layer: Any = cache.layers[slot]
        layer.crop(-new)
    key_BNTh, value_BNTh = cache.update(key_BNTh, value_BNTh, slot)
    if use.first is not None:
        first: Any = cache.layers[use.first]
        if missing := first.keys.shape[-2] - key_BNTh.shape[-2]:
            key_BNTh = torch.cat((first.keys[..., :missing, :], key_BNTh), dim=-2)
            value_BNTh = torch.cat((first.values[..., :missing, :], value_BNTh), dim=-2)
    if use.rows_b is not None:
        key_BNTh, value_BNTh = key_BNTh[use.rows_b], value_BNTh[use.rows_b]
    return key_BNTh, value_BNTh


class Slots:
    """The cache slots of one forward: prelude, looped layers by pass, coda."""

    def __init__(self, config: LoopedMoEConfig, recurrence: int) -> None:
        # Read once: attribute access on a config is slow, and decoding needs slots at every layer.
        self._prelude, self._loop, self._coda = config.prelude_layers, config.loop_layers, config.coda_layers
        self.kept = config.kept(recurrence)
        self.count = config.slots(recurrence)
        self.rewrites = self.kept < recurrence
        self.window = config.kept_window

    def loop(self, pass_index: int, layer: int) -> int:
        """Return the slot of a looped layer at a pass."""
        return self._prelude + (pass_index % self.kept) * self._loop + layer

    def loop_use(self, pass_index: int, layer: int) -> SlotUse | None:
        """Return how a looped layer uses its slot at a pass; None if it only appends."""
        windowed = self.window is not None and pass_index > 0
        replace = pass_index >= self.kept
        return SlotUse(replace, self.loop(0, layer) if windowed else None) if replace or windowed else None

    def coda(self, layer: int) -> int:
        """Return the slot of a coda layer; every read-out overwrites it."""
        return self.count - self._coda + layer

    def check(self, cache: Cache) -> None:
        """Refuse a cache filled at another recurrence, or one without the operations that the slots need."""
        if (self.rewrites or self.window is not None) and not cache.is_croppable:
            raise InputError(
                "kept_passes and kept_window rewrite cache slots, which a static cache cannot: use a dynamic one"
            )
        if cache.is_compileable:  # a fixed number of slots, with lengths in tensors
            if len(cache.layers) < self.count:
                raise InputError(
                    f"the cache has {len(cache.layers)} slots, and this recurrence fills {self.count}: build it from a "
                    "config with that recurrence"
                )
            return
        past = int(cache.get_seq_length())
        if past and self.window is not None and self.kept > 1:
            length = int(cache.get_seq_length(self.loop(1, 0)))
            if length < min(self.window, past):
                raise InputError(
                    f"the cache was cropped, and kept_window has dropped what it would need: later passes hold "
                    f"{length} of {past} positions; start from an empty cache"
                )
        if past and (not int(cache.get_seq_length(self.count - 1)) or int(cache.get_seq_length(self.count))):
            filled = sum(1 for slot in range(len(cache.layers)) if int(cache.get_seq_length(slot)))
            raise InputError(
                f"the cache holds {filled} slots, and this recurrence fills {self.count}: continue with the recurrence "
                "that filled it, or start from an empty cache"
            )

    def trim(self, cache: Cache) -> None:
        """Drop the keys and values of later passes for positions before the window."""
        if self.window is None:
            return
        for slot in range(self._prelude + self._loop, self.count - self._coda):
            layer: Any = cache.layers[slot]
            layer.keys, layer.values = (x[..., -self.window :, :].contiguous() for x in (layer.keys, layer.values))

    def carry(self, cache: Cache, last: int, recurrence: int, new: int) -> None:
        """Fill the slots of passes that did not run with the keys and values of the last one that ran."""
        for pass_index in range(last + 1, min(recurrence, self.kept)):
            for layer in range(self._loop):
                source: Any = cache.layers[self.loop(last, layer)]
                cache.update(source.keys[..., -new:, :], source.values[..., -new:, :], self.loop(pass_index, layer))

    def hold(self, cache: Cache, pass_index: int, left_BT: Tensor) -> None:
        """Give positions that exited before this pass the keys and values of the previous pass."""
        if self.kept == 1:
            return
        new = left_BT.shape[1]
        for layer in range(self._loop):
            now, before = (cache.layers[self.loop(index, layer)] for index in (pass_index, pass_index - 1))
            for name in ("keys", "values"):
                current, previous = (getattr(slot, name)[..., -new:, :] for slot in (now, before))
                current.copy_(torch.where(left_BT[:, None, :, None], previous, current))
