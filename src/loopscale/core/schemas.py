"""Structured files as pydantic models: strict, one sentence per mistake, JSON Schemas for editors.

A file is a class; its constraints stand beside its fields:

    class SweepFile(File):
        KIND, VERSION = "sweep", 1                  # checked first; VERSION is the newest schema this loopscale reads
        tokens: Count                               # 6e12, "6T"
        memory: Bytes | None = None                 # 3e9, "3GB"
        width: Annotated[int, Between(1, 10**6)] = 256   # a whole number, also as "32k"
        rate: float = Field(3e-3, gt=0, description="peak learning rate")
        optimizer: Optimizer = Optimizer.ADAMW      # an enum takes its value as text

    sweep = parse(SweepFile, read_toml(path), str(path))    # or InputError: "PATH: field 'rate' is 'x'; it should be …"

Tables inside a file are ``Record`` classes. Add the file to ``loopscale.saved``: ``loopscale schema`` then prints it.
Import this module inside functions: pydantic takes a third of a second, and planning from a published law needs none of
it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, ClassVar, TypeVar, cast, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
)
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from loopscale.core import quantities
from loopscale.core.errors import InputError, nearest, shown
from loopscale.core.files import check_version

UNREADABLE = "it is nested too deeply, or holds a number or text that JSON cannot hold"

M = TypeVar("M", bound="Record")


class Record(BaseModel):
    """An object with named fields: unknown ones are refused with the nearest known name, numbers are finite."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class File(Record):
    """A file of ours: it states its kind and its schema version."""

    KIND: ClassVar[str]
    VERSION: ClassVar[int]


class ChecksumsFile(File):
    """checksums.json: the files of a folder as they were written."""

    KIND, VERSION = "checksums", 1

    files: dict[str, str]
    """SHA-256 by name."""


@dataclass(frozen=True)
class Quantity:
    """Marks a number that may be written as people write it: ``Annotated[float, Quantity(count_of, 0)]``."""

    read: Callable[[object, str], float]
    least: float
    most: float | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._convert, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        limits = {"minimum": self.least} | ({} if self.most is None else {"maximum": self.most})
        return {"anyOf": [{"type": "number", **limits}, {"type": "string"}]}

    def _convert(self, value: object) -> float:
        try:
            return self.read(value, "")
        except InputError as error:
            raise ValueError(str(error)) from None


@dataclass(frozen=True)
class Between:
    """Marks a whole number within limits, also written as "32k": ``Annotated[int, Between(1, 100)]``."""

    least: int
    most: int

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._convert, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"type": "integer", "minimum": self.least, "maximum": self.most}, {"type": "string"}]}

    def _convert(self, value: object) -> int:
        number = _whole(value) if isinstance(value, str) else value
        if not isinstance(number, int) or isinstance(number, bool) or not self.least <= number <= self.most:
            wanted = f"a whole number from {self.least} to {self.most}"
            raise PydanticCustomError("wanted", "{wanted}", {"wanted": wanted})
        return number


def _whole(text: str) -> int | None:
    try:
        count = quantities.count_of(text)
    except InputError:
        return None
    return int(count) if count.is_integer() else None


Count = Annotated[float, Quantity(quantities.count_of, 0)]
"""A positive number of parameters, tokens or FLOPs: 6e12 or "6T"."""
Bytes = Annotated[float, Quantity(quantities.bytes_of, 0)]
"""Memory: 3e9, "3GB" or "3GiB"."""
Bits = Annotated[float, Quantity(quantities.bits_of, 1, 64)]
"""A bit width: 4 or "int4"."""
Whole = Annotated[int, Between(1, 10**15)]
"""A whole number from 1: steps, context, batch."""
FromZero = Annotated[int, Between(0, 10**15)]
"""A whole number that may be zero."""


def parse(model: type[M], data: object, where: str) -> M:
    """Return ``data`` as ``model``; the first mistake becomes one sentence that starts with ``where``."""
    if issubclass(model, File):
        data = check_version(data, where, model.KIND, model.VERSION)
    try:
        # JSON mode: a list serves for a tuple and text for an enum, and nothing else is converted.
        return model.model_validate_json(json.dumps(data, default=str))
    except ValidationError as invalid:
        error = invalid.errors(include_url=False)[0]
        sentence = UNREADABLE if error["type"] == "json_invalid" else _sentence(error, model, data, where)
    except (RecursionError, ValueError, TypeError):
        sentence = UNREADABLE
    raise InputError(sentence if sentence is not UNREADABLE else f"{where}: {UNREADABLE}")


