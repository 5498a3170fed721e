"""What a model costs before it exists: parameters, FLOPs, weight and KV memory."""

from loopscale.architecture.architecture import (
    Architecture,
    Attention,
    FeedForward,
    LatentAttention,
    Layer,
    MixtureOfExperts,
    QKNorm,
    Stack,
)
from loopscale.architecture.configs import FAMILIES, from_config, read_config
from loopscale.architecture.ladder import (
    RUNG_EXPERTS,
    RUNG_RECURRENCES,
    RUNGS,
    at_width,
    continuous,
    rung,
    rung_name,
    width_for_active,
)

__all__ = [
    "FAMILIES",
    "RUNGS",
    "RUNG_EXPERTS",
    "RUNG_RECURRENCES",
    "Architecture",
    "Attention",
    "FeedForward",
    "LatentAttention",
    "Layer",
    "MixtureOfExperts",
    "QKNorm",
    "Stack",
    "at_width",
    "continuous",
    "from_config",
    "read_config",
    "rung",
    "rung_name",
    "width_for_active",
]
