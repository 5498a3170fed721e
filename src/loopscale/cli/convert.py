"""``loopscale convert``."""

from __future__ import annotations

from typing import Any

import click

from loopscale.cli.output import say, say_facts
from loopscale.cli.params import ACTIVE, WHOLE
from loopscale.cli.verbs import verb
from loopscale.cli.writing import new_folder, written_whole
from loopscale.core.errors import InputError
from loopscale.core.text import warning

SAMPLE = 512
"""Tokens of a text on which layers are compared."""


@verb("convert")
@click.argument("folder", type=click.Path())
@click.option("--prelude", type=click.IntRange(0), help="Layers before the loop.  [default: 2]")
@click.option("--coda", type=click.IntRange(0), help="Layers after the loop.  [default: 2]")
@click.option("--loop", type=WHOLE, help="Loop so many layers, those that change the states of --text least.")
@click.option("--text", type=click.Path(), help="With --loop: a text file to measure on, one passage on each line.")
@click.option("-R", "--recurrence", type=WHOLE, default=4, show_default=True, help="Passes through the loop.")
@click.option("--experts", type=WHOLE, default=1, show_default=True, help="E: copies of a dense block per active one.")
@click.option("--active-experts", type=ACTIVE, default=2, show_default=True, help="k: experts a token uses.")
@click.option(
    "--noise",
    type=click.FloatRange(0, 1),
    default=0.0,
    help="Noise that makes the copies differ, as a share of the weights' spread, like 0.1.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="For the routers of new experts, and the noise.")
@click.option("--out", type=click.Path(), required=True, help="Where the looped model goes: a new folder.")
def convert_command(
    folder: str,
    prelude: int | None,
    coda: int | None,
    loop: int | None,
    text: str | None,
    recurrence: int,
    experts: int,
    active_experts: int,
    noise: float,
    seed: int,
    out: str,
) -> None:
    """Turn a pretrained model into a looped one, equal at R = 1.

    FOLDER has the config.json and safetensors of a Llama, Mistral, Qwen2, Qwen3, Qwen3-MoE, OLMoE or Mixtral; a GGUF
    file that Transformers reads will do too. The first layers become the prelude, the last ones the coda, and those
    between are looped. With --experts every dense block becomes copies of itself behind a new router.

    \b
    loopscale convert models/smollm --prelude 10 --coda 10 -R 2 --out models/looped
    loopscale convert models/smollm --loop 4 --text sample.txt -R 2 --out models/looped
    loopscale convert models/smollm --experts 4 --out models/looped-moe
    """
    from loopscale.model.retrofit import load_pretrained, retrofit

    target = new_folder(out)
    if (loop is None) != (text is None) or (loop is not None and (prelude is not None or coda is not None)):
        raise click.UsageError("give --loop with --text, or --prelude and --coda")
    original, tokenizer = load_pretrained(folder)
    before, after = 2 if prelude is None else prelude, 2 if coda is None else coda
    if loop is not None and text is not None:
        before = _choose(original, tokenizer, loop, text)
        after = original.config.num_hidden_layers - loop - before
    looped = retrofit(original, before, after, recurrence, experts, active_experts, seed, noise, where=folder)
    with written_whole(target) as written:
        looped.save_pretrained(written)
        if tokenizer is not None:
            tokenizer.save_pretrained(written)
    config = looped.config
    parts = f"{config.prelude_layers} + {config.loop_layers} x {recurrence} + {config.coda_layers}"
    say(f"{out}: a looped model of {looped.num_parameters():,} parameters, {parts} layers")
    routed = f"{config.num_experts}, of which a token uses {config.num_experts_per_tok}" if config.is_moe else ""
    say_facts({"experts": routed, "near" if noise else "equal to": f"{folder} at R = 1; more passes need training"})
    if tokenizer is None:
        click.echo("\n".join(warning("no tokenizer found", "save one beside the model")))
    else:
        click.echo(f'Next: loopscale generate {out} --prompt "It was" --recurrence 1..{recurrence}')


def _choose(original: Any, tokenizer: Any, loop: int, text: str) -> int:
    """Return the layers before the loop that changes the states of a text least."""
    import torch

    from loopscale.model.prompts import read_prompts
    from loopscale.model.retrofit import most_similar

    if tokenizer is None:
        raise InputError("`text` needs the model's tokenizer, and none was found")
    ids = [token for line in read_prompts(text) for token in tokenizer(line)["input_ids"]][:SAMPLE]
    if len(ids) < 2:
        raise InputError(f"`text` {text}: it has fewer than 2 tokens")
    before, _ = most_similar(original, torch.tensor([ids]), loop)
    return before
