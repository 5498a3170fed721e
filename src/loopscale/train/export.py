"""The finished model in Hugging Face form, with its tokenizer."""

from __future__ import annotations

import shutil
from pathlib import Path

from torch import Tensor

from loopscale.model import LoopedMoEConfig, LoopedMoEForCausalLM
from loopscale.model.loading import quiet
from loopscale.train.checkpoints import on_disk
from loopscale.train.shards import TokenStore


def save_model(target: Path, config: LoopedMoEConfig, tensors: dict[str, Tensor], store: TokenStore) -> None:
    """Write the model whole or not at all."""
    temporary = target.with_name(f".{target.name}.partial")
    with on_disk(target), quiet():
        shutil.rmtree(temporary, ignore_errors=True)
        model = LoopedMoEForCausalLM(config)
        model.load_state_dict({name: tensor.cpu() for name, tensor in tensors.items()})
        model.save_pretrained(str(temporary))
        store.tokenizer().save_pretrained(str(temporary))
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
