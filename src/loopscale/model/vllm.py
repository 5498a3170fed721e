"""The vLLM plugin: lets an engine serve a looped MoE through its Transformers backend.

vLLM calls :func:`register` by the entry point ``vllm.general_plugins`` in each of its processes. The recurrence is the
engine's: ``hf_overrides={"recurrence": 3}``. Engines always run eagerly: vLLM 0.32 compiles a looped
MoE wrongly and says nothing, as the second call of a layer reuses the expert ids of the first.
"""

from __future__ import annotations

from typing import Any

ARCHITECTURE = "LoopedMoEForCausalLM"
BACKEND = "vllm.model_executor.models.transformers:TransformersMoEForCausalLM"


class EagerOnly:
    """vLLM's hooks for the settings of one architecture."""

    @staticmethod
    def verify_and_update_model_config(model_config: Any) -> None:
        """Turn compilation off before the engine's other settings are derived."""
        model_config.enforce_eager = True

    @staticmethod
    def verify_and_update_config(vllm_config: Any) -> None:
        """Leave the rest as it is."""


def register() -> None:
    """Make Transformers and vLLM know the model."""
    from vllm import ModelRegistry
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    import loopscale.model

    loopscale.model.register()
    MODELS_CONFIG_MAP[ARCHITECTURE] = EagerOnly
    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(ARCHITECTURE, BACKEND)
