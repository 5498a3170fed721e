"""Observations from files and frames: columns found by name, units stated or detected, rows checked."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from itertools import product
from pathlib import Path
from typing import Any, Literal

import narwhals as nw
import numpy as np
from numpy.typing import NDArray

from loopscale.core.arrays import BoolArray, FloatArray, IntArray
from loopscale.core.errors import InputError, choice, nearest, reason, shown
from loopscale.core.files import TABLE_ROWS, TEXT_BYTES, check_rows, check_size, gunzip, is_file
from loopscale.core.tables import Table
from loopscale.scaling import Counting, Points, costs

Columns = dict[str, list[Any]]


def read_columns(path: str | Path) -> Columns:
    """Read a ``.csv``, ``.tsv`` (either may be gzipped), ``.jsonl`` or ``.parquet`` file."""
    name = str(path).lower()
    if name.endswith((".jsonl", ".ndjson", ".jsonl.gz")):
        return jsonl_columns(_text(path), str(path))
    if name.endswith((".parquet", ".pq")):
        return _parquet(path)
    if name.endswith((".csv", ".csv.gz", ".tsv", ".tsv.gz")):
        return csv_columns(_text(path), str(path), "\t" if ".tsv" in name else ",")
    raise InputError(f"{path}: this kind of file is not read; give .csv, .tsv, .jsonl or .parquet")


def frame_columns(frame: Any, source: str) -> Columns:
    """Take the columns of a pandas, polars or pyarrow frame, or of any other that narwhals knows."""
    try:
        table = nw.from_native(frame)
    except TypeError:
        raise InputError(
            f"{source}: {shown(frame)} is not a data frame; give one of pandas, polars or pyarrow"
        ) from None
    whole = table.collect() if isinstance(table, nw.LazyFrame) else table
    return {str(name): whole[name].to_list() for name in whole.columns}


def jsonl_columns(text: str, source: str) -> Columns:
    """Read JSON lines: one object for each row; a field that a row lacks is empty."""
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise InputError(f"{source}: line {number} is not a JSON object: {shown(line)}")
        rows.append(row)
    if not rows:
        raise InputError(f"{source}: the file is empty; each line should be a JSON object")
    return {str(name): [row.get(name) for row in rows] for name in dict.fromkeys(key for row in rows for key in row)}


def csv_columns(text: str, source: str, delimiter: str = ",") -> Columns:
    """Read the text of a CSV file; ``source`` names it in errors."""
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    except csv.Error as error:  # a cell beyond csv's limit
        raise InputError(f"{source}: not CSV: {error}") from None
    rows = [row for row in rows if any(cell.strip() for cell in row)]
    if len(rows) > TABLE_ROWS:
        check_rows(len(rows), source)
    if not rows:
        raise InputError(f"{source}: the file is empty; its first line should name the columns")
    names = [name.strip() for name in rows[0]]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"{source}: column {shown(twice)} is there twice")
    for number, row in enumerate(rows[1:], 1):
        if len(row) != len(names):
            raise InputError(f"{source}: row {number} has {len(row)} cells; the header has {len(names)}")
    return {name: [row[k] for row in rows[1:]] for k, name in enumerate(names)}


def _text(path: str | Path) -> str:
    try:
        if Path(path).stat().st_size > TEXT_BYTES:
            check_size(path)
        content = Path(path).read_bytes()
        content = gunzip(content, str(path)) if str(path).lower().endswith(".gz") else content
        return content.decode("utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text") from None
    except (OSError, EOFError) as error:
        raise InputError(f"{path}: cannot be read: {reason(error)}") from None


def _parquet(path: str | Path) -> Columns:
    if not Path(path).is_file():
        raise InputError(f"{path}: no such file")
    backends: tuple[tuple[Literal["pyarrow", "polars"], Callable[[str | Path], int]], ...]
    backends = ("pyarrow", _arrow_rows), ("polars", _polars_rows)
    for backend, rows in backends:
        try:
            check_rows(rows(path), str(path))  # a small file may hold millions of equal rows
            return frame_columns(nw.read_parquet(str(path), backend=backend), str(path))
        except (ImportError, ModuleNotFoundError):
            continue
        except InputError:
            raise
        except Exception as error:  # each backend has its own errors for a file that is not Parquet
            raise InputError(f"{path}: not a Parquet file: {shown(str(error))}") from None
    raise InputError(f"{path}: reading Parquet needs pyarrow or polars; install one, or write CSV")


def _arrow_rows(path: str | Path) -> int:
    from pyarrow import parquet

    return int(parquet.ParquetFile(str(path)).metadata.num_rows)


def _polars_rows(path: str | Path) -> int:
    import polars

    return int(polars.scan_parquet(str(path)).select(polars.len()).collect().item())


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
    "finished": "finished", "unique_tokens": "U", "weight": "weight", "noise": "noise of the loss",
}  # fmt: skip
"""Each field and how messages call it."""

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
        *NON_EMBEDDING, "n", "params", "parameters", "n_params", "num_params", "num_parameters", "model_size", "size",
        "n_unique", "dense_parameter_count",
    ),
    "loop": ("n_loop", "loop", "loop_params", "loop_parameters", "n_rec", "recurrent_params"),
    "total": ("n_total", "total", "total_params", "total_parameters", "total_parameter_count", "stored_params"),
    "once": ("n_once", "once"),
    "experts": ("e", "experts", "n_experts", "num_experts", "expert_count", "e_route", "routed_experts", "nume", "n_e"),
    "top_k": ("k", "top_k", "topk", "active_experts", "num_active_experts", "experts_per_token", "num_experts_per_tok"),
    "recurrence": ("r", "recurrence", "recurrences", "loops", "n_loops", "num_loops", "passes", "num_recurrences"),
    "tokens": (
        "d", "tokens", "n_tokens", "num_tokens", "train_tokens", "training_tokens", "tokens_seen", "data",
        "dataset_size",
    ),
    "unique_tokens": ("u", "unique_tokens", "unique", "n_unique_tokens", "num_unique_tokens", "unique_data"),
    "flops": ("flops", "flop", "training_flop", "training_flops", "train_flops", "compute"),
    "loss": (
        "loss", "val_loss", "valid_loss", "validation_loss", "loss_validation", "eval_loss", "test_loss", "final_loss",
        "nll", "cross_entropy", "l", *BITS_PER_BYTE,
    ),
    "run": ("run", "run_id", "run_name", "id", "hyper_id", *LOOSE_RUNS),
    "weight": ("weight", "weights"),
    "noise": ("loss_std", "loss_noise", "loss_sd", "loss_stderr"),
    "step": ("step", "steps", "global_step", "iteration"),
    "finished": ("finished", "annealed", "done", "complete", "completed", "final", "status", "state"),
}  # fmt: skip
"""Lower case, words joined by one underscore; the first that a table has is taken."""

_UNITS = {
    "b": 1e9, "bn": 1e9, "billion": 1e9, "billions": 1e9, "g": 1e9,
    "m": 1e6, "mn": 1e6, "million": 1e6, "millions": 1e6,
    "k": 1e3, "thousand": 1e3, "thousands": 1e3, "t": 1e12, "trillion": 1e12, "trillions": 1e12,
    "raw": 1.0, "count": 1.0,
}  # fmt: skip
_COUNTED = ("active", "loop", "total", "once", "tokens", "unique_tokens")
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
    if "active" in found and "experts" in found and "total" not in found:
        for name in (name for name, normal in plain.items() if normal in ("n", "params", "parameters")):
            found["total"] = Column(name, None)  # active parameters have their own column, so this counts all
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


_SUFFIXED = re.compile(r"([0-9.eE+-]+)\s*([kKmMbBgGtT])")
_SCALE = {"k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_FINISHED = {"1", "true", "yes", "y", "finished", "done", "complete", "completed", "success", "succeeded", "final"}
_WANTED = {
    "active": "above zero", "tokens": "above zero", "flops": "above zero", "loss": "above zero", "total": "above zero",
    "unique_tokens": "above zero",
    "top_k": "1 or more", "recurrence": "1 or more", "experts": "1 or more", "loop": "zero or more",
    "once": "zero or more", "step": "zero or more", "weight": "above zero",
    "noise": "above zero",
}  # fmt: skip


def numbers(cells: Sequence[Any], field: str, column: str, source: str) -> tuple[FloatArray, bool]:
    """Return a column as numbers (NaN where a cell is empty) and whether cells wrote their unit, as in ``0.3B``."""
    values, suffixed = np.empty(len(cells)), False
    for k, cell in enumerate(cells):
        number = _number(cell)
        if number is None:
            raise InputError(f"{where(source, k, field, column)} is {shown(cell)}; it should be a number")
        values[k], unit = number
        suffixed |= unit
    return values, suffixed


def checked(values: FloatArray, field: str, column: str, source: str, empty: bool = False) -> FloatArray:
    """Return the values if each is what the field wants; an empty cell passes only where ``empty`` allows it."""
    wanted = _WANTED[field]
    least = 1.0 if wanted.startswith("1") else 0.0
    good = np.isfinite(values) & ((values >= least) if wanted.endswith("or more") else (values > 0))
    good |= np.isnan(values) & empty
    if not good.all():
        k = int(np.argmin(good))
        found = "empty or not a number" if np.isnan(values[k]) else f"{values[k]:g}"
        raise InputError(f"{where(source, k, field, column)} is {found}; it should be finite and {wanted}")
    return values


def finished_flags(cells: Sequence[Any]) -> BoolArray:
    """Read yes and no, true and false, and the words that trackers use for a run's state."""
    return np.array([str(cell).strip().lower() in _FINISHED or cell is True for cell in cells])


