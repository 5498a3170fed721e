"""Array types that all packages share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
BoolArray: TypeAlias = NDArray[np.bool_]
IntArray: TypeAlias = NDArray[np.int64]

Values: TypeAlias = Mapping[str, Any]
"""Coefficients by name, each a number or an array that broadcasts against the points."""


def in_place(operation: np.ufunc, first: Any, second: Any) -> Any:
    """Return ``operation(first, second)``, written over ``first`` where it is an array of the result's shape and kind.

    Only for an intermediate result that nothing else holds: over many laws a new array for each step costs more than
    the arithmetic.
    """
    if np.ndim(first) and np.broadcast(first, second).shape == first.shape and not np.iscomplexobj(second):
        return operation(first, second, out=first)
    return operation(first, second)
