"""``loopscale export``."""

from __future__ import annotations

from pathlib import Path

import click

from loopscale.cli.checkpoint import model_folder
from loopscale.cli.convert import new_folder
from loopscale.cli.output import console
from loopscale.cli.params import WHOLE
from loopscale.cli.verbs import verb
from loopscale.core.errors import InputError
from loopscale.core.quantities import format_bytes


@verb("export")
@click.argument("model", type=click.Path())
@click.option("--to", "form", type=click.Choice(("unrolled", "gguf")), required=True, help="The form to write.")
@click.option("-R", "--recurrence", type=WHOLE, help="Passes to write out.  [default: the model's own]")
@click.option(
    "--quant", type=click.Choice(("f32", "f16", "q8_0")), default="f16", show_default=True, help="Matrices in GGUF."
)
@click.option("--tokenizer", help="A tokenizer's folder.  [default: the model's]")
@click.option("--out", type=click.Path(), required=True, help="A new folder, or for GGUF a new file.")
def export_command(model: str, form: str, recurrence: int | None, quant: str, tokenizer: str | None, out: str) -> None:
    """Write a model for other engines, with its loop unrolled.

    MODEL is a run folder, a model folder, or "demo". "unrolled" is a plain Hugging Face checkpoint: Llama for dense
    models, GLM4-MoE for experts, or the family that the model was converted from. "gguf" is the same for llama.cpp.
    Every pass becomes layers of its own, so the file grows with R.

    \b
    loopscale export demo --to unrolled -R 4 --out models/unrolled
    loopscale export demo --to gguf -R 4 --quant q8_0 --out demo-r4.gguf
    """
    from loopscale.model import loading
    from loopscale.model.export import unroll
    from loopscale.model.gguf_file import write_gguf

    if form == "gguf" and Path(out).exists():
        raise InputError(f"`out` is {out}, which exists; name a new file")
    target = Path(out) if form == "gguf" else new_folder(out)
    looped, loaded_tokenizer = loading.load(model_folder(model), tokenizer)
    plain = unroll(looped, recurrence)
    if form == "gguf":
        write_gguf(plain, loaded_tokenizer, target, quant)
        size = target.stat().st_size
    else:
        plain.save_pretrained(target)
        loaded_tokenizer.save_pretrained(target)
        size = sum(file.stat().st_size for file in target.iterdir())
    R = looped.config.recurrence if recurrence is None else recurrence
    screen = console()
    screen.print(f"{out}: {plain.config.model_type}, {plain.config.num_hidden_layers} layers, R = {R}", highlight=False)
    screen.print(
        f"size    {format_bytes(size)}; {plain.num_parameters():,} parameters, "
        f"{looped.num_parameters():,} before the loop was written out",
        highlight=False,
    )
