# Copyright 2026 the loopscale authors. Licensed under the Apache License, Version 2.0.
"""What Transformers needs to know about the model: initial weights, saving, loading."""

from __future__ import annotations

import json
from copy import copy
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import initialization as init
from transformers.modeling_utils import PreTrainedModel

from .blocks import LowRank
from .config import LoopedMoEConfig
from .errors import InputError
from .injection import GatedInjection
from .moe import Experts, Router

HEADS = ("", "ForCausalLM", "ForSequenceClassification")
"""What follows AutoModel in the Auto classes that load a checkpoint, and LoopedMoE in the names of ours."""


class LoopedMoEPreTrainedModel(PreTrainedModel):  # type: ignore[no-untyped-call]
    """What Transformers needs to know about both models below."""

    config: LoopedMoEConfig
    config_class = LoopedMoEConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]  # noqa: RUF012
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _keep_in_fp32_modules_strict = ["e_score_correction_bias"]  # noqa: RUF012
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)  # type: ignore[no-untyped-call]
        std = self.config.initializer_range
        if isinstance(module, Experts):
            init.normal_(module.gate_up_proj, mean=0.0, std=std)
            init.normal_(module.down_proj, mean=0.0, std=std)
        elif isinstance(module, Router):
            for weight in module.parameters():
                init.normal_(weight, mean=0.0, std=std)
            init.zeros_(module.bias_rows)
        elif isinstance(module, LowRank):
            init.normal_(module.down, mean=0.0, std=std)
        elif isinstance(module, GatedInjection):
            init.normal_(module.weight, mean=0.0, std=std)
        for name, value in getattr(module, "CONSTANTS", {}).items():
            init.constant_(module.get_parameter(name), value)

    def _wants(self, option: str, argument: bool | None) -> bool:
        """Return an option of a call, or of the config where the call does not set it."""
        return bool(getattr(self.config, option, False)) if argument is None else argument

    @classmethod
    def _can_set_experts_implementation(cls) -> bool:
        return True  # Transformers would look for its decorator in this file

    def get_correct_experts_implementation(self, requested_experts: str | None) -> str:
        """Return our own experts unless another implementation is asked for by name."""
        return super().get_correct_experts_implementation(requested_experts or "eager")

    def lora_targets(self) -> dict[str, list[str]]:
        """Return what LoRA should adapt, for PEFT: ``LoraConfig(r=8, **model.lora_targets())``.

        It is every projection of attention, experts and feed-forward blocks. PEFT's own "all-linear" leaves out the
        experts, whose weights belong to no linear layer.
        """
        linear = {name.rpartition(".")[2] for name, module in self.named_modules() if isinstance(module, nn.Linear)}
        targets = {"target_modules": sorted(linear - {"lm_head", "score"})}
        if any(isinstance(module, Experts) for module in self.modules()):
            targets["target_parameters"] = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
        return targets

    def add_adapter(self, adapter_config: Any, adapter_name: str | None = None) -> None:
        """Add an adapter as Transformers does; a LoRA without targets gets those of ``lora_targets``."""
        targets = ("target_modules", "target_parameters")
        if adapter_config.peft_type == "LORA" and not any(getattr(adapter_config, name) for name in targets):
            for name, value in self.lora_targets().items():
                setattr(adapter_config, name, value)
        super().add_adapter(adapter_config, adapter_name)

    packed_bits: int | None = None
    """Bits of weights that ``loopscale.model.quantize.quantize`` has packed in place."""

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Save the model with its code; weights that were packed in place are refused."""
        if self.packed_bits is not None:
            raise InputError(
                f"weights packed into {self.packed_bits} bits in place cannot be saved: save the model before, and "
                "quantise it after loading"
            )
        if self._auto_class is not None:  # the code is saved beside the weights, and has all classes
            file = type(self).__module__.rpartition(".")[2]
            own = {f"AutoModel{head}": f"{file}.LoopedMoE{head or 'Model'}" for head in HEADS}
            self.config.auto_map = {**(getattr(self.config, "auto_map", None) or {}), **own}
        super().save_pretrained(*args, **kwargs)

    @classmethod
    def from_pretrained(cls, *args: Any, output_loading_info: bool = False, **kwargs: Any) -> Any:
        """Load a checkpoint; missing or extra tensors are refused, where Transformers would fill in or drop them.

        A checkpoint of the model with another head, or none, may lack the head, and other heads are ignored. A call
        with ``output_loading_info=True`` gets the list of differences instead of an error, and one with an empty
        ``state_dict`` new weights.
        """
        model, info = cast(
            "tuple[Any, dict[str, Any]]", super().from_pretrained(*args, output_loading_info=True, **kwargs)
        )
        where = args[0] if args else kwargs.get("pretrained_model_name_or_path")
        _restore_recurrence(model, where)
        if output_loading_info:
            return model, info
        if kwargs.get("state_dict") == {}:
            return model
        for kind, verb in (("missing_keys", "lacks"), ("unexpected_keys", "holds")):
            if names := sorted(set(info[kind]) - {"lm_head.weight", "score.weight"}):
                more = f" and {len(names) - 1} more" if len(names) > 1 else ""
                known = "which the model needs" if verb == "lacks" else "which the model does not have"
                raise InputError(f"{where}: the checkpoint {verb} tensor {names[0]!r}{more}, {known}")
        return model


def _restore_recurrence(model: nn.Module, where: object) -> None:
    """Give the generation config the recurrence that was saved with it; Transformers drops fields it does not know."""
    file = Path(str(where)) / "generation_config.json"
    settings = getattr(model, "generation_config", None)
    if settings is not None and file.is_file():
        saved = json.loads(file.read_text(encoding="utf-8")).get("recurrence")
        if saved is not None:
            # The config refuses a recurrence that is not one.
            settings.recurrence = with_recurrence(cast(LoopedMoEConfig, model.config), saved).recurrence


def with_recurrence(config: LoopedMoEConfig, recurrence: int) -> LoopedMoEConfig:
    """Return a copy of a config with another recurrence."""
    changed = copy(config)
    changed.recurrence = recurrence
    return changed
