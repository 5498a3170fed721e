"""What ``loopscale eval`` prints: tables of scores, and notes on what they show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import click

from loopscale.cli.output import print_json, print_table, say
from loopscale.core.errors import InputError
from loopscale.core.quantities import format_count, format_power
from loopscale.evaluate import Row, Suite, case_study, fit_saturation, printed, published_rows, tidy, wide
from loopscale.evaluate.curves import LEAST
from loopscale.evaluate.results import interval, labels
from loopscale.evaluate.rows import DAGGER, law_at_test_time
from loopscale.evaluate.suites import OVERALL

COLUMNS = 3
"""Scores that fit a screen beside each other."""


@dataclass(frozen=True)
class Shown:
    """In which form to print."""

    json: bool
    csv: bool
    markdown: bool
    latex: bool


def show_results(suite: Suite, rows: Sequence[Row], shown: Shown, *, published: bool, tidy_path: str | None) -> None:
    """Print the table in the form asked for, and write the tidy one."""
    everything = [*rows, *(published_rows(suite, case_study()) if published else ())]
    if tidy_path is not None:
        tidy(everything).save(tidy_path)
    if shown.json:
        listed = [{**asdict(row), "intervals": _intervals(suite, row)} for row in everything]
        print_json({"kind": "evaluations", "suite": suite.name, "rows": listed})
    elif shown.csv:
        click.echo(wide(suite, everything).csv(), nl=False)
    elif shown.markdown or shown.latex:
        table = printed(suite, everything)
        click.echo(table.markdown() if shown.markdown else table.latex(), nl=False)
    elif len({row.run for row in rows if row.run}) > 1:
        _print_sweep(suite, everything)
    else:
        _print(suite, everything)


def _intervals(suite: Suite, row: Row) -> dict[str, tuple[float, float]]:
    """Return the 95% interval of each score that has one."""
    spans = {label: interval(suite, row, label) for label in row.scores}
    return {label: span for label, span in spans.items() if span is not None}


SCREEN = 22
"""Lines of a screen beside the prompt."""
SCREEN_ROWS = 14
"""Models of a sweep that a screen shows."""


def _print_sweep(suite: Suite, rows: Sequence[Row]) -> None:
    """Print the means of a sweep's models beside their loss, the best first; the tasks are in --csv and --tidy."""
    means = [name for name in labels(suite, rows) if name in (*suite.categories(), OVERALL)] or labels(suite, rows)[:2]
    shown = [name for name in ("Reasoning", OVERALL) if name in means] or means[-2:]
    order = sorted(rows, key=lambda row: -row.scores[OVERALL].value if OVERALL in row.scores else 0.0)
    table = printed(suite, order[:SCREEN_ROWS], shown)
    lines = [
        [row.size or row.title, "" if row.experts is None else f"{row.experts:g}", str(row.recurrence),
         "" if row.tokens is None else format_count(row.tokens),
         "" if row.validation_loss is None else f"{row.validation_loss:.3f}",
         *(str(cell[name]) for name in list(table.columns)[3:])]
        for row, cell in zip(order, table.records(), strict=False)
    ]  # fmt: skip
    print_table(f"suite {suite.name}: {len(rows)} models, the best first",
                ["size", "E", "R", "D", "loss", *list(table.columns)[3:]], lines, left=("size",))  # fmt: skip
    if len(rows) > SCREEN_ROWS:
        say(f"{len(rows) - SCREEN_ROWS} more models, and every task and category: --csv or --tidy")
    else:
        say("every task and category: --csv, --markdown or --tidy")
    say(INTERVALS)


INTERVALS = "[low, high]: 95% Wilson interval in percent; a mean combines those of its tasks"


