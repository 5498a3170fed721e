"""AdamW with its groups, and its state as named tensors."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from loopscale.train.config import OptimizerSection


def build_optimizer(model: nn.Module, section: OptimizerSection, width: int, recurrence: int) -> torch.optim.AdamW:
    """Return AdamW; each group knows the rate it has at the schedule's height as ``peak``."""
    rate = section.learning_rate / recurrence**section.recurrence_rule
    hidden = rate * (section.base_width / width if section.width_rule == "mup" else 1.0)
    kinds: dict[str, dict[str, float]] = {
        "hidden": {"peak": hidden, "lr": hidden},
        "embedding": {"peak": rate, "lr": rate},
        "vectors": {"peak": rate, "lr": rate, "weight_decay": 0.0},
    }
    groups: dict[tuple[str, object], list[nn.Parameter]] = {}
    for name, weight in model.named_parameters():
        kind = "vectors" if weight.dim() < 2 else "embedding" if "embed" in name or "lm_head" in name else "hidden"
        # Weights that are sharded over different processes cannot share a group.
        groups.setdefault((kind, getattr(weight, "device_mesh", None)), []).append(weight)
    return torch.optim.AdamW(
        [{"params": weights, **kinds[kind]} for (kind, _), weights in groups.items()],
        betas=section.betas,
        eps=section.eps,
        weight_decay=section.weight_decay,
        fused=True,
    )


def set_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set every group's rate to its share ``factor`` of the height."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * factor


def fill_state(optimizer: torch.optim.Optimizer) -> None:
    """Give every weight the state that its first step would make, so that a checkpoint can be read into it."""
    for group in optimizer.param_groups:
        for weight in group["params"]:
            if not optimizer.state[weight]:
                zeros = torch.zeros_like(weight, memory_format=torch.preserve_format)
                optimizer.state[weight] = {
                    "step": torch.zeros((), dtype=torch.float32, device=weight.device),
                    "exp_avg": zeros,
                    "exp_avg_sq": zeros.clone(),
                }


def named_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    """Yield the optimiser's tensors by the name of their weight."""
    for name, weight in model.named_parameters():
        for key, value in optimizer.state[weight].items():
            yield f"{name}.{key}", value
