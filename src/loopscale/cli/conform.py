"""``loopscale conform``."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from loopscale.cli.checkpoint import model_folder, tokenizer_option
from loopscale.cli.output import print_json, print_table, say
from loopscale.cli.params import INTEGERS, json_option
from loopscale.cli.verbs import verb
from loopscale.core.quantities import counted

SHOWN = 12
ENGINES = ("transformers", "unrolled", "onnx", "torch.export", "mlx", "llama.cpp", "vllm")


@verb("conform")
@click.argument("model", type=click.Path())
@click.option("--write", "target", type=click.Path(), help="Write the golden file of this model.")
@click.option("--golden", "file", type=click.Path(), help="Compare with this golden file.  [default: the model's own]")
@click.option("--engine", type=click.Choice(ENGINES), help="Run this engine here.")
@click.option("--report", "outputs", type=click.Path(), help="Read another engine's report, a file of the same form.")
@click.option("--recurrence", "recurrences", type=INTEGERS, default="1,2,4", show_default=True, help="Recurrences.")
@click.option("--prompts", type=click.Path(), help="One prompt on each line.  [default: 12 included prompts]")
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    default=1e-3,
    show_default=True,
    help="Largest difference, relative to the largest number compared.",
)
@click.option("--packages", type=click.Path(), help="For llama.cpp: the folder with node-llama-cpp.")
@tokenizer_option
@json_option
def conform_command(
    model: str,
    target: str | None,
    file: str | None,
    engine: str | None,
    outputs: str | None,
    recurrences: tuple[int, ...],
    prompts: str | None,
    tolerance: float,
    packages: str | None,
    tokenizer: str | None,
    as_json: bool,
) -> None:
    """Check that an engine computes a looped model, pass by pass.

    MODEL is a run folder, a model folder, or "demo". The golden file has, for each prompt and recurrence, the logits
    of every pass, the experts and the KV cache slot of every (pass, layer), the passes of early exit and the greedy
    tokens. What differs is printed in the order of computation, and the exit code is then 1. The format, for engines
    that are not run here, is in docs/conformance.md.

    \b
    loopscale conform demo --engine unrolled
    loopscale conform demo --write golden.json
    loopscale conform demo --golden golden.json --report my-engine.json
    loopscale conform demo --engine llama.cpp --packages ~/llama
    """
    import torch

    from loopscale.core.files import write_json
    from loopscale.model import conformance, loading
    from loopscale.model.engines import run_engine
    from loopscale.model.prompts import read_prompts

    if (target is None) == (engine is None and outputs is None):
        raise click.UsageError("give --write FILE, or --engine NAME, or --report FILE")
    if target is not None and as_json:
        raise click.UsageError("--json prints what differs; --write compares nothing")
    if engine is not None and outputs is not None:
        raise click.UsageError("give --engine or --report, not both")
    looped, loaded_tokenizer = loading.load(model_folder(model), tokenizer, dtype=torch.float32)
    if file is not None:
        expected = conformance.read_golden(file)
        conformance.check_prompts(looped, expected["prompts"])
    else:
        texts = read_prompts(prompts) if prompts is not None else list(conformance.PROMPTS)
        expected = conformance.golden(looped, [loaded_tokenizer(text)["input_ids"] for text in texts], recurrences)
    if target is not None:
        write_json(target, expected)
        say(f"{target}: {_size(expected)}")
        return
    if outputs is not None:
        reported = conformance.read_golden(outputs)
    else:
        assert engine is not None
        reported = run_engine(engine, looped, expected, loaded_tokenizer, packages)
    differences = conformance.compare(expected, reported, tolerance)
    name = outputs or engine
    if as_json:
        print_json({"kind": "conformity", "engine": name, "differences": [asdict(d) for d in differences]})
    elif not differences:
        parts = [part for part in ("logits", "slots", "experts", "exits", "tokens") if part in reported["runs"][0]]
        say(f"{name} conforms: {_size(reported)}; {', '.join(parts)} compared")
    else:
        say(f"{name} differs, first in the {differences[0]}")
        rows = [
            (d.what, str(d.recurrence), _shown(d.pass_index), d.part, _shown(d.layer), str(d.prompt), f"{d.size:.2g}")
            for d in differences[:SHOWN]
        ]
        more = f", the first {SHOWN} of {len(differences)}" if len(differences) > SHOWN else ""
        columns = ("what", "R", "pass", "part", "layer", "prompt", "difference")
        print_table(f"Differences{more}", columns, rows, left=("what", "part"))
    if differences:
        sys.exit(1)


def _shown(number: int | None) -> str:
    return "" if number is None else str(number)


def _size(data: dict[str, object]) -> str:
    runs = data["runs"]
    assert isinstance(runs, list)
    passes = ", ".join(str(R) for R in dict.fromkeys(run["recurrence"] for run in runs))
    return f"{counted(len({run['prompt'] for run in runs}), 'prompt')} at R = {passes}"
