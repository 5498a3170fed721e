"""Records of files that are made from dataclasses: a field is declared, described and checked in one place.

Import this module inside functions or in modules that read files: it brings pydantic, which is slow to start.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from dataclasses import MISSING, fields
from itertools import pairwise
from typing import Any, Literal, cast, get_type_hints

from pydantic import Field, create_model, model_validator

from loopscale.core.errors import InputError
from loopscale.core.schemas import File, Record

_CLASSES: dict[type[Record], type[Any]] = {}
"""The dataclass that each record was made from."""


def record_of(
    part: type[Any],
    types: Mapping[str, Any] | None = None,
    *,
    kind: str | None = None,
    **overrides: Any,
) -> Any:
    """Return the record of a dataclass: its fields, the docstrings below them, and the checks that it makes itself.

    A file has the types of the dataclass, unless ``types`` holds another by the annotation of a field, or ``overrides``
    by its name. A record that is one of several alternatives states its ``kind``.
    """
    described: dict[str, Any] = {} if kind is None else {"kind": (Literal[kind], ...)}
    hints, stated = get_type_hints(part, include_extras=True), types or {}
    chosen = {f.name: overrides.get(f.name) or stated.get(str(f.type)) or hints[f.name] for f in fields(part)}
    described |= _fields(part, chosen)
    checks: dict[str, Any] = {"checked": model_validator(mode="after")(_checked)}
    record = create_model(part.__name__, __base__=Record, __doc__=part.__doc__, __validators__=checks, **described)
    _CLASSES[record] = part
    return record


def file_of(
    part: type[Any],
    kind: str,
    version: int,
    *,
    names: Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | None = None,
    **more: Any,
) -> Any:
    """Return the file of a dataclass: its fields with their types and docstrings, and ``more`` as pydantic has them.

    ``names`` are classes that the module of the dataclass imports for type checkers alone; ``overrides`` holds the type
    in the file by the name of a field, where it differs.
    """
    types = get_type_hints(part, localns=dict(names or {}), include_extras=True) | dict(overrides or {})
    file = create_model(f"{part.__name__}File", __base__=File, __doc__=part.__doc__, **_fields(part, types), **more)
    file.KIND, file.VERSION = kind, version
    return file


def _fields(part: type[Any], types: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a dataclass as pydantic takes them: type, default and description."""
    texts, described = _docstrings(part), {}
    for field in fields(part):
        made: dict[str, Any] = {"default": ... if field.default is MISSING else field.default}
        if field.default_factory is not MISSING:
            made = {"default_factory": field.default_factory}
        described[field.name] = (types[field.name], Field(**made, description=texts.get(field.name)))
    return described


def built(value: Any) -> Any:
    """Return the object of the dataclass that a record was made from; other values as they are."""
    if isinstance(value, tuple):
        return tuple(built(item) for item in value)
    part = next((_CLASSES[record] for record in type(value).__mro__ if record in _CLASSES), None)
    return value if part is None else part(**{name: built(item) for name, item in value if name != "kind"})


def _checked(record: Record) -> Record:
    try:
        built(record)
    except InputError as error:  # the file says where it is
        raise InputError(error.problem, field=error.field, remedy=error.remedy) from None
    return record


def _docstrings(part: type[Any]) -> dict[str, str]:
    """Return the docstrings below the fields of a class."""
    (definition,) = ast.parse(inspect.getsource(part)).body
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in pairwise(cast("ast.ClassDef", definition).body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }  # fmt: skip
