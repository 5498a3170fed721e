"""The learning rate over a run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopscale.train.schedule import cooldown_start, rate_factor
from loopscale.train.sections.optimizer import ScheduleSection

KINDS = st.sampled_from(["cosine", "wsd", "constant"])


@given(kind=KINDS, steps=st.integers(1, 5000), warmup=st.integers(0, 200), final=st.floats(0, 1))
def test_the_rate_stays_between_zero_and_its_height(kind: str, steps: int, warmup: int, final: float) -> None:
    schedule = ScheduleSection(kind=kind, warmup_steps=warmup, cooldown=0.2, final=final)
    assert all(0 < rate_factor(schedule, step, steps) <= 1 for step in range(steps))


@given(short=st.integers(10, 1000), more=st.integers(1, 3000), share=st.floats(0.05, 0.9))
def test_wsd_runs_of_any_length_share_their_trunk(short: int, more: int, share: float) -> None:
    schedule = ScheduleSection(kind="wsd", warmup_steps=5, cooldown=share)
    start = cooldown_start(schedule, short)
    for step in range(start):
        assert rate_factor(schedule, step, short) == rate_factor(schedule, step, short + more)


def test_wsd_falls_in_a_straight_line_to_the_last_step() -> None:
    schedule = ScheduleSection(kind="wsd", warmup_steps=0, cooldown=0.5)
    assert [rate_factor(schedule, step, 8) for step in range(8)] == [1, 1, 1, 1, 1, 0.75, 0.5, 0.25]


def test_cosine_is_at_half_in_the_middle_and_ends_at_its_final_share() -> None:
    schedule = ScheduleSection(kind="cosine", warmup_steps=0, final=0.1)
    assert rate_factor(schedule, 500, 1000) == pytest.approx(0.55)
    assert rate_factor(schedule, 999, 1000) == pytest.approx(0.1, abs=1e-5)


def test_warm_up_rises_in_equal_steps() -> None:
    schedule = ScheduleSection(kind="constant", warmup_steps=4)
    assert [rate_factor(schedule, step, 10) for step in range(5)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
