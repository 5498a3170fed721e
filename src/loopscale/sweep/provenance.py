"""Which results of a sweep do not belong to it: those of runs with other settings, or trained on other data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import chdir
from typing import Any

from loopscale.core.errors import InputError, LoopscaleError
from loopscale.sweep.spec import Sweep
from loopscale.train.config import TrainConfig
from loopscale.train.data.stores import stored_tokens
from loopscale.train.identity import first_difference

Result = tuple[str, int, dict[str, Any]]
"""A run's key, the tokens of a point, and its summary."""


def foreign_results(sweep: Sweep, results: Iterable[Result]) -> dict[tuple[str, int], str]:
    """Return the results that were trained with other settings or on other data than the sweep's, with a sentence each.

    Runs of the same [data] settings share one digest. It is that of the prepared tokens where they are there, else
    that of most results; if there is no such majority, everything is refused.
    """
    configs = {run.key: run.config for run in sweep.runs}
    groups: dict[str, list[Result]] = {}
    foreign = {}
    for result in results:
        key, tokens, facts = result
        if key not in configs:
            continue
        if reason := _other_settings(facts.get("config"), configs[key]):
            foreign[key, tokens] = f"run {key} at {tokens} tokens was trained with {reason}"
        else:
            groups.setdefault(repr(configs[key].data), []).append(result)
    for group in groups.values():
        counts = Counter(str(facts.get("data")) for _, _, facts in group)
        own = _own_digest(sweep, configs[group[0][0]], counts)
        for key, tokens, facts in group:
            if (digest := str(facts.get("data"))) != own:
                foreign[key, tokens] = (
                    f"run {key} at {tokens} tokens was trained on other data (digest {digest[:12]}; the sweep's is "
                    f"{own[:12]})"
                )
    return foreign


def _other_settings(stored: Any, config: TrainConfig) -> str | None:
    """Return the first setting of a result that is not the sweep's; None where all are, or none are recorded.

    Settings that an earlier version did not have are read with their defaults.
    """
    if not stored:
        return None
    try:
        first = first_difference(TrainConfig.from_dict(stored), config, measured_alike=True)
    except LoopscaleError as error:
        return f"settings that cannot be read: {error}"
    if first is None:
        return None
    return f"[{first.section}] {first.name} = {first.stored!r}; the sweep's file says {first.wanted!r}"


def version_note(results: Iterable[Result]) -> str | None:
    """Return a sentence where results come from several versions of loopscale, which need not train alike."""
    counts = Counter(str(facts.get("version", "unknown")) for _, _, facts in results)
    if len(counts) < 2:
        return None
    listed = ", ".join(f"{version} ({count})" for version, count in sorted(counts.items()))
    return f"observations of several versions of loopscale: {listed}"


def _own_digest(sweep: Sweep, config: TrainConfig, counts: Counter[str]) -> str:
    """Return the digest of the prepared tokens, or that of most results where the tokens are not there to compare."""
    prepared = _prepared(sweep, config)
    if prepared is not None:
        return prepared
    (first, most), *others = counts.most_common(2)
    if others and others[0][1] == most:
        raise InputError(
            f"its runs were trained on different data (digests {first[:12]} and {others[0][0][:12]}, as often)",
            where=str(sweep.results), remedy="remove the folders of the runs that do not belong to it",
        )  # fmt: skip
    return first


def _prepared(sweep: Sweep, config: TrainConfig) -> str | None:
    try:
        with chdir(sweep.root):
            store = stored_tokens(config)
        return None if store is None else store.digest
    except LoopscaleError:  # the text was moved or has changed: the results are compared among themselves
        return None
