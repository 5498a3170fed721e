"""``loopscale generate``."""

from __future__ import annotations

from typing import Any

import click
from rich.markup import escape

from loopscale.cli.options import EXITS, INTEGERS, WHOLE
from loopscale.cli.show import print_json, print_table
from loopscale.train.finished import model_of


@click.command("generate")
@click.argument("checkpoint", type=click.Path())
@click.option("--prompt", required=True, help="The text to continue.")
@click.option("--recurrence", "recurrences", type=INTEGERS, help="Recurrences, like 1..5.  [default: the model's own]")
@click.option("--tokens", type=WHOLE, default=40, show_default=True, help="Tokens to generate.")
@click.option("--temperature", type=click.FloatRange(0), default=0.0, show_default=True, help="0 takes the likeliest.")
@click.option("--seed", type=int, default=0, show_default=True, help="For a temperature above 0.")
@click.option("--exit", "criterion", type=EXITS, help="Also stop each token's loop early, by this.")
@click.option("--threshold", type=click.FloatRange(0), default=0.01, show_default=True, help="Change to stop below.")
@click.option("--tokenizer", help="A tokenizer's folder.  [default: the checkpoint]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for other programs.")
def command(
    checkpoint: str,
    prompt: str,
    recurrences: tuple[int, ...] | None,
    criterion: str | None,
    threshold: float,
    tokenizer: str | None,
    as_json: bool,
    **how: Any,
) -> None:
    """Continue a prompt at several recurrences and show the outputs side by side.

    \b
    loopscale generate runs/tiny --prompt "It was" --recurrence 1..5
    loopscale generate runs/tiny --prompt "It was" --exit kl --threshold 0.02
    """
    from loopscale.model import Exit, loading

    if not prompt.strip():
        raise click.UsageError("--prompt is empty; give some text to continue")
    model, words = loading.load(model_of(checkpoint), tokenizer)
    passes = recurrences or (model.config.recurrence,)
    rows = [_continue(model, words, prompt, R, None, **how) for R in passes]
    if criterion is not None:
        rows.append(_continue(model, words, prompt, max(passes), Exit(criterion, threshold), **how))
    if as_json:
        print_json({"kind": "generations", "prompt": prompt, "rows": rows})
        return
    lines = [(row["recurrence"], f"{row['mean_passes']:.2f}", escape(row["text"])) for row in rows]
    print_table(escape(prompt), ("R", "passes", "continuation"), lines, left=("continuation",))


def _continue(
    model: Any, words: Any, prompt: str, recurrence: int, exit_: Any, tokens: int, temperature: float, seed: int
) -> dict[str, Any]:
    import torch

    torch.manual_seed(seed)
    encoded = words([prompt], return_tensors="pt")
    sampling = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
    out = model.generate(
        encoded["input_ids"],
        attention_mask=encoded["attention_mask"],
        max_new_tokens=tokens,
        pad_token_id=words.pad_token_id,
        recurrence=recurrence,
        exit=exit_,
        return_dict_in_generate=True,
        **sampling,
    )
    new = out.sequences[0, encoded["input_ids"].shape[1] :]
    return {
        "recurrence": str(recurrence) if exit_ is None else f"auto ≤ {recurrence}",
        "mean_passes": float(recurrence if exit_ is None else out.passes.double().mean()),
        "text": words.decode(new, skip_special_tokens=True),
    }
