"""Measure the coverage of nominal 90% intervals over simulated sweeps with run effects, and write the table.

python benchmarks/coverage.py [--trials 100] [--kept out/coverage.jsonl] [--table docs/coverage.md]

It can be stopped and started again: finished trials are kept by seed.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the matrices are small: threads only cost

from coverage_trials import COEFFICIENTS, Interval, Setting, coverage_table, run_coverage
from loopscale.core.files import write_text

SETTINGS = {
    "Half of the variance is the run's": Setting(),
    "No run effects": Setting(noise=0.0037, run_noise=0.0),
    "Run effects larger than the noise": Setting(noise=0.0037, run_noise=0.006),
}
HEAD = """# Coverage of the intervals

How often nominal 90% intervals contain the truth, over {trials} simulated sweeps of the paper's 90 runs with 12 points
each, {count} refits for each interval. Predictions are eight designs inside the sweep, its corners included. `runs`
resamples whole runs and is the default; `observations` resamples rows; `paper` refits on 90% of the rows without
replacement, which is too narrow; `noise` refits to losses with new noise on each row. In brackets: the median width.

A measured share of 0.90 over {trials} trials has a standard error of {error:.3f} (less for the predictions, which are
eight a trial). Made by `python benchmarks/coverage.py --trials {trials} --table docs/coverage.md`.
"""


def section(title: str, setting: Setting, intervals: list[Interval]) -> str:
    """Return one setting's table."""
    rows = list(coverage_table(intervals).records())
    share = {(row["what"], row["scheme"]): f"{row['coverage']:.3f} ({row['width']:.3g})" for row in rows}
    first = ["predictions", *COEFFICIENTS]
    others = [what for what in dict.fromkeys(row["what"] for row in rows) if what not in first]
    noise = f"Noise {setting.noise:g} nats an observation and {setting.run_noise:g} nats a run."
    lines = [f"\n## {title}\n", noise, "", f"| | {' | '.join(setting.schemes)} |"]
    lines += ["|---" * (len(setting.schemes) + 1) + "|"]
    lines += [f"| {what} | {' | '.join(share[what, s] for s in setting.schemes)} |" for what in first + others]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is missing and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kept", type=Path, default=Path("out/coverage.jsonl"))
    parser.add_argument("--table", type=Path, default=None)
    given = parser.parse_args()
    given.kept.parent.mkdir(parents=True, exist_ok=True)
    page = HEAD.format(trials=given.trials, count=Setting().count, error=(0.9 * 0.1 / given.trials) ** 0.5)
    for title, setting in SETTINGS.items():
        page += section(
            title, setting, run_coverage(range(given.trials), setting, workers=given.workers, kept=given.kept)
        )
    print(page)
    if given.table is not None:
        write_text(given.table, page)


if __name__ == "__main__":
    main()
