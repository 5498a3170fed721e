"""Named training settings: what a recipe sets, and the numbers of the paper's that plans count with."""

from __future__ import annotations

from typing import Any

import numpy as np

from loopscale.architecture import Architecture

RECIPES: dict[str, dict[str, dict[str, Any]]] = {
    "none": {},
    "paper": {
        "model": {
            "dispatch": "drop-and-pad",
            "capacity_factor": 1.5,
            "router_z_loss_coef": 1e-4,
            "bias_update_rate": 1e-3,
            "injection": "none",
        },
        "data": {"context": 2048},
        "optimizer": {
            "learning_rate": 5e-3,
            "width_rule": "mup",
            "base_width": 64,
            "recurrence_rule": 0.1,
            "betas": [0.9, 0.95],
            "eps": 1e-15,
            "weight_decay": 0.1,
            "clip": 1.0,
        },
        "schedule": {"kind": "wsd", "warmup_steps": 2000},
        "run": {"batch": 3072, "accumulate": "auto", "precision": "bf16", "compile": "auto"},
    },
}
"""Values that a recipe sets; those of the file come before them. The learning rate and the schedule are not the
paper's, which prints none: the rate falls with the width, and with R to the power 0.1, as in our own searches
(docs/micro-sweep-2.md)."""
RECIPES["paper-supervised"] = {
    **RECIPES["paper"],
    "model": {**RECIPES["paper"]["model"], "loop_loss_weights": [1.0]},
}
RECIPE_NOTES = {
    "paper": "The paper's training recipe: drop-and-pad at capacity 1.5, batches of 3,072 x 2,048 tokens, AdamW 0.9 / "
    "0.95 / 1e-15 with decay 0.1, bf16 with fp32 weights, z-loss 1e-4, bias rate 1e-3, no injection. The schedule (wsd "
    "with 2,000 steps of warm-up) and the learning-rate rule are ours: our searches at widths 16 to 32 and up to four "
    "passes give width^-0.85 (90%: -1.14 to -0.60) and R^-0.09 (-0.15 to -0.00), from one seed; at the paper's widths "
    "it is an extrapolation.",
    "paper-supervised": "The same with a loss after every pass, all weighted equally, for models that run at any R.",
}

PAPER_RECIPE = RECIPES["paper"]
CONTEXT: int = PAPER_RECIPE["data"]["context"]
"""Tokens of a training sequence that real costs are counted at."""
CAPACITY: float = PAPER_RECIPE["model"]["capacity_factor"]
"""Rows that an expert computes for each routed one, in training with drop-and-pad."""
BATCH: int = PAPER_RECIPE["run"]["batch"]


def padding(model: Architecture, capacity: float) -> Any:
    """Return how many rows drop-and-pad computes for each routed one; a capacity of E holds every row."""
    return np.minimum(capacity, model.experts)
