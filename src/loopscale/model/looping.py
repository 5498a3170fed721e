"""How often to repeat, and which cache slot belongs to which pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from .config import InputError, LoopedMoEConfig
from .exits import Exit


def resolve_recurrence(recurrence: object, exit_: object, config: LoopedMoEConfig, training: bool) -> int:
    """Return the passes to run, at most, for what a call said."""
    if exit_ is not None and not isinstance(exit_, Exit):
        raise InputError(f"exit is {exit_!r}; it should be an Exit, like Exit('kl', 0.01)")
    if recurrence == "auto" and exit_ is None:
        raise InputError("recurrence 'auto' needs a criterion: exit=Exit('kl', 0.01), or another")
    if recurrence is None and training and config.random_recurrence is not None:
        return draw_recurrence(config)
    if recurrence is None or recurrence == "auto":
        return config.recurrence
    if not isinstance(recurrence, int) or isinstance(recurrence, bool) or recurrence < 1:
        raise InputError(f"recurrence is {recurrence!r}; it should be a whole number, 1 or more, or 'auto'")
    if recurrence > 1 and not config.loop_layers:
        raise InputError(f"recurrence is {recurrence}, but the model has no loop block to repeat")
    return recurrence


def draw_recurrence(config: LoopedMoEConfig, generator: torch.Generator | None = None) -> int:
    """Draw R for a training step. Processes that train together must draw alike: seed ``generator`` the same."""
    mean = config.recurrence
    if config.random_recurrence == "poisson":
        return 1 + int(torch.poisson(torch.tensor(float(mean - 1)), generator=generator))
    return int(torch.randint(1, mean + 1, (), generator=generator))


class Slots:
    """The cache slots of one forward: one for each (pass, layer), or a ring of fewer passes."""

    def __init__(self, config: LoopedMoEConfig, recurrence: int) -> None:
        # Read once: a config's attributes are slow, and decoding asks for slots at every layer.
        self._prelude, self._loop, self._coda = config.prelude_layers, config.loop_layers, config.coda_layers
        self.kept = config.kept(recurrence)
        self.count = config.slots(recurrence)
        self.rewrites = self.kept < recurrence

    def loop(self, place: int, layer: int) -> int:
        """Return the slot of a looped layer at pass ``place``."""
        return self._prelude + (place % self.kept) * self._loop + layer

    def coda(self, layer: int) -> int:
        """Return the slot of a coda layer: every read-out uses it, and the last one stays."""
        return self.count - self._coda + layer

    def check(self, cache: Cache) -> None:
        """Refuse a cache that another recurrence filled, or one that cannot do what the slots need."""
        past = int(cache.get_seq_length())
        if past and (not int(cache.get_seq_length(self.count - 1)) or int(cache.get_seq_length(self.count))):
            filled = sum(1 for slot in range(len(cache.layers)) if int(cache.get_seq_length(slot)))
            raise InputError(
                f"the cache holds {filled} slots, and this recurrence fills {self.count}: continue with the recurrence "
                "that filled it, or start from an empty cache"
            )
        if self.rewrites and not cache.is_croppable:
            raise InputError("kept_passes rewrites cache slots, which a static cache cannot: use a dynamic one")

    def carry(self, cache: Cache, last: int, recurrence: int, new: int) -> None:
        """Fill the slots of passes that did not run with the keys and values of the last that did."""
        for place in range(last + 1, min(recurrence, self.kept)):
            for layer in range(self._loop):
                source: Any = cache.layers[self.loop(last, layer)]
                cache.update(source.keys[..., -new:, :], source.values[..., -new:, :], self.loop(place, layer))

    def hold(self, cache: Cache, place: int, left_BT: Tensor) -> None:
        """Give the positions that had left before pass ``place`` the keys and values of the pass before."""
        if self.kept == 1:
            return
        new = left_BT.shape[1]
        for layer in range(self._loop):
            now, before = (cache.layers[self.loop(at, layer)] for at in (place, place - 1))
            for name in ("keys", "values"):
                current, previous = (getattr(each, name)[..., -new:, :] for each in (now, before))
                current.copy_(torch.where(left_BT[:, None, :, None], previous, current))
