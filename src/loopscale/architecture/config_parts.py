"""Parts of real models from the fields of a ``config.json``: attention, blocks, windows, stacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from types import MappingProxyType
from typing import Any, TypeAlias

from loopscale.architecture.architecture import Architecture, Stack
from loopscale.architecture.layers import (
    LARGEST,
    Attention,
    FeedForward,
    LatentAttention,
    Layer,
    MixtureOfExperts,
)
from loopscale.core.errors import InputError, shown

Block: TypeAlias = FeedForward | MixtureOfExperts
Windows: TypeAlias = Sequence[int | None]

MOST_LAYERS = 10_000
EXPERTS = ("num_experts", "num_local_experts")
"""One field under two names, which transformers takes for one another."""
_SLIDING, _FULL = "sliding_attention", "full_attention"
NO_DEFAULTS: Mapping[str, Any] = MappingProxyType({})


class ConfigFields:
    """A config being read. Unknown keys are ignored: such files hold much that does not change a count.

    ``defaults`` holds what the family's own class assumes for a field that is absent.
    """

    def __init__(self, data: object, where: str, defaults: Mapping[str, Any] = NO_DEFAULTS) -> None:
        if not isinstance(data, Mapping):
            raise InputError(f"{where}: found {shown(data)} where an object with named fields was expected")
        self.data = data
        self.where = where
        self._defaults = defaults

    def size(self, *names: str, least: int = 1, most: int = LARGEST) -> int:
        """Return a whole number; where a field goes by several names, the first one present."""
        name = next((alias for alias in names if alias in self.data), " or ".join(names))
        wanted = f"a whole number, {least} or more"
        value = self._value(name, wanted)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.wrong(name, value, wanted)
        if value > most:
            raise self.wrong(name, value, f"at most {most}")
        return value

    def optional_size(self, name: str, least: int = 1) -> int | None:
        """Return a whole number, or None when the field is null, or absent without a default."""
        absent = name not in self.data and name not in self._defaults
        return None if absent or self._value(name, "") is None else self.size(name, least=least)

    def flag(self, name: str) -> bool:
        """Return true or false."""
        value = self._value(name, "true or false")
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return value

    def word(self, name: str, *choices: str) -> str:
        """Return a text, one of ``choices`` where there are any."""
        wanted = " or ".join(map(repr, choices)) or "text"
        value = self._value(name, wanted)
        if not isinstance(value, str) or (choices and value not in choices):
            raise self.wrong(name, value, wanted)
        return value

    def items(self, name: str) -> list[Any]:
        """Return a list, empty when the field is null or absent."""
        value = self.data.get(name)
        if value is not None and not isinstance(value, list | tuple):
            raise self.wrong(name, value, "a list")
        return list(value or ())

    def wrong(self, name: str, value: object, wanted: str) -> InputError:
        """Return the error for a field that holds ``value`` instead of what is wanted."""
        return InputError(f"{self.where}: field {name!r} is {shown(value)}; it should be {wanted}")

    def _value(self, name: str, wanted: str) -> Any:
        if name in self.data:
            return self.data[name]
        if name not in self._defaults:
            raise InputError(f"{self.where}: field {name!r} is missing; it should be {wanted}")
        return self._defaults[name]


def unlooped(
    c: ConfigFields,
    attention: Attention | LatentAttention,
    blocks: Sequence[Block],
    windows: Windows | None = None,
    norms: int = 2,
) -> Architecture:
    """Return a model that runs its layers once and ends in a norm; like layers in a row are one stack."""
    windows = windows or [None] * len(blocks)
    layers = (
        Layer(replace(attention, window=window), block, norms) for window, block in zip(windows, blocks, strict=True)
    )
    width = c.size("hidden_size")
    return Architecture(
        width=width,
        vocabulary=c.size("vocab_size"),
        tied=c.flag("tie_word_embeddings"),
        prelude=tuple(Stack(layer, len(list(run))) for layer, run in groupby(layers)),
        other=width,
    )


def depth(c: ConfigFields) -> int:
    """Return how many layers there are."""
    return c.size("num_hidden_layers", most=MOST_LAYERS)


def everywhere(c: ConfigFields, block: Block) -> list[Block]:
    """Return the same block for each layer."""
    return [block] * depth(c)


def dense(c: ConfigFields) -> list[Block]:
    """Return a gated feed-forward block for each layer."""
    return everywhere(c, FeedForward(c.size("intermediate_size")))


def stack_of(layer: Layer, count: int) -> tuple[Stack, ...]:
    """Return one stack, or none when nothing is in it."""
    return (Stack(layer, count),) if count else ()


def grouped(c: ConfigFields) -> Attention:
    """Return attention with no weights beside its four projections."""
    width, heads = c.size("hidden_size"), c.size("num_attention_heads")
    kv_heads = c.optional_size("num_key_value_heads") or heads
    divides(c, "num_attention_heads", heads, "num_key_value_heads", kv_heads)
    head_size = c.optional_size("head_dim")
    if head_size is None:
        divides(c, "hidden_size", width, "num_attention_heads", heads)
    return Attention(heads, kv_heads, head_size or width // heads)


def biased(c: ConfigFields, attention: Attention) -> Attention:
    """Return the attention with biases in all projections, if the config wants them."""
    bias = c.flag("attention_bias")
    return replace(attention, qkv_bias=bias, output_bias=bias)


def latent(c: ConfigFields) -> LatentAttention:
    """Return DeepSeek's attention."""
    return LatentAttention(
        heads=c.size("num_attention_heads"),
        query_rank=c.optional_size("q_lora_rank"),
        kv_rank=c.size("kv_lora_rank"),
        nope_size=c.size("qk_nope_head_dim"),
        rope_size=c.size("qk_rope_head_dim"),
        value_size=c.size("v_head_dim"),
        bias=c.flag("attention_bias"),
    )


