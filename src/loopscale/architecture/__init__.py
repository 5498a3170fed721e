"""What a model costs before it exists: parameters, FLOPs, weight and KV memory."""

from loopscale.architecture.architecture import Architecture, PassParts, Stack
from loopscale.architecture.configs import FAMILIES, from_config, read_config
from loopscale.architecture.ladder import (
    RUNG_EXPERTS,
    RUNG_RECURRENCES,
    RUNGS,
    at_width,
    continuous,
    extended_rungs,
    rung,
    rung_name,
    width_for_active,
)
from loopscale.architecture.layers import (
    Attention,
    FeedForward,
    LatentAttention,
    Layer,
    MixtureOfExperts,
    QKNorm,
)
from loopscale.architecture.space import (
    Space,
    architecture_space,
    check_candidates,
    continuous_space,
    ladder_space,
    size_space,
    width_space,
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
    "PassParts",
    "QKNorm",
    "Space",
    "Stack",
    "architecture_space",
    "at_width",
    "check_candidates",
    "continuous",
    "continuous_space",
    "extended_rungs",
    "from_config",
    "ladder_space",
    "read_config",
    "rung",
    "rung_name",
    "size_space",
    "width_for_active",
    "width_space",
]
