"""``loopscale export``."""

from __future__ import annotations

from pathlib import Path

import click

from loopscale.cli.checkpoint import model_folder, tokenizer_option
from loopscale.cli.output import say, say_facts
from loopscale.cli.params import WHOLE
from loopscale.cli.verbs import verb
from loopscale.cli.writing import new_folder, written_whole
from loopscale.core.errors import InputError
from loopscale.core.quantities import format_bytes

FORMS = ("unrolled", "gguf", "onnx", "pt2", "mlx", "transformers")
FILES = ("gguf", "onnx", "pt2")
"""Forms that are one file; the others are a folder."""


@verb("export")
@click.argument("model", type=click.Path())
@click.option("--to", "form", type=click.Choice(FORMS), required=True, help="The form to write.")
@click.option("-R", "--recurrence", type=WHOLE, help="Passes to write out.  [default: the model's own]")
@click.option("--quant", help="Weights of GGUF: f32, f16, q8_0, q4_k_m and others.  [default: f16]")
@click.option("--packages", type=click.Path(), help="For q4_k_m and its kind: the folder with node-llama-cpp.")
@tokenizer_option
@click.option("--out", type=click.Path(), required=True, help="A new folder; for GGUF, ONNX and pt2 a new file.")
def export_command(
    model: str,
    form: str,
    recurrence: int | None,
    quant: str | None,
    packages: str | None,
    tokenizer: str | None,
    out: str,
) -> None:
    """Write a model for other engines.

    MODEL is a run folder, a model folder, or "demo". "unrolled" is a plain Hugging Face checkpoint: Llama for dense
    models, GLM4-MoE for experts, or the family that the model was converted from. "gguf" is the same for llama.cpp.
    In both, every pass becomes separate layers, so the file grows with R. "onnx" is a graph from token ids to logits,
    without a cache, and "pt2" the same as a program of torch.export. "mlx" is the looped model for MLX and mlx-lm,
    with a small model file. "transformers" is the looped model itself with its code, which loads where loopscale is
    not installed.

    \b
    loopscale export demo --to unrolled -R 4 --out models/unrolled
    loopscale export demo --to gguf -R 4 --quant q8_0 --out demo-r4.gguf
    loopscale export demo --to onnx -R 2 --out demo-r2.onnx
    loopscale export demo --to mlx --out models/demo-mlx
    loopscale export demo --to transformers --out models/demo
    """
    import torch

    from loopscale.model import loading
    from loopscale.model.export import unroll, write_onnx, write_program
    from loopscale.model.gguf_file import write_gguf
    from loopscale.model.mlx_folder import write_mlx

    if quant is not None and form != "gguf":
        raise click.UsageError(f"--quant is for --to gguf, not {form}")
    is_file = form in FILES
    if is_file and Path(out).exists():
        raise InputError(f"`out` is {out}, which exists; name a new file")
    target = Path(out) if is_file else new_folder(out)
    looped, loaded_tokenizer = loading.load(
        model_folder(model), tokenizer, dtype=torch.float32 if form in ("onnx", "pt2") else None
    )
    R = looped.config.recurrence if recurrence is None else recurrence
    if form in ("unrolled", "gguf"):
        plain = unroll(looped, recurrence)
        what = f"{plain.config.model_type}, {plain.config.num_hidden_layers} layers, R = {R}"
        weights = f"{plain.num_parameters():,}, and {looped.num_parameters():,} before the loop was written out"
        saved = plain
    else:
        what, weights = f"looped_moe, R = {R}", f"{looped.num_parameters():,}"
        saved = looped
    with written_whole(target) as written:
        if form == "gguf":
            write_gguf(plain, loaded_tokenizer, written, quant or "f16", packages)
        elif form == "onnx":
            write_onnx(looped, written, recurrence)
        elif form == "pt2":
            write_program(looped, written, recurrence)
        elif form == "mlx":
            write_mlx(looped, written, recurrence)
            loaded_tokenizer.save_pretrained(written)
        else:
            if form == "transformers":
                looped.config.recurrence = R
            saved.save_pretrained(written)
            loaded_tokenizer.save_pretrained(written)
    files = [target] if is_file else list(target.iterdir())
    say(f"{out}: {what}")
    say_facts({"weights": weights, "on disk": format_bytes(sum(file.stat().st_size for file in files))})
