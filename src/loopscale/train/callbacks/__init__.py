"""What a run does beside its steps, one file each. A new file here is a new callback: nothing else lists them."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from loopscale.core.errors import InputError, nearest, shown
from loopscale.train.callbacks.callback import Callback

if TYPE_CHECKING:
    from loopscale.model import LoopedMoEConfig
    from loopscale.train.config import TrainConfig
    from loopscale.train.sections.run import CallbackSection

__all__ = ["Callback", "callbacks_of", "own_callbacks", "states_by_name"]


@cache
def own_callbacks() -> dict[str, type[Callback]]:
    """Return the callbacks of loopscale by name: every subclass of ``Callback`` that a file of this package defines."""
    classes: dict[str, type[Callback]] = {}
    for file in iter_modules(__path__):
        module = import_module(f"{__name__}.{file.name}")
        for name, value in vars(module).items():
            if inspect.isclass(value) and issubclass(value, Callback) and value.__module__ == module.__name__:
                classes[name] = value
    del classes[Callback.__name__]
    return classes


def callbacks_of(
    config: TrainConfig, model: LoopedMoEConfig, added: Iterable[Callback] = (), *, allow_code: bool = False
) -> list[Callback]:
    """Return the callbacks of a run: those that its settings ask for, those of [[callbacks]], and those ``added``.

    One that is added or listed replaces loopscale's own of the same class. Modules that [[callbacks]] names are
    imported only with ``allow_code``.
    """
    others = [*added, *(_listed(number, section, allow_code) for number, section in enumerate(config.callbacks, 1))]
    replaced = {type(callback) for callback in others}
    own = [kind.for_run(config, model) for kind in own_callbacks().values() if kind not in replaced]
    callbacks = [*(callback for callback in own if callback is not None), *others]
    return sorted(callbacks, key=lambda callback: -callback.priority)


def states_by_name(callbacks: Iterable[Callback]) -> dict[str, Callback]:
    """Return callbacks by the name of their state in a checkpoint: that of the class, numbered where it repeats."""
    named: dict[str, Callback] = {}
    for callback in callbacks:
        name, number = type(callback).__name__, 1
        while (key := name if number == 1 else f"{name} {number}") in named:
            number += 1
        named[key] = callback
    return named


def _listed(number: int, section: CallbackSection, allow_code: bool) -> Callback:
    """Return the callback that an entry of [[callbacks]] names, made with its options."""
    where = f"[[callbacks]] {number}"
    kind = _imported(section.use, where, allow_code) if section.is_code else own_callbacks().get(section.use)
    if kind is None:
        known = own_callbacks()
        raise InputError(
            f"field 'use' is {shown(section.use)}{nearest(section.use, known)}; loopscale has {', '.join(known)}",
            where=where,
            remedy="name your own like my_module:MyCallback",
        )
    try:
        inspect.signature(kind).bind(**section.options)
    except TypeError as error:
        raise InputError(
            f"{section.use} does not take these options: {error}", where=where, remedy="give its own arguments only"
        ) from None
    return kind(**section.options)


def _imported(use: str, where: str, allow_code: bool) -> type[Callback]:
    """Import a callback of the user's; reading a settings file alone never imports one."""
    if not allow_code:
        raise InputError(
            f"{use} is code from outside loopscale, which is not run unless you ask for it",
            where=where,
            remedy="read that code, then give `allow_code`",
        )
    module, _, name = use.partition(":")
    try:
        value: Any = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise
        raise InputError(
            f"there is no module {module!r} in this folder or among the installed ones", where=where
        ) from None
    except AttributeError:
        raise InputError(
            f"the module {module!r} has no {name!r}", where=where, remedy="name a class that the module defines"
        ) from None
    if not (inspect.isclass(value) and issubclass(value, Callback)):
        raise InputError(f"{use} is not a subclass of loopscale.train.callbacks.Callback", where=where)
    return value
