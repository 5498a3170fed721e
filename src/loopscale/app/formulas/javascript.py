"""Expressions of symbols as JavaScript functions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from loopscale.app.formulas.symbols import CALLS, INFIX, Symbol, plain

ROUNDING = """// As Python rounds: halves to the even number.
const rint = (x) => (Math.abs(x % 1) === 0.5 ? 2 * Math.round(x / 2) : Math.round(x));
"""
"""What traced functions call that JavaScript does not have."""


def javascript(name: str, result: Any, arguments: str = "x") -> str:
    """Return a JavaScript function of ``arguments`` that computes a traced result, or an object of several by name.

    Shared parts are computed once.
    """
    results = {key: plain(value) for key, value in (result if isinstance(result, dict) else {"": result}).items()}
    keys: dict[int, str] = {}
    uses: dict[str, int] = {}
    for value in results.values():
        _count(value, keys, uses)
    lines: list[str] = []
    names: dict[str, str] = {}
    written = {key: _bare(_written(value, keys, uses, names, lines)) for key, value in results.items()}
    text = written[""] if "" in written else f"{{ {', '.join(f'{key}: {value}' for key, value in written.items())} }}"
    body = "".join(f"  {line}\n" for line in lines)
    return f"function {name}({arguments}) {{\n{body}  return {text};\n}}\n"


def _bare(text: str) -> str:
    """Leave out parentheses around a whole expression."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and place < len(text) - 1:
            return text
    return text[1:-1] if text.startswith("(") else text


def _count(value: Any, keys: dict[int, str], uses: dict[str, int]) -> str:
    """Return a key that equal expressions share, and count how often each is used."""
    if not isinstance(value, Symbol):
        return number(value)
    if value.operation == "input":
        return str(value.arguments[0])
    if id(value) not in keys:
        parts = ",".join(_count(plain(argument), keys, uses) for argument in value.arguments)
        keys[id(value)] = f"{value.operation}({parts})"
    key = keys[id(value)]
    uses[key] = uses.get(key, 0) + 1
    return key


def _written(value: Any, keys: dict[int, str], uses: dict[str, int], names: dict[str, str], lines: list[str]) -> str:
    if not isinstance(value, Symbol):
        return number(value)
    if value.operation == "input":
        return str(value.arguments[0])
    key = keys[id(value)]
    if key in names:
        return names[key]
    parts = [_written(plain(argument), keys, uses, names, lines) for argument in value.arguments]
    squared = value.operation == "power" and parts[1] == "2"
    if squared:
        parts = [_named(parts[0], f"{key} base", names, lines)] * 2
    if value.operation == "where":
        text = f"({parts[0]} ? {parts[1]} : {parts[2]})"
    elif value.operation == "negative":
        text = f"(-{parts[0]})"
    elif squared or value.operation in INFIX:
        text = f"({parts[0]} {'*' if squared else INFIX[value.operation]} {parts[1]})"
    else:
        text = f"{CALLS[value.operation]}({', '.join(map(_bare, parts))})"
    return text if uses[key] == 1 else _named(text, key, names, lines)


def _named(text: str, key: str, names: dict[str, str], lines: list[str]) -> str:
    names[key] = f"t{len(names)}"
    lines.append(f"const {names[key]} = {_bare(text)};")
    return names[key]


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
    rows = "".join(f"  {key!r}: {text}" for key, text in functions.items())
    return f"export const {name} = {{\n{rows.replace(chr(10) + '}' + chr(10), chr(10) + '},' + chr(10))}}};\n"


def nested(result: Any, arguments: str = "x, b") -> str:
    """Return a function as the value of a field, two levels deep."""
    return javascript("", result, arguments).replace("\n", "\n    ").rstrip()
