"""``loopscale generate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from loopscale.cli.output import console, print_json, print_table
from loopscale.cli.params import EXITS, INTEGERS, WHOLE, output_options
from loopscale.cli.verbs import verb
from loopscale.core.quantities import counted
from loopscale.core.tables import Table
from loopscale.train.run_dir import model_of


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
@click.option("--tokenizer", help="A tokenizer's folder.  [default: the checkpoint]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for other programs.")
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

    if not prompt.strip():
        raise click.UsageError("--prompt is empty; give some text to continue")
    model, loaded_tokenizer = loading.load(_folder(checkpoint), tokenizer)
    if bits is not None:
        loading.quantize(model.float(), int(bits))  # type: ignore[no-untyped-call]
    passes = recurrences or (model.config.recurrence,)
    _check_draft(draft, max(passes), how["temperature"])
    rows = [
        _continue(model, loaded_tokenizer, prompt, R, draft=draft if draft is not None and draft < R else None, **how)
        for R in passes
    ]
    if criterion is not None:
        rows.append(_continue(model, loaded_tokenizer, prompt, max(passes), exit_=Exit(criterion, threshold), **how))
    if as_json:
        print_json({"kind": "generations", "prompt": prompt, "rows": rows})
        return
    lines = [(row["recurrence"], f"{row['mean_passes']:.2f}", escape(row["text"])) for row in rows]
    print_table(escape(prompt), ("R", "passes", "continuation"), lines, left=("continuation",))
    for row in rows:
        if "drafted" in row:
            console().print(
                f"R = {row['recurrence']}: {row['accepted']} of {counted(row['drafted'], 'drafted token')} confirmed "
                f"in {counted(row['verifications'], 'verification')}",
                highlight=False,
            )


def _check_draft(draft: int | None, most: int, temperature: float) -> None:
    if draft is None:
        return
    if draft >= most:
        raise click.UsageError(f"--draft-recurrence is {draft}; it should be below the recurrence ({most})")
    if temperature:
        raise click.UsageError("--draft-recurrence decodes greedily: leave out --temperature")


def _folder(checkpoint: str) -> Path:
    """Return the model's folder of a run, or of the model that comes with the package."""
    from loopscale.model.loading import DEMO

    if checkpoint == "demo" and not Path(checkpoint).exists():
        return DEMO
    return Path(model_of(checkpoint))


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


@verb("routing")
@click.argument("checkpoint", type=click.Path())
@click.option("--data", required=True, type=click.Path(), help="A text file with one prompt on each line.")
@click.option("--recurrence", type=WHOLE, help="The largest R.  [default: the model's own; twice that by pass]")
@click.option("--tokenizer", help="A tokenizer's folder.  [default: the checkpoint]")
@click.option("--batch", type=WHOLE, default=8, show_default=True, help="Prompts in one forward.")
@click.option("--context", type=WHOLE, help="Tokens of a prompt to use.  [default: the model's maximum]")
@click.option("--by-pass", is_flag=True, help="Show loss, experts and states of every pass instead of Psi.")
@click.option("--plot", type=click.Path(), help="Draw the result over R into this PNG, SVG or PDF file.")
@output_options
def routing_command(
    checkpoint: str,
    data: str,
    recurrence: int | None,
    tokenizer: str | None,
    batch: int,
    context: int | None,
    by_pass: bool,
    plot: str | None,
    as_json: bool,
    as_csv: bool,
) -> None:
    """Measure expert-path diversity Psi: how many experts a token visits over R passes, for each active one.

    With --by-pass: for each R the loss, the distinct experts of a token so far, the overlap (Jaccard) of its experts
    with those of the previous and the first pass, the variance of the state over tokens, its relative change in this
    pass, and its relative distance to the fixed point.

    \b
    loopscale routing runs/tiny --data prompts.txt
    loopscale routing runs/tiny --data prompts.txt --recurrence 8 --plot psi.png
    loopscale routing runs/tiny --data prompts.txt --by-pass --plot passes.png
    """
    from loopscale.model import loading
    from loopscale.model.psi import pass_diagnostics, path_diversity

    prompts = loading.read_prompts(data)
    model, loaded_tokenizer = loading.load(_folder(checkpoint), tokenizer)
    longest = min(context or model.config.max_position_embeddings, model.config.max_position_embeddings)
    read = loading.batches(loaded_tokenizer, prompts, batch, longest)
    if by_pass:
        _by_pass(pass_diagnostics(model, read, recurrence), len(prompts), plot, as_json, as_csv)
        return
    diversity = path_diversity(model, read, recurrence)
    table = diversity.table()
    if plot is not None:
        _draw(table, plot)
    if as_json:
        print_json({"kind": "routing", "prompts": len(prompts), "rows": list(table.records())})
    elif as_csv:
        click.echo(table.csv(), nl=False)
    else:
        _print(table, len(prompts), diversity.tokens.count)


BY_PASS = {
    "loss": "loss",
    "distinct": "experts",
    "overlap_previous": "overlap",
    "overlap_first": "with first",
    "variance": "variance",
    "change": "change",
    "distance": "distance",
}
"""Headings of the columns by pass."""


def _by_pass(measured: Any, prompts: int, plot: str | None, as_json: bool, as_csv: bool) -> None:
    table = measured.table()
    if plot is not None:
        from loopscale.figures.outcomes import draw_passes
        from loopscale.figures.style import new_figure, save

        figure, panels = new_figure(columns=3)
        draw_passes(table, panels)
        save(figure, plot)
    if as_json:
        overlap_RR = measured.overlap_RR
        rows = [{name: None if value != value else value for name, value in row.items()} for row in table.records()]
        matrix = None if overlap_RR is None else overlap_RR.tolist()
        print_json({"kind": "passes", "prompts": prompts, "tokens": measured.tokens, "rows": rows, "overlap": matrix})
    elif as_csv:
        click.echo(table.csv(), nl=False)
    else:
        names = [name for name in BY_PASS if name in table.columns]
        lines = [
            (str(row["recurrence"]), *("" if row[name] != row[name] else f"{row[name]:.4f}" for name in names))
            for row in table.records()
        ]
        title = f"By pass, over {prompts} prompts ({measured.tokens:,} tokens)"
        print_table(title, ("R", *(BY_PASS[name] for name in names)), lines)


def _print(table: Table, prompts: int, counted: int) -> None:
    """Print the paper's table shape: a row for E, a column for each R, mean ± spread over prompts."""
    rows = list(table.records())
    cells = [f"{row['psi']:.4f} ± {row['std_prompts']:.4f}" for row in rows]
    title = f"Psi over {prompts} prompts, mean ± std over prompts"
    for start in range(0, len(rows), 6):  # six fit a screen
        names = [f"R={row['recurrence']}" for row in rows[start : start + 6]]
        print_table(title if not start else "", ["E", *names], [[f"{rows[0]['experts']:g}", *cells[start : start + 6]]])
    last = rows[-1]
    console().print(
        f"at R = {last['recurrence']}: std {last['std_tokens']:.4f} over {counted:,} (token, layer) pairs, "
        f"{last['std_layers']:.4f} over layers",
        highlight=False,
    )


def _draw(table: Table, path: str) -> None:
    from loopscale.figures.outcomes import draw_psi
    from loopscale.figures.style import new_figure, save

    figure, (axes,) = new_figure()
    draw_psi(Table({**table.columns, "spread": table.columns["std_prompts"]}), axes)
    save(figure, path)
