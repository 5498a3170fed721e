"""``loopscale train``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import click

from loopscale.cli.output import print_json, say
from loopscale.cli.params import json_option, price_option, utilisation_option
from loopscale.cli.verbs import verb
from loopscale.core.errors import InputError, shown
from loopscale.core.quantities import counted, format_bytes, format_count, format_days, format_power
from loopscale.core.text import WIDTH, fact, warning

if TYPE_CHECKING:
    from loopscale.train.callbacks import Callback
    from loopscale.train.config import TrainConfig
    from loopscale.train.estimate import Estimate


@verb("train")
@click.argument("config", type=click.Path(), required=False)
@click.option("--out", type=click.Path(), help="The run's folder.  [default: runs/<name of the file>]")
@click.option("--set", "changes", multiple=True, metavar="SECTION.FIELD=VALUE", help="Change a value; may be repeated.")
@click.option(
    "--branch",
    type=click.Path(),
    metavar="RUN",
    help="Start from the last checkpoint that this run shares with RUN, a run of another length.",
)
@click.option("--check", is_flag=True, help="Check the settings and the data, print the size and cost, and exit.")
@click.option("--find-rate", is_flag=True, help="Suggest a learning rate from 100 steps with a rising one, and exit.")
@click.option("--estimate", is_flag=True, help="Simulate a step on --gpus x --device: memory, communication, time.")
@click.option(
    "--gpus", type=click.IntRange(min=1), help="GPUs of --estimate and --check.  [default: [resources] of CONFIG, or 8]"
)
@click.option("--device", help="Device of both: a100, h100, gh200, …  [default: [resources] of CONFIG, or h100]")
@utilisation_option("[resources] of CONFIG, or ")
@price_option
@click.option("--allow-code", is_flag=True, help="Run the modules that [[callbacks]] of CONFIG names.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
@json_option
def train_command(
    config: str | None,
    out: str | None,
    changes: tuple[str, ...],
    branch: str | None,
    check: bool,
    find_rate: bool,
    estimate: bool,
    gpus: int | None,
    device: str | None,
    price: float,
    utilisation: float | None,
    allow_code: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Train a looped MoE from CONFIG.toml; without a file, a small model on the built-in corpus.

    Rerun the same command to resume a run that was stopped or killed: it ends as if it had never been stopped.
    After SIGTERM a checkpoint is written before the command exits (code 143).

    \b
    loopscale train
    loopscale train run.toml --set model.recurrence=4 --set run.tokens=50M
    loopscale train run.toml --find-rate
    loopscale train run.toml --estimate --gpus 64 --device h100
    torchrun --nproc-per-node 2 -m loopscale.train run.toml
    """
    data = _changed(_read(config), changes)
    from loopscale.train.config import TrainConfig

    where = config or "config"
    run = TrainConfig.from_dict(data, where)
    stated = {"gpus": gpus, "device": device, "utilisation": utilisation}
    run = run.changed(resources={name: value for name, value in stated.items() if value is not None})
    if estimate:
        _estimate(run, price, as_json)
        return
    folder = Path(out or Path("runs") / (Path(config).stem if config else "tiny"))
    from loopscale.train import trainer
    from loopscale.train.parallel.launcher import launched_rank

    if not launched_rank():
        _warn_of_length(run)
    if check:
        _describe(run, folder, as_json)
        return
    if find_rate:
        _find_rate(run, as_json)
        return
    if allow_code:
        _announce_code(run, quiet or launched_rank() != 0)
    try:
        summary = trainer.train(
            run, folder, progress=not quiet, branch=branch, callbacks=_evaluation(run), allow_code=allow_code
        )
    except KeyboardInterrupt:
        if not launched_rank():
            click.echo(f"{folder}: stopped; {_next_start(folder)}", err=True)
        raise
    if summary is None:
        if not launched_rank():
            click.echo(f"{folder}: stopped by SIGTERM, a checkpoint is written; rerun the command to resume", err=True)
        raise click.exceptions.Exit(143)
    if launched_rank():
        return
    if as_json:
        print_json(summary)
    else:
        _print(summary, folder)


def _next_start(folder: Path) -> str:
    """Say where the same command continues after Ctrl-C."""
    steps = [int(path.name.removeprefix("step-")) for path in folder.glob("checkpoints/step-*")]
    if steps:
        return f"rerun the command to resume from step {max(steps):,}"
    return "it has no checkpoint yet, so the command starts again; [run] checkpoint_every writes them"


def _warn_of_length(run: TrainConfig) -> None:
    """Say so where whole steps change the length of a run, and where it ends before its warm-up has."""
    trained, warmup = run.steps * run.step_tokens, run.schedule.warmup_steps
    if abs(trained - run.run.tokens) > 0.1 * run.run.tokens:
        _warn(
            f"[run] tokens is {format_count(run.run.tokens)}, and a step has {format_count(run.step_tokens)}: the run "
            f"has {counted(run.steps, 'step')}, {format_count(trained)} tokens",
            "lower [run] batch or [data] context, or raise tokens",
        )
    if warmup > run.steps / 2:
        _warn(
            f"the learning rate rises for {counted(warmup, 'step')}, and the run has {run.steps:,}",
            f"set [schedule] warmup_steps = {run.steps // 10}, or raise [run] tokens",
        )


