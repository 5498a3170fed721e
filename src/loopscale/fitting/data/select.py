"""Choose rows: of a sweep, by an expression or the best over hyper-parameters; of published files, to make a sweep."""

from __future__ import annotations

import ast
import csv
import io
import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from loopscale.core.arrays import BoolArray, IntArray
from loopscale.core.errors import InputError, nearest, shown

Columns = Mapping[str, Any]
Rows = list[dict[str, Any]]

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Pow: operator.pow, ast.Mod: operator.mod, ast.USub: operator.neg, ast.UAdd: operator.pos,
    ast.Not: np.logical_not, ast.And: np.logical_and, ast.Or: np.logical_or,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "log": np.log, "log10": np.log10, "exp": np.exp, "sqrt": np.sqrt, "abs": np.abs
}  # fmt: skip
_SUFFIX = re.compile(r"(?<![\w.])([0-9]+(?:\.[0-9]+)?)([kKmMbBtT])\b")
_SCALE = {"k": "e3", "m": "e6", "b": "e9", "t": "e12"}
_SINGLE_EQUALS = re.compile(r"(?<![<>=!])=(?!=)")


def matching_rows(expression: str, columns: Columns) -> BoolArray:
    """Return the mask of the rows for which an expression like ``D/N >= 20 and width == 512`` holds.

    Names are columns; counts may be written like ``1B``. Arithmetic, comparisons, and, or, not and a few functions
    are evaluated; anything else in the text is refused.
    """
    count = len(next(iter(columns.values())))
    text = _SINGLE_EQUALS.sub("==", _SUFFIX.sub(lambda m: m[1] + _SCALE[m[2].lower()], expression))
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _refused(expression, "it is not an expression") from None
    with np.errstate(all="ignore"):
        try:
            value = _value(tree.body, expression, columns)
        except (TypeError, np.exceptions.DTypePromotionError):
            raise _refused(expression, "it compares text with a number") from None
        except RecursionError:
            raise _refused(expression, "it is nested too deeply") from None
    mask = np.broadcast_to(np.asarray(value), (count,))
    if mask.dtype != bool:
        raise _refused(expression, "it is a number, not a condition")
    if not mask.any():
        raise InputError(f"{shown(expression)} keeps no row of {count}")
    return np.array(mask)


def _value(node: ast.AST, expression: str, columns: Columns) -> Any:
    match node:
        case ast.Constant(value=int() | float() | str() as value) if not isinstance(value, bool):
            return float(value) if isinstance(value, int) else value
        case ast.Name(id=name):
            return _column(name, expression, columns)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, expression, columns), _value(right, expression, columns))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(operand, expression, columns))
        case ast.BoolOp(op=op, values=values):
            parts = [_value(part, expression, columns) for part in values]
            result = parts[0]
            for part in parts[1:]:
                result = _OPERATORS[type(op)](result, part)
            return result
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _OPERATORS for op in ops):
            terms = [_value(term, expression, columns) for term in (left, *others)]
            pairs = zip(ops, terms[:-1], terms[1:], strict=True)
            return np.logical_and.reduce([_OPERATORS[type(op)](one, two) for op, one, two in pairs])
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](_value(argument, expression, columns))
    raise _refused(expression, f"{shown(ast.unparse(node))} is not allowed in it")


def _column(name: str, expression: str, columns: Columns) -> Any:
    if name in columns:
        return columns[name]
    raise InputError(
        f"{shown(expression)}: there is no column {shown(name)}{nearest(name, columns)}; "
        f"columns are {', '.join(columns)}"
    )


def _refused(expression: str, reason: str) -> InputError:
    return InputError(f"{shown(expression)} cannot select rows: {reason}; write it like D/N >= 20 and N > 100M")


def best_rows(groups: Any, loss: Any) -> IntArray:
    """Return, in order, the row with the lowest loss in each group of equal rows of ``groups``."""
    _, which = np.unique(np.asarray(groups), axis=0, return_inverse=True)
    order = np.lexsort((loss, which.reshape(-1)))
    first = np.unique(which.reshape(-1)[order], return_index=True)[1]
    return np.sort(order[first])


