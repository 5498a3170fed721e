"""The sections of a training file: every setting with its meaning and its limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loopscale.core.schemas import Record


def with_options(section: type[Record], data: dict[Any, Any]) -> dict[Any, Any]:
    """Return the values of a table with those that are no fields of the section gathered in its ``options``."""
    own = {key: value for key, value in data.items() if key in section.model_fields}
    rest = {key: value for key, value in data.items() if key not in section.model_fields}
    return own | {"options": {**own.get("options", {}), **rest}}