def texts(cells: Sequence[Any]) -> NDArray[np.str_]:
    """Return a column as text; a whole number loses the ``.0`` that a frame gave it."""
    return np.array([f"{cell:g}" if isinstance(cell, float) and cell.is_integer() else str(cell) for cell in cells])


def where(source: str, k: int, field: str, column: str) -> str:
    """Return how a message names a cell; rows count from 1, without the header."""
    symbol = SYMBOLS[field]
    return f"{source}: row {k + 1}, column {shown(column)}" + ("" if column == symbol else f" ({symbol})")


def _number(cell: Any) -> tuple[float, bool] | None:
    """Return a cell's number and whether it wrote its unit, or None where it is not a number."""
    if cell is None or (isinstance(cell, str) and not cell.strip()):
        return math.nan, False
    try:
        return float(cell.replace(",", "") if isinstance(cell, str) else cell), False
    except OverflowError:  # a whole number that no float can hold
        return None
    except (TypeError, ValueError):
        match = _SUFFIXED.fullmatch(str(cell).strip())
    try:
        return None if match is None else (float(match[1]) * _SCALE[match[2].lower()], True)
    except ValueError:
        return None


SIZES = ("active", "loop", "total", "once")
COUNTS = (*SIZES, "tokens", "unique_tokens")


