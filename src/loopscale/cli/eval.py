"""``loopscale eval``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import click

from loopscale.cli.checkpoint import model_folder, tokenizer_option
from loopscale.cli.eval_tables import Shown, show_results
from loopscale.cli.lab.scores import score_command
from loopscale.cli.output import say
from loopscale.cli.params import COUNTS, EXITS, INTEGERS, WHOLE, output_options
from loopscale.cli.subjects import check_recurrence
from loopscale.cli.verbs import verb
from loopscale.core.errors import InputError
from loopscale.core.progress import ResultBar
from loopscale.evaluate import Benchmark, Result, ResultStore, Suite, kept_models, make_rows, read_checkpoint
from loopscale.evaluate.rows import baseline_flops
from loopscale.evaluate.suites import TaskTrust
from loopscale.train.run_dir import model_of, task_trained_on

if TYPE_CHECKING:
    from loopscale.evaluate.runner import Checkpoint, EvalProgress, EvalSettings
    from loopscale.evaluate.tasks import Tasks
    from loopscale.evaluate.texts import Text

MOST_PASSES = 4_096
"""Passes through the loop that a model is evaluated with at most."""
TEXT_METRICS = {"loss": "loss", "perplexity": "perplexity", "bits/byte": "bits_per_byte", "KV cost": "kv_cost"}


@dataclass(frozen=True)
class Work:
    """What one command evaluates."""

    suite: Suite
    text: Text | None
    settings: tuple[EvalSettings, ...]
    """The plain one first, then one for each threshold of early exit and for each smaller KV cache."""
    store: ResultStore
    trust: TaskTrust


def _thresholds(ctx: click.Context, param: click.Parameter, value: str) -> tuple[float, ...]:
    try:
        thresholds = tuple(float(part) for part in value.split(","))
    except ValueError:
        thresholds = (-1.0,)
    if not all(0 <= threshold < float("inf") for threshold in thresholds):
        raise click.BadParameter(f"{value!r} is not a list of numbers from 0 up; write it like 0.001,0.01,0.1")
    return thresholds


def _caches(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    caches = tuple(value.split(",")) if value is not None else ()
    for kv in caches:
        if not re.fullmatch(r"(passes|window):[1-9][0-9]{0,6}", kv):
            raise click.BadParameter(f"{kv!r} is not a KV cache; write passes:1, window:64, or both with a comma")
    return caches


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
@tokenizer_option
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
def eval_command(
    paths: tuple[str, ...], tasks: str | None, text_source: str | None, column: str, **options: Any
) -> None:
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
        most = max(options["recurrences"] or [24])
        click.get_current_context().invoke(score_command, model=paths[0], most=most, as_json=options["as_json"])
        return
    if tasks is None and text_source is None:
        raise click.UsageError("nothing to evaluate; give --tasks (paper, local, names) or --text FILE")
    as_shown = Shown(options.pop("as_json"), options.pop("as_csv"), options.pop("markdown"), options.pop("latex"))
    if options["download"]:
        _download(tasks, _trust(options))
        return
    checkpoints = _read_checkpoints(paths, options["tokenizer"], options["tokens"])
    # A wrong name is refused before any work.
    baseline_flops([checkpoint.model for checkpoint in checkpoints], options["baseline"])
    work = _plan(tasks, text_source, column, options)
    results = _evaluate(checkpoints, work, options["recurrences"])
    if not results and not options["published"]:
        raise InputError(
            "no results for these tasks and settings",
            where=str(work.store.folder),
            remedy="give a checkpoint to evaluate",
        )
    models = [work.store.add_model(checkpoint.model) for checkpoint in checkpoints] or work.store.models()
    rows = make_rows(work.suite, models, results, options["baseline"])
    show_results(work.suite, rows, as_shown, published=options["published"], tidy_path=options["tidy"])
    if checkpoints and not any(astuple(as_shown)):
        how = work.settings[0]
        engine = {"hf": "Hugging Face", "vllm": "vLLM"}[how.backend]
        say(f"{engine}, {how.dtype}, greedy decoding (the paper: bfloat16, greedy)")


def _download(tasks: str | None, trust: TaskTrust) -> None:
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
        if kept is None:
            folders.append((str(model_folder(path)) if path == "demo" else path, False))
        else:
            folders += [(str(folder), True) for folder in kept]
    if tokens is not None and len(tokens) not in (1, len(folders)):
        raise click.UsageError(f"--tokens has {len(tokens)} numbers for {len(folders)} checkpoints; give one for each")
    counts = [None] * len(folders) if tokens is None else list(tokens) * (len(folders) if len(tokens) == 1 else 1)
    return [
        Checkpoint(str(model_of(folder)), tokenizer, read_checkpoint(folder, tokenizer, count), as_trained)
        for (folder, as_trained), count in zip(folders, counts, strict=True)
    ]


def _trust(options: dict[str, Any]) -> TaskTrust:
    return TaskTrust(code=options["trust_task_code"], remote=options["allow_remote"])


def _suite(tasks: str, trust: TaskTrust) -> Suite:
    from loopscale.evaluate.suites import select
    from loopscale.evaluate.tasks import folder_tasks

    return select(tasks, partial(folder_tasks, trust=trust))


def _plan(tasks: str | None, text_source: str | None, column: str, options: dict[str, Any]) -> Work:
    from loopscale.evaluate.lm import native_dtype
    from loopscale.evaluate.runner import EarlyExit, EvalSettings

    if options["criterion"] is not None and options["backend"] != "hf":
        raise click.UsageError("--exit goes with --backend hf; vLLM runs every token through all passes")
    if options["caches"] and text_source is None:
        raise click.UsageError("--kv measures the loss on a text; give --text FILE")
    suite = Suite("text", ()) if tasks is None else _suite(tasks, _trust(options))
    text = None
    if text_source is not None:
        from loopscale.evaluate.texts import read_text

        text = read_text(text_source, column)
        columns = [Benchmark(f"{text.name} {name}", f"text:{text.name}", metric=metric, scored=False)
                   for name, metric in TEXT_METRICS.items()]  # fmt: skip
        suite = replace(suite, benchmarks=(*suite.benchmarks, *columns))
    dtype = native_dtype() if options["dtype"] == "auto" else options["dtype"]
    plain = EvalSettings(options["backend"], dtype, options["batch"], options["context"], options["limit"])
    exits = [EarlyExit(options["criterion"], limit) for limit in options["thresholds"]] if options["criterion"] else []
    caches = [replace(plain, kv=kv) for kv in options["caches"]]
    settings = (plain, *(replace(plain, exit=exit_rule) for exit_rule in exits), *caches)
    return Work(suite, text, settings, ResultStore(options["results"]), _trust(options))


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
    """Return the tasks that these settings concern: likelihoods are read at once, whatever a cache would keep."""
    return benchmarks if settings.kv is None else ()


def _passes(checkpoint: Checkpoint, recurrences: tuple[int, ...] | None, settings: EvalSettings) -> tuple[int, ...]:
    """Return the recurrences to evaluate at; early exit and smaller caches take the largest."""
    architecture = checkpoint.model.architecture
    if architecture.recurrence > MOST_PASSES:
        raise InputError(
            f"{checkpoint.path}: recurrence is {architecture.recurrence:,} in its config; "
            f"it should be at most {MOST_PASSES:,}"
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
    progress: EvalProgress,
) -> list[Result]:
    from loopscale.evaluate.runner import evaluate, plan_pairs

    pairs = plan_pairs(checkpoint.model, _tasks_of(benchmarks, settings), passes, settings)
    results = evaluate(checkpoint, pairs, settings, work.store, tasks, progress)
    if work.text is not None:
        from loopscale.evaluate.losses import evaluate_text

        results += evaluate_text(checkpoint, work.text, passes, settings, work.store, progress)
    return results


def _task_loader(benchmarks: tuple[Benchmark, ...], trust: TaskTrust) -> Any:
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
