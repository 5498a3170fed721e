"""``loopscale generate``."""

from __future__ import annotations

from typing import Any

import click

from loopscale.cli.checkpoint import model_folder, tokenizer_option
from loopscale.cli.output import print_json, print_table, say
from loopscale.cli.params import EXITS, INTEGERS, WHOLE, json_option
from loopscale.cli.verbs import verb
from loopscale.core.quantities import counted


@verb("generate")
@click.argument("checkpoint", type=click.Path())
@click.option("--prompt", required=True, help="The text to continue.")
@click.option("--recurrence", "recurrences", type=INTEGERS, help="Recurrences, like 1..5.  [default: the model's own]")
@click.option("--tokens", type=WHOLE, default=40, show_default=True, help="Tokens to generate.")
@click.option("--temperature", type=click.FloatRange(0), default=0.0, show_default=True, help="0 takes the likeliest.")
@click.option("--seed", type=int, default=0, show_default=True, help="For a temperature above 0.")
@click.option("--exit", "criterion", type=EXITS, help="Also stop each token's loop early, by this criterion.")
@click.option(
    "--threshold", type=click.FloatRange(0), default=0.01, show_default=True, help="Stop when the change is below this."
)
@click.option(
    "--draft-recurrence", "draft", type=WHOLE, help="Draft with so many passes and verify: the same tokens, faster."
)
@click.option(
    "--bits", type=click.Choice(("8", "4")), help="Quantise attention and experts after loading (extra quant)."
)
@tokenizer_option
@json_option
def generate_command(
    checkpoint: str,
    prompt: str,
    recurrences: tuple[int, ...] | None,
    criterion: str | None,
    threshold: float,
    draft: int | None,
    bits: str | None,
    tokenizer: str | None,
    as_json: bool,
    **how: Any,
) -> None:
    """Continue a prompt at several recurrences, side by side.

    CHECKPOINT is a run folder, a model folder, or "demo": a small model that comes with the package.

    \b
    loopscale generate demo --prompt "The state of" --recurrence 1..4
    loopscale generate runs/tiny --prompt "It was" --recurrence 1..5
    loopscale generate runs/tiny --prompt "It was" --exit kl --threshold 0.02
    loopscale generate demo --prompt "The state of" --recurrence 4 --draft-recurrence 1
    """
    from loopscale.model import Exit, loading
    from loopscale.model.quantize import quantize

    if not prompt.strip():
        raise click.UsageError("--prompt is empty; give some text to continue")
    model, loaded_tokenizer = loading.load(model_folder(checkpoint), tokenizer)
    if bits is not None:
        quantize(model.float(), int(bits))  # type: ignore[no-untyped-call]
    passes = recurrences or (model.config.recurrence,)
    if draft is not None and draft >= max(passes):
        raise click.UsageError(f"--draft-recurrence is {draft}; it should be below the recurrence ({max(passes)})")
    if draft is not None and how["temperature"]:
        raise click.UsageError("--draft-recurrence decodes greedily: leave out --temperature")
    rows = [
        _continue(model, loaded_tokenizer, prompt, R, draft=draft if draft is not None and draft < R else None, **how)
        for R in passes
    ]
    if criterion is not None:
        rows.append(_continue(model, loaded_tokenizer, prompt, max(passes), exit_=Exit(criterion, threshold), **how))
    if as_json:
        print_json({"kind": "generations", "prompt": prompt, "rows": rows})
        return
    lines = [(row["recurrence"], f"{row['mean_passes']:.2f}", row["text"]) for row in rows]
    print_table(prompt, ("R", "passes", "continuation"), lines, left=("continuation",))
    for row in rows:
        if "drafted" in row:
            say(
                f"R = {row['recurrence']}: {row['accepted']} of {counted(row['drafted'], 'drafted token')} confirmed "
                f"in {counted(row['verifications'], 'verification')}"
            )


def _continue(
    model: Any,
    tokenizer: Any,
    prompt: str,
    recurrence: int,
    *,
    tokens: int,
    temperature: float,
    seed: int,
    exit_: Any = None,
    draft: int | None = None,
) -> dict[str, Any]:
    import torch

    torch.manual_seed(seed)
    encoded = tokenizer([prompt], return_tensors="pt")
    sampling = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
    out = model.generate(
        encoded["input_ids"],
        attention_mask=encoded["attention_mask"],
        max_new_tokens=tokens,
        pad_token_id=tokenizer.pad_token_id,
        recurrence=recurrence,
        exit=exit_,
        draft_recurrence=draft,
        return_dict_in_generate=True,
        **sampling,
    )
    new = out.sequences[0, encoded["input_ids"].shape[1] :]
    drafts = (
        {}
        if draft is None
        else {
            "draft_recurrence": draft,
            "drafted": int(out.drafted.sum()),
            "accepted": int(out.accepted.sum()),
            "verifications": len(out.accepted),
        }
    )
    return {
        "recurrence": str(recurrence) if exit_ is None else f"auto ≤ {recurrence}",
        "mean_passes": float(recurrence if exit_ is None else out.passes.double().mean()),
        "text": tokenizer.decode(new, skip_special_tokens=True),
        **drafts,
    }
