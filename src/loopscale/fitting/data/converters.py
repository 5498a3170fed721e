"""Published files of other people's sweeps, converted to rows; no code of theirs runs."""

from __future__ import annotations

import ast
import csv
import io
import json
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from loopscale.core.arrays import FloatArray

Rows = list[dict[str, Any]]


def csv_rows(text: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file by column."""
    return list(csv.DictReader(io.StringIO(text)))


def numbers(rows: Rows, column: str) -> FloatArray:
    """Return one column of numbers."""
    return np.array([float(row[column]) for row in rows])


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


VOCABULARY = 50_304
"""Of the Q Labs models; their embedding and their output head are separate matrices."""
GROWTH_BATCH = 524_288


def qlabs_geometry(depth: int) -> dict[str, int]:
    """Return the parameter counts of a Q Labs model of so many layers, which its source states in part.

    Layers are 128 times the depth wide, with gated feed-forwards of 8/3 the width rounded up to 256. A third of the
    layers, rounded up from the middle, is the loop.
    """
    width = 128 * depth
    layer = 4 * width**2 + 3 * width * 256 * math.ceil(8 * width / 3 / 256)
    return {
        "N_act": depth * layer,
        "N_total": depth * layer,
        "N_loop": (depth + 2) // 3 * layer,
        "N_embedding": 2 * VOCABULARY * width,
    }


def qlabs_loops_rows(files: dict[str, str]) -> Rows:
    """Make the table of runs at equal compute from tpl.json (passes varied) and tpp.json (sizes varied)."""
    budgets = {int(name): flops for name, flops in json.loads(files["tpl_budgets.json"]).items()}
    varied = [row for row in json.loads(files["tpl.json"]) if row["family"] == "loop"]
    for row in varied:
        row["budget"] = min(budgets, key=lambda name: abs(math.log(budgets[name] / row["C"])))
    rows = [
        _qlabs_run(
            f"tpl-d{row['anchor']}-K{row['k']}-b{row['budget']}", "fixed-anchor K sweep (tied, Operator-1 recipe)",
            row["anchor"], row["k"], row["C"], row["C"] / (6 * row["Nc"]), round(row["L"], 6),
        )
        for row in sorted(varied, key=lambda row: (row["anchor"], row["budget"], row["k"]))
    ]  # fmt: skip
    recipes = {"van": "vanilla", "k1": "operator-1", "k2": "loop-2"}
    for row in json.loads(files["tpp.json"]):
        if row["arm"] in recipes:
            recipe, depth, budget = recipes[row["arm"]], row["depth"], row["budget"]
            run = _qlabs_run(
                f"tpp-{recipe}-d{depth}-b{budget}", f"iso-compute ({recipe}, own recipe)", depth,
                2 if recipe == "loop-2" else 1, row["C"], row["D"], round(row["L"], 7),
            )  # fmt: skip
            rows.append(run | ({"N_loop": 0} if recipe == "vanilla" else {}))
    return rows


def _qlabs_run(
    name: str, group: str, depth: int, passes: int, flops: float, tokens: float, loss: float
) -> dict[str, Any]:
    counts = qlabs_geometry(depth)
    return {
        "run": name, "set": group, "depth": depth, **counts, "E": 1, "R": passes, "D": round(tokens),
        "flops": int(flops), "loss": loss,
    }  # fmt: skip


def qlabs_growth_rows(files: dict[str, str]) -> Rows:
    """Make the table of runs that grow from two to four passes from growth.json."""
    cells = [row for row in json.loads(files["growth.json"]) if row["arm"] == "k2"]
    return [
        {
            "run": f"grow-b{row['budget']:g}-d{row['depth']}-rho{row['rho']:.2f}", "depth": row["depth"],
            **qlabs_geometry(row["depth"]), "E": 1, "R_start": 2, "R_end": 4, "grown": f"{row['rho']:.2f}",
            "D": row["steps"] * GROWTH_BATCH, "loss": round(row["loss"], 6),
        }
        for row in cells
    ]  # fmt: skip


CONVERTERS: dict[str, Callable[[dict[str, str]], Rows]] = {
    "datablations": _datablations,
    "gemstones-hot": _gemstones,
    "marin-comma-isoflop": _marin_comma,
    "misfitting-isoflop": _misfitting,
    "mlf-redpajama-c4val": _mlfoundations,
    "olmo-ladder": _olmo_ladder,
    "qlabs-growth": qlabs_growth_rows,
    "qlabs-loops": qlabs_loops_rows,
}
"""Make the rows of a public sweep from the text of the published files, by file name."""
