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
