"""What ``sweep status`` says of a sweep that runs, was stopped, or is done."""

import io

from rich.console import Console

from loopscale.cli.sweep.status import status_lines
from loopscale.sweep.store import RunState, progress


def state(key: str, now: str, steps_done: int, *, stale: bool = False) -> RunState:
    done = frozenset({1024}) if now == "done" else frozenset()
    return RunState(key, now, None, {1024: 1.0}, done, steps_done, 100, 30.0 * (steps_done > 0), 1.0, None, stale)


def shown(runs: list[RunState]) -> str:
    out = io.StringIO()
    Console(file=out, width=80).print(status_lines("first", runs, False, 0.0, "sweep.toml"))
    return out.getvalue()


def test_a_stopped_sweep_says_so_and_how_to_resume():
    for left_behind in (state("b", "waiting", 0), state("b", "running", 40, stale=True)):
        runs = [state("a", "done", 100), left_behind]
        assert progress(runs).seconds_left is None
        text = shown(runs)
        assert "Not running. Resume: loopscale sweep run sweep.toml" in text
        assert "about" not in text


def test_a_running_sweep_says_how_long_it_takes():
    text = shown([state("a", "done", 100), state("b", "running", 50)])
    assert "about 20 s left" in text
    assert "Resume" not in text


def test_a_finished_sweep_names_the_next_command():
    assert "Next: loopscale fit sweep.toml --out law.json" in shown([state("a", "done", 100)])
