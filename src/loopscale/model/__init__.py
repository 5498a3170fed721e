"""The looped MoE in PyTorch, in Hugging Face form: generate, lm-eval and vLLM use the same files.

Importing this registers the model with the Auto classes. A saved checkpoint carries the code, and so loads with
``trust_remote_code=True`` where loopscale is not installed.
"""

from loopscale.core.errors import check_extra

check_extra("train")

# ruff: noqa: E402
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

from loopscale.model.config import LoopedMoEConfig
from loopscale.model.exit import Exit
from loopscale.model.forward import draw_recurrence
from loopscale.model.model import LoopedMoEForCausalLM, LoopedMoEForSequenceClassification, LoopedMoEModel
from loopscale.model.outputs import Trace


def register() -> None:
    """Make the Auto classes know the model, and its checkpoints carry its code."""
    AutoConfig.register(LoopedMoEConfig.model_type, LoopedMoEConfig, exist_ok=True)
    AutoModel.register(LoopedMoEConfig, LoopedMoEModel, exist_ok=True)
    AutoModelForCausalLM.register(LoopedMoEConfig, LoopedMoEForCausalLM, exist_ok=True)
    classifier = LoopedMoEForSequenceClassification
    AutoModelForSequenceClassification.register(LoopedMoEConfig, classifier, exist_ok=True)
    LoopedMoEConfig.register_for_auto_class()  # type: ignore[no-untyped-call]
    LoopedMoEModel.register_for_auto_class("AutoModel")  # type: ignore[no-untyped-call]
    LoopedMoEForCausalLM.register_for_auto_class("AutoModelForCausalLM")  # type: ignore[no-untyped-call]
    classifier.register_for_auto_class("AutoModelForSequenceClassification")  # type: ignore[no-untyped-call]


register()

__all__ = [
    "Exit",
    "LoopedMoEConfig",
    "LoopedMoEForCausalLM",
    "LoopedMoEForSequenceClassification",
    "LoopedMoEModel",
    "Trace",
    "draw_recurrence",
    "register",
]
