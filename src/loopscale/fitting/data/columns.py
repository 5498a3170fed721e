"""Columns of a sweep: the fields that a fit reads, the names they have in tables, and the units in headers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from loopscale.core.errors import InputError, nearest, shown

SYMBOLS = {
    "active": "N_act", "loop": "N_loop", "total": "N_total", "once": "N_once", "experts": "E", "top_k": "k",
    "recurrence": "R", "tokens": "D", "flops": "FLOPs", "loss": "loss", "run": "run", "step": "step",
    "finished": "finished", "unique_tokens": "U", "weight": "weight", "noise": "noise of the loss",
}  # fmt: skip
"""Each field and how messages call it."""

VALIDATION = (
    "val_loss", "valid_loss", "validation_loss", "loss_validation", "eval_loss", "test_loss", "final_val_loss",
    "final_validation_loss", "final_eval_loss", "loss_val", "loss_eval",
)  # fmt: skip
"""Headers of losses on held-out text, which are preferred to others."""
TRAINING = ("train_loss", "training_loss", "loss_train", "final_train_loss")
"""Headers of losses on the training text, which are taken last."""
EXIT_CODES = ("status", "exit_code", "exit_status", "returncode")
"""Headers under which 0 means that a run went well."""
BITS_PER_BYTE = ("bpb", "bits_per_byte", "val_bpb", "bpc")
"""Headers of losses in bits per byte."""
LOOSE_RUNS = ("name", "experiment", "model_name", "model")
"""Headers that name a run in some files and a group of runs in others."""
NON_EMBEDDING = (
    "non_embedding_params", "non_embedding_parameters", "n_non_embedding", "params_non_embedding", "non_emb_params",
    "nonembedding_params", "params_no_embed", "n_nonemb",
)  # fmt: skip
"""Headers that say that embeddings are left out."""

SYNONYMS: dict[str, tuple[str, ...]] = {
    "active": (
        "n_act", "active", "n_active", "active_params", "active_parameters", "active_n", "na", "n_a",
        *NON_EMBEDDING, "n", "params", "parameters", "n_params", "num_params", "num_parameters",
        "model_num_parameters", "model_size", "size", "n_unique", "dense_parameter_count",
    ),
    "loop": ("n_loop", "loop", "loop_params", "loop_parameters", "n_rec", "recurrent_params"),
    "total": (
        "n_total", "total", "total_params", "total_parameters", "total_parameter_count", "params_total",
        "stored_params",
    ),
    "once": ("n_once", "once"),
    "experts": ("e", "experts", "n_experts", "num_experts", "expert_count", "e_route", "routed_experts", "nume", "n_e"),
    "top_k": ("k", "top_k", "topk", "active_experts", "num_active_experts", "experts_per_token", "num_experts_per_tok"),
    "recurrence": ("r", "recurrence", "recurrences", "loops", "n_loops", "num_loops", "passes", "num_recurrences"),
    "tokens": (
        "d", "tokens", "n_tokens", "num_tokens", "train_tokens", "training_tokens", "tokens_seen",
        "num_input_tokens_seen", "train_num_input_tokens_seen", "total_tokens", "tokens_total", "data", "dataset_size",
    ),
    "unique_tokens": ("u", "unique_tokens", "unique", "n_unique_tokens", "num_unique_tokens", "unique_data"),
    "flops": ("flops", "flop", "training_flop", "training_flops", "train_flops", "compute"),
    "loss": (
        *VALIDATION, "loss", "final_loss", "nll", "cross_entropy", "l", *BITS_PER_BYTE, *TRAINING,
    ),
    "run": ("run", "run_id", "run_name", "id", "hyper_id", *LOOSE_RUNS),
    "weight": ("weight", "weights"),
    "noise": ("loss_std", "loss_noise", "loss_sd", "loss_stderr"),
    "step": ("step", "steps", "global_step", "iteration"),
    "finished": ("finished", "annealed", "done", "complete", "completed", "final", "status", "state", "exit_code"),
}  # fmt: skip
"""Lower case, words joined by one underscore; the first that a table has is taken."""

_UNITS = {
    "b": 1e9, "bn": 1e9, "billion": 1e9, "billions": 1e9, "g": 1e9,
    "m": 1e6, "mn": 1e6, "million": 1e6, "millions": 1e6,
    "k": 1e3, "thousand": 1e3, "thousands": 1e3, "t": 1e12, "trillion": 1e12, "trillions": 1e12,
    "raw": 1.0, "count": 1.0,
}  # fmt: skip
_WANDB_TABLE = re.compile(r"^(config|summary|summary_metrics)[./]")
"""How headers begin that name a table of W&B: settings, or last values."""
SUMMARIES = ("last", "min")
"""How headers of W&B end where the summary of a metric was defined, as in ``eval/loss.min``."""
_SUMMARY = re.compile(rf"[.]({'|'.join(SUMMARIES)})$")
COUNTS = ("active", "loop", "total", "once", "tokens", "unique_tokens")
"""Fields that count parameters or tokens, so that a header may state their unit."""


@dataclass(frozen=True)
class Column:
    """The column of a field; the unit is None where the header states none."""

    name: str
    unit: float | None


def find_columns(names: Iterable[str], chosen: Mapping[str, str], source: str) -> dict[str, Column]:
    """Return the column of each field that the table has; ``chosen`` overrules names by field."""
    listed = [str(name) for name in names]
    columns = _chosen_fields(chosen, listed, source)
    taken = {column.name for column in columns.values()}
    own_first = sorted(listed, key=lambda name: (bool(_WANDB_TABLE.match(name.strip().lower())), name.endswith(".min")))
    plain = {name: normal_name(name) for name in own_first if name not in taken}
    for field, synonyms in SYNONYMS.items():
        if field not in columns and (column := _match(field, synonyms, plain)):
            columns[field] = column
            plain.pop(column.name)
    if "active" in columns and "experts" in columns and "total" not in columns:
        for name in (name for name, normal in plain.items() if normal in ("n", "params", "parameters")):
            columns["total"] = Column(name, None)  # active parameters have their own column, so this counts all
    if "total" in columns and not {"active", "once", "experts"} & set(columns):
        columns["active"] = columns.pop("total")  # nothing is routed, so every parameter is active
    return columns


def field_of(name: str) -> str | None:
    """Return the field that a person means by ``name``: the field, its symbol or a synonym."""
    normal = normal_name(name)
    for field, synonyms in SYNONYMS.items():
        if normal == field or normal in synonyms:
            return field
    return None


class MissingColumnError(InputError):
    """No column of a table holds a field that is needed; ``needed`` names the field."""

    def __init__(self, needed: str, names: Iterable[str], source: str) -> None:
        self.needed, listed = needed, [str(name) for name in names]
        symbol = SYMBOLS[needed]
        called = needed if needed == symbol else f"{symbol} ({needed})"
        close = nearest(symbol, listed) or nearest(needed, listed)
        super().__init__(
            f"no column for {called}{close}; columns are {', '.join(listed) or 'none'}",
            where=source,
            remedy=f"name it with `columns` {needed}=NAME",
        )


def _chosen_fields(columns: Mapping[str, str], listed: list[str], source: str) -> dict[str, Column]:
    """Return the columns that the user chose, by field."""
    chosen = {}
    for name, column in columns.items():
        field = field_of(name)
        if field is None:
            raise InputError(
                f"{shown(name)} is not a field{nearest(name, SYNONYMS)}",
                where=source, field="columns", remedy=f"fields are {', '.join(SYNONYMS)}",
            )  # fmt: skip
        if column not in listed:
            raise InputError(
                f"column {shown(column)} for {SYMBOLS[field]} is not there{nearest(column, listed)}",
                where=source, remedy=f"columns are {', '.join(listed) or 'none'}",
            )  # fmt: skip
        chosen[field] = Column(column, split_unit(normal_name(column))[1] if field in COUNTS else None)
    return chosen


def _match(field: str, synonyms: tuple[str, ...], plain: Mapping[str, str]) -> Column | None:
    for synonym in synonyms:
        for name, normal in plain.items():
            if normal == synonym:
                return Column(name, None)
            bare, unit = split_unit(normal)
            if field in COUNTS and unit is not None and bare == synonym:
                return Column(name, unit)
    return None


def normal_name(name: str) -> str:
    """Return ``Model Size (B)`` as ``model_size_b``, without what W&B adds (``config.n_params``, ``eval/loss.min``)."""
    bare = _SUMMARY.sub("", _WANDB_TABLE.sub("", name.strip().lower()))
    return re.sub(r"[^a-z0-9]+", "_", bare).strip("_").replace("_in_", "_")


def split_unit(normal: str) -> tuple[str, float | None]:
    """Part a name from the unit at its end."""
    bare, _, last = normal.rpartition("_")
    return (bare, _UNITS[last]) if bare and last in _UNITS else (normal, None)
