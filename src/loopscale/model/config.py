# Copyright 2026 the loopscale authors. Licensed under the Apache License, Version 2.0.
"""The configuration of a looped MoE, in Hugging Face form.

This file and those it imports are copied into every checkpoint, so that ``trust_remote_code`` loads one where loopscale
is not installed: they import from loopscale only what they need.
"""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from .errors import InputError
from .rules import MOST_LAYERS, check, is_whole
from .sharding import expert_plan, tensor_plan

FORMAT = 2
"""Version of the checkpoint format; a later one is refused. Version 2 has softmax routers; other models stay at 1,
which older code reads."""

RESIDUAL_POWERS = {"none": 0.0, "1/sqrt(R)": -0.5, "1/R": -1.0}
"""Powers of R that scale what a looped layer adds to its state."""


class LoopedMoEConfig(PreTrainedConfig):  # type: ignore[no-untyped-call]
    """Sizes and options of a looped MoE: prelude, a loop block run ``recurrence`` times, coda.

    Sizes follow the paper's ladder; dispatch is dropless by default, where the paper drops and pads. A preset of the
    ladder is one line, ``LoopedMoEConfig.from_architecture(rung("0.3B", experts=8), recurrence=5)``.
    """

    model_type: ClassVar[str] = "looped_moe"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]
    auto_map = dict[str, str]()  # noqa: RUF012  (not a field: TRL reads it, and a checkpoint with code has its own)

    vocab_size: int = 202_048
    hidden_size: int = 768
    """d_m"""
    prelude_layers: int = 2
    loop_layers: int = 16
    coda_layers: int = 2
    recurrence: int = 1
    """R: passes through the loop block, unless a call says otherwise."""
    num_attention_heads: int = 12
    num_key_value_heads: int = 4
    head_dim: int = 64
    qkv_bias: bool = False
    """Biases of queries, keys and values (Qwen2)."""
    output_bias: bool = False
    """A bias of the projection after attention."""
    qk_norm: str = "none"
    """Normalise queries and keys before the rotation: "none", "head" (each head by itself, one weight for all of them;
    Qwen3) or "full" (all heads together; OLMoE)."""
    intermediate_size: int = 3072
    """Width of the dense feed-forward block, used when ``num_experts`` is 1."""
    num_experts: int = 1
    """Routed experts in each layer; 1 is a dense model without routers."""
    num_experts_per_tok: int = 2
    """k: routed experts that a token uses."""
    moe_intermediate_size: int = 1536
    """Width of one expert."""
    shared_expert_intermediate_size: int = 0
    """Width of the expert that every token uses beside the routed ones; 0 for none."""
    norm_topk_prob: bool = True
    """Divide a token's k gates by their sum."""
    router_score: str = "sigmoid"
    """Scores of experts: "sigmoid" of each of the router's logits, or "softmax" over all of them (Mixtral, OLMoE)."""
    n_group: int = 1
    """One group of experts: serving engines ask."""
    topk_group: int = 1
    routed_scaling_factor: float = 1.0

    dispatch: str = "dropless"
    """In training: "dropless", or the paper's "drop-and-pad". Evaluation never drops a token."""
    capacity_factor: float = 1.5
    """Rows that drop-and-pad keeps for an expert, over the mean."""
    router_z_loss_coef: float = 1e-4
    bias_update_rate: float = 1e-3
    balance: str = "layer"
    """One balancing bias for each "layer", its counts added up over the passes, or one for each "pass" of it."""

    bias_passes: int | None = None
    """Passes with their own bias, when ``balance`` is "pass"; the recurrence at first."""

    # The recipe of the loop. Every default is the plain loop, which adds no weight and no operation.
    residual_scale: str = "none"
    """Scale what looped layers add to the state: "none", "1/sqrt(R)" or "1/R", where R is that of the call."""
    pass_norms: bool = False
    """Give each pass its own norms."""
    pass_attention: str = "shared"
    """Attention projections of a pass: "shared" by all, "low-rank" (shared plus an adapter that starts at zero), or
    "full" (its own)."""
    pass_attention_rank: int = 8
    """Rank of the adapters."""
    pass_router: bool = False
    """Give each pass its own routers; their balancing bias follows ``balance``."""
    own_passes: int | None = None
    """Passes with their own parts, when the switches above give them any; the recurrence at first. Later passes use
    the parts of the last."""
    injection: str = "none"
    """How the loop's input returns at each pass: "none", "add", "concat" through a linear layer, "gated" (a learned
    mean of state and input for each token and channel), "diagonal" (each channel decays by a learned factor below 1)
    or "normed" (the state through an RMSNorm, plus the input through a matrix)."""
    backprop_passes: int | None = None
    """Backpropagate through the last passes only; None for all."""
    random_recurrence: str | None = None
    """In training, draw R at each step: "uniform" from 1 to ``recurrence``, or "poisson" with that mean."""
    exit_gate: bool = False
    """Learn when to leave the loop: a gate on the state gives the probability of exit after each pass, and training
    minimises the expected loss. ``Exit("gate", threshold)`` then stops by it."""
    exit_entropy_coef: float = 0.05
    """With ``exit_gate``: weight of the entropy of the exit distribution, which keeps all passes in use."""
    loop_loss_weights: list[float] | None = None
    """Weight of each pass in the training loss, which reads the model out after every pass; None: the last only."""
    kept_passes: int | None = None
    """Passes that keep their own keys and values, as a ring (1: all passes share one slot, which holds those of the
    last); None for all."""
    kept_window: int | None = None
    """Tokens whose keys and values of every pass stay in the cache; of older tokens those of the first pass only, which
    later passes then attend to. None for all tokens."""

    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_parameters: dict[str, Any] | None = None
    initializer_range: float = 0.02
    tie_word_embeddings: bool = True
    use_cache: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    format_version: int = 1

    def __post_init__(self, **kwargs: Any) -> None:
        if isinstance(self.format_version, int) and self.format_version > FORMAT:
            raise InputError(
                f"config: format_version is {self.format_version}, later than this code reads ({FORMAT}); "
                "upgrade loopscale, or load with trust_remote_code=True"
            )
        if kwargs.pop("loop_order", "cycle") != "cycle":
            raise InputError("config: loop_order is no longer a field: the block is repeated as a whole; remove it")
        if self.router_score != "sigmoid":
            self.format_version = FORMAT
        _refuse_near_misses(kwargs, type(self))
        default = {"rope_type": "default", "rope_theta": 500_000.0}
        self.rope_parameters = {**default, **(self.rope_parameters or {})}
        if self.balance == "pass" and self.bias_passes is None:
            self.bias_passes = self.recurrence
        if self.has_own_parts and self.own_passes is None:
            self.own_passes = self.recurrence
        kwargs.pop("num_hidden_layers", None)  # follows from the other fields
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]
        check(self)
        # They depend on the sizes, so each config has its own; Transformers' base class declares them for a class.
        object.__setattr__(self, "base_model_tp_plan", tensor_plan(self))
        object.__setattr__(self, "base_model_ep_plan", expert_plan(self))

    def __setattr__(self, key: str, value: Any) -> None:
        # Loading and serving set it after construction; everything else about the depth follows from it.
        if key == "recurrence" and (not is_whole(value) or not 1 <= value <= MOST_LAYERS):
            raise InputError(f"config: recurrence is {value!r}; it should be a whole number from 1 to {MOST_LAYERS}")
        super().__setattr__(key, value)  # type: ignore[no-untyped-call]

    @property
    def num_hidden_layers(self) -> int:
        """The unrolled depth, as caches and serving engines count it: one slot for each (pass, layer)."""
        return self.slots(self.recurrence)

    @num_hidden_layers.setter
    def num_hidden_layers(self, layers: int) -> None:
        """Set the recurrence that has this unrolled depth; tools of Transformers set depths."""
        once = self.prelude_layers + self.loop_layers + self.coda_layers
        passes, rest = divmod(layers - once, self.loop_layers) if self.loop_layers else (0, layers - once)
        if rest or passes < 0 or self.slots(passes + 1) != layers:
            raise InputError(
                f"config: num_hidden_layers is {layers}; it follows from the other fields ({self.num_hidden_layers} "
                f"with {self.recurrence} passes through {self.loop_layers} layers): set recurrence"
            )
        self.recurrence = passes + 1

    @property
    def has_own_parts(self) -> bool:
        """Whether passes have their own parts."""
        return self.pass_norms or self.pass_attention != "shared" or self.pass_router

    @property
    def reads_every_pass(self) -> bool:
        """Whether training reads the model out after every pass."""
        return self.loop_loss_weights is not None or self.exit_gate

    @property
    def differs_by_pass(self) -> bool:
        """Whether a layer computes with other tensors at another pass."""
        return self.balance == "pass" or self.has_own_parts

    def branch_scale(self, recurrence: int) -> float:
        """Return the factor on the outputs of attention and feed-forward blocks in the loop."""
        return float(recurrence ** RESIDUAL_POWERS[self.residual_scale])

    def slots(self, recurrence: int) -> int:
        """Return how many slots a KV cache needs at that recurrence."""
        return self.prelude_layers + self.kept(recurrence) * self.loop_layers + self.coda_layers

    def kept(self, recurrence: int) -> int:
        """Return how many passes have their own slots."""
        return recurrence if self.kept_passes is None else min(recurrence, self.kept_passes)

    @property
    def is_moe(self) -> bool:
        """Whether the layers route."""
        return self.num_experts > 1

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, the unrolled depth among them for tools that only read."""
        fields = {**super().to_dict(), "num_hidden_layers": self.num_hidden_layers}
        fields.pop("base_model_ep_plan", None)  # follows from the other fields; Transformers drops the tensor plan only
        return fields

    @classmethod
    def from_architecture(cls, architecture: Any, recurrence: int | None = None, **options: Any) -> LoopedMoEConfig:
        """Return the config of an ``Architecture``; ``options`` set what that does not know."""
        parts = architecture.prelude, architecture.loop_block, architecture.coda
        layers = [stack.layer for part in parts for stack in part]
        if len({repr(layer) for layer in layers}) != 1:
            raise InputError(
                f"{architecture.name}: its layers differ, and this model has one kind of layer only; give all the same"
            )
        fields = {
            "vocab_size": architecture.vocabulary,
            "hidden_size": architecture.width,
            **dict(zip(("prelude_layers", "loop_layers", "coda_layers"), map(_depth, parts), strict=True)),
            "recurrence": architecture.recurrence if recurrence is None else recurrence,
            "tie_word_embeddings": architecture.tied,
            "injection": _injection_of(architecture),
            **_layer_fields(layers[0]),
        }
        config = cls(**{**fields, **options})
        _check_same(config, architecture)
        return config

    def to_architecture(self, name: str = "model") -> Any:
        """Return the ``Architecture`` that counts this model; loopscale must be installed."""
        architecture = import_module("loopscale.architecture").from_config(self.to_dict())
        return replace(architecture, name=name)


def _injection_of(architecture: Any) -> str:
    """Return the injection that an architecture has, by the number of its weights."""
    width = architecture.width
    weights = {width**2 + width: "normed", 2 * width**2 + width: "gated", 2 * width: "diagonal", 0: "none"}
    return weights.get(architecture.injection, "concat")


def _depth(stacks: Any) -> int:
    return sum(stack.count for stack in stacks)


def _layer_fields(layer: Any) -> dict[str, Any]:
    """Return the config's fields for a layer of an ``Architecture``."""
    attention, block = layer.attention, layer.feed_forward
    fields = {
        "num_attention_heads": getattr(attention, "heads", 0),
        "num_key_value_heads": getattr(attention, "kv_heads", 0),
        "head_dim": getattr(attention, "head_size", 0),
        "qkv_bias": getattr(attention, "qkv_bias", False),
        "output_bias": getattr(attention, "output_bias", False),
        "qk_norm": attention.qk_norm.value if hasattr(attention, "qk_norm") else "none",
    }
    if not hasattr(block, "routed"):
        return {**fields, "num_experts": 1, "intermediate_size": block.hidden}
    return {
        **fields,
        "num_experts": block.routed,
        "num_experts_per_tok": block.active_experts,
        "moe_intermediate_size": block.hidden,
        "intermediate_size": block.hidden * block.active_experts,
        "shared_expert_intermediate_size": block.shared_hidden,
    }


def _check_same(config: LoopedMoEConfig, architecture: Any) -> None:
    """Refuse an architecture with parts that this model lacks: windows, sinks, other norms."""
    built = config.to_architecture()
    ours = [stack.layer for stack in (*built.prelude, *built.loop_block, *built.coda)]
    theirs = [stack.layer for stack in (*architecture.prelude, *architecture.loop_block, *architecture.coda)]
    if ours[0] != theirs[0] or built.parameters != architecture.parameters:
        raise InputError(
            f"{architecture.name}: this model has no form for all its parts: it would hold {built.parameters:,} "
            f"weights, not {architecture.parameters:,}; use layers without attention windows, sinks and other norms"
        )


def _refuse_near_misses(kwargs: dict[str, Any], config: type[LoopedMoEConfig]) -> None:
    """Refuse a misspelt field; other unknown ones are kept, as Hugging Face's tools add some."""
    own = [name for name in config.__annotations__ if name not in PreTrainedConfig.__annotations__]
    for key in kwargs:
        close = get_close_matches(key, own, n=1, cutoff=0.85)
        if close and not hasattr(config, key):
            raise InputError(f"config: unknown field {key!r} (did you mean {close[0]!r}?)")
