"""The sections of a training file: every setting with its meaning and its limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from loopscale.core.schemas import Record

T = TypeVar("T")
_MAY_CHANGE = "may change when a run resumes"
MayChange = Annotated[T, _MAY_CHANGE]
"""Marks a setting or a section that may change when a run resumes: the run's length, what it reports and keeps, and how
it computes the same sums. ``run_dir.check_length`` limits the length."""


def may_change(field: FieldInfo) -> bool:
    """Tell whether a setting is marked so."""
    return _MAY_CHANGE in field.metadata


def with_options(section: type[Record], data: dict[Any, Any]) -> dict[Any, Any]:
    """Return the values of a table with those that are no fields of the section gathered in its ``options``."""
    own = {key: value for key, value in data.items() if key in section.model_fields}
    rest = {key: value for key, value in data.items() if key not in section.model_fields}
    return own | {"options": {**own.get("options", {}), **rest}}