@dataclass(frozen=True, eq=False)
class Rows:
    """What a table holds, in raw counts."""

    points: Points
    loss: FloatArray
    run: NDArray[np.str_]
    finished: BoolArray | None
    notes: tuple[str, ...]
    weight: FloatArray | None
    loss_unit: str
    non_embedding: bool
    """Whether the header says that embeddings are left out."""
    extra: dict[str, NDArray[Any]]


def read_rows(table: Columns, chosen: Mapping[str, str], units: Mapping[str, float], source: str) -> Rows:
    """Return the rows of a table, or say what is wrong with it, and where."""
    reader = _Reader(table, find_columns(table, chosen, source), source)
    reader.read_numbers()
    reader.scale(_stated(units, source))
    loss = reader.take("loss")
    points = reader.points()
    run = reader.runs(points)
    reader.check_plausible(points)
    finished = reader.finished()
    kept = reader.without_repeats(points, loss, run)
    size, loss_column = reader.columns.get("active"), reader.columns["loss"].name
    weight = reader.weight()
    return Rows(
        points.rows(kept), loss[kept], run[kept], None if finished is None else finished[kept], tuple(reader.notes),
        weight=None if weight is None else weight[kept],
        loss_unit="bits per byte" if _normal(loss_column) in BITS_PER_BYTE else "nats",
        non_embedding=size is not None and _normal(size.name) in NON_EMBEDDING,
        extra={name: column[kept] for name, column in reader.extra().items()},
    )  # fmt: skip


