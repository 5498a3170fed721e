"""``loopscale eval``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape

from loopscale.cli.checkpoint import model_folder
from loopscale.cli.lab.scores import score_command
from loopscale.cli.output import console, print_json, print_table
from loopscale.cli.params import COUNTS, EXITS, INTEGERS, WHOLE, check_recurrence, output_options
from loopscale.cli.verbs import verb
from loopscale.core.errors import InputError
from loopscale.core.files import RECURRENCE
from loopscale.core.progress import ResultBar
from loopscale.core.quantities import format_count
from loopscale.evaluate import (
    Benchmark,
    Result,
    Row,
    Store,
    Suite,
    case_study,
    fit_saturation,
    kept_models,
    make_rows,
    printed,
    published_rows,
    read_checkpoint,
    tidy,
    wide,
)
from loopscale.evaluate.curves import LEAST
from loopscale.evaluate.results import interval, labels
from loopscale.evaluate.rows import PAPER, baseline_flops, law_at_test_time
from loopscale.evaluate.suites import OVERALL, Trust
from loopscale.train.run_dir import model_of, task_trained_on

if TYPE_CHECKING:
    from loopscale.evaluate.runner import Checkpoint, EvalSettings, Progress
    from loopscale.evaluate.tasks import Tasks
    from loopscale.evaluate.texts import Text

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
    found = {label: interval(suite, row, label) for label in row.scores}
    return {label: span for label, span in found.items() if span is not None}


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
        [row.size or escape(row.title), "" if row.experts is None else f"{row.experts:g}", str(row.recurrence),
         "" if row.tokens is None else format_count(row.tokens),
         "" if row.validation_loss is None else f"{row.validation_loss:.3f}",
         *(escape(str(cell[name])) for name in list(table.columns)[3:])]
        for row, cell in zip(order, table.records(), strict=False)
    ]  # fmt: skip
    print_table(f"suite {escape(suite.name)}: {len(rows)} models, the best first",
                ["size", "E", "R", "D", "loss", *list(table.columns)[3:]], lines, left=("size",))  # fmt: skip
    out = console()
    if len(rows) > SCREEN_ROWS:
        out.print(
            f"{len(rows) - SCREEN_ROWS} more models, and every task and category: --csv or --tidy", highlight=False
        )
    else:
        out.print("every task and category: --csv, --markdown or --tidy", highlight=False)
    out.print(INTERVALS, highlight=False, markup=False)


INTERVALS = "[low, high]: 95% Wilson interval in percent; a mean combines those of its tasks"


def _print(suite: Suite, rows: Sequence[Row]) -> None:
    """Print the best row in a sentence, then the scores; a long suite shows its means alone."""
    names, notes, out = labels(suite, rows), [*_notes(suite, rows)], console()
    tables = -(-len(names) // COLUMNS)
    means = [name for name in names if name in (*suite.categories(), OVERALL)]
    if means and tables * (len(rows) + 2) + len(notes) + 2 > SCREEN:
        names = means
        notes.insert(0, "every task: --csv, --markdown or --tidy")
    if answer := _best(suite, rows):
        out.print(f"[bold]{escape(answer)}[/]", highlight=False)
    for start in range(0, len(names), COLUMNS):
        table = printed(suite, rows, names[start : start + COLUMNS])
        lines = [[escape(str(cell)) for cell in row.values()] for row in table.records()]
        print_table("", list(table.columns), lines, left=("model", "R"))
    for note in ([INTERVALS] if any(row.samples for row in rows) else []) + notes:
        out.print(note, highlight=False, markup=False)


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
        yield f"{name}: {format_count(flops)} training FLOPs"
    if any(row.published for row in rows):
        yield f"{PAPER} {case_study().source}, as printed; its compute is over its own baseline"


def _curves(suite: Suite, rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line on the saturating curve of each model's loss."""
    plain = [row for row in rows if row.is_plain]
    for label in (benchmark.label for benchmark in suite.benchmarks if benchmark.metric == "loss"):
        for model in dict.fromkeys(row.model for row in plain if label in row.scores):
            found = [row for row in plain if row.model == model and label in row.scores]
            passes, losses = [row.recurrence for row in found], [row.scores[label].value for row in found]
            if len(found) < LEAST:
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
            found = [row for row in looped if row.model == model]
            own = next((row for row in found if row.recurrence == row.trained_recurrence), None)
            others = [row for row in found if row is not own]
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


TEXT_METRICS = {"loss": "loss", "perplexity": "perplexity", "bits/byte": "bits_per_byte", "KV cost": "kv_cost"}


