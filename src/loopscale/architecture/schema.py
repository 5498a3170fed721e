"""The architecture file: records made from the classes of an architecture, so that a new field is read at once."""

from __future__ import annotations

from typing import Annotated, Any, cast

from pydantic import Field

from loopscale.architecture.architecture import SCHEMA, Architecture, PassParts, Stack
from loopscale.architecture.layers import (
    KINDS,
    LARGEST,
    Attention,
    FeedForward,
    LatentAttention,
    Layer,
    MixtureOfExperts,
)
from loopscale.core.records import built, record_of
from loopscale.core.schemas import Between, File, parse

Positive = Annotated[int, Between(1, LARGEST)]
Natural = Annotated[int, Between(0, LARGEST)]
_TYPES: dict[str, Any] = {"Size": Positive, "int": Positive, "int | None": Positive | None}
"""The type in a file, by the annotation of the dataclass field; the records of other classes join below."""


def _record(part: type[Any], **overrides: Any) -> Any:
    return record_of(part, _TYPES, kind=KINDS.get(part), **overrides)


_TYPES["Attention | LatentAttention"] = Annotated[
    _record(Attention) | _record(LatentAttention), Field(discriminator="kind")
]
_TYPES["FeedForward | MixtureOfExperts"] = Annotated[
    _record(FeedForward) | _record(MixtureOfExperts, shared_hidden=Natural), Field(discriminator="kind")
]
_TYPES["Layer"] = _record(Layer, norms=Natural)
_TYPES["tuple[Stack, ...]"] = tuple[_record(Stack, count=Natural), ...]  # type: ignore[misc]
_TYPES["PassParts | None"] = _record(PassParts, rank=Natural) | None
_ARCHITECTURE = _record(Architecture, injection=Natural, other=Natural, gate=Natural)


class ArchitectureFile(_ARCHITECTURE, File):  # type: ignore[misc, valid-type]
    """The dimensions of a model."""

    KIND, VERSION = "architecture", SCHEMA


def read_architecture(data: object, where: str) -> Architecture:
    """Return the architecture that a file describes; ``where`` names the file in errors."""
    return cast("Architecture", built(parse(ArchitectureFile, data, where)))
