"""Where workers run, one file for each backend. A new file here is a new backend: nothing else lists them."""

from __future__ import annotations

import inspect
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from loopscale.sweep.backends.backend import Backend, Launcher, Setting, Worker

__all__ = ["Backend", "Launcher", "Setting", "Worker", "backends"]


@cache
def backends() -> dict[str, type[Backend]]:
    """Return the backends by name: every subclass of ``Backend`` that a file of this package defines."""
    classes: dict[str, type[Backend]] = {}
    for file in iter_modules(__path__):
        module = import_module(f"{__name__}.{file.name}")
        for value in vars(module).values():
            if inspect.isclass(value) and issubclass(value, Backend) and value.__module__ == module.__name__:
                classes[file.name] = value
    del classes["backend"]
    return classes
