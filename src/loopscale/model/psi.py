"""Expert-path diversity Psi(R): how many different experts a token uses over R passes, per active expert.

Shapes: R passes, L looped layers, B prompts, T tokens, X tokens that are no padding, K experts of a token.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from loopscale.core.errors import InputError
from loopscale.core.tables import Table
from loopscale.model.model import LoopedMoEForCausalLM


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
    """Psi of one model over a corpus: its mean and spread over prompts, over tokens and over layers.

    A prompt's Psi is the mean over its tokens and the looped layers. Prompts count alike, long or short.
    """

    experts: float
    """E: routed experts for each active one."""
    recurrence: int
    tokens: Moments = field(default_factory=Moments)
    prompts: Moments = field(default_factory=Moments)
    layer_sums_RL: Tensor | None = None
    tasks: dict[str, Moments] = field(default_factory=dict)
    """Over the prompts of each task, where these are known."""

    def add(self, psi_RLBT: Tensor, real_BT: Tensor, tasks: Sequence[str] = ()) -> None:
        """Take the diversities of a batch; ``real_BT`` marks tokens that are no padding, ``tasks`` are the prompts'."""
        kept_RLX = psi_RLBT.flatten(2)[:, :, real_BT.flatten()]
        self.tokens.add(kept_RLX.flatten(1))
        sums_RL = kept_RLX.sum(2)
        self.layer_sums_RL = sums_RL if self.layer_sums_RL is None else self.layer_sums_RL + sums_RL
        by_prompt_RB = (psi_RLBT.mean(1) * real_BT).sum(-1) / real_BT.sum(-1)
        self.prompts.add(by_prompt_RB)
        for place, task in enumerate(tasks):
            self.tasks.setdefault(task, Moments()).add(by_prompt_RB[:, place : place + 1])

    @property
    def layer_means_RL(self) -> Tensor:
        """Psi of each looped layer, over tokens."""
        if self.layer_sums_RL is None:
            raise InputError("no tokens were routed: the data is empty; give prompts with text")
        return self.layer_sums_RL / (self.tokens.count / self.layer_sums_RL.shape[1])

    def by_layer(self) -> Table:
        """Return a row for each looped layer and R: ``experts, layer, recurrence, psi``, over tokens."""
        means_LR = self.layer_means_RL.T.tolist()
        rows = [
            {"experts": self.experts, "layer": layer, "recurrence": R, "psi": psi}
            for layer, means in enumerate(means_LR, 1)
            for R, psi in enumerate(means, 1)
        ]
        return Table.from_records(rows)

    def by_task(self) -> Table:
        """Return a row for each task and R: ``experts, task, prompts, recurrence, psi, std_prompts``."""
        rows = [
            {"experts": self.experts, "task": task, "prompts": moments.count, "recurrence": R, "psi": psi,
             "std_prompts": spread}
            for task, moments in self.tasks.items()
            for R, (psi, spread) in enumerate(zip(moments.mean_R.tolist(), moments.std_R.tolist(), strict=True), 1)
        ]  # fmt: skip
        return Table.from_records(rows)

    def table(self) -> Table:
        """Return one row for each R."""
        means_RL = self.layer_means_RL
        spread_R = means_RL.std(1) if means_RL.shape[1] > 1 else torch.zeros(len(means_RL))
        return Table(
            {
                "experts": [self.experts] * self.recurrence,
                "recurrence": list(range(1, self.recurrence + 1)),
                "psi": self.prompts.mean_R.tolist(),
                "std_prompts": self.prompts.std_R.tolist(),
                "psi_tokens": self.tokens.mean_R.tolist(),
                "std_tokens": self.tokens.std_R.tolist(),
                "std_layers": spread_R.tolist(),
            }
        )


@torch.no_grad()
def path_diversity(
    model: LoopedMoEForCausalLM,
    batches: Iterable[tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Sequence[str]]],
    recurrence: int | None = None,
) -> PathDiversity:
    """Return Psi(1..R) over batches of (input_ids, attention_mask[, tasks]), each from one forward at R.

    A dense model's is 1 by definition, at every R. For a Psi that does not depend on the size of the batches, give
    prompts of one length together (``loopscale.model.prompts.batches_by_length``) and a model in float32.
    """
    config = model.config
    R = config.recurrence if recurrence is None else recurrence
    if not config.loop_layers:
        raise InputError("the model has no loop block, so there is no expert path to measure; give a looped model")
    experts = config.num_experts / config.num_experts_per_tok if config.is_moe else 1.0
    result = PathDiversity(experts, R)
    model.eval()  # type: ignore[no-untyped-call]
    for input_ids, mask_BT, *tasks in batches:
        real_BT = mask_BT.bool()
        if config.is_moe:
            trace = model.model(input_ids, mask_BT, use_cache=False, recurrence=R, output_routing=True).routing
            psi_RLBT = diversity(trace.loop, config.num_experts)
        else:
            psi_RLBT = torch.ones(R, config.loop_layers, *input_ids.shape, dtype=torch.float64)
        result.add(psi_RLBT, real_BT, *tasks)
    return result


def departures(psi_by_cell: Mapping[tuple[float, int], float]) -> list[str]:
    """Return where Psi by (E, R) leaves its bounds 1 to min(E, R), or falls with R or with E, a sentence for each."""
    sentences = []
    for (E, R), psi in sorted(psi_by_cell.items()):
        if not 1 - 1e-9 <= psi <= min(E, R) + 1e-9:
            sentences.append(f"Psi at E = {E:g}, R = {R} is {psi:.4f}, outside 1 to {min(E, R):g}")
    for (E, R), psi in sorted(psi_by_cell.items()):
        more = [(other, passes) for other, passes in psi_by_cell if other == E and passes > R]
        sparser = [(other, passes) for other, passes in psi_by_cell if passes == R and other > E]
        if more and psi_by_cell[min(more, key=lambda cell: cell[1])] < psi - 1e-9:
            sentences.append(f"Psi falls with R at E = {E:g}, after R = {R}")
        if sparser and psi_by_cell[min(sparser)] < psi - 1e-9:
            sentences.append(f"Psi falls with E at R = {R}, after E = {E:g}")
    return sentences
