"""The loss of a trained model with other passes than it was trained with.

Measured on 20 Q Labs models (docs/evidence.md). With ``best`` the passes of lowest loss, the loss rises by
a (best / R - 1)^q below them and by b ln(R / best) above.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from loopscale.core.arrays import FloatArray
from loopscale.core.errors import InputError, shown


@dataclass(frozen=True)
class AtTestTime:
    """How the loss rises away from the best passes, in nats; each coefficient with its 90% interval over models."""

    best: float
    """Passes of lowest loss, as a part of the trained passes (the most of them where they were drawn)."""
    a: float
    q: float
    b: float
    a_interval: tuple[float, float]
    q_interval: tuple[float, float]
    b_interval: tuple[float, float]
    deviation: float
    """Root-mean-square error on a model that was left out, in nats."""

    def rise(self, tested: Any, trained: float) -> FloatArray:
        """Return how far above its lowest the loss is with ``tested`` passes."""
        ratio = np.asarray(tested, dtype=np.float64) / max(self.best * trained, 1.0)
        below = self.a * np.maximum(1.0 / ratio - 1.0, 0.0) ** self.q
        return np.asarray(below + self.b * np.log(np.maximum(ratio, 1.0)))


FIXED = AtTestTime(1.0, 0.138, 0.86, 0.039, (0.119, 0.157), (0.77, 0.96), (0.035, 0.043), 0.030)
"""For one number of passes in training, or passes that grow to a last number: 14 models."""
RANDOM = AtTestTime(5 / 6, 0.0098, 2.03, 0.0030, (0.0090, 0.0106), (1.95, 2.11), (0.0022, 0.0036), 0.0038)
"""For passes drawn evenly from 2 to 6 at each step: six models, of which the best passes were four or five."""


def at_test_time(trained: str) -> AtTestTime:
    """Return the law for how passes were chosen in training: ``fixed``, ``grown`` or ``random``."""
    laws = {"fixed": FIXED, "grown": FIXED, "random": RANDOM}
    if trained not in laws:
        raise InputError(f"`trained` is {shown(trained)}; choose from {', '.join(laws)}")
    return laws[trained]
