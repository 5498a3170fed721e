# Copyright 2026 the loopscale authors. Licensed under the Apache License, Version 2.0.
"""The loop with early exit: tokens that have left keep their state, and finished rows of a batch are not computed.

Shapes: B batch, b rows of it that are computed, T tokens, D width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .cache import SlotUse
from .exit import ExitTracker
from .forward import ForwardCall
from .outputs import LoopedMoEOutput


class ExitCall(ForwardCall):
    """A call in which tokens leave the loop when they meet the criterion of ``tracker``."""

    def __init__(self, tracker: ExitTracker, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.tracker = tracker
        self.rows_b: Tensor | None = None
        """The rows of the batch that are computed now; None for all."""
        self.executed = 0
        """Passes computed so far, each counted once for each of its rows."""

    def run_loop(self, input_BTD: Tensor, every: bool) -> tuple[list[Tensor], list[Tensor]]:
        """Run passes until all tokens have left; return what ``LoopedMoEModel.run_loop`` does."""
        state_BTD, left_BT, pass_index = input_BTD, None, 0
        states: list[Tensor] = []
        hiddens: list[Tensor] = []
        for pass_index in range(self.recurrence):
            self._leave_out_finished(left_BT, len(state_BTD))
            now_bTD = self.model.run_pass(self, self._own(state_BTD), self._own(input_BTD), pass_index)
            new_BTD = self._put(state_BTD, now_bTD)
            if left_BT is not None and self._own(left_BT).any():
                new_BTD = torch.where(left_BT.unsqueeze(-1), state_BTD, new_BTD)
                if self.cache is not None:
                    self.slots.hold(self.cache, pass_index, left_BT)
            state_BTD = new_BTD
            states.append(state_BTD)
            if every:
                read_bTD = self.model.read_out(self, self._own(state_BTD), again=pass_index > 0)
                hiddens.append(self._put(hiddens[-1], read_bTD) if hiddens else read_bTD)
            if self.rows_b is not None:  # from here on all rows again
                self.rows_b, (self.angles, self.mask) = None, self._of_all_rows
            left_BT = self.tracker.update(state_BTD, hiddens[-1] if self.tracker.exit.needs_logits else None)
            if left_BT.all():
                break
        if self.cache is not None:
            self.slots.carry(self.cache, pass_index, self.recurrence, state_BTD.shape[1])
        return states, hiddens

    def run(self, block: nn.Module, x_BTD: Tensor, *, slot: int, use: SlotUse | None = None, **options: Any) -> Tensor:
        """Run a block for the rows that are computed now; the cache keeps the last keys of the others."""
        if self.rows_b is not None:
            use = SlotUse() if use is None else use
            # A slot that has keys of this forward keeps them; otherwise they are those of the previous pass.
            use = use._replace(rows_b=self.rows_b, source=slot if use.replace else slot - len(self.model.loop))
        return super().run(block, x_BTD, slot=slot, use=use, **options)

    def report(self, out: LoopedMoEOutput) -> None:
        """Add the passes used by each position and computed by the call to the output."""
        out.passes, out.executed = self.tracker.finish(), torch.tensor(self.executed)
        super().report(out)

    def _leave_out_finished(self, left_BT: Tensor | None, batch: int) -> None:
        """From here on compute only the rows of the batch that have a position left in the loop.

        Outputs of every layer need all rows; so do masks that are no tensors.
        """
        whole = self.tallies or self.wanted.hidden_states or self.wanted.attentions
        if left_BT is None or whole or not isinstance(self.mask, Tensor | None) or not left_BT.all(1).any():
            self.executed += batch
            return
        self._of_all_rows = self.angles, self.mask
        self.rows_b = (~left_BT.all(1)).nonzero().squeeze(1)
        self.executed += len(self.rows_b)
        self.angles = self._own(self.angles[0]), self._own(self.angles[1])
        self.mask = None if self.mask is None else self._own(self.mask)

    def _own(self, x: Tensor) -> Tensor:
        """Return the rows that are computed now; a tensor of one row serves all."""
        return x if self.rows_b is None or len(x) == 1 else x[self.rows_b]

    def _put(self, before_BTD: Tensor, now_bTD: Tensor) -> Tensor:
        """Return the whole batch, with the rows that were computed now."""
        return now_bTD if self.rows_b is None else before_BTD.index_copy(0, self.rows_b, now_bTD)
