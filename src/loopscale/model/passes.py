"""What each pass of a trained model does: loss by R, overlap of experts, states.

Shapes: R passes, L looped layers, B prompts, T tokens, X tokens that are no padding, K experts of a token, E experts,
D width.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from loopscale.core.errors import InputError
from loopscale.core.tables import Table
from loopscale.model.forward import ForwardCall
from loopscale.model.model import LoopedMoEForCausalLM
from loopscale.model.outputs import Wanted
from loopscale.model.psi import diversity

LIMIT = 4
"""The fixed point is estimated by the state after this many times as many passes as are reported."""


def overlap(ids_RLXK: Tensor, experts: int) -> Tensor:
    """Return the Jaccard index of the experts of every two passes, summed over layers and tokens (R, R)."""
    chosen_RLXE = torch.zeros(*ids_RLXK.shape[:-1], experts, dtype=torch.bool, device=ids_RLXK.device)
    chosen_RLXE.scatter_(-1, ids_RLXK, True)
    sums_RR = torch.zeros(len(ids_RLXK), len(ids_RLXK), dtype=torch.float64)
    for one, first_LXE in enumerate(chosen_RLXE):
        for other, second_LXE in enumerate(chosen_RLXE):
            common_LX = (first_LXE & second_LXE).sum(-1).double()
            sums_RR[one, other] = (common_LX / (2 * ids_RLXK.shape[-1] - common_LX)).sum()
    return sums_RR


def _per_token(states_RXD: Tensor, entry_XD: Tensor, limit_XD: Tensor) -> dict[str, Tensor]:
    """Return sums over tokens, for each pass, of what the states are; ``limit_XD`` estimates the fixed point."""
    norm_RX = torch.linalg.vector_norm(states_RXD, dim=-1)
    before_RXD = torch.cat((entry_XD[None], states_RXD[:-1]))
    change_RX = torch.linalg.vector_norm(states_RXD - before_RXD, dim=-1) / norm_RX
    apart_RX = torch.linalg.vector_norm(states_RXD - limit_XD, dim=-1) / torch.linalg.vector_norm(limit_XD, dim=-1)
    return {
        "change": change_RX.sum(1),
        "distance": apart_RX.sum(1),
        "sum": states_RXD.sum(1),
        "square": states_RXD.square().sum(1),
    }


@dataclass
class PassDiagnostics:
    """How the passes of one model differ, over a corpus."""

    recurrence: int
    layers: int
    tokens: int = 0
    targets: int = 0
    sums: dict[str, Tensor] = field(default_factory=dict)

    def add(self, tokens: int, targets: int, sums: dict[str, Tensor]) -> None:
        """Take the sums over a batch."""
        self.tokens, self.targets = self.tokens + tokens, self.targets + targets
        self.sums = {name: self.sums[name] + value if self.sums else value for name, value in sums.items()}

    @property
    def overlap_RR(self) -> Tensor | None:
        """Mean Jaccard index of the experts of every two passes; None for a dense model."""
        return self.sums["overlap"] / (self.tokens * self.layers) if "overlap" in self.sums else None

    def table(self) -> Table:
        """Return one row for each pass; columns that the model has no meaning for are left out."""
        if not self.targets:
            raise InputError("no tokens were read: the data is empty; give prompts with text")
        columns: dict[str, list[Any]] = {
            "recurrence": list(range(1, self.recurrence + 1)),
            "loss": (self.sums["loss"] / self.targets).tolist(),
        }
        if self.overlap_RR is not None:
            columns["distinct"] = (self.sums["distinct"] / (self.tokens * self.layers)).tolist()
            columns["overlap_previous"] = [float("nan"), *self.overlap_RR.diagonal(1).tolist()]
            columns["overlap_first"] = self.overlap_RR[0].tolist()
        if "change" in self.sums:
            mean_RD = self.sums["sum"] / self.tokens
            spread_RD = self.sums["square"] / self.tokens - mean_RD.square()
            columns["variance"] = spread_RD.mean(1).tolist()
            columns["change"] = (self.sums["change"] / self.tokens).tolist()
            columns["distance"] = (self.sums["distance"] / self.tokens).tolist()
        return Table(columns)


@torch.no_grad()
def pass_diagnostics(
    model: LoopedMoEForCausalLM, batches: Iterable[tuple[Tensor, Tensor]], recurrence: int | None = None
) -> PassDiagnostics:
    """Return loss by test-time R, experts and states by pass, over batches of (input_ids, attention_mask).

    ``recurrence`` is the largest R, by default twice the model's. Experts and states are those of one forward at that
    R, which continues to ``LIMIT`` times as many passes for the fixed point; each loss is that of a forward at its R.
    """
    config = model.config
    if not config.loop_layers:
        raise InputError("the model has no loop block, so there are no passes to compare; give a looped model")
    R = 2 * config.recurrence if recurrence is None else recurrence
    result = PassDiagnostics(R, config.loop_layers)
    model.eval()  # type: ignore[no-untyped-call]
    for input_ids, mask_BT in batches:
        labels_BT = input_ids.masked_fill(mask_BT == 0, -100)
        targets = int((labels_BT[:, 1:] != -100).sum())
        losses = [
            model(input_ids, mask_BT, labels=labels_BT, recurrence=passes, use_cache=False, output_logits=False).loss
            for passes in range(1, R + 1)
        ]
        sums = {"loss": torch.stack(losses).double() * targets} if targets else {"loss": torch.zeros(R).double()}
        result.add(int(mask_BT.sum()), targets, sums | _passes(model, input_ids, mask_BT, R))
    return result


def _passes(model: LoopedMoEForCausalLM, input_ids: Tensor, mask_BT: Tensor, recurrence: int) -> dict[str, Tensor]:
    """Return sums over the tokens of a batch of what each pass does."""
    body, config, real_BT = model.model, model.config, mask_BT.bool()
    call = ForwardCall(body, recurrence, None, Wanted(routing=True))
    embedded_BTD = body.embed_tokens(input_ids)
    call.prepare(embedded_BTD, mask_BT, None)
    entry_BTD = state_BTD = body.run_prelude(call, embedded_BTD)
    states = []
    for index in range(LIMIT * recurrence):
        state_BTD = body.run_pass(call, state_BTD, entry_BTD, index)
        states.append(state_BTD[real_BT].double())
    sums = _per_token(torch.stack(states[:recurrence]), entry_BTD[real_BT].double(), states[-1])
    if config.is_moe:
        ids_RLBTK = call.tally.trace(len(input_ids)).loop[:recurrence]
        sums["overlap"] = overlap(ids_RLBTK[:, :, real_BT], config.num_experts)
        distinct_RLBT = diversity(ids_RLBTK, config.num_experts) * config.num_experts_per_tok
        sums["distinct"] = distinct_RLBT[:, :, real_BT].sum((1, 2))
    return sums
