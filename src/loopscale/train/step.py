"""One training step: gradients of a batch in parts, and the optimiser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from loopscale.model import LoopedMoEForCausalLM, Trace, draw_recurrence
from loopscale.train.data.batches import Batch
from loopscale.train.parallel.process import Process


def named_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    """Yield the optimiser's tensors by the name of their weight."""
    for name, weight in model.named_parameters():
        for key, value in optimizer.state[weight].items():
            yield f"{name}.{key}", value


@dataclass(frozen=True)
class Gradients:
    """Measurements of a batch over all processes, as tensors: reading one would make the host wait for the device."""

    loss: Tensor
    """Mean over the targets of the batch, before the step, without the z-loss."""
    dropped: Tensor
    """Fraction of routed rows that no expert took."""
    counts: Trace | None
    """Number of tokens per expert."""


@contextmanager
def repeatable(wanted: bool = True) -> Iterator[None]:
    """Use deterministic kernels within the block, if ``wanted``: runs repeat bit for bit.

    PyTorch would also fill every new buffer, which takes a tenth of a small model's step and which nothing here reads.
    """
    buffers: Any = torch.utils.deterministic
    enabled, warn_only = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    filled = buffers.fill_uninitialized_memory
    torch.use_deterministic_algorithms(wanted, warn_only=True)
    buffers.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        buffers.fill_uninitialized_memory = filled


def seed_step(seed: int, step: int) -> None:
    """Make everything random in a step a function of the run's seed and the step: nothing random needs saving."""
    # torch.manual_seed also queues a seed, with a formatted stack trace, for every kind of device that has not started.
    value = seed * 1_000_003 + step
    if torch.accelerator.is_available():
        torch.manual_seed(value)
    else:
        torch.default_generator.manual_seed(value)


def gradients(
    model: LoopedMoEForCausalLM,
    parts: list[Batch],
    process: Process,
    document_mask: bool,
    recurrence: int | None = None,
) -> Gradients:
    """Accumulate the gradients of a batch's parts, each weighted by its number of targets.

    ``recurrence`` is R of this step, or what it is drawn around; None for the model's.
    """
    config = model.config
    if config.random_recurrence is not None:
        recurrence = draw_recurrence(config, mean=recurrence)  # once for all parts of the batch
    options: dict[str, Any] = {"use_cache": False, "output_logits": False, "recurrence": recurrence}
    targets = process.total(torch.tensor(float(sum(part.targets for part in parts)), device=process.device))
    total = torch.zeros(2, device=process.device)
    counts: Trace | None = None
    for number, part in enumerate(parts, start=1):
        process.defer_reduction(model, last=number == len(parts))
        ids, labels = (process.put(array) for array in (part.ids, part.labels))
        if document_mask:
            options["position_ids"] = process.put(part.positions)
        out = model(ids, labels=labels, **options)
        # The loss is a mean over targets; z-loss and dropped fraction are means over tokens, and all parts of all
        # processes have equally many tokens.
        share, even = part.targets / targets, 1 / (len(parts) * process.ranks)
        z_loss = torch.zeros_like(total[0]) if out.z_loss is None else config.router_z_loss_coef * out.z_loss
        dropped = torch.zeros_like(total[1]) if out.dropped is None else out.dropped
        # Processes average their gradients, so the share of each is scaled up by their number.
        main = out.cross_entropy if out.exit_loss is None else out.cross_entropy + out.exit_loss
        ((main * share + z_loss * even) * process.ranks).backward()
        total += torch.stack([out.cross_entropy * share, dropped * even]).detach()
        counts = out.expert_counts if counts is None else Trace(*map(torch.add, counts, out.expert_counts))
    total = process.total(total)
    if counts is not None:
        counts = Trace(*(process.total(part_counts) for part_counts in counts))
    return Gradients(total[0], total[1], counts)


def apply(model: LoopedMoEForCausalLM, optimizer: torch.optim.Optimizer, process: Process, clip: float) -> Tensor:
    """Clip the gradients, update the weights and clear the gradients; return the norm before clipping."""
    norm = process.clip(model, clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm
