"""The vLLM plugin: lets an engine serve a looped MoE through its Transformers backend.

vLLM calls :func:`register` by the entry point ``vllm.general_plugins`` in each of its processes. The recurrence is the
engine's: ``hf_overrides={"recurrence": 3}``. Keep ``enforce_eager=True``: vLLM 0.32 compiles a looped MoE wrongly and
says nothing, as the second call of a layer reuses the expert ids of the first.
"""

from __future__ import annotations

ARCHITECTURE = "LoopedMoEForCausalLM"
BACKEND = "vllm.model_executor.models.transformers:TransformersMoEForCausalLM"


def register() -> None:
    """Make Transformers and vLLM know the model."""
    from vllm import ModelRegistry  # type: ignore[import-not-found]

    import loopscale.model

    loopscale.model.register()
    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(ARCHITECTURE, BACKEND)
