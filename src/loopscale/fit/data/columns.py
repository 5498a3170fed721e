"""Which column holds what: obvious names and common synonyms, with the unit that a header may state."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from loopscale.arrays import FloatArray
from loopscale.errors import InputError, nearest, shown

NAMES = {1.0: "raw counts", 1e3: "thousands", 1e6: "millions", 1e9: "billions", 1e12: "trillions"}
_CANDIDATES = (1.0, 1e9, 1e6)
"""On a tie billions win: the unit of the paper and of most tables."""


def detect_units(
    active: FloatArray, tokens: FloatArray, known_active: float | None = None, known_tokens: float | None = None
) -> tuple[float, float]:
    """Return the likeliest units of N and D, given those already known.

    Judged by the sizes of real models, by the numbers people write, and by tokens per parameter.
    """
    N, D = float(np.median(active)), float(np.median(tokens))
    pairs = product(
        _CANDIDATES if known_active is None else (known_active,),
        _CANDIDATES if known_tokens is None else (known_tokens,),
    )
    return min(pairs, key=lambda pair: _implausible(N, D, *pair))


def size_unit(values: FloatArray, active: FloatArray, unit: float) -> float:
    """Return the unit of another size of the same models: that of N_act, unless it is out of all proportion to it."""

    def apart(candidate: float) -> float:
        return abs(float(np.log10(np.median(values) * candidate / np.median(active))))

    return unit if apart(unit) < 3 else min(_CANDIDATES, key=apart)


def _implausible(N: float, D: float, unit_N: float, unit_D: float) -> float:
    """Return by how many powers of ten a reading leaves what is usual."""
    return (
        _outside(N, *_WRITTEN[unit_N])
        + _outside(D, *_WRITTEN_TOKENS[unit_D])
        + _outside(N * unit_N, 3e4, 1e13)
        + _outside(D * unit_D / (N * unit_N), 5.0, 5e3)
    )


_WRITTEN = {1.0: (1e4, np.inf), 1e3: (1.0, 1e6), 1e6: (5.0, 3e3), 1e9: (0.0, 1e3), 1e12: (0.0, 10.0)}
_WRITTEN_TOKENS = {1.0: (1e6, np.inf), 1e3: (1e2, 1e7), 1e6: (1e3, 1e6), 1e9: (0.1, 3e4), 1e12: (0.05, 100.0)}
"""What people write in each unit."""


def _outside(value: float, low: float, high: float) -> float:
    if value < low:
        return float(np.log10(low / value))
    return float(np.log10(value / high)) if value > high else 0.0


SYMBOLS = {
    "active": "N_act", "loop": "N_loop", "total": "N_total", "once": "N_once", "experts": "E", "top_k": "k",
    "recurrence": "R", "tokens": "D", "flops": "FLOPs", "loss": "loss", "run": "run", "step": "step",
    "finished": "finished",
}  # fmt: skip
"""Each field and how messages call it."""

SYNONYMS: dict[str, tuple[str, ...]] = {
    "active": (
        "n_act", "active", "n_active", "active_params", "active_parameters", "active_n", "n", "params", "parameters",
        "n_params", "num_params", "num_parameters", "model_size", "size", "non_embedding_params", "n_unique",
        "dense_parameter_count",
    ),
    "loop": ("n_loop", "loop", "loop_params", "loop_parameters", "n_rec", "recurrent_params"),
    "total": ("n_total", "total", "total_params", "total_parameters", "total_parameter_count", "stored_params"),
    "once": ("n_once", "once"),
    "experts": ("e", "experts", "n_experts", "num_experts", "expert_count", "e_route", "routed_experts"),
    "top_k": ("k", "top_k", "topk", "active_experts", "num_active_experts", "experts_per_token", "num_experts_per_tok"),
    "recurrence": ("r", "recurrence", "recurrences", "loops", "n_loops", "num_loops", "passes", "num_recurrences"),
    "tokens": (
        "d", "tokens", "n_tokens", "num_tokens", "train_tokens", "training_tokens", "tokens_seen", "data",
        "dataset_size",
    ),
    "flops": ("flops", "flop", "training_flop", "training_flops", "train_flops", "compute"),
    "loss": (
        "loss", "val_loss", "valid_loss", "validation_loss", "loss_validation", "eval_loss", "test_loss", "final_loss",
        "nll", "cross_entropy", "l",
    ),
    "run": ("run", "run_id", "run_name", "name", "id", "experiment", "hyper_id", "model_name", "model"),
    "step": ("step", "steps", "global_step", "iteration"),
    "finished": ("finished", "done", "complete", "completed", "final", "status", "state"),
}  # fmt: skip
"""Lower case, words joined by one underscore; the first that a table has is taken."""

_UNITS = {
    "b": 1e9, "bn": 1e9, "billion": 1e9, "billions": 1e9, "g": 1e9,
    "m": 1e6, "mn": 1e6, "million": 1e6, "millions": 1e6,
    "k": 1e3, "thousand": 1e3, "thousands": 1e3, "t": 1e12, "trillion": 1e12, "trillions": 1e12,
    "raw": 1.0, "count": 1.0,
}  # fmt: skip
_COUNTED = ("active", "loop", "total", "once", "tokens")
"""Fields whose header may state a unit."""


@dataclass(frozen=True)
class Column:
    """A column found for a field; the unit is None where the header states none."""

    name: str
    unit: float | None


def find_columns(names: Iterable[str], chosen: Mapping[str, str], source: str) -> dict[str, Column]:
    """Return the column of each field that the table has; ``chosen`` overrules names by field."""
    listed = [str(name) for name in names]
    found = {field: _chosen(field, column, listed, source) for field, column in _fields(chosen, source).items()}
    taken = {column.name for column in found.values()}
    plain = {name: _normal(name) for name in listed if name not in taken}
    for field, synonyms in SYNONYMS.items():
        if field not in found and (column := _match(field, synonyms, plain)):
            found[field] = column
            plain.pop(column.name)
    return found


def field_of(name: str) -> str | None:
    """Return the field that a person means by ``name``: the field, its symbol or a synonym."""
    normal = _normal(name)
    for field, synonyms in SYNONYMS.items():
        if normal == field or normal in synonyms:
            return field
    return None


def missing(field: str, names: Iterable[str], source: str) -> InputError:
    """Return the error for a field that no column holds."""
    listed = [str(name) for name in names]
    close = nearest(SYMBOLS[field], listed) or nearest(field, listed)
    called = field if field == SYMBOLS[field] else f"{SYMBOLS[field]} ({field})"
    return InputError(
        f"{source}: no column for {called}{close}; columns are {', '.join(listed) or 'none'}; "
        f"name it with columns={{{field!r}: ...}}"
    )


def _fields(given: Mapping[str, str], source: str) -> dict[str, str]:
    fields = {}
    for name, column in given.items():
        field = field_of(name)
        if field is None:
            raise InputError(
                f"{source}: columns names {shown(name)}{nearest(name, SYNONYMS)}, which is not a field; "
                f"fields are {', '.join(SYNONYMS)}"
            )
        fields[field] = column
    return fields


def _chosen(field: str, column: str, names: list[str], source: str) -> Column:
    if column not in names:
        raise InputError(
            f"{source}: column {shown(column)} for {SYMBOLS[field]} is not there{nearest(column, names)}; "
            f"columns are {', '.join(names) or 'none'}"
        )
    return Column(column, _split(_normal(column))[1] if field in _COUNTED else None)


def _match(field: str, synonyms: tuple[str, ...], plain: Mapping[str, str]) -> Column | None:
    for synonym in synonyms:
        for name, normal in plain.items():
            if normal == synonym:
                return Column(name, None)
            bare, unit = _split(normal)
            if field in _COUNTED and unit is not None and bare == synonym:
                return Column(name, unit)
    return None


def _normal(name: str) -> str:
    """Return ``Model Size (B)`` as ``model_size_b``."""
    return re.sub(r"[^a-z0-9]+", "_", name.strip().lower()).strip("_").replace("_in_", "_")


def _split(normal: str) -> tuple[str, float | None]:
    """Part a name from the unit at its end."""
    bare, _, last = normal.rpartition("_")
    return (bare, _UNITS[last]) if bare and last in _UNITS else (normal, None)
