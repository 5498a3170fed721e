"""Numbers that are not known yet: a formula that is called with symbols returns the expression that it computes.

A symbol replaces a number; arithmetic, NumPy's ufuncs and ``np.where`` on it build an expression instead of a value.
A symbol also has an example, by which a comparison in an ``if`` is decided: a formula is traced along one path. The
README of this package says what may stand in a formula, and what to do about the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

CALLS = {
    "exp": "Math.exp", "log": "Math.log", "expm1": "Math.expm1", "log1p": "Math.log1p", "log10": "Math.log10",
    "sqrt": "Math.sqrt", "absolute": "Math.abs", "minimum": "Math.min", "maximum": "Math.max", "power": "Math.pow",
    "rint": "rint", "floor": "Math.floor",
}  # fmt: skip
"""NumPy's ufuncs that are functions of JavaScript."""
INFIX = {
    "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "less": "<", "less_equal": "<=", "greater": ">",
    "greater_equal": ">=", "logical_and": "&&", "logical_or": "||",
    "equal": "===", "not_equal": "!==", "remainder": "%",
}  # fmt: skip
"""Those that are operators of JavaScript."""
_UFUNCS: dict[str, Callable[..., Any]] = {name: getattr(np, name) for name in (*CALLS, *INFIX, "negative")}
_ALIASES = {"true_divide": "divide", "fabs": "absolute", "bitwise_or": "logical_or", "bitwise_and": "logical_and"}
"""Other names of the same operations."""
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


def unwrapped(value: Any) -> Any:
    """Return what an array of no dimension holds."""
    return value.item() if isinstance(value, np.ndarray | np.generic) and np.ndim(value) == 0 else value


def apply(operation: str, *inputs: Any) -> Any:
    """Return the expression of an operation, or its value where nothing in it is symbolic."""
    arguments = tuple(unwrapped(value) for value in inputs)
    examples = [value.example if isinstance(value, Symbol) else value for value in arguments]
    if operation == "where":
        return Symbol("where", arguments, examples[1] if examples[0] else examples[2])
    operation = _ALIASES.get(operation, operation)
    if operation == "isfinite":
        return bool(np.isfinite(examples[0]))
    if operation == "square":
        return apply("multiply", arguments[0], arguments[0])
    if operation not in _UFUNCS:
        raise NotImplementedError(f"{operation} has no JavaScript here; add it to {__name__}")
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


class SymbolicObject:
    """An object whose fields are symbols: ``SymbolicObject("x").active`` is the symbol ``x.active``.

    ``attributes`` are fields with another value; ``examples`` has the examples of the symbols, by name.
    """

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
