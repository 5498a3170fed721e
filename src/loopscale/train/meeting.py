"""How the processes of a run find each other, also after some of them died and all were started again."""

from __future__ import annotations

import time
from uuid import uuid4

# The public module has these without types.
from torch._C._distributed_c10d import HashStore, PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from loopscale.errors import InputError
from loopscale.train.process import launched

PATIENCE = 1800.0
"""Seconds that the first process waits for the others."""


def meeting_place(rank: int, ranks: int) -> Store:
    """Return a store that the processes which are here now share, and no others.

    torchrun hands processes that it starts again the store of those that died. Their addresses are still in it, and a
    process that is quick enough would call a dead one. So the first process names a place that nobody used before.
    """
    if not launched():
        return HashStore()
    store: Store = next(rendezvous("env://"))[0]
    own = uuid4().hex
    if rank:
        store.set(f"asked/{rank}", own)
        place = store.get(f"answer/{own}").decode()
        store.set(f"heard/{place}/{rank}", "")
        return PrefixStore(place, store)
    _tell(store, own, set(range(1, ranks)))
    return PrefixStore(own, store)


def _tell(store: Store, place: str, waiting: set[int]) -> None:
    """Answer every process until it has heard; what a dead one asked is answered too, and does no harm."""
    end = time.monotonic() + PATIENCE
    while waiting:
        for rank in sorted(waiting):
            if store.check([f"asked/{rank}"]):
                store.set(f"answer/{store.get(f'asked/{rank}').decode()}", place)
        waiting -= {rank for rank in waiting if store.check([f"heard/{place}/{rank}"])}
        if time.monotonic() > end:
            raise InputError(f"process {min(waiting)} did not come within {PATIENCE / 60:g} minutes; start all of them")
        time.sleep(0.01)
