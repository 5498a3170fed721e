"""Python formulas as JavaScript: a formula is run once on symbols, and what it computed is written down.

The functions that plans use are run as they are. A symbol replaces a number; arithmetic, NumPy's ufuncs and
``np.where`` on it build an expression instead of a value. A symbol also has an example value, by which a comparison in
an ``if`` is decided: a formula is traced along one path, and the caller chooses the example so that it is the general
one. Tests compare every traced function with Python on random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

_CALLS = {
    "exp": "Math.exp", "log": "Math.log", "expm1": "Math.expm1", "log1p": "Math.log1p", "log10": "Math.log10",
    "sqrt": "Math.sqrt", "absolute": "Math.abs", "minimum": "Math.min", "maximum": "Math.max", "power": "Math.pow",
    "rint": "rint", "floor": "Math.floor",
}  # fmt: skip
_INFIX = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "less": "<", "less_equal": "<=", "greater": ">",
    "greater_equal": ">=", "logical_and": "&&", "logical_or": "||",
    "equal": "===", "not_equal": "!==", "remainder": "%",
}  # fmt: skip
_UFUNCS: dict[str, Callable[..., Any]] = {name: getattr(np, name) for name in (*_CALLS, *_INFIX, "negative")}


_SHAPES: dict[Any, Callable[[Any], Any]] = {
    np.shape: lambda _: (), np.ndim: lambda _: 0, np.iscomplexobj: lambda _: False, np.real: lambda value: value,
    np.broadcast_to: lambda value: value,
}  # fmt: skip
"""What NumPy's functions say of a symbol, which is one number."""


class Symbol:
    """A number that is not known yet, with an example of it."""

    __slots__ = ("arguments", "example", "operation")
    shape: tuple[int, ...] = ()
    ndim = 0
    dtype = np.dtype(np.float64)

    def __init__(self, operation: str, arguments: tuple[Any, ...], example: Any) -> None:
        self.operation, self.arguments, self.example = operation, arguments, example

    @classmethod
    def named(cls, name: str, example: float = 2.0) -> Symbol:
        """Return an input; ``name`` is the JavaScript expression that reads it."""
        return cls("input", (name,), float(example))

    @property
    def real(self) -> Symbol:
        return self

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__":
            return NotImplemented
        return apply(ufunc.__name__, *inputs)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        if function is np.where:
            return apply("where", *arguments)
        if function in (np.any, np.all):
            return bool(arguments[0])
        if function in _SHAPES:
            return _SHAPES[function](arguments[0])
        if function is np.quantile:  # of resampled laws: the page computes it, and names its ends
            return tuple(Symbol.named(f"x.quantiles[{k}]", 1.0 + 0.1 * k) for k in range(len(arguments[1])))
        return NotImplemented

    def __getitem__(self, _: Any) -> Symbol:
        return self  # new axes

    def astype(self, _: Any) -> Symbol:
        return self

    def item(self) -> Symbol:
        return self

    def any(self) -> bool:
        return True  # both branches of a formula are traced

    def all(self) -> bool:
        return bool(self.example)

    def __bool__(self) -> bool:
        return bool(self.example)

    def __float__(self) -> float:
        return float(self.example)

    def __hash__(self) -> int:
        return id(self)

    def __and__(self, other: Any) -> Any:
        return apply("logical_and", self, other)

    def __or__(self, other: Any) -> Any:
        return apply("logical_or", self, other)

    def __abs__(self) -> Any:
        return apply("absolute", self)

    def __neg__(self) -> Any:
        return apply("negative", self)

    def __round__(self) -> Any:
        return apply("rint", self)

    def __format__(self, spec: str) -> str:
        if self.operation == "negative":  # the amount of a loss is written without its sign
            return format(self.arguments[0], spec)
        name = str(self.arguments[0]) if self.operation == "input" else "?"
        return f"{{{name.removeprefix('x.')}{':' if spec else ''}{spec}}}"

    def __floordiv__(self, other: Any) -> Any:
        return apply("floor", self / other)

    # An array of objects asks its elements by method.
    def exp(self) -> Any:
        return apply("exp", self)

    def expm1(self) -> Any:
        return apply("expm1", self)

    def log(self) -> Any:
        return apply("log", self)

    def sqrt(self) -> Any:
        return apply("sqrt", self)


def _operator(name: str, swapped: bool = False) -> Callable[[Any, Any], Any]:
    def operate(self: Symbol, other: Any) -> Any:
        return apply(name, other, self) if swapped else apply(name, self, other)

    return operate


for _name, _ufunc in {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "pow": "power", "mod": "remainder",
}.items():  # fmt: skip
    setattr(Symbol, f"__{_name}__", _operator(_ufunc))
    setattr(Symbol, f"__r{_name}__", _operator(_ufunc, swapped=True))
for _name, _ufunc in {
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal", "ne": "not_equal",
}.items():  # fmt: skip
    setattr(Symbol, f"__{_name}__", _operator(_ufunc))


def plain(value: Any) -> Any:
    """Return what an array of no dimension holds."""
    return value.item() if isinstance(value, np.ndarray | np.generic) and np.ndim(value) == 0 else value


def apply(operation: str, *inputs: Any) -> Any:
    """Return the expression of an operation, or its value where nothing in it is symbolic."""
    arguments = tuple(plain(value) for value in inputs)
    examples = [value.example if isinstance(value, Symbol) else value for value in arguments]
    if operation == "where":
        return Symbol("where", arguments, examples[1] if examples[0] else examples[2])
    operation = {
        "true_divide": "divide",
        "fabs": "absolute",
        "bitwise_or": "logical_or",
        "bitwise_and": "logical_and",
    }.get(operation, operation)
    if operation == "isfinite":
        return bool(np.isfinite(examples[0]))
    if operation == "square":
        return apply("multiply", arguments[0], arguments[0])
    if operation not in _UFUNCS:
        raise NotImplementedError(f"{operation} has no JavaScript here; add it to loopscale.app.trace")
    with np.errstate(all="ignore"):
        example = _UFUNCS[operation](*examples)
    if not any(isinstance(value, Symbol) for value in arguments):
        return example
    simpler = _simplified(operation, arguments)
    return Symbol(operation, arguments, example) if simpler is None else simpler


def _simplified(operation: str, arguments: tuple[Any, ...]) -> Any:
    """Leave out what changes nothing: formulas add zeros for their shape, and multiply by flags that are off."""
    if len(arguments) != 2:
        return None
    for one, other in (arguments, arguments[::-1]):
        known = None if isinstance(other, Symbol) else float(other)
        if known == 0 and operation in ("add", "logical_or"):
            return one
        if operation == "multiply" and known in (0, 1):
            return one if known else 0
        if other is arguments[1] and (
            (known == 0 and operation == "subtract") or (known == 1 and operation == "divide")
        ):
            return one
    return None


class Fake:
    """Stands for an object of a formula: each attribute that is not set is a symbol of that name."""

    def __init__(self, path: str = "x", examples: Mapping[str, float] | None = None, **attributes: Any) -> None:
        self.__dict__.update(attributes, _path=path, _examples=examples or {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        symbol = Symbol.named(f"{self._path}.{name}", self._examples.get(name, 2.0))
        self.__dict__[name] = symbol
        return symbol

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


RINT = """// As Python rounds: halves to the even number.
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
    elif squared or value.operation in _INFIX:
        text = f"({parts[0]} {'*' if squared else _INFIX[value.operation]} {parts[1]})"
    else:
        text = f"{_CALLS[value.operation]}({', '.join(map(_bare, parts))})"
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
