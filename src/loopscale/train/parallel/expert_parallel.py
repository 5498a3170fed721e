"""Expert parallelism: processes that hold the experts of a layer together, and send tokens to where their experts are.

Shapes: T tokens of this process, K experts of a token, E experts in all, e of them here, n processes, S = T K rows
sorted by expert, G rows that came from all processes, C rows that drop-and-pad keeps, D width, H width of an expert.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from loopscale.model import LoopedMoEForCausalLM
from loopscale.model.experts import expert_ffn, inverse, weighted_sum
from loopscale.model.moe import Experts, MoELayer, capacity, pad, padded_experts, unpad


def share_experts(model: LoopedMoEForCausalLM, mesh: DeviceMesh) -> None:
    """Replace the experts of every layer by those that belong to this process of ``mesh``."""
    for layer in model.modules():
        if isinstance(layer, MoELayer):
            layer.experts = SharedExperts(layer.experts, mesh)  # type: ignore[assignment]


class SharedExperts(nn.Module):
    """This process's part of a layer's experts; it replaces ``Experts``, with the same names and results."""

    def __init__(self, whole: Experts, mesh: DeviceMesh) -> None:
        super().__init__()
        self.config = whole.config
        self.group, self.size = mesh.get_group(), mesh.size()
        self.gate_up_proj = _own(whole.gate_up_proj, mesh)
        self.down_proj = _own(whole.down_proj, mesh)

    def forward(self, x_TD: Tensor, ids_TK: Tensor, weights_TK: Tensor, token_mask_T: Tensor | None = None) -> Tensor:
        """Return each token's weighted sum over its experts; drop-and-pad looks at this process only."""
        matrices = self._local(self.gate_up_proj), self._local(self.down_proj)
        if self.training and self.config.dispatch == "drop-and-pad":
            return self._drop_and_pad(x_TD, ids_TK, weights_TK, *matrices, token_mask_T)
        y_TD: Tensor = self._dropless(x_TD, ids_TK, weights_TK, *matrices)
        return y_TD

    def _local(self, weight: Tensor) -> Tensor:
        assert isinstance(weight, DTensor)
        local = weight.to_local()
        if local.requires_grad:
            # Rows of all processes of the group arrive here, and replicas of the group average their gradients. The
            # mean over all processes, which the other weights have, is smaller by the size of the group.
            local.register_hook(self._mean)  # type: ignore[no-untyped-call]
        return local

    def _mean(self, grad: Tensor) -> Tensor:
        return grad / self.size

    @torch._dynamo.disable  # type: ignore[untyped-decorator]
    def _dropless(self, x_TD: Tensor, ids_TK: Tensor, weights_TK: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        # Not compiled: the number of rows differs at every step, and each would be compiled anew.
        (T, K), e = ids_TK.shape, len(down)
        flat_S = ids_TK.flatten()
        order_S = flat_S.argsort(stable=True)
        sent_E = torch.bincount(flat_S, minlength=e * self.size)
        got_E = torch.empty_like(sent_E)
        dist.all_to_all_single(got_E, sent_E, group=self.group)
        sent, got = (counts.view(self.size, e).sum(1).tolist() for counts in (sent_E, got_E))
        x_GD = self._exchange(x_TD.index_select(0, order_S // K), got, sent)
        ids_G1 = torch.arange(e, device=x_TD.device).repeat(self.size).repeat_interleave(got_E).unsqueeze(1)
        y_GD = expert_ffn(x_GD, ids_G1, x_GD.new_ones(ids_G1.shape), gate_up, down)
        y_SD = self._exchange(y_GD, sent, got)
        return weighted_sum(y_SD.index_select(0, inverse(order_S)).view(T, K, -1), weights_TK)

    def _drop_and_pad(
        self,
        x_TD: Tensor,
        ids_TK: Tensor,
        weights_TK: Tensor,
        gate_up: Tensor,
        down: Tensor,
        token_mask_T: Tensor | None,
    ) -> Tensor:
        n, e = self.size, len(down)
        x_ECD, slot_S = pad(x_TD, ids_TK, e * n, capacity(len(x_TD), self.config), token_mask_T)
        C, D = x_ECD.shape[1:]
        x_neCD = self._exchange(x_ECD).view(n, e, C, D)
        y_eGD = padded_experts(x_neCD.transpose(0, 1).reshape(e, n * C, D), gate_up, down)
        y_ECD = self._exchange(y_eGD.view(e, n, C, D).transpose(0, 1).reshape(n * e, C, D))
        return unpad(y_ECD, slot_S, weights_TK)

    def _exchange(self, rows: Tensor, got: list[int] | None = None, sent: list[int] | None = None) -> Tensor:
        """Send each process its rows and return those that all sent here; without counts, in equal parts."""
        return _AllToAll.apply(rows, got, sent, self.group)  # type: ignore[no-any-return, no-untyped-call]


def _own(weight: Tensor, mesh: DeviceMesh) -> nn.Parameter:
    part = weight.detach().chunk(mesh.size())[mesh.get_local_rank()].clone()
    return nn.Parameter(DTensor.from_local(part, mesh, [Shard(0)], run_check=False))


class _AllToAll(torch.autograd.Function):
    """Sends rows to other processes, and in backward their gradients back."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, got: list[int] | None, sent: list[int] | None, group: dist.ProcessGroup
    ) -> Tensor:
        ctx.counts = got, sent, group
        return _sent(rows, got, sent, group)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        got, sent, group = ctx.counts
        return _sent(grad, sent, got, group), None, None, None


def _sent(rows: Tensor, got: list[int] | None, sent: list[int] | None, group: dist.ProcessGroup) -> Tensor:
    out = rows.new_empty(len(rows) if got is None else sum(got), *rows.shape[1:])
    dist.all_to_all_single(out, rows.contiguous(), got, sent, group=group)
    return out
