"""Expert-path diversity Psi(R): how many different experts a token uses over R passes, per active expert.

Shapes: R passes, L looped layers, B prompts, T tokens, K experts of a token, E experts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from loopscale.errors import InputError
from loopscale.model.modeling import LoopedMoEForCausalLM
from loopscale.tables import Table


def diversity(ids_RLBTK: Tensor, experts: int) -> Tensor:
    """Return Psi for R = 1..R of each layer and token (R, L, B, T), from one trace (eq. expert-path-diversity)."""
    seen = torch.zeros(*ids_RLBTK.shape[1:-1], experts, dtype=torch.bool, device=ids_RLBTK.device)
    distinct = []
    for ids_LBTK in ids_RLBTK:
        seen.scatter_(-1, ids_LBTK, True)
        distinct.append(seen.sum(-1))
    return torch.stack(distinct).double() / ids_RLBTK.shape[-1]


@dataclass
class Moments:
    """Mean and spread of a stream of numbers, one for each pass, in constant memory."""

    count: int = 0
    mean_R: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    square_R: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))

    def add(self, values_RX: Tensor) -> None:
        """Take more numbers: Chan's update, which stays exact for long streams."""
        new = values_RX.shape[1]
        mean_R = values_RX.mean(1)
        square_R = (values_RX - mean_R[:, None]).square().sum(1)
        if not self.count:
            self.count, self.mean_R, self.square_R = new, mean_R, square_R
            return
        total, apart_R = self.count + new, mean_R - self.mean_R
        self.square_R = self.square_R + square_R + apart_R.square() * (self.count * new / total)
        self.mean_R = self.mean_R + apart_R * (new / total)
        self.count = total

    @property
    def std_R(self) -> Tensor:
        """Standard deviation; zero for a single number."""
        return (self.square_R / max(self.count - 1, 1)).sqrt()


@dataclass
class PathDiversity:
    """Psi of one model over a corpus: one mean, and its spread over tokens, over layers and over prompts."""

    experts: float
    """E: routed experts for each active one."""
    recurrence: int
    tokens: Moments = field(default_factory=Moments)
    prompts: Moments = field(default_factory=Moments)
    layer_sums_RL: Tensor | None = None

    def add(self, psi_RLBT: Tensor, real_BT: Tensor) -> None:
        """Take the diversities of a batch; ``real_BT`` marks tokens that are no padding."""
        kept_RLX = psi_RLBT.flatten(2)[:, :, real_BT.flatten()]
        self.tokens.add(kept_RLX.flatten(1))
        sums_RL = kept_RLX.sum(2)
        self.layer_sums_RL = sums_RL if self.layer_sums_RL is None else self.layer_sums_RL + sums_RL
        by_prompt_RB = (psi_RLBT.mean(1) * real_BT).sum(-1) / real_BT.sum(-1)
        self.prompts.add(by_prompt_RB)

    def table(self) -> Table:
        """Return one row for each R."""
        if self.layer_sums_RL is None:
            raise InputError("no tokens were routed: the data is empty")
        layers = self.layer_sums_RL.shape[1]
        layer_means_RL = self.layer_sums_RL / (self.tokens.count / layers)
        spread_R = layer_means_RL.std(1) if layers > 1 else torch.zeros(len(layer_means_RL))
        return Table(
            {
                "experts": [self.experts] * self.recurrence,
                "recurrence": list(range(1, self.recurrence + 1)),
                "psi": self.tokens.mean_R.tolist(),
                "std_tokens": self.tokens.std_R.tolist(),
                "std_layers": spread_R.tolist(),
                "std_prompts": self.prompts.std_R.tolist(),
            }
        )


@torch.no_grad()
def path_diversity(
    model: LoopedMoEForCausalLM, batches: Iterable[tuple[Tensor, Tensor]], recurrence: int | None = None
) -> PathDiversity:
    """Return Psi(1..R) over batches of (input_ids, attention_mask), each from one forward at R.

    A dense model's is 1 by definition, at every R.
    """
    config = model.config
    R = config.recurrence if recurrence is None else recurrence
    if not config.loop_layers:
        raise InputError("the model has no loop block, so there is no expert path to measure")
    experts = config.num_experts / config.num_experts_per_tok if config.is_moe else 1.0
    result = PathDiversity(experts, R)
    model.eval()  # type: ignore[no-untyped-call]
    for input_ids, mask_BT in batches:
        real_BT = mask_BT.bool()
        if config.is_moe:
            trace = model.model(input_ids, mask_BT, use_cache=False, recurrence=R, output_routing=True).routing
            psi_RLBT = diversity(trace.loop, config.num_experts)
        else:
            psi_RLBT = torch.ones(R, config.loop_layers, *input_ids.shape, dtype=torch.float64)
        result.add(psi_RLBT, real_BT)
    return result
