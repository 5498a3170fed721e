"""``[model] init_from``: a run that starts from the weights of another model, with more experts or passes if wanted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopscale.core.errors import InputError, shown
from loopscale.core.files import is_file, read_json
from loopscale.train.run_dir import model_of
from loopscale.train.sections.model import config_fields

if TYPE_CHECKING:  # settings are read where there is no torch, too
    from torch import Tensor, nn

SIZES = ("rung", "width", "layers", "edge_layers", "head_size", "kv_heads")
"""Fields of [model] that the other model states."""
OWN = ("max_position_embeddings", "eos_token_id", "pad_token_id", "bos_token_id")
"""Fields of a model's configuration that follow from the run's data."""
UNUSED = -1.0
"""Balancing bias of a copied expert: scores are between 0 and 1, so that no token chooses it before the balancing has
raised it, and the model starts as it was."""


def with_start(data: object) -> object:
    """Return the values of a file with the sizes, options and tokenizer of the model that it starts from."""
    model = data.get("model") if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(model, dict) or not isinstance(model.get("init_from"), str):
        return data
    if "hidden_size" in model:  # the configuration of a run that has started
        return data
    sizes = [name for name in SIZES if name in model]
    if sizes:
        raise InputError(
            f"field {sizes[0]!r} is a size, and the model of 'init_from' has its own", where="[model]",
            remedy="leave it out; 'experts', 'recurrence' and options may differ",
        )  # fmt: skip
    folder = model_of(model["init_from"])
    config = _config_of(folder)
    stored = {name: value for name, value in config.items() if name not in OWN}
    k = stored["num_experts_per_tok"]
    experts = model.get("experts", max(1, stored["num_experts"] // k if stored["num_experts"] > 1 else 1))
    own = {
        "experts": experts,
        "active_experts": k,
        "recurrence": model.get("recurrence", stored["recurrence"]),
        "num_experts": experts * k if isinstance(experts, int) and experts > 1 else 1,
    }
    started = data | {"model": {**stored, **model, **own}}
    section = data.get("data", {})
    if isinstance(section, dict) and not {"tokenizer", "task"} & set(section):
        started["data"] = section | {"tokenizer": str(folder)}
    return started


def _config_of(folder: Path) -> dict[str, Any]:
    from loopscale.model import LoopedMoEConfig

    path = folder / "config.json"
    config = read_json(path) if is_file(path) else None
    if not isinstance(config, dict) or config.get("model_type") != LoopedMoEConfig.model_type:
        raise InputError(
            f"field 'init_from' is {shown(str(folder))}, which is no looped MoE in Hugging Face form", where="[model]",
            remedy="give the folder of a run or of its model, or what `loopscale convert` wrote",
        )  # fmt: skip
    complete = LoopedMoEConfig.from_pretrained(str(folder))  # with the defaults of what the file leaves out
    return {name: value for name in config_fields() if (value := getattr(complete, name, None)) is not None}


def start_from(model: nn.Module, folder: str | Path) -> None:
    """Copy the weights of a model folder into ``model``, each process its own shard.

    Experts are copied until there are enough. Weights that the other model does not have keep their initial values.
    """
    from loopscale.model.loading import load_model
    from loopscale.train.init import own_part

    stored = load_model(model_of(folder)).state_dict()
    for name, weight in (*model.named_parameters(), *model.named_buffers()):
        if name in stored:
            local, part = own_part(weight.detach())
            local.copy_(_widened(name, stored, tuple(weight.shape))[part])


def _widened(name: str, stored: Mapping[str, Tensor], shape: tuple[int, ...]) -> Tensor:
    """Return a stored tensor in a shape that may have more experts."""
    tensor = stored[name]
    bias = name.endswith("e_score_correction_bias")
    if bias and tensor.dim() < len(shape):
        tensor = tensor.expand(shape[0], -1)
    axis = len(shape) - 1 if bias else 0
    copied = ".experts." in name or ".router." in name
    if tensor.dim() == len(shape) and copied:
        copies, left = divmod(shape[axis], tensor.shape[axis])
        if copies > 1 and not left:
            repeated = tensor.repeat(*(copies if place == axis else 1 for place in range(len(shape))))
            if bias:
                repeated[..., tensor.shape[axis] :] = tensor.mean() + UNUSED
            tensor = repeated
    if tuple(tensor.shape) != shape:
        raise InputError(
            f"field 'init_from': its {name} has the shape {tuple(stored[name].shape)}, and this model's is {shape}",
            where="[model]",
            remedy="only experts may be more, by a whole factor",
        )
    return tensor
