"""What a figure's artists hold, so that tests can check the numbers drawn instead of pixels."""

from typing import Any

import numpy as np


def line(axes: Any, label: str) -> np.ndarray:
    """Return the points of the line with this label, (n, 2)."""
    found = [each for each in axes.lines if each.get_label() == label]
    assert len(found) == 1, [each.get_label() for each in axes.lines]
    return np.asarray(found[0].get_xydata(), float)


def lines(axes: Any, label: str) -> list[np.ndarray]:
    """Return all lines with this label."""
    return [np.asarray(each.get_xydata(), float) for each in axes.lines if each.get_label() == label]


def points(axes: Any, gid: str) -> np.ndarray:
    """Return the points of all scatters of this kind, (n, 2)."""
    found = [each.get_offsets() for each in axes.collections if each.get_gid() == gid]
    return np.concatenate(found) if found else np.empty((0, 2))


def scatter(axes: Any, label: str) -> np.ndarray:
    """Return the points of the scatter with this label."""
    (found,) = [each.get_offsets() for each in axes.collections if each.get_label() == label]
    return np.asarray(found)


def shaded(axes: Any) -> list[tuple[float, float]]:
    """Return the spans of x that are shaded as extrapolated."""
    boxes = [each for each in axes.patches if each.get_gid() == "extrapolated"]
    return [(each.get_x(), each.get_x() + each.get_width()) for each in boxes]


def band(axes: Any, place: int = 0) -> np.ndarray:
    """Return the outline of the band at ``place``."""
    from matplotlib.collections import PolyCollection

    bands = [each for each in axes.collections if isinstance(each, PolyCollection)]
    return np.asarray(bands[place].get_paths()[0].vertices)


def cells(axes: Any) -> np.ndarray:
    """Return the numbers behind a map."""
    from matplotlib.collections import QuadMesh

    (mesh,) = [each for each in axes.collections if isinstance(each, QuadMesh)]
    return np.ma.asarray(mesh.get_array())
