"""What one sees while a run goes on."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Watch:
    """A live line: loss, speed, share of the peak, expert load, dropped tokens, time left."""

    def __init__(self, total: int, done: int, shown: bool, title: str) -> None:
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[said]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not shown,
        )
        self._task = self._progress.add_task(title, total=total, completed=done, said="")

    def __enter__(self) -> Watch:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def step(self, done: int, row: dict[str, Any] | None = None) -> None:
        """Show that ``done`` steps are done and, with a row, its numbers."""
        self._progress.update(self._task, completed=done)
        if row is not None:
            self._progress.update(self._task, said=describe(row))


def describe(row: dict[str, Any]) -> str:
    """Return a row's numbers in a few words."""
    words = [f"loss {row['loss']:.4f}", f"{row['tokens_per_second'] / 1e3:.1f}k tok/s"]
    words.append(f"{row['flops_per_second'] / 1e9:.0f} GFLOP/s ({row['peak_share']:.0%})")
    if "expert_load" in row:
        words.append(f"load {row['expert_load']:.2f}")
    if row.get("dropped"):
        words.append(f"dropped {row['dropped']:.1%}")
    return ", ".join(words)
