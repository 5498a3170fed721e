"""How devices share a training step, and every way that a job could."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

REDUCES = ("step", "pass", "block")


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
    offload: bool = False
    """Whether weights, gradients and optimiser are in the memory of the host."""

    def keeps_to(self, pinned: Mapping[str, Any]) -> bool:
        """Tell whether the layout has these fields; what is stored is chosen later."""
        return all(getattr(self, name) == value for name, value in pinned.items() if name != "stored")

    def settings(self) -> dict[str, dict[str, Any]]:
        """Return the layout as sections of a training file."""
        run: dict[str, Any] = {"accumulate": self.accumulate}
        if self.stored == 0:
            run["activation_checkpointing"] = True
        elif self.activation_bytes is not None:
            run["activation_memory"] = float(f"{self.activation_bytes:.3g}")
        parallel: dict[str, Any] = {"replicas": self.replicas, "reduce": self.reduce}
        if self.experts > 1:
            parallel["experts"] = self.experts
        if self.offload:
            parallel["offload"] = True
        return {"run": run, "parallel": parallel}

    def __str__(self) -> str:
        recomputed = {1.0: "nothing recomputed", 0.0: "all blocks recomputed"}.get(
            self.stored, f"{1 - self.stored:.0%} of the blocks recomputed"
        )
        shared = f", experts = {self.experts}" if self.experts > 1 else ""
        host = ", offload = true" if self.offload else ""
        return (
            f'accumulate = {self.accumulate}, replicas = {self.replicas}, reduce = "{self.reduce}"{shared}{host}, '
            f"{recomputed}"
        )


def layouts(devices: int, sequences: int, experts: Sequence[int] = (1,), *, offload: bool = False) -> Iterator[Layout]:
    """Yield every way to share a step of so many sequences on each device; ``experts`` are groups to try."""
    for group in experts:
        for shards in (shards for shards in divisors(devices) if shards % group == 0):
            for reduce in REDUCES:
                for parts in divisors(sequences):
                    yield Layout(parts, devices // shards, reduce, experts=group, offload=offload)


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, from 1 up."""
    small = [part for part in range(1, int(number**0.5) + 1) if number % part == 0]
    return small + [number // part for part in reversed(small) if part * part != number]
