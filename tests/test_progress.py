"""Lines of progress where there is no terminal, by a clock that the tests turn."""

import pytest

from loopscale.core import progress


class Clock:
    """A clock that shows what it was set to."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    stopped = Clock()
    monkeypatch.setattr(progress, "time", stopped)
    return stopped


def test_a_line_states_the_time_left_at_the_pace_so_far(clock, capsys):
    with progress.progress_bar("Refitting", 100) as update:
        for clock.now, done in ((5.0, 10), (40.0, 25), (46.0, 30), (120.0, 100)):
            update(done, 100)
    assert capsys.readouterr().err.splitlines() == [
        "Refitting: 25 of 100, 2 min left",
        "Refitting: 100 of 100",
    ]


def test_results_that_were_known_say_nothing_about_the_pace(clock, capsys):
    with progress.ResultBar(6) as bar:
        bar.finished(3)
        for task in ("first", "second", "third"):
            bar.now(task)
            clock.now += 20.0
            bar.finished()
    assert capsys.readouterr().err.splitlines() == ["first: done, 40 s left", "second: done, 20 s left", "third: done"]
