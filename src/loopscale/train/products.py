"""Matrix products of compiled runs on AMD processors with AVX-512: by oneDNN instead of MKL.

PyTorch multiplies float32 matrices with MKL, which has its AVX-512 code for Intel's processors alone. oneDNN, which
comes with PyTorch too, uses what a processor has: on an AMD processor with AVX-512 its products take half the time.
It generates code for every new shape, so dimensions that vary from step to step, like the rows of an expert, are cut
into a multiple of ``GRAIN`` for oneDNN and a rest for MKL.
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

GRAIN = 32
LEAST = 3_000_000
"""Multiplications of a product from which oneDNN is faster, with the calls around it."""


@cache
def onednn_is_faster() -> bool:
    """Tell whether oneDNN multiplies faster here than PyTorch's own choice: on AMD processors with AVX-512."""
    libraries: tuple[Any, ...] = torch.backends.mkldnn, torch.backends.mkl
    if platform.machine() not in ("x86_64", "AMD64") or not all(library.is_available() for library in libraries):
        return False
    processor = Path("/proc/cpuinfo")
    described = processor.read_text().split() if processor.exists() else []
    return "AuthenticAMD" in described and "avx512f" in described


@contextmanager
def fast_products(wanted: bool = True) -> Iterator[None]:
    """Multiply float32 matrices of this process by oneDNN within the block, if ``wanted`` and where it is faster."""
    if not (wanted and onednn_is_faster()):
        yield
        return
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that a kernel is replaced, which is wanted
        library.impl("mm", _mm, "CPU", allow_override=True)
        library.impl("mm.out", _mm_out, "CPU", allow_override=True)
    try:
        yield
    finally:
        library._destroy()


def _mm(a: Tensor, b: Tensor) -> Tensor:
    (m, k), n = a.shape, b.shape[1]
    if m % GRAIN == 0 and k % GRAIN == 0 and _is_large(a, n):
        return _onednn(a, b)
    return _mm_out(a, b, out=a.new_empty(m, n))


def _mm_out(a: Tensor, b: Tensor, *, out: Tensor) -> Tensor:
    m, k = a.shape
    rows, inner = m - m % GRAIN, k - k % GRAIN
    if not (rows and inner and _is_large(a, b.shape[1])):
        return _plain(a, b, out)
    if inner < k:
        _mm_out(a[:, :inner], b[:inner], out=out)
        return out.addmm_(a[:, inner:], b[inner:])
    out[:rows] = _onednn(a[:rows], b)
    if rows < m:
        _plain(a[rows:], b, out[rows:])
    return out


def _is_large(a: Tensor, columns: int) -> bool:
    return a.dtype == torch.float32 and a.numel() * columns >= LEAST


def _onednn(a: Tensor, b: Tensor) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise.default(a, b.t(), None, "none", [], "")
    return product


def _plain(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """Return the product as ``torch.mm`` computes it: with ``beta`` 0 what is in ``out`` is not read."""
    return torch.addmm(out, a, b, beta=0, out=out)