def csv_rows(text: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file by column."""
    return list(csv.DictReader(io.StringIO(text)))


def _marin_comma(files: dict[str, str]) -> Rows:
    """Return the IsoFLOP runs; the file also has runs at the predicted optimum, which are not part of the sweep."""
    runs = [row for row in csv_rows(files["isoflop-comma.csv"]) if row["Name"].startswith("isoflop-")]
    tokens, loss = "throughput/total_tokens", "eval/paloma/macro_loss"
    return [
        {"run": number, "params": row["parameter_count"], "tokens": row[tokens], "loss": row[loss]}
        for number, row in enumerate(runs)
    ]


def _misfitting(files: dict[str, str]) -> Rows:
    rows = enumerate(csv_rows(files["isoflops.csv"]))
    return [{"run": number} | {name: row[name] for name in ("params", "tokens", "loss")} for number, row in rows]


def _gemstones(files: dict[str, str]) -> Rows:
    names = {
        "run": "run_name", "params": "params_active_precise", "tokens": "tokens", "loss": "final_loss",
        "width": "width", "depth": "depth",
    }  # fmt: skip
    records = map(json.loads, files["wandb_df_for_fitting_hot.jsonl"].splitlines())
    return [{ours: record[theirs] for ours, theirs in names.items()} for record in records]


def _mlfoundations(files: dict[str, str]) -> Rows:
    """Return one row a model: its loss on C4's validation set among the eight evaluations."""
    rows = []
    for record in map(json.loads, files.values()):
        loss = next(result["loss"] for result in record["results"] if "/c4_val/" in result["val_data"][0])
        size = record["hyperparameters"]
        rows.append({"run": record["name"], "params": size["params"], "tokens": size["tokens"], "loss": loss})
    return rows


_OLMO_PARAMS = {
    "190M": 190354176, "370M": 371262464, "760M": 758220288, "1B": 1279395840, "3B": 3169537280,
    "peteish7": 6887575552, "peteish13": 13202396160,
}  # fmt: skip
"""By the first part of a run's name; the files do not state it."""


def _olmo_ladder(files: dict[str, str]) -> Rows:
    """Return the last evaluation of each run; some of the 7B and 13B files count steps and not tokens."""
    rows = []
    for file in sorted(files):
        last, run = csv_rows(files[file])[-1], file.removesuffix(".csv")
        counted = last.get("throughput/total_tokens")
        tokens = float(counted) if counted else float(last["_step"]) * float(last["batch_size_in_tokens"])
        loss = last["eval/c4_en-validation/CrossEntropyLoss"]
        params = _OLMO_PARAMS[re.split("[-_]", run)[0]]
        rows.append({"run": run, "params": params, "tokens": tokens, "loss": loss})
    return rows


_REPETITION_RUN = re.compile(r"(\d+m|\d+b\d)(.+?)(\d{1,3}[bm]|\db\d{1,2})")
"""Parameters, tokens and unique tokens in a name like 2b855b1b25: 2.8B parameters, 55B tokens, 1.25B of them unique."""


def _datablations(files: dict[str, str]) -> Rows:
    """Return the runs that the notebook plots: no repeats with other seeds, other shapes or deduplicated data.

    Its tables are read as literals; no code of the notebook runs.
    """
    cells = ["".join(cell["source"]) for cell in json.loads(files["return_alloc.ipynb"])["cells"]]
    code = next(cell for cell in cells if "NAMES_TO_VAL_LOSSES = {" in cell)
    assigned = [node for node in ast.parse(code).body if isinstance(node, ast.Assign)]
    tables = {ast.unparse(node.targets[0]): ast.literal_eval(node.value) for node in assigned}
    rows = []
    for run, loss in tables["NAMES_TO_VAL_LOSSES"].items():
        if loss == 0 or re.search("seed|opt|dedup", run):  # a loss of 0 marks a run that did not finish
            continue
        size, tokens, unique = _REPETITION_RUN.fullmatch(run).groups()  # type: ignore[union-attr]
        counts = {"tokens": _tokens_in_name(tokens), "loss": loss, "unique_tokens": _tokens_in_name(unique)}
        rows.append({"run": run, "params": tables["PARAMS_MAP"][size]} | counts)
    return rows


def _tokens_in_name(text: str) -> float:
    """Return 1.5e9 for 1b5, and 1e8 for 100m."""
    return float(text[:-1]) * 1e6 if text.endswith("m") else float(text.replace("b", ".")) * 1e9


CONVERTERS: dict[str, Callable[[dict[str, str]], Rows]] = {
    "datablations": _datablations,
    "gemstones-hot": _gemstones,
    "marin-comma-isoflop": _marin_comma,
    "misfitting-isoflop": _misfitting,
    "mlf-redpajama-c4val": _mlfoundations,
    "olmo-ladder": _olmo_ladder,
}
"""Make the rows of a public sweep from the text of the published files, by file name."""