def _sentence(error: ErrorDetails, model: type[Record], data: object, where: str) -> str:
    """Return what is wrong, where, and what it should be."""
    kind, context, value = error["type"], error.get("ctx", {}), error.get("input")
    path, name = _location(error["loc"], data, kind)
    at = ": ".join([where, *path])
    if kind == "extra_forbidden":
        key = str(error["loc"][-1])
        return f"{at}: unknown field {shown(key)}{nearest(key, _known_fields(model, error['loc'][:-1]))}"
    if kind in ("model_type", "dict_type", "dataclass_type"):
        return f"{_joined(at, name)}: found {shown(value)} where an object with named fields was expected"
    if kind == "value_error":
        message = str(context.get("error", error["msg"]))
        return f"{at}: {message}" if name is None else f"{at}: field {name!r}: {message}"
    if kind == "union_tag_invalid" or kind == "union_tag_not_found":
        tag = str(context["discriminator"]).strip("'")
        return _wrong_tag(_joined(at, name), tag, value, context)
    if kind == "missing":
        return f"{at}: field {name!r} is missing"
    allowed = re.findall(r"'([^']*)'", str(context.get("expected", "")))
    hint = nearest(value, allowed) if isinstance(value, str) else ""
    return f"{at}: field {name!r} is {shown(value)}{hint}; it should be {_wanted(kind, context, error)}"


def _location(loc: tuple[int | str, ...], data: object, kind: str) -> tuple[list[str], str | None]:
    """Return the objects that enclose the mistake, and the field's name; names that pydantic adds are left out."""
    steps: list[str] = []
    here: Any = data
    for order, key in enumerate(loc):
        last = order == len(loc) - 1
        if isinstance(here, list) and isinstance(key, int) and steps:
            steps[-1] += f"[{key}]"
            here = here[key] if key < len(here) else None
        elif isinstance(here, dict) and (key in here or (last and kind == "missing")):
            steps.append(str(key))
            here = here.get(key)
    return (steps[:-1], steps[-1]) if steps else ([], None)


def _known_fields(model: type[Record], loc: tuple[int | str, ...]) -> list[str]:
    """Return the fields that the object at ``loc`` may have."""
    models: list[type] = [model]
    for key in loc:
        inner = [annotation for m in models for name, annotation in _annotations(m).items() if name == key]
        models = [record for annotation in inner for record in _records(annotation)] or models
    return [name for m in models for name in _annotations(m)]


def _annotations(model: type) -> dict[str, Any]:
    """Return the fields of a record or a dataclass with their types."""
    if issubclass(model, Record):
        return {name: field.annotation for name, field in model.model_fields.items()}
    return {field.name: field.type for field in fields(cast("Any", model))}


def _records(annotation: Any) -> list[type]:
    """Return the records and dataclasses that a type holds, inside lists, unions and the like."""
    if isinstance(annotation, type) and (issubclass(annotation, Record) or is_dataclass(annotation)):
        return [annotation]
    return [record for part in get_args(annotation) for record in _records(part)]


def _joined(at: str, name: str | None) -> str:
    return at if name is None else f"{at}: {name}"


def _wrong_tag(at: str, tag: str, value: Any, context: dict[str, Any]) -> str:
    tags = re.findall(r"'([^']*)'", str(context.get("expected_tags", "")))
    if not isinstance(value, dict):
        return f"{at}: found {shown(value)} where an object with named fields was expected"
    if tag not in value:
        return f"{at}: field {tag!r} is missing"
    return f"{at}: field {tag!r} is {shown(value[tag])}{nearest(str(value[tag]), tags)}; it should be {_or(tags)}"


def _or(names: list[str]) -> str:
    return " or ".join(map(repr, names))


_TYPES = {
    "string_type": "text", "float_type": "a number", "finite_number": "a finite number", "int_type": "a whole number",
    "int_from_float": "a whole number", "bool_type": "true or false", "list_type": "a list", "tuple_type": "a list",
    "set_type": "a list",
}  # fmt: skip


def _wanted(kind: str, context: dict[str, Any], error: ErrorDetails) -> str:
    if kind == "wanted":
        return str(context["wanted"])
    if kind in ("enum", "literal_error"):
        return _or(re.findall(r"'([^']*)'", str(context["expected"])))
    bounds = {"ge": "{} or more", "gt": "above {}", "le": "at most {}", "lt": "below {}"}
    limits = [phrase.format(f"{context[name]:g}") for name, phrase in bounds.items() if name in context]
    message = error["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    return _TYPES.get(kind) or " and ".join(limits) or message


def schema_of(model: type[Record]) -> dict[str, Any]:
    """Return the JSON Schema of a file or record."""
    schema = model.model_json_schema()
    if issubclass(model, File):
        header = {
            "kind": {"const": model.KIND, "description": "What the file holds."},
            "schema": {"type": "integer", "minimum": 1, "maximum": model.VERSION, "description": "Its version."},
        }
        schema["properties"] = header | schema["properties"]
        schema["required"] = ["kind", "schema", *schema.get("required", [])]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
