"""The optimisers of a run: AdamW, and Muon for hidden matrices with AdamW for the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from loopscale.train.parallel.shards import local_part
from loopscale.train.sections.optimizer import OptimizerSection

COEFFICIENTS = 3.4445, -4.7750, 2.0315
ITERATIONS = 5
"""Of the Newton-Schulz iteration, as in torch.optim.Muon."""


def build_optimizer(model: nn.Module, section: OptimizerSection, width: int, recurrence: int) -> torch.optim.AdamW:
    """Return the optimiser of a run; each parameter group stores its peak rate as ``peak``."""
    rate = section.learning_rate / recurrence**section.recurrence_rule
    hidden = rate * (section.base_width / width if section.width_rule == "mup" else 1.0)
    kinds: dict[str, dict[str, Any]] = {
        "hidden": {"peak": hidden, "lr": hidden, "muon": section.name == "muon"},
        "router": {"peak": hidden, "lr": hidden},
        "embedding": {"peak": rate, "lr": rate},
        "vectors": {"peak": rate, "lr": rate, "weight_decay": 0.0},
    }
    groups: dict[tuple[str, torch.dtype, object], list[nn.Parameter]] = {}
    for name, weight in model.named_parameters():
        # Weights of different types, or sharded over different processes, cannot share a group.
        mesh, kind = getattr(weight, "device_mesh", None), _kind(name, weight, section.name)
        groups.setdefault((kind, weight.dtype, mesh), []).append(weight)
    optimizer = MuonAdamW if section.name == "muon" else AdamW
    return optimizer(
        [{"params": weights, **kinds[kind]} for (kind, *_), weights in groups.items()],
        betas=section.betas,
        eps=section.eps,
        weight_decay=section.weight_decay,
        fused=True,
    )


def _kind(name: str, weight: Tensor, optimizer: str) -> str:
    if weight.dim() < 2:
        return "vectors"
    if "embed" in name or "lm_head" in name:
        return "embedding"
    return "router" if optimizer == "muon" and "router" in name else "hidden"


def _is_rounded(group: dict[str, Any]) -> bool:
    return bool(group["params"][0].dtype != torch.float32)


@contextmanager
def _with_groups(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> Iterator[None]:
    """Let an optimiser have only some of its groups within the block."""
    before = optimizer.param_groups
    optimizer.param_groups = groups
    try:
        yield
    finally:
        optimizer.param_groups = before


class AdamW(torch.optim.AdamW):
    """AdamW whose moments and arithmetic are fp32, also for weights that are stored in bf16."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all weights."""
        exact = [group for group in self.param_groups if not _is_rounded(group)]
        with _with_groups(self, exact):
            if exact:
                super().step()
        for group in filter(_is_rounded, self.param_groups):
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update_rounded(weight, group)

    def _update_rounded(self, weight: Tensor, group: dict[str, Any]) -> None:
        state, grad = self.state[weight], local_part(weight.grad)  # type: ignore[arg-type]
        mean, square, (beta1, beta2) = local_part(state["exp_avg"]), local_part(state["exp_avg_sq"]), group["betas"]
        step = state["step"].add_(1)  # a tensor of the device, which the host does not wait for
        mean.lerp_(grad, 1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        scale = (square / (1 - beta2**step)).sqrt_().add_(group["eps"]).mul_(1 - beta1**step)
        local = local_part(weight)
        whole = local.float().mul_(1 - group["lr"] * group["weight_decay"])
        local.copy_(whole.addcdiv_(mean, scale, value=-group["lr"]))


class MuonAdamW(AdamW):
    """Muon for the groups that ask for it, AdamW for the others.

    torch.optim.Muon takes matrices alone. The experts of a layer are stored together: each of them is a matrix here.
    Updates have the size that AdamW's have (0.2 in root mean square), so that its rates serve.
    """

    MOMENTUM = 0.95

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all weights."""
        with _with_groups(self, [group for group in self.param_groups if not group.get("muon")]):
            super().step()
        for group in self.param_groups:
            if group.get("muon"):
                for weight in group["params"]:
                    if weight.grad is not None:
                        self._update(weight, group["lr"], group["weight_decay"])

    def _update(self, weight: Tensor, rate: float, decay: float) -> None:
        momentum = self.state[weight]["momentum_buffer"]
        momentum.lerp_(weight.grad, 1 - self.MOMENTUM)
        update = weight.grad.lerp(momentum, self.MOMENTUM)  # type: ignore[union-attr]
        rows, columns = weight.shape[-2:]
        size = rate * 0.2 * math.sqrt(max(rows, columns))
        weight.copy_(weight.float().mul_(1 - rate * decay).add_(_orthogonal(update), alpha=-size))


def _orthogonal(update: Tensor) -> Tensor:
    """Return the orthogonal form of an update, sharded as the update is: every process computes it whole."""
    if not isinstance(update, DTensor):
        return orthogonal(update)
    mesh, everywhere = update.device_mesh, [Replicate()] * update.device_mesh.ndim
    whole = DTensor.from_local(orthogonal(update.full_tensor()), mesh, everywhere, run_check=False)
    return whole.redistribute(mesh, update.placements)


def orthogonal(matrices: Tensor) -> Tensor:
    """Return matrices with the same singular vectors and values near 1, by Newton-Schulz; leading dimensions batch."""
    a, b, c = COEFFICIENTS
    tall = matrices.shape[-2] > matrices.shape[-1]
    # GPUs multiply in bf16, which the iteration forgives; CPUs gain nothing from it.
    x = matrices.to(torch.bfloat16 if matrices.is_cuda else torch.float32)
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = x.mT if tall else x
    return result.to(matrices.dtype)


def set_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set the rate of every group to ``factor`` times its peak."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak"] * factor


def fill_state(optimizer: torch.optim.Optimizer) -> None:
    """Create the state of every weight, as its first step would, so that a checkpoint can be read into it."""
    for group in optimizer.param_groups:
        for weight in group["params"]:
            if optimizer.state[weight]:
                continue
            zeros = torch.zeros_like(weight, dtype=torch.float32, memory_format=torch.preserve_format)
            if group.get("muon"):
                optimizer.state[weight] = {"momentum_buffer": zeros}
                continue
            optimizer.state[weight] = {
                "step": torch.zeros((), dtype=torch.float32, device=weight.device),
                "exp_avg": zeros,
                "exp_avg_sq": zeros.clone(),
            }
