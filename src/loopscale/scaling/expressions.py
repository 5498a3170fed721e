"""Any law that a person can write: an expression in N, D, E, R and U, with exact derivatives.

The text is parsed into a tree of numbers, names, arithmetic and a few functions; anything else is refused, so nothing
in it can run. sympy differentiates the tree, and the result is compiled once for numpy.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from loopscale.core.arrays import Values
from loopscale.core.errors import InputError, nearest, require, shown
from loopscale.scaling.coefficients import Coefficient, Role, Term
from loopscale.scaling.outer import Gradient, Inputs, OuterLaw

VARIABLES = ("N", "D", "E", "R", "U")
"""Effective parameters, tokens, experts, recurrence and unique tokens; N, D and U in the units of the law."""
FUNCTIONS = ("exp", "log", "log10", "sqrt", "tanh")
LONGEST, DEEPEST, MOST_COEFFICIENTS, MOST_TERMS = 500, 4, 20, 64
"""Characters, levels of functions and powers, coefficients, and summands of a product that is multiplied out."""
_TERMS = {"U": Term.REPETITION, "R": Term.RECURRENCE, "E": Term.EXPERTS, "D": Term.DATA, "N": Term.SIZE}
"""The term of a coefficient by the variables beside it, the most particular first."""
_BOUNDS = {Role.EXPONENT: (0.0, 2.0), Role.SCALE: (1e-6, 1e4), Role.SHAPE: (0.0, 10.0)}
_IRREDUCIBLE = (0.0, 10.0)


class Expression(OuterLaw):
    """An outer law that is written out: ``Expression("c + A/N**alpha + B/D**beta")``.

    Every name that is not a variable is a coefficient. Variables are N (effective parameters), D (tokens), E (experts),
    R (recurrence) and U (unique tokens); a fit takes N, D and U in billions. ``bounds`` holds the range that a fit
    searches for a coefficient. Without it an exponent is searched over 2 on the side where loss falls, a scale from
    1e-6 to 1e4, and others from 0 to 10.
    """

    rescales = False

    def __init__(self, expression: str, bounds: Mapping[str, tuple[float, float]] | None = None) -> None:
        self.expression = self.name = " ".join(expression.split())
        self.title = f"law {self.name}"
        self.bounds = {name: (float(low), float(high)) for name, (low, high) in (bounds or {}).items()}
        tree = _tree(self.name)
        self.coefficients = _coefficients(tree, self.bounds)
        used = tree.variables
        self.uses_experts, self.uses_tokens, self.uses_unique = "E" in used, "D" in used, "U" in used

    def __reduce__(self) -> Any:
        return Expression, (self.expression, self.bounds)  # compiled functions cannot be pickled; a copy compiles them

    def loss(self, c: Values, N: Any, D: Any, E: Any) -> Any:
        return self.loss_at(c, N, Inputs(N, D, E, 1.0, 1.0, 0.0, D))

    def gradient(self, c: Values, N: Any, D: Any, E: Any) -> Gradient:
        return self.gradient_at(c, N, Inputs(N, D, E, 1.0, 1.0, 0.0, D))

    def loss_at(self, c: Values, N: Any, x: Inputs) -> Any:
        shape = np.broadcast_shapes(*(np.shape(value) for value in (N, x.D, x.E, x.R)))
        return _tree(self.name).loss(*self._arguments(c, N, x)) + np.zeros(shape)

    def gradient_at(self, c: Values, N: Any, x: Inputs) -> Gradient:
        loss, by_N, _, *slopes = _tree(self.name).derivatives(*self._arguments(c, N, x))
        loss = loss + np.zeros(np.broadcast_shapes(*(np.shape(value) for value in (N, x.D, x.E, x.R))))
        return Gradient(loss, {term.name: slope for term, slope in zip(self.coefficients, slopes, strict=True)}, by_N)

    def token_slope(self, c: Values, N: Any, D: Any, E: Any) -> Any:
        arguments = self._arguments(c, N, Inputs(N, D, E, 1.0, 1.0, 0.0, D))
        return _tree(self.name).derivatives(*arguments)[2] + np.zeros(np.broadcast_shapes(np.shape(N), np.shape(D)))

    def rescaled(self, c: Values, parameters: float, tokens: float) -> dict[str, Any]:
        if parameters != 1 or tokens != 1:
            raise InputError(f"{self.title}: its coefficients cannot be rewritten for other units of N and D")
        return dict(c)

    def equation(self, c: Values) -> str:
        values = ", ".join(f"{term.name} = {c[term.name]:.4g}" for term in self.coefficients)
        return f"L = {self.expression}, {values}"

    def typical(self, loss: Any, N: Any, D: Any, E: Any) -> dict[str, float]:
        return _tree(self.name).typical(self.coefficients, loss, Inputs(N, D, E, np.ones(np.shape(N)), 1.0, 0.0, D))

    def saved(self) -> dict[str, Any]:
        return {"expression": self.expression, "bounds": {name: list(span) for name, span in self.bounds.items()}}

    def _arguments(self, c: Values, N: Any, x: Inputs) -> tuple[Any, ...]:
        unique = x.D if x.U is None else x.U
        return (*(c[term.name] for term in self.coefficients), np.log(N), np.log(x.D), x.E, x.R, np.log(unique))


@dataclass(frozen=True, eq=False)
class _Tree:
    """A checked expression and its compiled functions.

    N, D and U enter by their logarithms: powers become exponentials, which numpy takes faster, and derivatives share
    them. The functions take the coefficients in order, then ln N, ln D, E, R and ln U.
    """

    terms: tuple[Any, ...]
    """The summands, as sympy expressions."""
    names: tuple[str, ...]
    """The coefficients, as they first appear."""
    symbols: Mapping[str, Any]
    variables: frozenset[str]
    loss: Callable[..., Any]
    derivatives: Callable[..., tuple[Any, ...]]
    """Return the loss and its derivatives by N, by D and by each coefficient."""

    def typical(self, coefficients: tuple[Coefficient, ...], loss: Any, x: Inputs) -> dict[str, float]:
        """Return plausible values: each summand that varies gets an equal part of what is not irreducible."""
        values = {term.name: _middle(term) for term in coefficients}
        fixed = [term for term in coefficients if term.term is Term.IRREDUCIBLE]
        floor = 0.7 * float(np.min(loss)) if fixed else 0.0
        values |= {term.name: floor / len(fixed) for term in fixed}
        varying = [term for term in self.terms if any(self.symbols[name] in term.free_symbols for name in VARIABLES)]
        part = (float(np.mean(loss)) - floor) / max(len(varying), 1)
        for summand in varying:
            scales = [c for c in coefficients if c.role is Role.SCALE and self.symbols[c.name] in summand.free_symbols]
            if scales:
                size = self._mean(summand, values | {scales[0].name: 1.0}, x)
                values[scales[0].name] = part / size if size > 0 and math.isfinite(size) else 1.0
        return {c.name: float(np.clip(values[c.name], c.lower, c.upper)) for c in coefficients}

    def _mean(self, summand: Any, values: Mapping[str, float], x: Inputs) -> float:
        at = {"N": np.log(x.N), "D": np.log(x.D), "E": x.E, "R": x.R, "U": np.log(x.D if x.U is None else x.U)}
        numbers = {self.symbols[name]: value for name, value in values.items()}
        numbers |= {self.symbols[name]: float(np.mean(value)) for name, value in at.items()}
        return _real(summand.subs(numbers))


@lru_cache(maxsize=64)
def _tree(expression: str) -> _Tree:
    """Parse, check, differentiate and compile an expression."""
    sympy = require("sympy", "expressions", "a law from an expression")
    names = _names(_parsed(expression), expression)
    coefficients = tuple(name for name in names if name not in VARIABLES)
    symbols = {name: sympy.Symbol(f"k{order}", real=True) for order, name in enumerate(coefficients)}
    logs = {name: sympy.Symbol(f"x{name}", real=True) for name in VARIABLES}
    bases = {name: sympy.exp(logs[name]) if name in "NDU" else logs[name] for name in VARIABLES}
    try:
        whole = _built(_parsed(expression).body, symbols | bases, sympy)
        return _compiled(expression, whole, names, symbols, logs, sympy)
    except (ArithmeticError, RecursionError, MemoryError, TypeError, AttributeError):
        raise InputError(f"expression {shown(expression)} cannot be differentiated; write a simpler one") from None


def _compiled(
    expression: str, whole: Any, names: list[str], symbols: dict[str, Any], logs: dict[str, Any], sympy: Any
) -> _Tree:
    """Return the tree of an expression with its compiled functions."""
    if whole.has(sympy.I, sympy.zoo, sympy.nan, sympy.oo):
        raise InputError(f"expression {shown(expression)} divides by zero or leaves the real numbers")
    # Products of sums have exponentially many terms: such a law keeps the summands that are written.
    terms = sympy.Add.make_args(sympy.expand_mul(whole) if _count_terms(whole) <= MOST_TERMS else whole)
    arguments = [*symbols.values(), *logs.values()]
    by_N, by_D = (sympy.diff(whole, logs[name]) * sympy.exp(-logs[name]) for name in "ND")
    slopes = [whole, by_N, by_D, *(sympy.diff(whole, symbol) for symbol in symbols.values())]
    return _Tree(
        terms=tuple(terms),
        names=tuple(symbols),
        symbols=symbols | logs,
        variables=frozenset(names) & frozenset(VARIABLES),
        loss=sympy.lambdify(arguments, whole, "numpy", cse=True),
        derivatives=sympy.lambdify(arguments, slopes, "numpy", cse=True),
    )


def _count_terms(node: Any) -> int:
    """Return how many summands an expression has once its products are multiplied out."""
    if node.is_Add:
        return sum(_count_terms(part) for part in node.args)
    if node.is_Mul:
        return math.prod(_count_terms(part) for part in node.args)
    return _count_terms(node.base) if node.is_Pow else 1  # denominators are multiplied out too


def _nesting(node: ast.AST) -> int:
    """Return how deep functions and powers are nested: 2 in ``exp(N**alpha)``."""
    inner = max((_nesting(child) for child in ast.iter_child_nodes(node)), default=0)
    return inner + (isinstance(node, ast.Call) or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)))


def _parsed(expression: str) -> ast.Expression:
    if len(expression) > LONGEST:
        raise InputError(f"expression: it has {len(expression)} characters; it should have at most {LONGEST}")
    try:
        tree = ast.parse(expression, mode="eval")
        if _nesting(tree) > DEEPEST:
            raise InputError(f"expression: its functions and powers are nested deeper than {DEEPEST} levels")
        return tree
    except InputError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(
            f"expression {shown(expression)} cannot be read; write it like 'c + A/N**alpha + B/D**beta'"
        ) from None


def _names(tree: ast.Expression, expression: str) -> list[str]:
    """Return the names in the order in which they are written; refuse what is not arithmetic."""
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in called]
    names = list(dict.fromkeys(node.id for node in sorted(nodes, key=lambda node: node.col_offset)))
    for name in names:
        if name in FUNCTIONS or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,30}", name):
            raise InputError(f"expression: {shown(name)} cannot be the name of a coefficient; use letters and digits")
    coefficients = [name for name in names if name not in VARIABLES]
    if not {"N", "D"} & set(names) or not coefficients:
        raise InputError(
            f"expression {shown(expression)} holds no {'coefficient' if coefficients == [] else 'N and no D'}; "
            "write it like 'c + A/N**alpha + B/D**beta'"
        )
    if len(coefficients) > MOST_COEFFICIENTS:
        raise InputError(
            f"expression: it has {len(coefficients)} coefficients; it should have at most {MOST_COEFFICIENTS}"
        )
    return names


def _built(node: ast.expr, symbols: Mapping[str, Any], sympy: Any) -> Any:
    """Return the sympy expression of a node; only numbers, names, arithmetic and known functions are taken."""
    operations: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
        ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
        ast.Div: lambda a, b: a / b, ast.Pow: lambda a, b: a**b,
    }  # fmt: skip
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool) and abs(value) < 1e15:
            return sympy.Float(value) if isinstance(value, float) or abs(value) > 1000 else sympy.Integer(value)
        case ast.Name(id=name):
            return symbols[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_built(operand, symbols, sympy)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _built(operand, symbols, sympy)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in operations:
            sides = _built(left, symbols, sympy), _built(right, symbols, sympy)
            if all(side.is_number for side in sides):
                return _number(operations[type(operator)], sides, sympy)
            return operations[type(operator)](*sides)
        case ast.BinOp(op=ast.BitXor()):
            raise InputError("expression: write a power with **, like N**alpha, not with ^")
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in FUNCTIONS:
            inner = _built(argument, symbols, sympy)
            if inner.is_number:
                return _number(getattr(math, name), (inner,), sympy)
            return sympy.log(inner) / sympy.log(sympy.Float(10)) if name == "log10" else getattr(sympy, name)(inner)
        case ast.Call(func=ast.Name(id=name)):
            raise InputError(
                f"expression: function {shown(name)} is not known{nearest(name, FUNCTIONS)}; "
                f"choose from {', '.join(FUNCTIONS)}, each of one argument"
            )
    raise InputError(f"expression: {shown(ast.unparse(node))} is neither a number, a name, arithmetic nor a function")


def _number(operation: Callable[..., Any], values: tuple[Any, ...], sympy: Any) -> Any:
    """Compute with numbers in floats: exact ones could grow without limit."""
    try:
        result = operation(*(float(value) for value in values))
    except (ArithmeticError, ValueError, TypeError):
        result = math.nan
    if isinstance(result, complex) or not math.isfinite(result):
        raise InputError("expression: a number in it divides by zero, overflows or leaves the real numbers")
    return sympy.Float(result)


def _coefficients(tree: _Tree, bounds: Mapping[str, tuple[float, float]]) -> tuple[Coefficient, ...]:
    for name, (low, high) in bounds.items():
        if name not in tree.names:
            raise InputError(
                f"bounds: coefficient {shown(name)} is not in the expression{nearest(name, tree.names)}; "
                f"it has {', '.join(tree.names)}"
            )
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise InputError(f"bounds: {name} has {shown((low, high))}; give a finite lower and a larger upper bound")
    return tuple(_coefficient(name, tree, bounds.get(name)) for name in tree.names)


def _coefficient(name: str, tree: _Tree, bounds: tuple[float, float] | None) -> Coefficient:
    """Describe a coefficient by its position in the expression."""
    symbol = tree.symbols[name]
    summands = [term for term in tree.terms if symbol in term.free_symbols]
    variables = {key for term in summands for key in VARIABLES if tree.symbols[key] in term.free_symbols}
    term = next((kind for key, kind in _TERMS.items() if key in variables), Term.IRREDUCIBLE)
    role = _role(symbol, summands) if variables else Role.SHAPE
    low, high = bounds or (_IRREDUCIBLE if not variables else _BOUNDS[role])
    if bounds is None and role is Role.EXPONENT and _rises(summands[0], tree):
        low, high = -high, -low
    place = f"the term in {', '.join(sorted(variables))}" if variables else "the irreducible loss"
    return Coefficient(name, low, high, f"coefficient of {place}", term, role)


def _role(symbol: Any, summands: list[Any]) -> Role:
    """Return whether a coefficient multiplies its summand, stands in an exponent, or neither."""
    if all(symbol in summand.as_ordered_factors() for summand in summands):
        return Role.SCALE
    exponents = [part.as_base_exp()[1] for summand in summands for part in summand.as_ordered_factors()]
    return Role.EXPONENT if any(symbol in exponent.free_symbols for exponent in exponents) else Role.SHAPE


def _rises(summand: Any, tree: _Tree) -> bool:
    """Tell whether a summand grows with N, D, E or R where its coefficients are positive."""
    values = {symbol: 0.3 for name, symbol in tree.symbols.items() if name not in VARIABLES}
    at = {tree.symbols[name]: 1.0 for name in VARIABLES}
    slope = sum(summand.diff(tree.symbols[name]) for name in VARIABLES)
    return _real(slope.subs(values | at)) > 0


def _real(number: Any) -> float:
    """Return a number of sympy as a float; one that is not real is not a number here."""
    value = complex(number)
    return value.real if value.imag == 0 else math.nan


def _middle(term: Coefficient) -> float:
    if term.role is Role.EXPONENT:
        return float(np.clip(0.3 if term.upper > 0 else -0.3, term.lower, term.upper))
    if term.lower > 0:
        return math.sqrt(term.lower * term.upper)
    return 0.0 if term.lower <= 0 <= term.upper else (term.lower + term.upper) / 2
