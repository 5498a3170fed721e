"""What the paper prints and we can look up or count: ladder, settings, benchmarks, scores, expert-path diversity."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import loopscale
from loopscale.architecture import RUNG_EXPERTS, RUNG_RECURRENCES, RUNGS, ladder_space, rung
from loopscale.architecture.layers import Attention
from loopscale.cli.reproduction.line import Line, claim, number
from loopscale.core.files import read_toml
from loopscale.evaluate.suites import load_suite
from loopscale.planning import plan
from loopscale.planning.budget import Budget
from loopscale.planning.compute import flops_of
from loopscale.planning.recipes import RECIPES
from loopscale.scaling import PAPER

SWEEP = Path(loopscale.__file__).parent / "sweep" / "configs" / "paper.toml"
"""The shipped sweep; its package needs the extra ``train``, the file does not."""


def ladder() -> Iterator[Line]:
    """Yield the model ladder, counted by the paper's formulas, and the sizes again with routers."""
    table = PAPER["ladder"]
    where, near = table["where"], "within 0.0004 B of the rounding boundary: with routers it is the printed number"
    for name, row in table["rungs"].items():
        model = rung(name)
        attention = model.prelude[0].layer.attention
        assert isinstance(attention, Attention)
        counts = {"width": model.width, "heads": attention.heads, "layers": model.layers,
                  "looped_layers": model.loop_block[0].count}  # fmt: skip
        for field, ours in counts.items():
            yield number(where, f"{name} {field.replace('_', ' ')}", row[field], ours)
        yield number(where, f"{name} layers outside the loop", row["layers"] - row["looped_layers"],
                     model.layers - model.loop_block[0].count)  # fmt: skip
        yield number(where, f"{name} KV heads", table["kv_heads"], attention.kv_heads)
        yield number(where, f"{name} size of a head", table["head_size"], model.width // attention.heads)
        yield number(where, f"{name} N_act (B)", float(name[:-1]), (model.active + model.embedding) / 1e9, 1)
        for routers in (False, True):
            suffix = ", with routers" if routers else ""
            fewest = rung(name, experts=2)  # the fewest experts that need a router
            looped = fewest.router * fewest.loop_block[0].count / fewest.layers
            loop = model.loop + (looped if routers else 0)
            yield number(where, f"{name} N_loop (B){suffix}", row["loop"], loop / 1e9, 1, near)
            for E, printed in zip(table["experts"], row["total"], strict=True):
                size = rung(name, experts=E)
                total = (size.total + size.embedding + (size.router if routers else 0)) / 1e9
                yield number(where, f"{name} N_total at E={E} (B){suffix}", printed, total, 1, near)


def settings() -> Iterator[Line]:
    """Yield the sweep's grid, the design space and the training settings, against the shipped recipe and sweep."""
    grid, recipe = read_toml(SWEEP), RECIPES["paper"]
    sweep, space, training = PAPER["sweep"], PAPER["design_space"], PAPER["training"]
    for axis, ours in grid["grid"].items():
        yield Line(sweep["where"], f"sweep over {axis}", ", ".join(map(str, sweep[axis])), ", ".join(map(str, ours)))
    held_out = grid["runs"][0]["recurrence"]
    yield number(sweep["where"], "held-out recurrence", sweep["held_out_recurrence"], held_out)
    count = float(np.prod(ladder_space().shape))
    yield number(space["where"], "candidates of the design space", space["candidates"], count)
    for axis, ours in (("sizes", RUNGS), ("experts", RUNG_EXPERTS), ("recurrences", RUNG_RECURRENCES)):
        yield number(space["where"], f"{axis} of the design space", space[axis], len(ours))
    tokens = training["batch"] * training["context"] / 1e6
    yield number(training["where"], "tokens per batch (millions)", training["batch_tokens_millions"], tokens, 2)
    model, optimizer = recipe["model"], recipe["optimizer"]
    base = grid["base"]
    values: dict[str, Any] = {
        "batch": recipe["run"]["batch"], "context": recipe["data"]["context"], "nodes": grid["resources"]["nodes"],
        "gpus": grid["resources"]["nodes"] * grid["resources"]["gpus"], "beta1": optimizer["betas"][0],
        "beta2": optimizer["betas"][1], "eps": optimizer["eps"], "weight_decay": optimizer["weight_decay"],
        "clip": optimizer["clip"], "z_loss": model["router_z_loss_coef"], "bias_rate": model["bias_update_rate"],
        "capacity": model["capacity_factor"], "vocabulary_thousands": base["model"]["vocab_size"] / 1e3,
        "dispatch": base["model"]["dispatch"],
    }  # fmt: skip
    for name, ours in values.items():
        what = f"training: {name.replace('_', ' ')}"
        if isinstance(ours, str):
            yield Line(training["where"], what, training[name], ours)
        else:
            yield number(training["where"], what, training[name], ours, 0 if name == "vocabulary_thousands" else None)


def benchmarks() -> Iterator[Line]:
    """Yield shots and metric of each benchmark, against the suite ``paper``."""
    table, suite = PAPER["benchmarks"], {one.label: one for one in load_suite("paper").benchmarks}
    for label, (category, task, shots, metric) in table["rows"].items():
        ours = suite[label]
        yield Line(table["where"], f"{label}: shots", shots, ours.shots or 0)
        yield Line(table["where"], f"{label}: metric", metric, (ours.metric or "").removesuffix(",none"),
                   "" if metric == (ours.metric or "").removesuffix(",none") else
                   "the same metric; lm-eval names the filter that strips spaces")  # fmt: skip
        yield Line(table["where"], f"{label}: lm-eval task and category", f"{task}, {category}",
                   f"{ours.task}, {ours.category}")  # fmt: skip


def downstream() -> Iterator[Line]:
    """Yield the case study: what the law selects, what follows from printed scores, and the scores."""
    yield from _case_study()
    table = PAPER["downstream"]
    first = next(row for row in table["rows"] if row["recurrence"] == 1 and "Loop" in row["model"])
    for row in table["rows"]:
        name = f"{row['model']} R={row['recurrence']}"
        mean = float(f"{np.mean(row['scores']):.6g}")
        # Scores and mean are each rounded to 0.1, so that the two may differ by up to 0.1.
        yield Line(table["where"], f"{name}: Overall, from the printed scores", row["overall"], mean, tolerance=0.1)
        if row["gain"] is not None:
            gain = round(row["overall"] - first["overall"], 4)
            yield number(table["where"], f"{name}: gain over R = 1", row["gain"], gain, 1)
    why = "needs the trained models of the case study (3T and 6T tokens)"
    for row in table["rows"]:
        for task, score in zip(table["tasks"], row["scores"], strict=True):
            yield Line(table["where"], f"{row['model']} R={row['recurrence']}: {task}", score, None, why)


def _case_study() -> Iterator[Line]:
    case, table = PAPER["case_study"], PAPER["downstream"]
    experts = case["experts"]
    small, large = rung(case["target"], experts), rung(case["reference"], experts)
    flops = flops_of(large, case["reference_tokens_trillions"] * 1e12)
    chosen = plan(Budget(flops=flops), ladder_space([case["target"]], [experts])).choice
    yield number(case["where"], "case study: R*", case["recurrence"], chosen.recurrence)
    yield number(case["where"], "case study: tokens (T)", case["target_tokens_trillions"], chosen.tokens / 1e12, 0)
    note = "6 N_act D without embeddings at 6T tokens; the paper says approximately"
    yield number(case["where"], "case study: compute (1e22 FLOPs)", case["flops_1e22"], flops / 1e22, 1, note)
    total = (large.total + large.embedding) / (small.total + small.embedding)
    active = (large.active + large.embedding) / (small.active + small.embedding)
    yield number(case["where"], "case study: ratio of total parameters, about", case["size_ratio"], total, 0)
    yield number(case["where"], "case study: ratio of active parameters, about", case["size_ratio"], active, 0)
    for name, model, printed in (
        ("target", small, case["target_total"]),
        ("reference", large, case["reference_total"]),
    ):
        yield number(case["where"], f"case study: N_total of the {name} (B)", printed,
                     (model.total + model.embedding) / 1e9, 1)  # fmt: skip
    for row in table["rows"]:
        model = small if row["model"].startswith("A0.3B") else large
        ratio = float(model.inference_flops_per_token(row["recurrence"]) / large.inference_flops_per_token(1))
        what = f"{row['model']} R={row['recurrence']}: inference ratio"
        yield number(table["where"], what, row["inference_ratio"], ratio, 1)


def path_diversity() -> Iterator[Line]:
    """Yield Psi and its deviations: one by definition, the rest from checkpoints; and what must hold of any Psi."""
    table = PAPER["path_diversity"]
    where = table["where"]
    for E, means, spreads in zip(table["experts"], table["mean"], table["deviation"], strict=True):
        for R, mean, spread in zip(table["recurrences"], means, spreads, strict=True):
            exact = E == 1 or R == 1
            note = "by definition: one pass, or one expert" if exact else "needs the trained checkpoints and prompts"
            yield Line(where, f"Psi at E={E}, R={R}", mean, 1.0 if exact else None, note)
            yield Line(where, f"std of Psi at E={E}, R={R}", spread, 0.0 if exact else None, note)
    psi = np.array(table["mean"])
    highest = np.minimum.outer(np.array(table["experts"], float), np.array(table["recurrences"], float))
    inside = (psi >= 1) & (psi <= highest)
    yield claim(where, "1 <= Psi <= min(E, R)", "by definition", int(inside.sum()), inside.size)
    for what, steps in (("R", np.diff(psi, axis=1)), ("E", np.diff(psi, axis=0))):
        yield claim(where, f"Psi never falls with {what}", "holds", int((steps >= 0).sum()), steps.size)
