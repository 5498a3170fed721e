"""The architecture file: records made from the classes of a layer, so that a new field of a layer is read at once."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field, create_model, model_validator

from loopscale.architecture.architecture import (
    SCHEMA,
    Architecture,
    Attention,
    FeedForward,
    LatentAttention,
    Layer,
    MixtureOfExperts,
    PassParts,
    QKNorm,
    Stack,
)
from loopscale.core.schemas import Between, File, Record

LARGEST = 10**12
"""The largest dimension that is accepted."""
Positive = Annotated[int, Between(1, LARGEST)]
Natural = Annotated[int, Between(0, LARGEST)]
_MAY_BE_ZERO = {"norms", "shared_hidden"}
_TYPES: dict[str, Any] = {
    "Size": Positive,
    "int": Positive,
    "int | None": Positive | None,
    "bool": bool,
    "QKNorm": QKNorm,
}
"""By the annotation of the dataclass field."""


def _part(part: type[Any], kind: str) -> Any:
    """Return the record of one part of a layer, told from its alternatives by ``kind``."""
    described: dict[str, Any] = {"kind": (Literal[kind], ...)}
    for field in fields(part):
        annotation = Natural if field.name in _MAY_BE_ZERO else _TYPES[str(field.type)]
        described[field.name] = (annotation, ... if field.default is MISSING else field.default)
    return create_model(part.__name__, __base__=Record, __doc__=part.__doc__, **described)


_PARTS: dict[str, type[Any]] = {
    "grouped": Attention, "latent": LatentAttention, "dense": FeedForward, "mixture": MixtureOfExperts,
}  # fmt: skip
_GROUPED, _LATENT, _DENSE, _MIXTURE = (_part(part, kind) for kind, part in _PARTS.items())


class _CheckedMixture(_MIXTURE):  # type: ignore[misc, valid-type]
    __doc__ = MixtureOfExperts.__doc__

    @model_validator(mode="after")
    def _enough_experts(self) -> _CheckedMixture:
        if self.active_experts > self.routed:
            counts = f"'active_experts' is {self.active_experts} and 'routed' {self.routed}"
            raise ValueError(f"{counts}; a token cannot use more experts than there are")
        return self


AttentionRecord: TypeAlias = Annotated[_GROUPED | _LATENT, Field(discriminator="kind")]  # type: ignore[valid-type]
BlockRecord: TypeAlias = Annotated[_DENSE | _CheckedMixture, Field(discriminator="kind")]  # type: ignore[valid-type]


class LayerRecord(Record):
    """Attention and feed-forward with their norms."""

    attention: AttentionRecord
    feed_forward: BlockRecord
    norms: Natural = 2
    """Norms of the model's width."""
    norm_bias: bool = False

    def build(self) -> Layer:
        """Return the layer."""
        return Layer(_built(self.attention), _built(self.feed_forward), self.norms, self.norm_bias)


class StackRecord(Record):
    """The same layer, several times over."""

    layer: LayerRecord
    count: Natural

    def build(self) -> Stack:
        """Return the stack."""
        return Stack(self.layer.build(), self.count)


class PassPartsRecord(Record):
    """Parts of the looped layers that each pass has for itself."""

    passes: Positive
    """Passes with their own parts."""
    norms: bool = False
    attention: bool = False
    rank: Natural = 0
    """Rank of the adapters of shared projections; 0 for none."""
    router: bool = False

    def build(self) -> PassParts:
        """Return the parts."""
        return PassParts(**{name: getattr(self, name) for name in type(self).model_fields})


class ArchitectureFile(File):
    """The dimensions of a model."""

    KIND, VERSION = "architecture", SCHEMA

    width: Positive
    """d_m"""
    vocabulary: Positive
    tied: bool
    """Whether input and output embeddings are one matrix."""
    prelude: tuple[StackRecord, ...] = ()
    """Layers run once, before the loop."""
    loop_block: tuple[StackRecord, ...] = ()
    """Layers run R times."""
    coda: tuple[StackRecord, ...] = ()
    """Layers run once, after the loop."""
    recurrence: Positive = 1
    injection: Natural = 0
    """Weights of the adapter that feeds the input back in at each pass."""
    other: Natural = 0
    """Weights outside the layers: final norm, exit gates, position tables."""
    name: str = "model"
    pass_parts: PassPartsRecord | None = None
    """Parts that each pass has for itself; null where all passes share everything."""
    gate: Natural = 0
    """Weights of a gate that reads the state after each pass, for early exit."""

    def build(self) -> Architecture:
        """Return the architecture."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        values["pass_parts"] = None if self.pass_parts is None else self.pass_parts.build()
        parts = {part: tuple(stack.build() for stack in values[part]) for part in ("prelude", "loop_block", "coda")}
        return Architecture(**values | parts)


def _built(record: Any) -> Any:
    return _PARTS[record.kind](**{name: getattr(record, name) for name in type(record).model_fields if name != "kind"})
