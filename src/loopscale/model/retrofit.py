"""Turn a pretrained model of a standard architecture into a looped one that equals it at R = 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from loopscale.core.errors import InputError, require
from loopscale.model.config import LoopedMoEConfig
from loopscale.model.families import find_family, to_ours
from loopscale.model.loading import one_sentence, quiet
from loopscale.model.model import LoopedMoEForCausalLM


def load_pretrained(source: str | Path) -> tuple[PreTrainedModel, Any]:
    """Return the model and, if there is one, the tokenizer of a folder or GGUF file that Transformers reads."""
    where = Path(source)
    if where.suffix == ".gguf" and where.is_file():
        require("gguf", "gguf", "reading GGUF files")
        folder, options = where.parent, {"gguf_file": where.name}
    elif where.is_dir():
        folder, options = where, {}
    else:
        raise InputError(f"{source}: no such folder; give one with a config.json and safetensors, or a GGUF file")
    with quiet(), one_sentence(source):
        config = AutoConfig.from_pretrained(str(folder), trust_remote_code=False, **options)
        find_family(config, str(source))  # before the weights are read
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            str(folder), dtype="auto", trust_remote_code=False, use_safetensors=True, **options
        )
        # Without the file Transformers would make a tokenizer of the family's kind with an empty vocabulary.
        has_tokenizer = bool(options) or (folder / "tokenizer_config.json").is_file()
        tokenizer = (
            AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False, **options) if has_tokenizer else None
        )
    return model.eval(), tokenizer  # type: ignore[no-untyped-call]


@torch.no_grad()
def retrofit(
    model: PreTrainedModel,
    prelude: int,
    coda: int,
    recurrence: int,
    experts: int = 1,
    active_experts: int = 2,
    seed: int = 0,
    noise: float = 0.0,
    where: str = "the model",
) -> LoopedMoEForCausalLM:
    """Return a looped model: the first layers as prelude, the last as coda, those between as the loop.

    At R = 1 it computes what the original computes. With ``experts`` E above 1 each feed-forward block becomes
    E x ``active_experts`` copies of itself behind a new sigmoid router; its gates add up to one, so the output is the
    same until training makes the copies differ. ``noise`` makes them differ from the start: random numbers of so many
    times the weights' standard deviation, after which the output is near the original's. ``where`` names the model in
    errors.
    """
    family = find_family(model.config, where)
    layers = int(model.config.num_hidden_layers)
    if prelude < 0 or coda < 0 or prelude + coda >= layers:
        raise InputError(
            f"`prelude` {prelude} and `coda` {coda} leave no layer to loop",
            where=where,
            remedy=f"it has {layers} layers",
        )
    fields = family.read(model.config)
    if noise and experts == 1:
        raise InputError("`noise` makes copied experts differ; give `experts` too", where=where)
    if experts > 1:
        if family.router is not None:
            raise InputError(
                "`experts` is for dense models, and this one has experts already; leave it out", where=where
            )
        if active_experts < 2:
            raise InputError(f"`active_experts` is {active_experts}; copies are exact with 2 or more", where=where)
        fields |= {
            "num_experts": experts * active_experts,
            "num_experts_per_tok": active_experts,
            "moe_intermediate_size": fields["intermediate_size"],
        }
    depths = {"prelude_layers": prelude, "loop_layers": layers - prelude - coda, "coda_layers": coda}
    config = LoopedMoEConfig(**{**fields, **depths, "recurrence": recurrence})
    state = _tensors(model.state_dict(), config, torch.Generator().manual_seed(seed), noise)
    with torch.device("meta"):
        looped = LoopedMoEForCausalLM(config)
    looped.load_state_dict(state, strict=not config.tie_word_embeddings, assign=True)
    looped.tie_weights()
    if model.generation_config is not None:
        looped.generation_config = model.generation_config
    looped.eval()  # type: ignore[no-untyped-call]
    return looped


@torch.no_grad()
def most_similar(model: PreTrainedModel, ids_BT: Tensor, loop: int) -> tuple[int, list[float]]:
    """Return how many layers to keep before a loop of ``loop`` layers, and the distance of every choice.

    The distance is the mean angle between the states before and after the layers, over pi: layers that turn a state
    least are those that disturb it least when they run again.
    """
    layers = int(model.config.num_hidden_layers)
    if not 1 <= loop <= layers:
        raise InputError(f"`loop` is {loop}; it should be from 1 to the model's {layers} layers")
    states: Any = model(input_ids=ids_BT, output_hidden_states=True, use_cache=False).hidden_states
    # The last state has been through the final norm, so a loop that ends there is left out unless it is all layers.
    ends = range(loop, layers) if loop < layers else range(layers, layers + 1)
    distances = []
    for end in ends:
        before_BTD, after_BTD = states[end - loop][:, 1:].float(), states[end][:, 1:].float()
        cosine_BT = functional.cosine_similarity(before_BTD, after_BTD, dim=-1)
        distances.append(float(cosine_BT.clamp(-1, 1).arccos().mean() / torch.pi))
    return distances.index(min(distances)), distances


def _tensors(
    theirs: dict[str, Tensor], config: LoopedMoEConfig, generator: torch.Generator, noise: float
) -> dict[str, Tensor]:
    """Return the looped model's tensors from the original's."""
    names = {"model.embed_tokens.weight", "model.norm.weight"}
    state = {name: theirs[name] for name in (names if config.tie_word_embeddings else {*names, "lm_head.weight"})}
    parts = [("prelude", config.prelude_layers), ("loop", config.loop_layers), ("coda", config.coda_layers)]
    blocks = [f"model.{part}.{layer}." for part, depth in parts for layer in range(depth)]
    for layer, prefix in enumerate(blocks):
        start = f"model.layers.{layer}."
        own = {name.removeprefix(start): tensor for name, tensor in theirs.items() if name.startswith(start)}
        block = to_ours(own)
        if config.is_moe:
            if "mlp.down_proj.weight" in block:
                _copy_experts(block, config, generator, noise)
            block.setdefault("mlp.router.e_score_correction_bias", torch.zeros(config.num_experts))
        state |= {prefix + name: tensor for name, tensor in block.items()}
    return state


def _copy_experts(block: dict[str, Tensor], config: LoopedMoEConfig, generator: torch.Generator, noise: float) -> None:
    """Replace a dense feed-forward block by copies of itself and a router with random weights."""
    for name in ("gate_up_proj", "down_proj"):
        weight_OI = block.pop(f"mlp.{name}.weight")
        copies_EOI = weight_OI.repeat(config.num_experts, 1, 1)
        if noise:
            random_EOI = torch.randn(copies_EOI.shape, generator=generator).to(copies_EOI)
            copies_EOI += noise * weight_OI.std() * random_EOI
        block[f"mlp.experts.{name}"] = copies_EOI
    router_ED = torch.randn(config.num_experts, config.hidden_size, generator=generator) * config.initializer_range
    block["mlp.router.weight"] = router_ED.to(weight_OI.dtype)
