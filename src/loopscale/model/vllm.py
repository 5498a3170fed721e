"""The vLLM plugin: lets an engine serve a looped MoE through its Transformers backend, eager or compiled.

vLLM calls ``register`` by the entry point ``vllm.general_plugins`` in each of its processes. The recurrence is the
engine's: ``hf_overrides={"recurrence": 3}``. ``engines`` starts several in one process, with one copy of the
weights.

A compiled engine is correct at R > 1 because vLLM runs the experts of a layer as one opaque operation, which gets the
expert ids of each pass as an argument. That holds as long as the router stays in the model: vLLM fuses a router only
into layers that return a single tensor, and ``MoELayer`` returns a tuple.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from loopscale.core.errors import InputError

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


def check_heads(checkpoint: str) -> None:
    """Refuse heads of a size that vLLM has no attention for on CPUs, before an engine loads anything."""
    from vllm.platforms import current_platform

    from loopscale.model import LoopedMoEConfig

    if not current_platform.is_cpu():
        return
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    sizes, own = CPUAttentionBackend.get_supported_head_sizes(), LoopedMoEConfig.from_pretrained(checkpoint).head_dim
    if own not in sizes:
        known = ", ".join(map(str, sizes))
        raise InputError(
            f"the model has heads of {own}, and vLLM on a CPU has attention for heads of {known}: run it with "
            "Transformers (backend hf)"
        )


def engines(checkpoint: str, recurrences: Iterable[int], **options: Any) -> dict[int, Any]:
    """Return an ``LLM`` for each recurrence, all with the weights of the first.

    Each has its own KV cache, and runs when it is called. ``options`` are those of ``LLM``. Keep all of them until the
    last is done: vLLM closes the process groups of all with the first engine that is deleted.
    """
    different = list(dict.fromkeys(recurrences))
    if not different:
        raise InputError("give at least one recurrence")
    if refused := {"load_format", "tensor_parallel_size", "data_parallel_size"} & options.keys():
        raise InputError(
            f"engines that share weights live in one process and do not take {min(refused)!r}; leave it out"
        )
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # weights are shared between objects, not between processes
    from vllm import LLM

    check_heads(checkpoint)
    overrides = options.pop("hf_overrides", {})
    engine_of: dict[int, Any] = {}
    for recurrence in different:
        sharing = {"load_format": _shared_with(next(iter(engine_of.values())))} if engine_of else {}
        engine_of[recurrence] = LLM(
            checkpoint, hf_overrides={**overrides, "recurrence": recurrence}, **sharing, **options
        )
    return engine_of


def _shared_with(engine: Any) -> str:
    """Register a load format that takes every module with weights from an engine; return its name."""
    import torch
    from torch import nn
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader
    from vllm.utils.torch_utils import set_default_torch_dtype

    source: nn.Module = engine.llm_engine.model_executor.driver_worker.model_runner.model
    layers = engine.llm_engine.vllm_config.compilation_config.static_forward_context

    class SharedWeights(BaseModelLoader):  # type: ignore[misc]
        def download_model(self, model_config: Any) -> None:
            """There is nothing to download."""

        def load_weights(self, model: nn.Module, model_config: Any) -> None:
            """Take the modules that hold weights; attention holds none, and each engine has its own."""
            for name, module in source.named_modules():
                if any(True for _ in module.parameters(recurse=False)):
                    parent, _, last = name.rpartition(".")
                    setattr(model.get_submodule(parent), last, module)

        def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> nn.Module:
            """Build the model around the weights of the source, which are in the form of its kernels already."""
            with set_default_torch_dtype(model_config.dtype), torch.device(vllm_config.device_config.device):
                model: nn.Module = self.create_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
            self.load_weights(model, model_config)
            own = vllm_config.compilation_config.static_forward_context
            own |= {name: layers[name] for name, layer in own.items() if not isinstance(layer, AttentionLayerBase)}
            return model.eval()

    register_model_loader("loopscale-shared")(SharedWeights)
    return "loopscale-shared"
