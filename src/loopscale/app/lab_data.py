"""The lab's trained models and its two-axes result, as scripts that the page loads when its Lab view shows them."""

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
    "prelude_layers": 0, "coda_layers": 0, "injection": "diagonal", "pass_attention": "shared",
    "pass_norms": False, "residual_scale": "none", "dtype": "float32",
    "norm_topk_prob": True, "routed_scaling_factor": 1.0, "pass_router": False, "bias_passes": None,
    "shared_expert_intermediate_size": 0, "router_score": "sigmoid",
}  # fmt: skip
"""What the small forward of ``looped.js`` can run; the shipped models are of this kind."""
MODELS = {"s3": 12, "s3-experts": 6}
"""The shipped models, and the length of the words that they were trained on."""
FOLDER = Path(loopscale.__file__).parent / "lab" / "data"  # importing the lab would import torch
CELLS = ("plain", "experts", "loop", "both", "layers", "plain-longer")
"""Cells of the two-axes experiment that the page draws, in this order."""


def lab_script() -> str:
    """Return the script of the Lab view with its first model."""
    return f"window.LOOPSCALE_LAB = {json.dumps(lab_data(), separators=(',', ':'))};\n"


def experts_script() -> str:
    """Return the script of the model with experts."""
    return f"window.LOOPSCALE_LAB_EXPERTS = {json.dumps(model_data('s3-experts'), separators=(',', ':'))};\n"


def lab_data() -> dict[str, Any]:
    """Return the first model, the words, the group's table, and the runs of the two-axes experiment."""
    elements = list(permutations(range(3)))
    products = [[elements.index(tuple(after[image] for image in first)) for after in elements] for first in elements]
    rows = list(csv.DictReader((FOLDER / "two-axes.csv").read_text(encoding="utf-8").splitlines()))
    return {
        "model": model_data("s3"),
        "words": ["".join(str(point + 1) for point in element) for element in elements],
        "products": products,
        "cells": {cell: _cell_name(cell, rows) for cell in CELLS},
        "runs": [
            {"task": row["task"], "cell": row["cell"], "seed": int(row["seed"]), "accuracy": float(row["accuracy"]),
             "chance": float(row["chance"])}
            for row in rows if row["cell"] in CELLS
        ],
    }  # fmt: skip


def model_data(name: str) -> dict[str, Any]:
    """Return a shipped model's weights, and what its forward needs to know."""
    config = json.loads((FOLDER / name / "config.json").read_text(encoding="utf-8"))
    for key, value in NEEDED.items():
        if config.get(key, value) != value:
            raise ValueError(f"the page cannot run a model with {key} = {config[key]}")
    return {
        "config": {
            "width": config["hidden_size"],
            "heads": config["num_attention_heads"],
            "layers": config["loop_layers"],
            "eps": config["rms_norm_eps"],
            "theta": config["rope_parameters"]["rope_theta"],
            "experts": config["num_experts"],
            "used": config["num_experts_per_tok"],
            "trained": config["recurrence"],
            "trainedLength": MODELS[name],
        },
        "weights": weights((FOLDER / name / "model.safetensors").read_bytes()),
    }


def _cell_name(cell: str, rows: list[dict[str, str]]) -> str:
    """Name a cell by what it has more of than the plain model."""
    row = next(row for row in rows if row["cell"] == cell)
    plain = next(other for other in rows if other["cell"] == "plain" and other["task"] == row["task"])
    times = int(row["steps"]) // int(plain["steps"])
    more = [
        f"{number}{what}"
        for name, what in (("experts", "x experts"), ("recurrence", " passes"), ("layers", " layers"))
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
