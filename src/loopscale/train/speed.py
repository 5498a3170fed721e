"""How fast a run goes, against what the machine could do."""

from __future__ import annotations

import time
from functools import cache

import torch


@cache
def matmul_peak(device: torch.device, dtype: torch.dtype, size: int = 768) -> float:
    """Return the FLOP/s of a large matrix product on this device, the best of a few: the measured peak."""
    a, b = torch.randn(2, size, size, device=device).to(dtype)
    best = float("inf")
    for _ in range(8):
        start = time.perf_counter()
        torch.mm(a, b)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


class Meter:
    """Tokens and FLOPs since the last reading."""

    def __init__(self, flops_per_token: float, peak: float) -> None:
        self._flops, self._peak = flops_per_token, peak
        self.start()

    def start(self) -> None:
        """Begin a new reading."""
        self._tokens, self._since = 0, time.perf_counter()

    def add(self, tokens: int) -> None:
        """Count the tokens of a step."""
        self._tokens += tokens

    def read(self) -> dict[str, float]:
        """Return the speed since the last reading, and begin a new one."""
        rate = self._tokens / max(time.perf_counter() - self._since, 1e-9)
        self.start()
        flops = rate * self._flops
        return {"tokens_per_second": rate, "flops_per_second": flops, "peak_share": flops / self._peak}