@dataclass(eq=False)
class _Reader:
    table: Columns
    columns: dict[str, Column]
    source: str
    values: dict[str, FloatArray] = dataclass_field(default_factory=dict)
    suffixed: set[str] = dataclass_field(default_factory=set)
    notes: list[str] = dataclass_field(default_factory=list)

    def read_numbers(self) -> None:
        """Turn every numeric column into numbers."""
        for name, column in self.columns.items():
            if name in ("run", "finished"):
                continue
            cells = self.table[column.name]
            if not cells:
                raise InputError(f"{self.source}: there are no rows below the header")
            self.values[name], with_unit = numbers(cells, name, column.name, self.source)
            self.suffixed |= {name} if with_unit else set()

    def scale(self, stated: Mapping[str, float]) -> None:
        """Bring all counts to raw numbers, and say which units were detected."""
        known = {name: self._known_unit(name, stated) for name in COUNTS if name in self.values}
        detected = self._detected(known)
        for name, unit in known.items():
            self.values[name] = self.values[name] * (detected[name] if unit is None else unit)
        for unit in sorted({unit for unit in detected.values() if unit != 1.0}):
            spans = [
                f"{SYMBOLS[name]} ({_span(self.values[name] / unit)})" for name in detected if detected[name] == unit
            ]
            self.notes.append(f"read as {NAMES[unit]}: {', '.join(spans)}; state units to overrule")

    def take(self, name: str, empty: bool = False) -> FloatArray:
        """Return a field that must be there, checked."""
        if name not in self.columns:
            raise missing(name, self.table, self.source)
        return checked(self.values[name], name, self.columns[name].name, self.source, empty)

    def points(self) -> Points:
        """Return the models and their tokens."""
        active = self._active()
        experts, R = self._experts(len(active)), self._or_one("recurrence", len(active))
        loop = self._filled("loop", np.where(R == 1, 0.0, np.nan))
        total = self._filled("total", np.where(experts == 1, active, np.nan))
        self._compare("loop", loop, active, above=True)
        self._compare("total", total, active, above=False)
        if total is None and (experts > 1).any():
            self.notes.append("no N_total: mappings that depend on m = N_act / N_total cannot be fitted")
        tokens = self._tokens(active, R, loop)
        unique = self._filled("unique_tokens", tokens)
        return Points(active, tokens, R, experts, loop, total, unique)

    def runs(self, points: Points) -> NDArray[np.str_]:
        """Return the run of each row: as named; else checkpoints of one model are a run, and other rows one each."""
        model = _models(points)
        if "run" in self.columns:
            name = self.columns["run"].name
            names = texts(self.table[name])
            if _normal(name) not in LOOSE_RUNS or _names_runs(names, model, points.tokens):
                return names
            self.notes.append(f"column {name} groups several runs, so it does not name them")
        rows_each = np.bincount(model)
        if len(rows_each) < len(model) and ("step" in self.columns or np.median(rows_each) >= CHECKPOINTS):
            self.notes.append(
                f"no run column: the rows of one model are taken as checkpoints of one run ({len(rows_each)} runs)"
            )
            return np.array([f"run {k + 1}" for k in model])
        if len(rows_each) < len(model):
            self.notes.append("no run column: every row is taken as a separate run")
        return np.array([f"run {k + 1}" for k in range(len(model))])

    def finished(self) -> BoolArray | None:
        """Tell which rows are final losses, where a column says so."""
        if "finished" not in self.columns:
            return None
        flags = finished_flags(self.table[self.columns["finished"].name])
        if not flags.all():
            self.notes.append(f"{int((~flags).sum())} of {len(flags)} rows are not final losses of their run")
        return flags

    def weight(self) -> FloatArray | None:
        """Return how much each row counts: as stated, or by the stated noise of its loss; 1 on average."""
        if "weight" in self.columns:
            values = self.take("weight")
        elif "noise" in self.columns:
            values = self.take("noise") ** -2.0
            self.notes.append(f"rows are weighted by {self.columns['noise'].name}")
        else:
            return None
        return np.asarray(values / values.mean())

    def check_plausible(self, points: Points) -> None:
        """Refuse rows that cannot be in the same unit as the others."""
        for name, values in (("active", points.active), ("tokens", points.tokens)):
            if name not in self.columns:
                continue
            typical, (low, high) = float(np.median(values)), PLAUSIBLE[name]
            far = np.abs(np.log10(values / typical)) > MIXED_UNITS
            if (wrong := far | (values < low) | (values > high)).any():
                k = int(np.argmax(wrong))
                raise InputError(
                    f"{where(self.source, k, name, self.columns[name].name)} is {values[k]:g} "
                    f"{'parameters' if name == 'active' else 'tokens'}, which is not plausible beside the median "
                    f"{typical:g}; write every row in one unit, or state the unit of the column"
                )

    def without_repeats(self, points: Points, loss: FloatArray, run: NDArray[np.str_]) -> IntArray:
        """Return the rows without exact repeats of another; say how many there were, and which runs mix models."""
        model = _models(points)
        named = run.tolist() if "run" in self.columns else [""] * len(run)
        rows = zip(named, model.tolist(), points.tokens.tolist(), points.unique.tolist(), loss.tolist(), strict=True)
        first: dict[Any, int] = {}
        for k, row in enumerate(rows):
            first.setdefault(row, k)
        if repeats := len(run) - len(first):
            self.notes.append(f"{repeats} rows repeat another row exactly; each row counts once")
        if len(set(zip(run.tolist(), model.tolist(), strict=True))) > len(np.unique(run)):
            self.notes.append("some runs hold rows of different models; they are taken as one run each")
        return np.array(list(first.values()), dtype=np.int64)

    def extra(self) -> dict[str, NDArray[Any]]:
        """Return all columns by their own names, for expressions: numbers where they are, else text."""
        columns: dict[str, NDArray[Any]] = {}
        for name, cells in self.table.items():
            parsed = [_number(cell) for cell in cells]
            usable = [number for number in parsed if number is not None]
            column = np.array([number[0] for number in usable]) if len(usable) == len(cells) else texts(cells)
            columns[name] = column
            columns.setdefault(_normal(name), column)
        return columns

    def _active(self) -> FloatArray:
        if "active" not in self.columns and "once" in self.columns and "loop" in self.columns:
            self.notes.append("N_act = N_once + N_loop")
            return self.take("once") + self.take("loop")
        return self.take("active")

    def _experts(self, count: int) -> FloatArray:
        """Return E; a column of routed experts beside one of k is divided by it."""
        if "experts" not in self.columns:
            return self._or_one("experts", count)
        column = self.columns["experts"].name
        if "top_k" not in self.columns or column.strip() in ("E", "e"):
            return self.take("experts")
        routed, k = self.values["experts"], self.take("top_k")
        self.notes.append(f"E = {column} / {self.columns['top_k'].name}")
        return checked(np.where(np.isin(routed, (0, 1)), 1.0, routed / k), "experts", column, self.source)

    def _or_one(self, name: str, count: int) -> FloatArray:
        if name in self.columns:
            return self.take(name)
        self.notes.append(f"no column for {SYMBOLS[name]}: taken as 1")
        return np.ones(count)

    def _filled(self, name: str, otherwise: FloatArray) -> FloatArray | None:
        """Return an optional field; a cell may be empty where the row can do without it."""
        if name not in self.columns:
            return None
        values = self.take(name, empty=True)
        return checked(np.where(np.isnan(values), otherwise, values), name, self.columns[name].name, self.source)

    def _tokens(self, active: FloatArray, R: FloatArray, loop: FloatArray | None) -> FloatArray:
        if "tokens" in self.columns or "flops" not in self.columns:
            return self.take("tokens")
        self.notes.append("D = FLOPs / (6 N_unroll)")
        return np.asarray(
            costs.tokens_for(self.take("flops"), costs.unrolled(active, 0.0 if loop is None else loop, R))
        )

    def _compare(self, name: str, values: FloatArray | None, active: FloatArray, above: bool) -> None:
        """Refuse a loop larger than the model, or a total smaller than it."""
        if values is None:
            return
        wrong = values > active * (1 + 1e-9) if above else values < active * (1 - 1e-9)
        if wrong.any():
            k = int(np.argmax(wrong))
            says = "above" if above else "below"
            raise InputError(
                f"{where(self.source, k, name, self.columns[name].name)} is {values[k]:g}, "
                f"{says} N_act = {active[k]:g}; " + ("the loop is a part of it" if above else "the total contains it")
            )

    def _known_unit(self, name: str, stated: Mapping[str, float]) -> float | None:
        if name in stated:
            return stated[name]
        column = self.columns[name]
        return 1.0 if name in self.suffixed else column.unit

    def _detected(self, known: Mapping[str, float | None]) -> dict[str, float]:
        """Return the likeliest unit of each count that states none."""
        size = next((name for name in ("active", "once") if name in known), None)
        unknown = [name for name, unit in known.items() if unit is None]
        if size is None or not unknown:
            return dict.fromkeys(unknown, 1.0)
        active = _positive(self.values[size])
        tokens = _positive(self.values["tokens"]) if "tokens" in known else 20 * active
        unit_N, unit_D = detect_units(active, tokens, known[size], known.get("tokens", 1.0))
        sizes = {name: size_unit(_positive(self.values[name]), active * unit_N, unit_N) for name in unknown}
        whole = ((size, unit_N), ("tokens", unit_D), ("unique_tokens", unit_D))
        return sizes | {name: unit for name, unit in whole if name in unknown}