def _print(suite: Suite, rows: Sequence[Row]) -> None:
    """Print the best row in a sentence, then the scores; a long suite shows its means and what --kv costs."""
    names, notes = labels(suite, rows), [*_notes(suite, rows)]
    tables = -(-len(names) // COLUMNS)
    means = [name for name in names if name in (*suite.categories(), OVERALL)]
    if means and tables * (len(rows) + 2) + len(notes) + 2 > SCREEN:
        names = means + [benchmark.label for benchmark in suite.benchmarks if benchmark.metric == "kv_cost"]
        notes.insert(0, "every task: --csv, --markdown or --tidy")
    if answer := _best(suite, rows):
        say(answer, bold=True)
    for start in range(0, len(names), COLUMNS):
        table = printed(suite, rows, names[start : start + COLUMNS])
        lines = [[str(cell) for cell in row.values()] for row in table.records()]
        print_table("", list(table.columns), lines, left=("model", "R"))
    bracketed = any(interval(suite, row, label) for row in rows for label in row.scores)
    for note in ([INTERVALS] if bracketed else []) + notes:
        say(note)


def _best(suite: Suite, rows: Sequence[Row]) -> str:
    """Say which model does best, and at which R: by the overall score, or else by the loss on the text."""
    measured = [row for row in rows if not row.published]
    if scored := [row for row in measured if OVERALL in row.scores]:
        best = max(scored, key=lambda row: row.scores[OVERALL].value)
        return f"{suite.name}: highest overall score {best.scores[OVERALL].value:.1f}, {best.title} at R = {best.at}"
    for label in (benchmark.label for benchmark in suite.benchmarks if benchmark.metric == "loss"):
        if losses := [row for row in measured if label in row.scores]:
            best = min(losses, key=lambda row: row.scores[label].value)
            return f"{label}: lowest loss {best.scores[label].value:.4f} nats, {best.title} at R = {best.at}"
    return ""


def _notes(suite: Suite, rows: Sequence[Row]) -> Iterator[str]:
    yield from _curves(suite, rows)
    yield from _expected(suite, rows)
    for name, flops in {
        row.model: row.training_flops for row in rows if row.training_flops and not row.published
    }.items():
        yield f"{name}: {format_power(flops)} training FLOPs"
    if any(row.published for row in rows):
        yield f"{DAGGER} {case_study().source}, as printed; its compute is over its own baseline"


def _curves(suite: Suite, rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line on the saturating curve of each model's loss."""
    plain = [row for row in rows if row.is_plain]
    for label in (benchmark.label for benchmark in suite.benchmarks if benchmark.metric == "loss"):
        for model in dict.fromkeys(row.model for row in plain if label in row.scores):
            of_model = [row for row in plain if row.model == model and label in row.scores]
            passes, losses = [row.recurrence for row in of_model], [row.scores[label].value for row in of_model]
            if len(of_model) < LEAST:
                continue
            try:
                curve = fit_saturation(passes, losses)
            except InputError as error:
                yield f"{model}: {label}: {error}"
                continue
            rising = f"; rises from R = {curve.rising_from}, not fitted" if curve.rising_from else ""
            yield (
                f"{model}: {label} ≈ {curve.once:.4f} − {curve.kappa1:.4f} (1 − exp(−(R − 1) / {curve.kappa2:.2f})), "
                f"limit {curve.limit:.4f}, rmse {curve.rmse:.4f}{rising}"
            )


def _expected(suite: Suite, rows: Sequence[Row]) -> Iterator[str]:
    """Yield, beside the loss at each R, what the law of passes at test time expects; see docs/evidence.md."""
    for label in (benchmark.label for benchmark in suite.benchmarks if benchmark.metric == "loss"):
        looped = [row for row in rows if row.is_plain and row.expected_rise is not None and label in row.scores]
        for model in dict.fromkeys(row.model for row in looped):
            of_model = [row for row in looped if row.model == model]
            own = next((row for row in of_model if row.recurrence == row.trained_recurrence), None)
            others = [row for row in of_model if row is not own]
            if own is None or not others:
                continue
            law = law_at_test_time(own.random_recurrence)
            passes = ", ".join(str(row.recurrence) for row in others)
            measured = ", ".join(f"{row.scores[label].value - own.scores[label].value:+.3f}" for row in others)
            expected = ", ".join(f"{row.expected_rise:+.3f}" for row in others)
            how = "at random passes" if own.random_recurrence else "at one number of passes"
            yield (
                f"{model}: {label} at R = {passes} minus R = {own.recurrence}: {measured}. Models trained {how} "
                f"elsewhere: {expected} (± {law.deviation:.2g}; docs/evidence.md)"
            )
