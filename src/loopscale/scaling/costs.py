"""What a looped model costs: N_unroll, FLOPs, and tokens for a budget.

Every formula of compute is here, once. Arguments are numbers or arrays that broadcast; whole numbers stay whole.
"""

from __future__ import annotations

from typing import Any

TRAIN = 6
"""FLOPs of training for each unrolled parameter and token: two forward, four backward."""
INFERENCE = 2
"""FLOPs of generating one token, for each unrolled parameter."""


def unrolled(active: Any, loop: Any, recurrence: Any) -> Any:
    """Return N_unroll = N_act + (R - 1) N_loop: the parameters a token passes through, repeated passes counted."""
    return active + (recurrence - 1) * loop


def train_flops(N_unroll: Any, tokens: Any = 1) -> Any:
    """Return 6 N_unroll D: the training compute on ``tokens``, or of one token."""
    return TRAIN * N_unroll * tokens


def inference_flops(N_unroll: Any) -> Any:
    """Return 2 N_unroll: the compute of one generated token."""
    return INFERENCE * N_unroll


def tokens_for(flops: Any, N_unroll: Any, served: Any = 0.0) -> Any:
    """Return D = C / (6 N_unroll), less what serving ``served`` tokens costs of the same budget."""
    return flops / train_flops(N_unroll) - served / (TRAIN / INFERENCE)
