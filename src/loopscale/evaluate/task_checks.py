"""Refuse tasks that would run code or reach addresses, unless the user allows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from loopscale.core.errors import InputError, shown
from loopscale.core.files import check_size
from loopscale.evaluate import human_eval
from loopscale.evaluate.suites import TaskTrust

OWN_TASKS = Path(__file__).parent / "local"


def check_tasks(folder: Path, trust: TaskTrust) -> None:
    """Refuse a folder of tasks that would run its own code or fetch data from an address, unless the user allows it.

    Code can come from ``!function``, from a metric that lm-eval does not have (the ``evaluate`` package then loads one
    from the hub or a folder), and from a YAML file that is included from elsewhere. Addresses are those of data files;
    a data set that is named is looked up on the hub.
    """
    if (trust.code and trust.remote) or folder.resolve().is_relative_to(OWN_TASKS):
        return
    if folder == human_eval.home():
        if trust.code:
            return
        raise InputError("human-eval runs the programs that the model writes; give --trust-task-code to allow it")
    import lm_eval.api.metrics  # fills the registry
    from lm_eval.api.registry import METRIC_REGISTRY

    stock = Path(lm_eval.__file__).parent
    waiting, seen = [file.resolve() for file in sorted(folder.rglob("*.y*ml"))], set[Path]()
    while waiting:
        file = waiting.pop()
        if file in seen or file.is_relative_to(stock):
            continue
        seen.add(file)
        content = _yaml(file)
        reason = "" if trust.code else _code_in(content, set(METRIC_REGISTRY))
        if reason:
            raise InputError(
                f"{reason}, which runs code", where=str(file), remedy="give --trust-task-code if you trust this folder"
            )
        address = "" if trust.remote or not isinstance(content, dict) else _address_in(content)
        if address:
            raise InputError(
                f"its data are at {shown(address)}", where=str(file), remedy="give --allow-remote to fetch them"
            )
        included = content.get("include") if isinstance(content, dict) else None
        names = included if isinstance(included, list) else [included]
        waiting += [(file.parent / name).resolve() for name in names if isinstance(name, str)]


def _yaml(file: Path) -> Any:
    """Read a YAML file without making any object of its tags; a tagged value becomes a ``Tagged``."""
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """Reads tags as text."""

    Loader.add_multi_constructor("", lambda loader, tag, node: Tagged(tag))
    try:
        check_size(file, 2**24)
        return yaml.load(file.read_text(encoding="utf-8"), Loader=Loader)
    except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError, ValueError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(f"cannot be read as YAML: {reason[0]}", where=str(file)) from None


class Tagged(str):
    """The tag of a YAML value, such as ``!function``."""


def _code_in(content: Any, metrics: set[str]) -> str:
    """Return what in a task's YAML would run code, or an empty string."""
    if isinstance(content, Tagged):
        return f"it has the tag {shown(str(content))}"
    if isinstance(content, list):
        return next(filter(None, (_code_in(item, metrics) for item in content)), "")
    if isinstance(content, dict):
        metric = content.get("metric")
        if content.get("hf_evaluate") or (isinstance(metric, str) and metric not in metrics):
            return f"it uses the metric {shown(metric)} of the package evaluate"
        return next(filter(None, (_code_in(item, metrics) for item in content.values())), "")
    return ""


def _address_in(content: dict[str, Any]) -> str:
    """Return an address in the fields of a task that say where its data are, or an empty string."""
    waiting = [value for name, value in content.items() if name.startswith("dataset_")]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str) and "://" in value:
            return value
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return ""


def sandbox_templates() -> None:
    """Let lm-eval render prompts in Jinja's sandbox: a template of a task must not reach Python's internals."""
    from jinja2.sandbox import SandboxedEnvironment
    from lm_eval import utils

    if not isinstance(utils.env, SandboxedEnvironment):
        sandbox = SandboxedEnvironment(
            loader=utils.env.loader,
            undefined=utils.env.undefined,
            keep_trailing_newline=utils.env.keep_trailing_newline,
        )
        sandbox.filters.update(utils.env.filters)
        utils.env = sandbox
