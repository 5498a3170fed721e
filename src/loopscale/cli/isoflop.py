"""``loopscale isoflop``."""

from __future__ import annotations

from typing import Any

from loopscale.cli.output import print_json, print_table, say
from loopscale.cli.params import json_option, level_option, verbose_option
from loopscale.cli.reading import data_options, take_runs
from loopscale.cli.verbs import verb
from loopscale.core.quantities import format_count, format_power
from loopscale.fitting.isoflop import IsoFlop, isoflop


@verb("isoflop")
@data_options
@level_option
@json_option
@verbose_option
def isoflop_command(level: float, as_json: bool, verbose: bool, **options: Any) -> None:
    """Find the best size at each training budget from isoFLOP curves: parabolas of the loss, and how it grows.

    RUNS is a table of runs with several sizes at each of several budgets (Chinchilla's approach 2).

    \b
    loopscale isoflop runs.csv
    """
    result = isoflop(take_runs(options), level=level)
    if as_json:
        print_json(result.to_dict())
    else:
        _print(result, verbose)


MOST = 12
"""Budgets that a screen shows."""


def _print(result: IsoFlop, verbose: bool) -> None:
    """Print how the best size grows, and the lowest point of each budget's parabola."""
    (low, high), (fewest, most) = result.size_exponent_interval, result.token_exponent_interval
    say(
        f"Best size N* ~ C^{result.size_exponent:.3f} ({result.level:.0%}: {low:.3f} to {high:.3f}), "
        f"D* ~ C^{result.token_exponent:.3f} ({fewest:.3f} to {most:.3f})",
        bold=True,
    )
    rows = list(result.table().records())
    lowest = [row for row in rows if not row["left_out"]]
    shown = rows if verbose else lowest[-MOST:]
    columns = ["FLOPs", "runs", "N*", f"{result.level:.0%} interval", "D*", "loss", "left out"]
    cells = [_cells(row) for row in shown]
    if not verbose:
        columns, cells = columns[:-1], [row[:-1] for row in cells]
    print_table(f"Lowest points of parabolas: {result.source}", columns, cells, left=("left out",))
    if len(shown) < len(rows):
        hidden, unclear = len(lowest) - len(shown), len(rows) - len(lowest)
        parts = [f"{hidden} smaller"] * bool(hidden) + [f"{unclear} without a clear lowest point"] * bool(unclear)
        say(f"{len(shown)} of {len(rows)} budgets, without {' and '.join(parts)}: --verbose shows all")
    say(
        "Intervals come from resampled residuals. A parabola is an approximation: wide ranges of N shift its lowest "
        "point."
    )


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    start = (format_power(row["flops"]), str(row["rows"]))
    if row["left_out"]:
        return (*start, "", "", "", "", row["left_out"])
    span = f"{format_count(row['size_low'])}–{format_count(row['size_high'])}"
    return (*start, format_count(row["size"]), span, format_count(row["tokens"]), f"{row['loss']:.4f}", "")
