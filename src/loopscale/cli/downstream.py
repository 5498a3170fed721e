"""``loopscale downstream``."""

from __future__ import annotations

import click
import numpy as np

from loopscale.cli.output import print_json
from loopscale.cli.params import COUNTS
from loopscale.cli.verbs import verb
from loopscale.core.errors import InputError
from loopscale.core.quantities import count_of
from loopscale.fitting.downstream import downstream


def _losses(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[float, ...]:
    try:
        return () if value is None else tuple(count_of(part.strip(), "loss") for part in value.split(","))
    except InputError:
        raise click.BadParameter(f"{value!r} is not a list of losses; write it like 2.5,2.3") from None


@verb("downstream")
@click.argument("table", type=click.Path())
@click.option("--accuracy", required=True, help="Column of the accuracy, from 0 to 1.")
@click.option("--loss", default="loss", show_default=True, help="Column of the loss of pretraining.")
@click.option("--task-loss", help="Column of the task's own loss, for a ladder of two steps.")
@click.option("--chance", type=float, default=0.0, show_default=True, help="Accuracy of guessing, like 0.25.")
@click.option("--at", "at", callback=_losses, metavar="LOSS,…", help="Losses to predict the accuracy at.")
@click.option("--flops", type=COUNTS, help="Training compute to predict the accuracy at, like 1e22,1e23.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the steps, their errors and the predictions.")
def downstream_command(
    table: str, accuracy: str, loss: str, task_loss: str | None, chance: float, at: tuple[float, ...],
    flops: tuple[float, ...] | None, as_json: bool,
) -> None:  # fmt: skip
    """Predict the accuracy on a task from the loss, or from compute.

    TABLE has one model a row. There are two steps, from compute to the loss and from the loss to the accuracy (through
    the task's own loss where there is one), each with its error and a backtest.

    \b
    loopscale downstream models.csv --accuracy acc_hellaswag --chance 0.25 --at 2.6
    loopscale downstream models.csv --accuracy acc_hellaswag --chance 0.25 --flops 1e22
    loopscale downstream models.csv --accuracy acc_mmlu --task-loss nll_mmlu --chance 0.25 --json
    """
    ladder = downstream(table, accuracy, loss=loss, task_loss=task_loss, chance=chance)
    losses = np.array(at)
    if as_json:
        points = [{"loss": value, **{k: float(v) for k, v in ladder.predict(value).items()}} for value in at]
        points += [
            {"flops": C, "loss": float(ladder.loss_at(C)),
             **{k: float(v) for k, v in ladder.predict_from_compute(C).items()}}
            for C in flops or ()
        ]  # fmt: skip
        print_json({**ladder.to_dict(), "predictions": points})
    else:
        click.echo(ladder.summary(losses if len(losses) else None, None if flops is None else np.array(flops)))