@dataclass(frozen=True)
class Work:
    """What one command evaluates."""

    suite: Suite
    text: Text | None
    settings: tuple[EvalSettings, ...]
    """The plain one first, then one for each threshold of early exit and for each smaller KV cache."""
    store: Store
    trust: Trust


def _thresholds(ctx: click.Context, param: click.Parameter, value: str) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in value.split(","))
    except ValueError:
        found = (-1.0,)
    if not all(0 <= threshold < float("inf") for threshold in found):
        raise click.BadParameter(f"{value!r} is not a list of numbers from 0 up; write it like 0.001,0.01,0.1")
    return found


def _caches(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    found = tuple(value.split(",")) if value is not None else ()
    for cache_ in found:
        if not re.fullmatch(r"(passes|window):[1-9][0-9]{0,6}", cache_):
            raise click.BadParameter(f"{cache_!r} is no KV cache; write passes:1, window:64, or both with a comma")
    return found


@verb("eval")
@click.argument("paths", metavar="[CHECKPOINT|SWEEP]...", nargs=-1, type=click.Path())
@click.option(
    "--tasks",
    help="paper, local, bigbench, human-eval, lm-eval task names, a suite file or a folder of YAML; commas join them.",
)
@click.option("--text", "text_source", help="Also the loss on this file (text, JSONL, CSV, Parquet) or data set.")
@click.option("--column", default="text", show_default=True, help="The column of --text that holds the text.")
@click.option("--recurrence", "recurrences", type=INTEGERS, help="Like 1..5.  [default: 1 to the model's own]")
@click.option("--exit", "criterion", type=EXITS, help="Also with early exit, at the largest recurrence.")
@click.option("--threshold", "thresholds", callback=_thresholds, default="0.001,0.01,0.1", show_default=True,
              help="Thresholds for --exit.")  # fmt: skip
@click.option("--kv", "caches", callback=_caches, metavar="passes:N,window:N",
              help="Also the loss on --text through smaller KV caches, at the largest recurrence: the last N passes, "
              "or the first pass and all passes of the last N tokens.")  # fmt: skip
@click.option("--backend", type=click.Choice(["hf", "vllm"]), default="hf", show_default=True, help="The engine.")
@click.option("--dtype", type=click.Choice(["auto", "bfloat16", "float32"]), default="auto", show_default=True,
              help="auto: bfloat16 where the machine has it.")  # fmt: skip
@click.option("--batch", type=WHOLE, default=16, show_default=True, help="Sequences in one forward.")
@click.option("--context", type=click.IntRange(2), help="Tokens of a sequence.  [default: the model's maximum]")
@click.option("--limit", type=WHOLE, help="Use only this many items of each task.")
@click.option("--tokenizer", help="A tokenizer's folder.  [default: the checkpoint]")
@click.option("--tokens", type=COUNTS, help="What each checkpoint was trained on, like 500B.  [default: from its run]")
@click.option("--results", default="results", show_default=True, type=click.Path(), help="The results store.")
@click.option(
    "--baseline", metavar="MODEL[:R]", help="What compute is relative to.  [default: the first model at R = 1]"
)
@click.option("--published", is_flag=True, help="Add the rows of the paper's case study, marked.")
@click.option("--tidy", type=click.Path(), help="Write one row for each score to this CSV file, for plots.")
@click.option("--markdown", is_flag=True, help="Print the table in Markdown.")
@click.option("--latex", is_flag=True, help="Print the table in LaTeX.")
@click.option(
    "--trust-task-code",
    is_flag=True,
    help="Run Python code: of a folder given to --tasks (!function), or what a model writes for human-eval.",
)
@click.option(
    "--allow-remote", is_flag=True, help="Fetch data from the addresses that a folder given to --tasks names."
)
@click.option("--download", is_flag=True, help="Only fetch the tasks' data, to use them where there is no network.")
@output_options
def eval_command(paths: tuple[str, ...], tasks: str | None, text_source: str | None, column: str, **given: Any) -> None:
    """Evaluate checkpoints at several recurrences: lm-eval tasks and validation loss, in the paper's table.

    A sweep's file evaluates the models that the sweep has kept, each at the recurrence it was trained with.
    Each finished (task, recurrence) is stored: a command that was stopped resumes, a finished one only prints.
    Without checkpoints it shows what the store holds.

    \b
    loopscale eval demo --tasks local --limit 8
    loopscale eval runs/tiny --tasks local --recurrence 1..4
    loopscale eval runs/big runs/small --tasks paper --recurrence 1..5 --baseline big --latex
    loopscale eval runs/tiny --text valid.txt --recurrence 1..8
    loopscale eval runs/tiny --text valid.txt --kv passes:1,window:64
    loopscale eval runs/tiny --tasks local --exit kl --threshold 0.001,0.01,0.1
    loopscale eval sweep.toml --tasks local --tidy downstream.csv
    loopscale eval --tasks paper --tidy downstream.csv
    loopscale eval runs/s3   # a model of a task of `loopscale lab`: its score at each R
    """
    if tasks is None and text_source is None and len(paths) == 1 and task_trained_on(paths[0]) is not None:
        most = max(given["recurrences"] or [24])
        click.get_current_context().invoke(score_command, model=paths[0], most=most, as_json=given["as_json"])
        return
    if tasks is None and text_source is None:
        raise click.UsageError("nothing to evaluate; give --tasks (paper, local, names) or --text FILE")
    as_shown = Shown(given.pop("as_json"), given.pop("as_csv"), given.pop("markdown"), given.pop("latex"))
    if given["download"]:
        _download(tasks, _trust(given))
        return
    checkpoints = _read_checkpoints(paths, given["tokenizer"], given["tokens"])
    # A wrong name is refused before any work.
    baseline_flops([checkpoint.model for checkpoint in checkpoints], given["baseline"])
    work = _plan(tasks, text_source, column, given)
    results = _evaluate(checkpoints, work, given["recurrences"])
    if not results and not given["published"]:
        raise InputError(f"{work.store.folder}: no results for these tasks and settings; give a checkpoint to evaluate")
    models = [work.store.add_model(checkpoint.model) for checkpoint in checkpoints] or work.store.models()
    rows = make_rows(work.suite, models, results, given["baseline"])
    show_results(work.suite, rows, as_shown, published=given["published"], tidy_path=given["tidy"])
    if checkpoints and not any(astuple(as_shown)):
        how = work.settings[0]
        engine = {"hf": "Hugging Face", "vllm": "vLLM"}[how.backend]
        console().print(f"{engine}, {how.dtype}, greedy decoding (the paper: bfloat16, greedy)", highlight=False)


def _download(tasks: str | None, trust: Trust) -> None:
    from loopscale.evaluate.tasks import Tasks

    if tasks is None:
        raise click.UsageError("--download fetches the data of --tasks; name some")
    suite = _suite(tasks, trust)
    loaded = Tasks(suite.benchmarks, trust)
    with ResultBar(len(suite.benchmarks)) as bar:
        for benchmark in suite.benchmarks:
            bar.now(f"data of {benchmark.label}")
            loaded.load(benchmark)
            bar.finished()
    click.echo(f"The data of {len(suite.benchmarks)} tasks are here.")


def _read_checkpoints(paths: Sequence[str], tokenizer: str | None, tokens: Sequence[float] | None) -> list[Checkpoint]:
    """Return the checkpoints, read but not loaded; of a sweep's file, the models that it kept."""
    from loopscale.evaluate.runner import Checkpoint

    folders: list[tuple[str, bool]] = []
    for path in paths:
        kept = kept_models(path)
        folders += [(_named(path), False)] if kept is None else [(str(folder), True) for folder in kept]
    if tokens is not None and len(tokens) not in (1, len(folders)):
        raise click.UsageError(f"--tokens has {len(tokens)} numbers for {len(folders)} checkpoints; give one for each")
    counts = [None] * len(folders) if tokens is None else list(tokens) * (len(folders) if len(tokens) == 1 else 1)
    return [
        Checkpoint(str(model_of(folder)), tokenizer, read_checkpoint(folder, tokenizer, count), as_trained)
        for (folder, as_trained), count in zip(folders, counts, strict=True)
    ]


def _named(path: str) -> str:
    """Return the path, or the folder of the demo model that comes with the package."""
    return str(model_folder(path)) if path == "demo" else path


def _trust(given: dict[str, Any]) -> Trust:
    return Trust(code=given["trust_task_code"], remote=given["allow_remote"])


def _suite(tasks: str, trust: Trust) -> Suite:
    from loopscale.evaluate.suites import select
    from loopscale.evaluate.tasks import folder_tasks

    return select(tasks, partial(folder_tasks, trust=trust))


def _plan(tasks: str | None, text_source: str | None, column: str, given: dict[str, Any]) -> Work:
    from loopscale.evaluate.lm import native_dtype
    from loopscale.evaluate.runner import EarlyExit, EvalSettings

    if given["criterion"] is not None and given["backend"] != "hf":
        raise click.UsageError("--exit goes with --backend hf; vLLM runs every token through all passes")
    if given["caches"] and text_source is None:
        raise click.UsageError("--kv measures the loss on a text; give --text FILE")
    suite = Suite("text", ()) if tasks is None else _suite(tasks, _trust(given))
    text = None
    if text_source is not None:
        from loopscale.evaluate.texts import read_text

        text = read_text(text_source, column)
        columns = [Benchmark(f"{text.name} {name}", f"text:{text.name}", metric=metric, scored=False)
                   for name, metric in TEXT_METRICS.items()]  # fmt: skip
        suite = replace(suite, benchmarks=(*suite.benchmarks, *columns))
    dtype = native_dtype() if given["dtype"] == "auto" else given["dtype"]
    plain = EvalSettings(given["backend"], dtype, given["batch"], given["context"], given["limit"])
    exits = [EarlyExit(given["criterion"], limit) for limit in given["thresholds"]] if given["criterion"] else []
    caches = [replace(plain, kv=cache_) for cache_ in given["caches"]]
    settings = (plain, *(replace(plain, exit=exit_rule) for exit_rule in exits), *caches)
    return Work(suite, text, settings, Store(given["results"]), _trust(given))


def _evaluate(checkpoints: Sequence[Checkpoint], work: Work, recurrences: tuple[int, ...] | None) -> list[Result]:
    """Return all results asked for: measured for the checkpoints, or those in the store where there are none."""
    benchmarks = tuple(benchmark for benchmark in work.suite.benchmarks if not benchmark.task.startswith("text:"))
    tasks = _task_loader(benchmarks, work.trust)
    if not checkpoints:
        return _stored(work, benchmarks)
    jobs = [
        (checkpoint, settings, _passes(checkpoint, recurrences, settings))
        for checkpoint in checkpoints
        for settings in work.settings
    ]
    texts = int(work.text is not None)
    with ResultBar(sum((len(_tasks_of(benchmarks, s)) + texts) * len(passes) for _, s, passes in jobs)) as bar:
        return [
            result
            for checkpoint, settings, passes in jobs
            for result in _one(checkpoint, work, benchmarks, passes, settings, tasks, bar)
        ]


def _tasks_of(benchmarks: tuple[Benchmark, ...], settings: EvalSettings) -> tuple[Benchmark, ...]:
    """Return the tasks that these settings concern: likelihoods are read at once, with any cache."""
    return benchmarks if settings.kv is None else ()


def _passes(checkpoint: Checkpoint, recurrences: tuple[int, ...] | None, settings: EvalSettings) -> tuple[int, ...]:
    """Return the recurrences to evaluate at; early exit and smaller caches take the largest."""
    architecture = checkpoint.model.architecture
    if architecture.recurrence > RECURRENCE:
        raise InputError(
            f"{checkpoint.path}: recurrence is {architecture.recurrence:,} in its config; "
            f"it should be at most {RECURRENCE:,}"
        )
    first = architecture.recurrence if checkpoint.as_trained else 1
    wanted = recurrences or tuple(range(first, architecture.recurrence + 1))
    check_recurrence(architecture, max(wanted))
    return (max(wanted),) if settings.at_one_recurrence else wanted


def _one(
    checkpoint: Checkpoint,
    work: Work,
    benchmarks: tuple[Benchmark, ...],
    passes: Sequence[int],
    settings: EvalSettings,
    tasks: Any,
    progress: Progress,
) -> list[Result]:
    from loopscale.evaluate.runner import evaluate, plan_pairs

    pairs = plan_pairs(checkpoint.model, _tasks_of(benchmarks, settings), passes, settings)
    found = evaluate(checkpoint, pairs, settings, work.store, tasks, progress)
    if work.text is not None:
        from loopscale.evaluate.losses import evaluate_text

        found += evaluate_text(checkpoint, work.text, passes, settings, work.store, progress)
    return found


def _task_loader(benchmarks: tuple[Benchmark, ...], trust: Trust) -> Any:
    @cache
    def load() -> Tasks:
        from loopscale.evaluate.tasks import Tasks

        return Tasks(benchmarks, trust)

    return load


def _stored(work: Work, benchmarks: tuple[Benchmark, ...]) -> list[Result]:
    """Return what the store holds for these tasks, with these settings, from any backend and precision."""
    free = ("backend", "dtype", "exit", "kv")
    expected = {benchmark.task: work.settings[0].of(benchmark) for benchmark in benchmarks}
    if work.text is not None:
        from loopscale.evaluate.losses import text_settings

        expected[f"text:{work.text.name}"] = text_settings(work.text, work.settings[0])
    return [
        result
        for result in work.store.results()
        if result.key.task in expected
        and {**result.key.settings, **dict.fromkeys(free)} == {**expected[result.key.task], **dict.fromkeys(free)}
    ]
