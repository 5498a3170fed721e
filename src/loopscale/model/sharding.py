# Copyright 2026 the loopscale authors. Licensed under the Apache License, Version 2.0.
"""How Transformers' tensor and expert parallelism divide the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .config import LoopedMoEConfig


def tensor_plan(config: LoopedMoEConfig) -> dict[str, str]:
    """Return how Transformers' tensor parallelism shards embeddings and feed-forward blocks; attention stays whole."""
    styles = {"gate_up_proj": "packed_colwise", "down_proj": "rowwise"}
    if config.is_moe:
        shared = {f"shared_expert.{name}": style for name, style in styles.items()}
        styles = {**{f"experts.{name}": style for name, style in styles.items()}, "experts": "moe_tp_experts"}
        styles |= shared if config.shared_expert_intermediate_size else {}
    blocks = {f"{block}.mlp.{name}": style for block in _blocks(config) for name, style in styles.items()}
    return {"embed_tokens": "embedding_rowwise", **blocks}


def expert_plan(config: LoopedMoEConfig) -> dict[str, str] | None:
    """Return how Transformers' expert parallelism shares out the experts."""
    if not config.is_moe:
        return None
    styles = {
        "router": "ep_router",
        "experts.gate_up_proj": "grouped_gemm",
        "experts.down_proj": "grouped_gemm",
        "experts": "moe_tp_experts",
    }
    return {f"{block}.mlp.{name}": style for block in _blocks(config) for name, style in styles.items()}


def _blocks(config: LoopedMoEConfig) -> list[str]:
    depths = {"prelude": config.prelude_layers, "loop": config.loop_layers, "coda": config.coda_layers}
    return [f"{name}.*" for name, depth in depths.items() if depth]