PLAUSIBLE = {"active": (100.0, 1e14), "tokens": (100.0, 1e16)}
"""Parameters and tokens that a training run may have."""
MIXED_UNITS = 5.0
"""Powers of ten by which a row may differ from the median of its column."""
CHECKPOINTS = 10
"""Rows for each model from which they are taken as checkpoints of one run where no column names runs."""


def _models(points: Points) -> IntArray:
    """Return a number for the model of each row: rows that agree on everything but tokens share it."""
    given = (points.active, points.recurrence, points.experts, points.loop, points.total)
    table = np.stack([values for values in given if values is not None], axis=1)
    return np.asarray(np.unique(table, axis=0, return_inverse=True)[1].reshape(-1), dtype=np.int64)


def _names_runs(names: NDArray[np.str_], model: IntArray, tokens: FloatArray) -> bool:
    """Tell whether each name stands for one model, seen at most once at each token count."""
    pairs = set(zip(names.tolist(), model.tolist(), strict=True))
    rows = set(zip(names.tolist(), tokens.tolist(), strict=True))
    return len(pairs) == len(set(names.tolist())) and len(rows) == len(names)


def _positive(values: FloatArray) -> FloatArray:
    good = values[np.isfinite(values) & (values > 0)]
    return good if len(good) else np.ones(1)