def mixture(c: ConfigFields, hidden: int, experts: tuple[str, ...] = EXPERTS) -> MixtureOfExperts:
    """Return routed experts of that width; ``experts`` names the field that says how many."""
    routed, active = c.size(*experts), c.size("num_experts_per_tok")
    if active > routed:
        raise c.wrong("num_experts_per_tok", active, f"at most the number of experts, {routed}")
    return MixtureOfExperts(routed, active, hidden)


def sparse_steps(c: ConfigFields, shared_hidden: int = 0, shared_gate: bool = False) -> list[Block]:
    """Return Qwen's blocks: experts in every n-th layer, but none in ``mlp_only_layers``."""
    step, apart = c.size("decoder_sparse_step"), c.items("mlp_only_layers")
    for index in apart:
        if not isinstance(index, int) or isinstance(index, bool) or index < 0:
            raise c.wrong("mlp_only_layers", index, "a list of layer numbers, counted from 0")
    experts, without = c.size(*EXPERTS, least=0), set(apart)
    sparse = [experts > 0 and (i + 1) % step == 0 and i not in without for i in range(depth(c))]
    blocks: dict[bool, Block] = {}
    if any(sparse):
        routed = mixture(c, c.size("moe_intermediate_size"))
        blocks[True] = replace(routed, shared_hidden=shared_hidden, shared_gate=shared_gate)
    if not all(sparse):
        blocks[False] = FeedForward(c.size("intermediate_size"))
    return [blocks[routed_here] for routed_here in sparse]


def windows(c: ConfigFields, slides: Callable[[int], bool]) -> Windows:
    """Return each layer's window: where ``layer_types`` says so, else where the family's rule does."""
    window, layers = c.optional_size("sliding_window"), depth(c)
    types = c.items("layer_types") or [_SLIDING if slides(i) else _FULL for i in range(layers)]
    if len(types) != layers:
        raise c.wrong("layer_types", types, f"one entry for each of the {layers} layers")
    for kind in types:
        if kind not in (_SLIDING, _FULL):
            raise c.wrong("layer_types", kind, f"a list of {_SLIDING!r} and {_FULL!r}")
    return [window if kind == _SLIDING else None for kind in types]


def switched_windows(c: ConfigFields, slides: Callable[[int], bool]) -> Windows:
    """Return the windows if the config switches them on."""
    return windows(c, slides) if c.flag("use_sliding_window") else [None] * depth(c)


def late_windows(c: ConfigFields) -> Windows:
    """Return Qwen's windows: all layers but the first few, when switched on."""
    first = c.size("max_window_layers", least=0)
    return switched_windows(c, lambda i: i >= first)


def divides(c: ConfigFields, name: str, value: int, by: str, divisor: int) -> None:
    """Refuse a field that is no multiple of another."""
    if value % divisor:
        raise InputError(f"{c.where}: field {name!r} is {value}; it should be a multiple of {by!r}, {divisor}")
