"""Architectures as plain values: what their files hold.

Every field of the layers is written under its own name; a part that comes in several kinds says which it is.
Fields with a default may be left out of a file written by hand.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any

from loopscale.architecture.config_fields import LARGEST, found
from loopscale.architecture.layers import Attention, FeedForward, LatentAttention, Layer, MixtureOfExperts, QKNorm
from loopscale.errors import InputError, nearest
from loopscale.files import Fields

_ATTENTIONS: Mapping[str, type[Attention | LatentAttention]] = {"grouped": Attention, "latent": LatentAttention}
_BLOCKS: Mapping[str, type[FeedForward | MixtureOfExperts]] = {"dense": FeedForward, "mixture": MixtureOfExperts}
_KINDS: Mapping[type[Any], str] = {part: kind for kind, part in [*_ATTENTIONS.items(), *_BLOCKS.items()]}
_MAY_BE_ZERO = {"norms", "shared_hidden"}


def plain(value: Any, name: str = "value") -> Any:
    """Return a value of an architecture as JSON has it; real-valued sizes have no file."""
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [plain(each, name) for each in value]
    if is_dataclass(value):
        kind = {"kind": _KINDS[type(value)]} if type(value) in _KINDS else {}
        return kind | {each.name: plain(getattr(value, each.name), each.name) for each in fields(value)}
    try:
        return operator.index(value)
    except TypeError:
        raise InputError(f"{name} is {found(value)}; only a model of whole dimensions can be saved") from None


def size(values: Fields, name: str, least: int = 1, default: int | None = None) -> int:
    """Take a whole number that a dimension can be."""
    value = values.take(name, int) if default is None else values.take(name, int, default)
    return _checked(values, name, value, least)


def layer(values: Fields) -> Layer:
    """Read one layer."""
    read = Layer(
        attention=_part(values.object("attention"), _ATTENTIONS),
        feed_forward=_part(values.object("feed_forward"), _BLOCKS),
        norms=size(values, "norms", least=0, default=2),
        norm_bias=values.take("norm_bias", bool, False),
    )
    values.done()
    return read


def _part(values: Fields, kinds: Mapping[str, type[Any]]) -> Any:
    kind = values.take("kind", str)
    if kind not in kinds:
        raise InputError(
            f"{values.where}: field 'kind' is {found(kind)}{nearest(kind[:80], kinds)}; "
            f"it should be {' or '.join(map(repr, kinds))}"
        )
    part = kinds[kind](**{each.name: _READERS[str(each.type)](values, each) for each in fields(kinds[kind])})
    values.done()
    if isinstance(part, MixtureOfExperts) and part.active_experts > part.routed:
        found_both = f"'active_experts' is {part.active_experts} and 'routed' {part.routed}"
        raise InputError(f"{values.where}: {found_both}; a token cannot use more experts than there are")
    return part


def _size(values: Fields, field: Any) -> int:
    default = None if field.default is MISSING else field.default
    return size(values, field.name, least=0 if field.name in _MAY_BE_ZERO else 1, default=default)


def _optional_size(values: Fields, field: Any) -> int | None:
    value = values.optional(field.name, int)
    return None if value is None else _checked(values, field.name, value, 1)


def _checked(values: Fields, name: str, value: int, least: int) -> int:
    if not least <= value <= LARGEST:
        wanted = f"a whole number from {least} to {LARGEST}"
        raise InputError(f"{values.where}: field {name!r} is {found(value)}; it should be {wanted}")
    return value


def _flag(values: Fields, field: Any) -> bool:
    return values.take(field.name, bool, field.default)


def _qk_norm(values: Fields, field: Any) -> QKNorm:
    word = values.take(field.name, str, field.default.value)
    try:
        return QKNorm(word)
    except ValueError:
        choices = " or ".join(repr(each.value) for each in QKNorm)
        raise InputError(f"{values.where}: field {field.name!r} is {found(word)}; it should be {choices}") from None


_READERS: Mapping[str, Callable[[Fields, Any], Any]] = {
    "Size": _size,
    "int": _size,
    "int | None": _optional_size,
    "bool": _flag,
    "QKNorm": _qk_norm,
}
"""By the annotation of the field: a new field of a layer is written and read without a line here."""
