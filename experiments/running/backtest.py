"""The tables of docs/running.md: forecasts of how runs end, from the part of their logs before several cuts.

    python experiments/running/backtest.py                    # from logs.jsonl, which ships
    python experiments/running/backtest.py --collect running  # writes logs.jsonl from `loopscale sweep run runs.toml`

A forecast sees the log up to a cut and is scored against the last validation loss. The training loss of single batches
is noisy, so a forecast from it is scored against the last validation loss and the mean difference of the two.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from loopscale.core.errors import InputError
from loopscale.core.tables import markdown
from loopscale.fitting.data.run_logs import RunLog, read_log, schedule_of
from loopscale.fitting.running import final_loss
from loopscale.scaling.annealing import RateSchedule

LOGS = Path(__file__).parent / "logs.jsonl"
COLUMNS = ("validation_loss", "loss")
CUTS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
LEVELS = (0.5, 0.8, 0.9)


@dataclass(frozen=True)
class Outcome:
    """One forecast and what came."""

    run: str
    kind: str
    column: str
    cut: float
    error: float
    """Forecast less measured, as a share of the measured loss."""
    now: float
    """The same of the fitted loss at the cut."""
    half: float
    """Half the width of the 90% interval, as a share of the measured loss."""
    inside: tuple[bool, ...]
    """By level."""


def collect(folder: Path) -> None:
    """Write the logs of a sweep's runs, each with its schedule, into one file."""
    lines = []
    for point in sorted(folder.glob("runs/*/D*")):
        schedule = schedule_of(json.loads((point / "run.json").read_text(encoding="utf-8"))["config"])
        logs = {column: read_log(point, column) for column in COLUMNS}
        if logs[COLUMNS[0]].step[-1] < schedule.steps:
            continue  # still training
        losses = {
            column: [log.step.astype(int).tolist(), np.round(log.loss, 4).tolist()] for column, log in logs.items()
        }
        lines.append(json.dumps({"run": point.parent.name, "schedule": asdict(schedule), **losses}) + "\n")
    LOGS.write_text("".join(lines), encoding="utf-8")


def shipped() -> Iterator[tuple[str, RunLog]]:
    """Return the logs by run, one for each column."""
    for line in LOGS.read_text(encoding="utf-8").splitlines():
        content = json.loads(line)
        for column in COLUMNS:
            step, loss = np.array(content[column], dtype=np.float64)
            yield content["run"], RunLog(step, loss, None, column, content["run"], RateSchedule(**content["schedule"]))


def outcomes() -> list[Outcome]:
    """Forecast the end of every run from every cut."""
    logs = list(shipped())
    validated = {name: log for name, log in logs if log.column == "validation_loss"}
    found = []
    for name, log in logs:
        assert log.schedule is not None
        end = float(validated[name].loss[-1]) + _gap(log, validated[name])
        for cut in CUTS:
            try:
                by_level = [final_loss(log.until(cut * log.schedule.steps), level=level) for level in LEVELS]
            except InputError:
                continue  # too few losses before this cut
            one = by_level[-1]
            found.append(
                Outcome(
                    name, _kind(log.schedule), log.column, cut, one.final / end - 1, one.loss_now / end - 1,
                    (one.high - one.low) / 2 / end, tuple(each.low <= end <= each.high for each in by_level),
                )
            )  # fmt: skip
    return found


def _gap(log: RunLog, validated: RunLog) -> float:
    """Return by how much a log lies above the validation loss, over the steps after warm-up that both have."""
    assert log.schedule is not None
    steps, ours, theirs = np.intersect1d(log.step, validated.step, return_indices=True)
    late = steps > 2 * log.schedule.warmup_steps
    return float(np.mean((log.loss[ours] - validated.loss[theirs])[late]))


def _kind(schedule: RateSchedule) -> str:
    return "linear" if schedule.kind == "wsd" and schedule.cooldown == 1 else schedule.kind


def line(name: str, part: list[Outcome]) -> list[str]:
    """Return one row of a table."""
    error, now = (np.array([getattr(each, field) for each in part]) for field in ("error", "now"))
    inside = np.mean([each.inside for each in part], axis=0)
    width = float(np.median([each.half for each in part]))
    rms = (f"{np.sqrt(np.mean(values**2)):.1%}" for values in (error, now))
    return [
        name,
        str(len(part)),
        *rms,
        f"{np.mean(error):+.1%}",
        f"±{width:.1%}",
        ", ".join(f"{s:.0%}" for s in inside),
    ]


def main() -> None:
    """Collect the logs, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--collect", type=Path, help="folder of the sweep whose logs to ship")
    folder = parser.parse_args().collect
    if folder is not None:
        collect(folder)
    found = outcomes()
    for column in COLUMNS:
        part = [each for each in found if each.column == column]
        if not part:
            continue
        rows = [
            line(f"{cut:.0%}", [each for each in part if each.cut == cut])
            for cut in CUTS
            if any(e.cut == cut for e in part)
        ]
        kinds = sorted({each.kind for each in part})
        rows += [line(kind, [each for each in part if each.kind == kind]) for kind in kinds]
        rows.append(line("all", part))
        print(f"{column}, {len({each.run for each in part})} runs\n")
        columns = ("seen", "forecasts", "error", "error of the current loss", "bias", "half the 90% interval",
                   "inside 50%, 80%, 90%")  # fmt: skip
        print(markdown(columns, rows) + "\n")


if __name__ == "__main__":
    main()
