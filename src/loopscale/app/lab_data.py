"""The lab's trained model and its two-axes result, as a script that the page loads when its Lab view is opened."""

from __future__ import annotations

import base64
import csv
import json
import struct
from itertools import permutations
from pathlib import Path
from typing import Any

import loopscale

NEEDED = {
    "num_experts": 1, "prelude_layers": 0, "coda_layers": 0, "injection": "normed", "pass_attention": "shared",
    "pass_norms": False, "residual_scale": "none", "dtype": "float32",
}  # fmt: skip
"""What the small forward of ``lab.js`` can run; the shipped model is of this kind."""
CELLS = ("plain", "experts", "loop", "both", "layers", "plain-longer")
"""Cells of the two-axes experiment that the page draws, in this order."""


def lab_script() -> str:
    """Return the script."""
    return f"window.LOOPSCALE_LAB = {json.dumps(lab_data(), separators=(',', ':'))};\n"


def lab_data() -> dict[str, Any]:
    """Return the model's weights, its words, the group's table, and the runs of the two-axes experiment."""
    elements = list(permutations(range(3)))
    products = [[elements.index(tuple(after[image] for image in first)) for after in elements] for first in elements]
    folder = Path(loopscale.__file__).parent / "lab" / "data"  # importing the lab would import torch
    config = json.loads((folder / "s3" / "config.json").read_text(encoding="utf-8"))
    for name, value in NEEDED.items():
        if config[name] != value:
            raise ValueError(f"the page cannot run a model with {name} = {config[name]}")
    rows = list(csv.DictReader((folder / "two-axes.csv").read_text(encoding="utf-8").splitlines()))
    return {
        "config": {
            "width": config["hidden_size"],
            "heads": config["num_attention_heads"],
            "layers": config["loop_layers"],
            "eps": config["rms_norm_eps"],
            "theta": config["rope_parameters"]["rope_theta"],
            "trained": config["recurrence"],
        },
        "words": ["".join(str(point + 1) for point in element) for element in elements],
        "products": products,
        "weights": weights((folder / "s3" / "model.safetensors").read_bytes()),
        "cells": {cell: _cell_name(cell, rows) for cell in CELLS},
        "runs": [
            {"task": row["task"], "cell": row["cell"], "seed": int(row["seed"]), "accuracy": float(row["accuracy"]),
             "chance": float(row["chance"])}
            for row in rows if row["cell"] in CELLS
        ],
    }  # fmt: skip


def _cell_name(cell: str, rows: list[dict[str, str]]) -> str:
    """Name a cell by what it has more of than the plain model."""
    row = next(row for row in rows if row["cell"] == cell)
    plain = next(other for other in rows if other["cell"] == "plain" and other["task"] == row["task"])
    times = int(row["steps"]) // int(plain["steps"])
    more = [
        f"{number} {what}"
        for name, what in (("experts", "experts"), ("recurrence", "passes"), ("layers", "layers"))
        if (number := int(row[name])) > 1
    ]
    return " and ".join(more) or ("one layer" if times == 1 else f"one layer, {times}x steps")


def weights(content: bytes) -> dict[str, dict[str, Any]]:
    """Return the tensors of a safetensors file in single precision, each as base64 with its shape."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "F32":
            raise ValueError(f"{name} is {entry['dtype']}; the page reads F32")
        start, end = (8 + length + offset for offset in entry["data_offsets"])
        tensors[name] = {"shape": entry["shape"], "data": base64.b64encode(content[start:end]).decode()}
    return tensors
