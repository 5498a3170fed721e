"""Expressions of symbols as JavaScript functions: the second half of tracing, after ``symbols.py``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from loopscale.app.formulas.symbols import CALLS, INFIX, Symbol, unwrapped

ROUNDING = """// As Python rounds: halves to the even number.
const rint = (x) => (Math.abs(x % 1) === 0.5 ? 2 * Math.round(x / 2) : Math.round(x));
"""
"""What traced functions call that JavaScript does not have."""


def javascript(name: str, result: Any, arguments: str = "x") -> str:
    """Return a JavaScript function of ``arguments`` that computes a traced result, or an object of several by name."""
    results = {key: unwrapped(value) for key, value in (result if isinstance(result, dict) else {"": result}).items()}
    body = _Body()
    for value in results.values():
        body.count(value)
    values = {key: _without_outer_parentheses(body.write(value)) for key, value in results.items()}
    returned = values[""] if "" in values else f"{{ {', '.join(f'{key}: {text}' for key, text in values.items())} }}"
    lines = "".join(f"  {line}\n" for line in body.lines)
    return f"function {name}({arguments}) {{\n{lines}  return {returned};\n}}\n"


class _Body:
    """The body of one function. An expression that occurs more than once is a constant, so it is computed once.

    Every result is counted first and written then. Equal expressions have equal keys, like ``add(x.a,x.b)``.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        """The constants so far."""
        self._constants: dict[str, str] = {}
        """Names of the constants by key."""
        self._keys: dict[int, str] = {}
        """Keys of the symbols by identity: large expressions share their parts."""
        self._uses: dict[str, int] = {}

    def count(self, value: Any) -> str:
        """Count the uses of an expression and of its parts; return its key."""
        if (text := _leaf(value)) is not None:
            return text
        if id(value) not in self._keys:
            parts = ",".join(self.count(unwrapped(argument)) for argument in value.arguments)
            self._keys[id(value)] = f"{value.operation}({parts})"
        key = self._keys[id(value)]
        self._uses[key] = self._uses.get(key, 0) + 1
        return key

    def write(self, value: Any) -> str:
        """Return the text of an expression; its shared parts become lines."""
        if (text := _leaf(value)) is not None:
            return text
        key = self._keys[id(value)]
        if key in self._constants:
            return self._constants[key]
        parts = [self.write(unwrapped(argument)) for argument in value.arguments]
        if value.operation == "where":
            text = f"({parts[0]} ? {parts[1]} : {parts[2]})"
        elif value.operation == "negative":
            text = f"(-{parts[0]})"
        elif value.operation == "power" and parts[1] == "2":
            base = self._constant(f"{key} base", parts[0])
            text = f"({base} * {base})"
        elif value.operation in INFIX:
            text = f"({parts[0]} {INFIX[value.operation]} {parts[1]})"
        else:
            text = f"{CALLS[value.operation]}({', '.join(map(_without_outer_parentheses, parts))})"
        return text if self._uses[key] == 1 else self._constant(key, text)

    def _constant(self, key: str, text: str) -> str:
        self._constants[key] = f"t{len(self._constants)}"
        self.lines.append(f"const {self._constants[key]} = {_without_outer_parentheses(text)};")
        return self._constants[key]


def _leaf(value: Any) -> str | None:
    """Return the text of a number or of an input; None for an expression."""
    if not isinstance(value, Symbol):
        return number(value)
    return str(value.arguments[0]) if value.operation == "input" else None


def _without_outer_parentheses(text: str) -> str:
    """Leave out parentheses around a whole expression."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and place < len(text) - 1:
            return text
    return text[1:-1] if text.startswith("(") else text


def number(value: Any) -> str:
    """Write a number of Python as JavaScript reads it: the same double."""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if math.isnan(value):
        return "NaN"
    whole = float(value)
    return str(int(whole)) if whole.is_integer() and abs(whole) < 1e15 else repr(whole)


def function(name: str, result: Any, arguments: str = "x") -> str:
    """Return the same as an exported function of the module."""
    return f"export {javascript(name, result, arguments)}"


def table(name: str, functions: dict[str, str]) -> str:
    """Return an exported object of functions by name."""
    rows = "".join(f"  {key!r}: {text.rstrip()},\n" for key, text in functions.items())
    return f"export const {name} = {{\n{rows}}};\n"


def nested(result: Any, arguments: str = "x, b") -> str:
    """Return a function as the value of a field, two levels deep."""
    return javascript("", result, arguments).replace("\n", "\n    ").rstrip()