def _span(values: FloatArray) -> str:
    good = _positive(values)
    return f"{good.min():g} to {good.max():g}"


def _stated(units: Mapping[str, float], source: str) -> dict[str, float]:
    stated = {}
    for name, unit in units.items():
        known = field_of(name)
        if known not in COUNTS:
            raise InputError(
                f"{source}: units names {shown(name)}{nearest(name, COUNTS)}; units are for {', '.join(COUNTS)}"
            )
        if not (np.isfinite(unit) and unit > 0):
            raise InputError(f"{source}: units for {known} is {unit}; it should be above zero, as 1e9 for billions")
        stated[known] = float(unit)
    return stated


@dataclass(frozen=True, eq=False)
class Observations:
    """Losses seen in training, and what was trained."""

    points: Points
    """One-dimensional arrays of one length, in raw counts."""
    loss: FloatArray
    run: NDArray[np.str_]
    """The run of each row; several rows of one run are not independent."""
    source: str
    """What produced the rows: a file, a sweep, a simulation."""
    counts: Counting
    """Whether the counts include embeddings."""
    notes: tuple[str, ...] = ()
    """What was detected or assumed on reading."""
    finished: BoolArray | None = None
    """False where a row is a checkpoint in mid-schedule; None where that is not known."""
    weight: FloatArray | None = None
    """How much each row counts in a fit; None where all count alike."""
    loss_unit: str = "nats"
    """Unit of the losses: nats (per token) or bits per byte."""
    counts_assumed: bool = False
    """Whether ``counts`` is a default that neither the file nor the user stated."""
    extra: Mapping[str, NDArray[Any]] = dataclass_field(default_factory=dict)
    """Every column of the file by its own name, for expressions that choose rows."""

    def __post_init__(self) -> None:
        count = len(self.loss)
        p = self.points
        given = (p.active, p.tokens, p.recurrence, p.experts, p.loop, p.total, p.unique_tokens, self.run, self.finished,
                 self.weight)  # fmt: skip
        if any(column is not None and np.shape(column) != (count,) for column in given):
            raise InputError(
                f"{self.source}: points, run and finished should all have one entry for each of {count} losses"
            )
        bad = np.flatnonzero(~(np.isfinite(self.loss) & (self.loss > 0)))
        if len(bad):
            raise InputError(
                f"{self.source}: row {bad[0] + 1}: loss is {self.loss[bad[0]]:g}; it should be finite and above zero"
            )

    def __len__(self) -> int:
        return len(self.loss)

    @property
    def runs(self) -> NDArray[np.str_]:
        """The distinct runs, in order of first appearance."""
        _, first = np.unique(self.run, return_index=True)
        return self.run[np.sort(first)]

    def where(self, chosen: BoolArray | IntArray | slice) -> Observations:
        """Return the chosen rows only, by mask or by index (an index may repeat)."""
        return replace(
            self,
            points=self.points.rows(chosen),
            loss=self.loss[chosen],
            run=self.run[chosen],
            finished=None if self.finished is None else self.finished[chosen],
            weight=None if self.weight is None else self.weight[chosen],
            extra={name: column[chosen] for name, column in self.extra.items()},
        )

    def keep(self, expression: str) -> Observations:
        """Return the rows for which an expression of the columns holds, like ``D/N >= 20`` or ``width == 512``.

        N, D, E, R, C (training FLOPs), U (unique tokens) and loss are in raw counts; other columns are named as in the
        file.
        """
        from loopscale.fitting.data.select import matching_rows

        p = self.points
        symbols = {"N": p.active, "D": p.tokens, "E": p.experts, "R": p.recurrence, "U": p.unique, "loss": self.loss,
                   "run": self.run}  # fmt: skip
        if p.loop is not None or np.all(p.recurrence == 1):
            symbols["C"] = p.train_flops
        mask = matching_rows(expression, {**self.extra, **symbols})
        note = f"{int(mask.sum())} of {len(mask)} rows kept by {expression}"
        return replace(self.where(mask), notes=(*self.notes, note))

    def best_of(self) -> Observations:
        """Return the lowest loss of each model and token count: the best over learning rates and other settings."""
        from loopscale.fitting.data.select import best_rows

        rows = best_rows(np.column_stack([_models(self.points), self.points.tokens, self.points.unique]), self.loss)
        note = f"best of each model and token count: {len(rows)} of {len(self)} rows"
        return replace(self.where(rows), notes=(*self.notes, note))

    @classmethod
    def of(
        cls,
        data: Any,
        *,
        columns: Mapping[str, str] | None = None,
        units: Mapping[str, float] | None = None,
        counts: Counting | str | None = None,
        keep: str | None = None,
        best_of: bool = False,
    ) -> Observations:
        """Return the observations that ``data`` is or names: a file, a data frame, a public sweep, or observations.

        ``keep`` chooses rows by an expression (:meth:`keep`); ``best_of`` keeps the lowest loss of each model and token
        count (:meth:`best_of`).
        """
        rows = cls._source(data, columns, units, counts)
        rows = rows if keep is None else rows.keep(keep)
        return rows.best_of() if best_of else rows

    @classmethod
    def _source(
        cls,
        data: Any,
        columns: Mapping[str, str] | None,
        units: Mapping[str, float] | None,
        counts: Counting | str | None,
    ) -> Observations:
        if isinstance(data, cls):
            if columns or units or counts:
                raise InputError(f"{data.source}: columns, units and counts are for files and frames, not Observations")
            return data
        if not isinstance(data, str | Path):
            return cls.from_frame(data, columns=columns, units=units, counts=counts)
        if isinstance(data, Path) or Path(data).suffix or is_file(data):
            return cls.read(data, columns=columns, units=units, counts=counts)
        from loopscale.fitting.data.public import named_sweep  # which reads observations

        return named_sweep(data)

    @classmethod
    def from_columns(cls, columns: Mapping[str, Sequence[Any]], source: str, counts: Counting | str) -> Observations:
        """Take named columns of equal length, as :meth:`columns` returns them."""
        table = {name: list(column) for name, column in columns.items()}
        return cls._of(read_rows(table, {}, {}, source), source, counts)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        columns: Mapping[str, str] | None = None,
        units: Mapping[str, float] | None = None,
        source: str = "frame",
        counts: Counting | str | None = None,
    ) -> Observations:
        """Take any frame that narwhals knows: pandas, polars, pyarrow.

        ``columns`` says which column holds a field where its name does not, as in ``{"loss": "c4_en"}``; ``units``
        what a count is in, as in ``{"active": 1e9}``, where neither the header nor the magnitude tells.
        """
        return cls._of(read_rows(frame_columns(frame, source), columns or {}, units or {}, source), source, counts)

    @classmethod
    def read(
        cls,
        path: str | Path,
        *,
        columns: Mapping[str, str] | None = None,
        units: Mapping[str, float] | None = None,
        counts: Counting | str | None = None,
    ) -> Observations:
        """Read a ``.csv``, ``.csv.gz``, ``.tsv`` or ``.parquet`` file; options as for :meth:`from_frame`."""
        return cls._of(read_rows(read_columns(path), columns or {}, units or {}, str(path)), str(path), counts)

    @classmethod
    def from_csv(
        cls,
        text: str,
        *,
        source: str = "runs.csv",
        counts: Counting | str | None = None,
        columns: Mapping[str, str] | None = None,
    ) -> Observations:
        """Read the text of a CSV file; ``source`` names it in errors, ``columns`` the columns of fields."""
        return cls._of(read_rows(csv_columns(text, source), columns or {}, {}, source), source, counts)

    def columns(self) -> dict[str, list[Any]]:
        """Return the rows under names that :meth:`read` knows, in raw counts."""
        p = self.points
        columns: dict[str, Any] = {"run": self.run, "N_act (raw)": p.active, "E": p.experts, "R": p.recurrence}
        columns |= {} if p.loop is None else {"N_loop (raw)": p.loop}
        columns |= {} if p.total is None else {"N_total (raw)": p.total}
        columns |= {} if p.unique_tokens is None else {"unique_tokens (raw)": p.unique_tokens}
        columns |= {"D (raw)": p.tokens, "bpb" if self.loss_unit == "bits per byte" else "loss": self.loss}
        columns |= {} if self.finished is None else {"finished": self.finished}
        columns |= {} if self.weight is None else {"weight": self.weight}
        return {name: np.asarray(column).tolist() for name, column in columns.items()}

    def csv(self) -> str:
        """Return the rows as CSV text that :meth:`from_csv` reads."""
        return Table(self.columns()).csv()

    def to_csv(self, path: str | Path) -> None:
        """Write the rows as :meth:`read` reads them."""
        Table(self.columns()).save(path)

    @classmethod
    def _of(cls, rows: Rows, source: str, counts: Counting | str | None) -> Observations:
        kind = counts if isinstance(counts, Counting | None) else choice(Counting, counts, "counts")
        return cls(
            rows.points, rows.loss, rows.run, source, kind or Counting.WITHOUT_EMBEDDINGS, rows.notes, rows.finished,
            rows.weight, rows.loss_unit, kind is None and not rows.non_embedding, rows.extra,
        )  # fmt: skip
