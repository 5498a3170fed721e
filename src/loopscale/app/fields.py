"""Field types of requests: numbers, or text as people write quantities on the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from loopscale.errors import InputError
from loopscale.quantities import parse_bits, parse_bytes, parse_count


def _quantity(parse: Callable[[str, str], float], like: str) -> Any:
    """Return the type of a positive number that may also be written as text, like ``like``."""

    def read(value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return parse(value, "§")
        except InputError as error:
            raise ValueError(str(error).removeprefix("§: ")) from None

    schema = {
        "anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "maxLength": 40}],
        "example": like,
    }
    return Annotated[float, Field(gt=0, lt=1e40), BeforeValidator(read), WithJsonSchema(schema)]


Count = _quantity(parse_count, "5e21")
Bytes = _quantity(parse_bytes, "3GB")
Bits = _quantity(parse_bits, "int4")
Whole = Annotated[int, Field(ge=1, le=10_000_000)]
Experts = Annotated[float, Field(ge=1, le=1e6)]
Passes = Annotated[int, Field(ge=1, le=1000)]
Name = Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[^\x00-\x1f/\\]+$")]


class Strict(BaseModel):
    """A request: unknown fields are refused, and a number is a number."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)
