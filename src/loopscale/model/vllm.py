"""The vLLM plugin: lets an engine serve a looped MoE through its Transformers backend, eager or compiled.

vLLM calls :func:`register` by the entry point ``vllm.general_plugins`` in each of its processes. The recurrence is the
engine's: ``hf_overrides={"recurrence": 3}``.

A compiled engine is correct at R > 1 because vLLM runs the experts of a layer as one opaque operation, which gets the
expert ids of each pass as an argument. That holds as long as the router stays in the model: vLLM fuses a router only
into layers that return a single tensor, and ``MoELayer`` returns a tuple.
"""

from __future__ import annotations

from typing import Any

ARCHITECTURE = "LoopedMoEForCausalLM"
BACKEND = "vllm.model_executor.models.transformers:TransformersMoEForCausalLM"


class Settings:
    """vLLM's hooks for the settings of one architecture."""

    @staticmethod
    def verify_and_update_model_config(model_config: Any) -> None:
        """Leave the model's settings as they are."""

    @staticmethod
    def verify_and_update_config(vllm_config: Any) -> None:
        """Look layers up by name: vLLM's quicker start counts MoE calls and expects one call of each layer."""
        vllm_config.compilation_config.fast_moe_cold_start = False


def register() -> None:
    """Make Transformers and vLLM know the model."""
    from vllm import ModelRegistry
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    import loopscale.model

    loopscale.model.register()
    MODELS_CONFIG_MAP[ARCHITECTURE] = Settings
    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(ARCHITECTURE, BACKEND)
