"""What the passes of a trained model do: expert-path diversity Psi(R), overlap of experts, states, loss by R.

Psi(R) is how many different experts a token uses over R passes, per active expert.

Shapes: R passes, L looped layers, B prompts, T tokens, X tokens that are no padding, K experts of a token, E experts,
D width.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from loopscale.core.errors import InputError
from loopscale.core.tables import Table
from loopscale.model.forward import ForwardCall
from loopscale.model.model import LoopedMoEForCausalLM
from loopscale.model.outputs import Wanted


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
            raise InputError("no tokens were routed: the data is empty")
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
    prompts of one length together (:func:`loopscale.model.prompts.batches_by_length`) and a model in float32.
    """
    config = model.config
    R = config.recurrence if recurrence is None else recurrence
    if not config.loop_layers:
        raise InputError("the model has no loop block, so there is no expert path to measure")
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
    """Return where Psi by (E, R) leaves its bounds 1 to min(E, R), or falls with R or with E, each in words."""
    found = []
    for (E, R), psi in sorted(psi_by_cell.items()):
        if not 1 - 1e-9 <= psi <= min(E, R) + 1e-9:
            found.append(f"Psi at E = {E:g}, R = {R} is {psi:.4f}, outside 1 to {min(E, R):g}")
    for (E, R), psi in sorted(psi_by_cell.items()):
        more = [(other, passes) for other, passes in psi_by_cell if other == E and passes > R]
        sparser = [(other, passes) for other, passes in psi_by_cell if passes == R and other > E]
        if more and psi_by_cell[min(more, key=lambda cell: cell[1])] < psi - 1e-9:
            found.append(f"Psi falls with R at E = {E:g}, after R = {R}")
        if sparser and psi_by_cell[min(sparser)] < psi - 1e-9:
            found.append(f"Psi falls with E at R = {R}, after E = {E:g}")
    return found


LIMIT = 4
"""The fixed point is taken to be the state after this many times as many passes as are reported."""


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
    """Return sums over tokens, for each pass, of what the states are; ``limit_XD`` stands for the fixed point."""
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
            raise InputError("no tokens were read: the data is empty")
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
        raise InputError("the model has no loop block, so there are no passes to compare")
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
    call = ForwardCall(body, recurrence=recurrence, cache=None, wanted=Wanted(routing=True))
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
