"""Write a looped model for MLX: its weights as they are, and a small model file that loops them."""

from __future__ import annotations

import json
from importlib.resources import files
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from loopscale.core.errors import InputError, require
from loopscale.model.blocks import rotary_frequencies
from loopscale.model.config import RESIDUAL_POWERS, LoopedMoEConfig
from loopscale.model.export import check_writable
from loopscale.model.forward import resolve_recurrence
from loopscale.model.model import LoopedMoEForCausalLM

MODEL_FILE = "looped_moe.py"


def write_mlx(model: LoopedMoEForCausalLM, folder: Path, recurrence: int | None = None) -> None:
    """Write config, weights and model file, which MLX and mlx-lm run; the loop is not written out."""
    config = model.config
    R = resolve_recurrence(recurrence, None, config)
    _check(model)
    fields = {**config.to_dict(), "recurrence": R, **_derived(config), "model_file": MODEL_FILE}
    fields.pop("auto_map", None)  # the code beside these weights is MLX's
    folder.mkdir(parents=True, exist_ok=True)
    names = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("model.exit_gate.")}
    if config.tie_word_embeddings:
        names.pop("lm_head.weight", None)
    weights = {name.removeprefix("model."): tensor.contiguous() for name, tensor in names.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(fields, indent=1), encoding="utf-8")
    code = files("loopscale.model").joinpath("mlx_model.py").read_text(encoding="utf-8")
    (folder / MODEL_FILE).write_text(code, encoding="utf-8")


def read_mlx(folder: Path) -> Any:
    """Load such a folder with its own model file, as mlx-lm would."""
    mx = require("mlx.core", "mlx", "MLX")
    spec = spec_from_file_location("loopscale_mlx_model", folder / MODEL_FILE)
    assert spec is not None
    assert spec.loader is not None
    code = module_from_spec(spec)
    spec.loader.exec_module(code)
    model = code.Model(code.ModelArgs.from_dict(json.loads((folder / "config.json").read_text(encoding="utf-8"))))
    model.load_weights(list(mx.load(str(folder / "model.safetensors")).items()))
    return model


def _derived(config: LoopedMoEConfig) -> dict[str, Any]:
    frequency_r, factor = rotary_frequencies(torch.zeros(1, 1), config)
    if factor != 1:
        raise InputError(
            "rotary positions whose cosines are scaled (yarn) have no form in the model file for MLX; write it "
            "`--to unrolled`"
        )
    return {"residual_power": RESIDUAL_POWERS[config.residual_scale], "rope_periods": (1 / frequency_r).tolist()}


def _check(model: LoopedMoEForCausalLM) -> None:
    """Refuse what the model file does not compute."""
    config = model.config
    check_writable(model, "the model file for MLX")
    if config.differs_by_pass:
        raise InputError("passes with their own parts have no form in the model file for MLX; write it `--to unrolled`")
    if config.injection not in ("none", "add"):
        raise InputError(f"injection is {config.injection!r}: the model file for MLX has 'none' and 'add' only")
    rope = config.rope_parameters
    assert rope is not None
    if rope["rope_type"] == "dynamic":
        raise InputError(
            "dynamic rotary positions depend on the length, which the model file for MLX does not follow; write it "
            "`--to unrolled`"
        )
