"""What ``sweep status`` says of a sweep that runs, was stopped, or is done."""

import io

from rich.console import Console

from loopscale.cli.sweep.plan import print_plan
from loopscale.cli.sweep.status import status_lines
from loopscale.sweep.progress import progress
from loopscale.sweep.store import RunState


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
    out = io.StringIO()
    lines = status_lines("first", [state("a", "done", 100)], False, 0.0, "sweep.toml", several_sizes=False)
    Console(file=out, width=80).print(lines)
    assert "Next: loopscale sweep export sweep.toml --out runs.csv" in out.getvalue()  # one size determines no law


def test_status_and_plan_of_a_large_sweep_fit_a_screen(capsys):
    runs = [state(f"large-E4-R{R}-s{seed}", "running", 40) for R in range(1, 6) for seed in range(8)]
    runs += [state(f"small-E4-R{R}", "waiting", 0) for R in range(60)]
    rows = [
        {"run": f"{size}-E{E}-R{R}", "size": size, "experts": E, "recurrence": R, "longest": 1e9, "observations": 1,
         "flops": 1e18, "real_flops": 2e18, "flops_alone": 1e18, "seconds": 50.0, "process_seconds": 50.0,
         "memory": 2e9, "disk": 1e6, "active": 1e6, "total": 2e6}
        for size in ("tiny", "small", "large") for E in (1, 4, 16) for R in (1, 2, 4, 8)
    ]  # fmt: skip
    print_plan("first", rows, 2, None, "sweep.toml")
    for text in (shown(runs), capsys.readouterr().out):
        lines = text.rstrip().splitlines()
        assert len(lines) <= 22, text
        assert max(map(len, lines)) <= 80, text