def _warn(problem: str, remedy: str) -> None:
    click.echo("\n".join(warning(problem, remedy)), err=True)


def _find_rate(run: TrainConfig, as_json: bool) -> None:
    from loopscale.core.text import curve
    from loopscale.train.rate_test import find_rate

    result = find_rate(run)
    if as_json:
        print_json(result.to_dict())
        return
    first, last = result.rates[0], result.rates[-1]
    beyond = "" if result.ended else "; the loss was still falling, so a higher one may do"
    click.echo(
        f"learning_rate = {result.suggested:.2g}   (the file has {run.optimizer.learning_rate:g}{beyond})\n\n"
        f"{curve(result.losses)}\n"
        f"smoothed loss {result.losses[0]:.3f}, lowest {min(result.losses):.3f}, last {result.losses[-1]:.3f}; "
        f"rate {first:.1e} to {last:.1e}\n"
        "A third of the rate at which the loss was lowest: an order of magnitude, not an optimum.\n"
        f"Use it: --set optimizer.learning_rate={result.suggested:.2g}"
    )


def _announce_code(run: TrainConfig, quiet: bool) -> None:
    """Make modules of this folder importable, as with ``python -m``, and say which ones run."""
    sys.path.insert(0, "")
    for section in run.callbacks:
        if section.is_code and not quiet:
            click.echo(f"--allow-code: runs the code of {section.use}", err=True)


def _evaluation(run: TrainConfig) -> list[Callback]:
    """Return what evaluates the model during training, if the settings name tasks."""
    if run.run.eval_tasks is None:
        return []
    from loopscale.core.errors import require

    require("lm_eval", extra="eval")
    from loopscale.evaluate.runner import while_training
    from loopscale.train.callbacks.evaluation import Evaluation

    return [Evaluation(while_training(run))]


def _read(path: str | None) -> dict[str, Any]:
    from loopscale.core.files import read_toml
    from loopscale.train.config import DEMO

    return read_toml(path) if path is not None else DEMO


def _changed(data: dict[str, Any], changes: tuple[str, ...]) -> dict[str, Any]:
    """Return the file's values with those of ``--set`` applied; values are read as TOML, or else as text."""
    import tomllib

    changed = {name: dict(value) if isinstance(value, dict) else value for name, value in data.items()}
    for change in changes:
        name, equals, text = change.partition("=")
        section, dot, field = name.strip().partition(".")
        if not (equals and dot and field):
            raise InputError(f"--set: {shown(change)} is not SECTION.FIELD=VALUE; write it like model.recurrence=4")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text.strip()
        except RecursionError:
            raise InputError(f"--set: {shown(change)} is nested too deeply") from None
        into = changed.setdefault(section, {})
        if not isinstance(into, dict):
            raise InputError(f"--set: {shown(section)} is not a section; the sections are model, data, optimizer, …")
        into[field] = value
    return changed


def _describe(run: TrainConfig, folder: Path, as_json: bool) -> None:
    from loopscale.core.devices import find_device
    from loopscale.planning.design import sizes_text
    from loopscale.planning.job import expected_days
    from loopscale.planning.training_file import TEXTS
    from loopscale.train.data.stores import model_config, open_batches, open_tokens
    from loopscale.train.job import model_without_text, step_cost
    from loopscale.train.sections.run import ResourcesSection
    from loopscale.train.summary import summary_of

    gpus, device, utilisation = run.resources.gpus, run.resources.device, run.resources.utilisation
    planned = model_without_text(run)
    facts: dict[str, Any] = {"kind": "training check", "sizes": sizes_text(planned.to_architecture())}
    if run.run.batch % gpus == 0:
        cost = step_cost(run, planned, gpus, find_device(device))
        days = expected_days(cost.seconds, run.steps, utilisation)
        facts |= {"device": device, "gpus": gpus, "memory": cost.memory, "days": days, "layout": str(cost.layout)}
        facts["device_flops"] = cost.flops * gpus * run.steps
    if not as_json:  # before the data are read, which can take a while
        lines = [f"Settings of the run in {folder}", "", *fact("model", facts["sizes"])]
        if "days" in facts and (run.resources != ResourcesSection() or run.run.accumulate == "auto"):
            lines += fact(
                "devices", f"{gpus} {device}, {format_bytes(facts['memory'])} each, {format_days(facts['days'])} at "
                f"{utilisation:.0%} of listed rates, with {facts['layout']}",
            )  # fmt: skip
        click.echo("\n".join(lines))
    model, about = planned, f"no text yet: put yours into {TEXTS}, or change [data] files"
    if run.data.files != (TEXTS,) or Path(TEXTS).exists():  # a file of `plan --train` names a folder to be filled
        store = open_tokens(run, progress=not as_json)
        open_batches(run, store)
        model, about = model_config(run, store), store.about
        epochs = run.steps * run.step_tokens / max(store.tokens["train"], 1)
        if epochs > 1:
            about += f"; the run reads them {format_count(epochs)} times"
    summary = summary_of(run, model, run.steps, 0.0)
    if as_json:
        names = ("tokens", "active", "loop", "total", "training_flops", "real_training_flops")
        print_json(facts | {"steps": run.steps, **{name: summary[name] for name in names}, "data": about})
        return
    counts = [format_count(summary[name]) for name in ("total", "active", "loop")]
    lines = fact("counts", "without embeddings {} weights, {} active, {} of them in the loop block".format(*counts))
    lines += fact(
        "training", f"{counted(run.steps, 'step')} of {run.step_tokens:,} tokens, "
        f"{format_power(summary['training_flops'])} FLOPs by 6ND "
        f"({format_power(summary['real_training_flops'])} with head, attention and padding)",
    )  # fmt: skip
    click.echo("\n".join([*lines, *fact("data", about)]))


