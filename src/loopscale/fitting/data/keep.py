"""Choose rows of a sweep: by an expression of its columns, or the best over hyper-parameters."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from loopscale.core.arrays import BoolArray, FloatArray, IntArray
from loopscale.core.errors import InputError, nearest, shown
from loopscale.scaling import costs

Columns = Mapping[str, Any]

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Pow: operator.pow, ast.Mod: operator.mod, ast.USub: operator.neg, ast.UAdd: operator.pos,
    ast.Not: np.logical_not, ast.And: np.logical_and, ast.Or: np.logical_or,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "log": np.log, "log10": np.log10, "exp": np.exp, "sqrt": np.sqrt, "abs": np.abs
}  # fmt: skip
_SUFFIX = re.compile(r"(?<![\w.])([0-9]+(?:\.[0-9]+)?)([kKmMbBtT])\b")
_SCALE = {"k": "e3", "m": "e6", "b": "e9", "t": "e12"}
_SINGLE_EQUALS = re.compile(r"(?<![<>=!])=(?!=)")


def chosen_rows(expression: str, columns: Columns) -> tuple[BoolArray, str]:
    """Return the mask of the rows for which an expression holds, and a note that says how many they are."""
    mask = matching_rows(expression, columns)
    return mask, f"{int(mask.sum())} of {len(mask)} rows kept by {expression}"


def matching_rows(expression: str, columns: Columns) -> BoolArray:
    """Return the mask of the rows for which an expression like ``D/N >= 20 and width == 512`` holds.

    Names are columns; counts may be written like ``1B``. Arithmetic, comparisons, and, or, not and a few functions
    are evaluated; anything else in the text is refused.
    """
    count = len(next(iter(columns.values())))
    text = _SINGLE_EQUALS.sub("==", _SUFFIX.sub(lambda m: m[1] + _SCALE[m[2].lower()], expression))
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _refused(expression, "it is not an expression") from None
    with np.errstate(all="ignore"):
        try:
            value = _value(tree.body, expression, columns)
        except (TypeError, np.exceptions.DTypePromotionError):
            raise _refused(expression, "it compares text with a number") from None
        except RecursionError:
            raise _refused(expression, "it is nested too deeply") from None
        except OverflowError:
            raise _refused(expression, "it holds a number that is too large") from None
    mask = np.broadcast_to(np.asarray(value), (count,))
    if mask.dtype != bool:
        raise _refused(expression, "it is a number, not a condition")
    if not mask.any():
        raise InputError(f"{shown(expression)} keeps no row of {count}", field="keep")
    return np.array(mask)


def row_symbols(counts: Mapping[str, Any], loss: FloatArray) -> dict[str, Any]:
    """Return what expressions may use beside the columns: N, D, E, R, U, the loss and, where it is known, C in FLOPs.

    ``counts`` holds arrays under the names of the fields of ``Points``.
    """
    active, tokens, R = counts["active"], counts["tokens"], counts["recurrence"]
    unique = np.minimum(counts.get("unique_tokens", tokens), tokens)
    symbols = {"N": active, "D": tokens, "E": counts["experts"], "R": R, "U": unique, "loss": loss}
    if "loop" in counts or np.all(R == 1):
        with np.errstate(over="ignore"):  # numbers that are not plausible are refused later, by row
            symbols["C"] = costs.train_flops(costs.unrolled(active, counts.get("loop", 0.0), R), tokens)
    return symbols


def _value(node: ast.AST, expression: str, columns: Columns) -> Any:
    match node:
        case ast.Constant(value=int() | float() | str() as value) if not isinstance(value, bool):
            return float(value) if isinstance(value, int) else value
        case ast.Name(id=name):
            return _column(name, expression, columns)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, expression, columns), _value(right, expression, columns))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(operand, expression, columns))
        case ast.BoolOp(op=op, values=values):
            parts = [_value(part, expression, columns) for part in values]
            result = parts[0]
            for part in parts[1:]:
                result = _OPERATORS[type(op)](result, part)
            return result
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _OPERATORS for op in ops):
            terms = [_value(term, expression, columns) for term in (left, *others)]
            pairs = zip(ops, terms[:-1], terms[1:], strict=True)
            return np.logical_and.reduce([_OPERATORS[type(op)](one, two) for op, one, two in pairs])
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](_value(argument, expression, columns))
    raise _refused(expression, f"{shown(ast.unparse(node))} is not allowed in it")


def _column(name: str, expression: str, columns: Columns) -> Any:
    if name in columns:
        return columns[name]
    raise InputError(
        f"{shown(expression)}: there is no column {shown(name)}{nearest(name, columns)}",
        field="keep", remedy=f"columns are {', '.join(columns)}",
    )  # fmt: skip


def _refused(expression: str, reason: str) -> InputError:
    return InputError(
        f"{shown(expression)} cannot select rows: {reason}",
        field="keep", remedy="write it like D/N >= 20 and N > 100M",
    )  # fmt: skip


def best_rows(groups: Any, loss: Any) -> IntArray:
    """Return, in order, the row with the lowest loss in each group of equal rows of ``groups``."""
    _, which = np.unique(np.asarray(groups), axis=0, return_inverse=True)
    order = np.lexsort((loss, which.reshape(-1)))
    first = np.unique(which.reshape(-1)[order], return_index=True)[1]
    return np.sort(order[first])
