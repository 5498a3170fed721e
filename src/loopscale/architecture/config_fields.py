"""The fields of a Hugging Face ``config.json``, checked one by one as they are taken."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from loopscale.errors import InputError, shown

LARGEST = 10**12
"""No dimension of a model is larger; a file that says so is wrong."""
NO_DEFAULTS: Mapping[str, Any] = MappingProxyType({})


class ConfigFields:
    """A config being read. Keys that nobody asks for do not matter: such files carry much else.

    ``defaults`` holds what the family's own class assumes for a field that is absent.
    """

    def __init__(self, data: object, where: str, defaults: Mapping[str, Any] = NO_DEFAULTS) -> None:
        if not isinstance(data, Mapping):
            raise InputError(f"{where}: found {found(data)} where an object with named fields was expected")
        self.data = data
        self.where = where
        self._defaults = defaults

    def size(self, *names: str, least: int = 1, most: int = LARGEST) -> int:
        """Return a whole number; where a field goes by several names, the first one present."""
        name = next((each for each in names if each in self.data), " or ".join(names))
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
        return InputError(f"{self.where}: field {name!r} is {found(value)}; it should be {wanted}")

    def _value(self, name: str, wanted: str) -> Any:
        if name in self.data:
            return self.data[name]
        if name not in self._defaults:
            raise InputError(f"{self.where}: field {name!r} is missing; it should be {wanted}")
        return self._defaults[name]


def found(value: object) -> str:
    """Return what an error may say of any JSON value, however long or deep: the text of some cannot be had."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if isinstance(value, int) and abs(value) > 10**30:
        return "a number of more than 30 digits"
    return shown(value)