FEWEST_STEPS = 50
"""Steps below which no bias rate could balance the experts; shorter runs get no warning."""


def balancing_rate(steps: int) -> float:
    """Return a rate of the balancing bias that balances a run of ``steps``: 2.5 over them, from 0.001 to 0.01."""
    return round(min(0.01, max(0.001, 2.5 / steps)), 4)


def _print(summary: dict[str, Any], folder: Path) -> None:
    from loopscale.core.text import curve
    from loopscale.train.callbacks.progress_line import UNBALANCED
    from loopscale.train.metrics import read_metrics

    rows = read_metrics(folder / "metrics.jsonl")
    say(f"validation loss {summary['validation_loss']:.4f} nats/token after {format_count(summary['tokens'])} tokens "
        f"({format_power(summary['training_flops'])} FLOPs)\nSaved {folder / 'model'}")  # fmt: skip
    if len(rows) > 1:
        click.echo(f"training loss over {counted(rows[-1]['step'], 'step')}\n{curve([row['loss'] for row in rows])}")
    load, steps = summary.get("expert_load", 1.0), rows[-1]["step"] if rows else 0
    if load > UNBALANCED and steps >= FEWEST_STEPS:
        _warn(
            f"at the end the busiest expert of a layer had {load:.1f} times the mean load",
            f"set [model] bias_update_rate = {balancing_rate(steps):g} for so few steps",
        )
    forecast = summary.get("forecast")
    if forecast is not None:
        inside = "inside" if forecast["inside"] else "OUTSIDE"
        click.echo(
            f"{inside} the forecast of law {forecast['law']}: {forecast['low']:.4f} to {forecast['high']:.4f} "
            f"(trust: {forecast['trust']['level']})"
        )


def _estimate(run: TrainConfig, price: float, as_json: bool) -> None:
    from loopscale.train.estimate import estimate

    gpus, device = run.resources.gpus, run.resources.device
    result = estimate(run, gpus, device, price=price, utilisation=run.resources.utilisation)
    if as_json:
        print_json(result.to_dict())
        return
    click.echo("\n".join(_estimate_lines(result, gpus, device, price)))


def _estimate_lines(result: Estimate, gpus: int, device: str, price: float) -> Iterator[str]:
    """Yield the estimate on one screen: whether it fits and how long it takes, then the parts of both."""
    parts = ", ".join(f"{kind} {size / 1e9:.2f}" for kind, size in result.parts.items())
    moved = ", ".join(f"{kind} {size / 1e9:.3g} GB" for kind, size in result.communication_bytes.items())
    peak = f"{result.peak_bytes / 1e9:.2f} GB of {result.memory_bytes / 1e9:.0f} GB"
    facts = {
        "model": result.sizes,
        "chosen": result.chosen or "",
        "runner-up": str(result.runner_up or ""),
        "memory": f"{peak} at the peak: {parts}",
        "host": f"{result.host_bytes / 1e9:.2f} GB; its optimiser takes {result.host_seconds:.3g} s of a step"
        if result.host_bytes
        else "",
        "step": f"at least {result.step_seconds:.3g} s, at most {result.tokens_per_second:,.0f} tokens/s: arithmetic "
        f"{result.compute_seconds:.3g} s, memory traffic {result.traffic_seconds:.3g} s, communication "
        f"{result.communication_seconds:.3g} s at listed rates",
        "moved": f"{moved or 'nothing'}, per step and GPU",
        "syncs": f"{result.host_syncs} waits for the host per step, outside logging",
        "run": f"{format_days(result.days)} at {result.utilisation:.0%} of listed rates (assumed; --utilisation "
        f"changes it), at least {format_days(result.least_days)}; ${result.cost:,.0f} at ${price:g} an hour",
    }
    where = f"{gpus} {device}" if gpus == 1 else f"each of {gpus} {device}"
    verdict = f"{'Fits' if result.fits else 'Does not fit'} {where}: {peak}"
    yield from wrap(f"{verdict} · {format_days(result.days)} · ${result.cost:,.0f}", WIDTH)
    yield ""
    for label, text in facts.items():
        yield from fact(label, text) if text else []
    yield "simulated on fake tensors: no GPU was used"
    for line in result.advice:
        yield from wrap(f"to make it fit: {line}", WIDTH, subsequent_indent="  ")
