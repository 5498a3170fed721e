# Copyright 2026 the loopscale authors. Licensed under the Apache License, Version 2.0.
"""Early exit: criteria that end the loop before its last pass. What the KV cache then holds is decided elsewhere.

Shapes: B batch, T tokens, P positions whose logits are wanted (the last ones), D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from .errors import InputError

CRITERIA = ("kl", "entropy", "argmax", "state", "gate")


@dataclass(frozen=True)
class Exit:
    """Leave the loop once the change from one pass to the next stays below ``threshold`` for ``patience`` passes.

    ``kl``: KL divergence of the next-token distributions, in nats; ``entropy``: change of their entropy; ``argmax``:
    0 while the likeliest token stays the same, else 1; ``state``: relative change of the loop's state. The first three
    need the logits of every pass, which costs coda and head each time; ``state`` does not, nor does ``gate``: the
    probability to go on after this pass, by the gate that a model with ``exit_gate`` has learned. No change is below
    a threshold of zero, so zero means the full recurrence, exactly.
    """

    criterion: str
    threshold: float
    patience: int = 1
    least: int = 1
    """Passes to run in any case."""

    def __post_init__(self) -> None:
        if self.criterion not in CRITERIA:
            raise InputError(f"exit: criterion is {self.criterion!r}; it should be {' or '.join(map(repr, CRITERIA))}")
        if not self.threshold >= 0:
            raise InputError(f"exit: threshold is {self.threshold!r}; it should be zero or more")
        if self.patience < 1 or self.least < 1:
            raise InputError(f"exit: patience is {self.patience} and least {self.least}; both should be 1 or more")

    @property
    def needs_logits(self) -> bool:
        """Whether the criterion needs the logits of every pass."""
        return self.criterion not in ("state", "gate")


@dataclass(frozen=True)
class RecordedExit(Exit):
    """An exit that records the forwards of one call of ``generate``."""

    forwards: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """For each forward: the passes that the last position of each sequence used (B, 1), and how many it computed."""

    def record(self, passes_BP: Tensor | None, executed: Tensor | None) -> None:
        """Take the report of a forward."""
        assert passes_BP is not None
        assert executed is not None
        self.forwards.append((passes_BP[:, -1:], executed))


class ExitGate(nn.Module):
    """The probability to exit after a pass, from the direction of the loop's state; it starts at one half."""

    CONSTANTS: ClassVar[dict[str, float]] = {"weight": 0.0, "bias": 0.0}

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, width))
        self.bias = nn.Parameter(torch.empty(1))
        self.eps = eps

    def forward(self, state_BTD: Tensor) -> Tensor:
        """Return the logit of the probability (B, T)."""
        unit_BTD = functional.rms_norm(state_BTD, state_BTD.shape[-1:], None, self.eps)
        return functional.linear(unit_BTD, self.weight, self.bias).squeeze(-1)

    def distribution(self, states: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Return the probability (R, B, T) to exit after each pass, and its logarithm; the last pass takes the rest."""
        logits_RBT = torch.stack([self(state_BTD) for state_BTD in states]).float()
        stay_RBT = functional.logsigmoid(-logits_RBT[:-1]).cumsum(0)
        before_RBT = functional.pad(stay_RBT, (0, 0, 0, 0, 1, 0))
        log_RBT = torch.cat((functional.logsigmoid(logits_RBT[:-1]) + before_RBT[:-1], before_RBT[-1:]))
        return log_RBT.exp(), log_RBT


class ExitTracker:
    """Tracks which positions of one forward have exited, and after how many passes.

    Positions whose logits are needed exit on their own; the other positions of a sequence exit when all of those have.
    """

    def __init__(
        self, exit_: Exit, head: Callable[[Tensor], Tensor], keep: slice | Tensor, gate: ExitGate | None = None
    ) -> None:
        if exit_.criterion == "gate" and gate is None:
            raise InputError("exit: criterion 'gate' needs a model that was trained with exit_gate; choose another")
        self.exit = exit_
        self._gate = gate
        self._head = head
        self._keep = keep
        self._before: Tensor | None = None
        self._streak_BP: Tensor | None = None
        """Passes in a row below the threshold."""
        self.passes_BP: Tensor | None = None
        self.done = 0

    def update(self, state_BTD: Tensor, hidden_BTD: Tensor | None) -> Tensor:
        """Take the state after a pass, and its read-out if the criterion needs it; return which have left (B, T)."""
        self.done += 1
        now = state_BTD[:, self._keep] if hidden_BTD is None else self._head(hidden_BTD[:, self._keep]).float()
        if self._streak_BP is None or self.passes_BP is None:
            self._streak_BP = torch.zeros(now.shape[:2], dtype=torch.long, device=now.device)
            self.passes_BP = torch.zeros_like(self._streak_BP)
        if self._gate is not None and self.exit.criterion == "gate":
            stay_BP = (-self._gate(now)).sigmoid()
            self._before = stay_BP if self._before is None else self._before * stay_BP
            self._streak_BP = torch.where(self._before < self.exit.threshold, self._streak_BP + 1, 0)
        else:
            if self._before is not None:
                below_BP = _change(self.exit.criterion, self._before, now) < self.exit.threshold
                self._streak_BP = torch.where(below_BP, self._streak_BP + 1, 0)
            self._before = now
        leaving_BP = (self._streak_BP >= self.exit.patience) & (self.passes_BP == 0) & (self.done >= self.exit.least)
        self.passes_BP = torch.where(leaving_BP, self.done, self.passes_BP)
        left_BP = self.passes_BP > 0
        left_BT = left_BP.all(dim=1, keepdim=True).repeat(1, state_BTD.shape[1])
        left_BT[:, self._keep] = left_BP
        return left_BT

    def finish(self) -> Tensor:
        """Return the passes that each position used (B, P): those that stayed to the end used all that ran."""
        assert self.passes_BP is not None
        return torch.where(self.passes_BP > 0, self.passes_BP, self.done)


def _change(criterion: str, before: Tensor, now: Tensor) -> Tensor:
    """Return how much a pass changed each position (B, P)."""
    if criterion == "state":
        change: Tensor = torch.linalg.vector_norm(now - before, dim=-1)
        return change / torch.linalg.vector_norm(now, dim=-1).clamp_min(1e-12)  # type: ignore[no-any-return]
    if criterion == "argmax":
        return (now.argmax(dim=-1) != before.argmax(dim=-1)).float()
    log_now, log_before = now.log_softmax(dim=-1), before.log_softmax(dim=-1)
    if criterion == "kl":
        return (log_now.exp() * (log_now - log_before)).sum(dim=-1).clamp_min(0)
    return (_entropy(log_now) - _entropy(log_before)).abs()


def _entropy(log_probability_BPV: Tensor) -> Tensor:
    return -(log_probability_BPV.exp() * log_probability_BPV).sum(dim=-1)
