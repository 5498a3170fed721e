"""``loopscale convert``."""

from __future__ import annotations

from pathlib import Path

import click

from loopscale.cli.output import console
from loopscale.cli.params import ACTIVE, WHOLE
from loopscale.cli.verbs import verb
from loopscale.core.errors import InputError
from loopscale.core.quantities import counted


@verb("convert")
@click.argument("folder", type=click.Path())
@click.option("--prelude", type=click.IntRange(0), default=2, show_default=True, help="Layers before the loop.")
@click.option("--coda", type=click.IntRange(0), default=2, show_default=True, help="Layers after the loop.")
@click.option("-R", "--recurrence", type=WHOLE, default=4, show_default=True, help="Passes through the loop.")
@click.option("--experts", type=WHOLE, default=1, show_default=True, help="E: copies of a dense block per active one.")
@click.option("--active-experts", type=ACTIVE, default=2, show_default=True, help="k: experts a token uses.")
@click.option("--seed", type=int, default=0, show_default=True, help="For the routers of new experts.")
@click.option("--out", type=click.Path(), required=True, help="Where the looped model goes: a new folder.")
def convert_command(
    folder: str,
    prelude: int,
    coda: int,
    recurrence: int,
    experts: int,
    active_experts: int,
    seed: int,
    out: str,
) -> None:
    """Turn a pretrained model into a looped one, equal at R = 1.

    FOLDER has the config.json and safetensors of a Llama, Mistral, Qwen2, Qwen3, Qwen3-MoE, OLMoE or Mixtral; a GGUF
    file that Transformers reads will do too. The first layers become the prelude, the last ones the coda, and those
    between are looped. With --experts every dense block becomes copies of itself behind a new router.

    \b
    loopscale convert models/smollm --prelude 10 --coda 10 -R 2 --out models/looped
    loopscale convert models/smollm --experts 4 --out models/looped-moe
    """
    from loopscale.model.retrofit import load_pretrained, retrofit

    target = new_folder(out)
    original, tokenizer = load_pretrained(folder)
    looped = retrofit(original, prelude, coda, recurrence, experts, active_experts, seed, where=folder)
    looped.save_pretrained(target)
    if tokenizer is not None:
        tokenizer.save_pretrained(target)
    config, screen = looped.config, console()
    parts = f"{config.prelude_layers} + {config.loop_layers} x {recurrence} + {config.coda_layers}"
    screen.print(f"{out}: a looped model of {looped.num_parameters():,} parameters, {parts} layers", highlight=False)
    if config.is_moe:
        screen.print(
            f"experts   {config.num_experts}, of which a token uses {config.num_experts_per_tok}", highlight=False
        )
    screen.print(f"equal to  {folder} at R = 1; more passes need training", highlight=False)
    if tokenizer is None:
        screen.print("warning: no tokenizer found\nhelp: save one beside the model", highlight=False)
    else:
        screen.print(
            f'next      loopscale generate {out} --prompt "It was" --recurrence 1..{recurrence}', highlight=False
        )


def new_folder(out: str) -> Path:
    """Return a folder to write to; one that has files is refused."""
    target = Path(out)
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        files = "it is a file" if target.is_file() else f"it has {counted(len(list(target.iterdir())), 'file')}"
        raise InputError(f"`out` is {out}, and {files}; name a new folder")
    return target
