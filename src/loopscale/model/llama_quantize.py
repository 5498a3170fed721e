"""Quantise a GGUF file by llama.cpp's library: ``python llama_quantize.py LIBRARIES SOURCE TARGET FORMAT_NUMBER``.

It runs in a separate process, because the library prints every tensor and ends the process at some faults.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path


class Parameters(ctypes.Structure):
    """llama.cpp's parameters: the first two, and room for the others, which keep their defaults."""

    _fields_ = (("threads", ctypes.c_int32), ("form", ctypes.c_int32), ("others", ctypes.c_char * 1016))


def main(libraries: str, source: str, target: str, form: str) -> int:
    """Return zero if the file was written."""
    for name in ("libggml-base*", "libggml.*", "libllama.*"):  # in the order in which they need each other
        library = ctypes.CDLL(str(min(Path(libraries).glob(name))), mode=ctypes.RTLD_GLOBAL)
    library.llama_model_quantize_default_params.restype = Parameters
    parameters = library.llama_model_quantize_default_params()
    parameters.threads, parameters.form = 1, int(form)
    return int(library.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(parameters)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
