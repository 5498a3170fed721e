"""A reader follows one command through few files."""

import pytest

from journeys import JOURNEYS, LIMITS, MOST_FILES, source_files

MARKS = {"training step": pytest.mark.slow}


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in JOURNEYS])
def test_a_journey_stays_within_its_limit(name, tmp_path):
    files = JOURNEYS[name](tmp_path)
    assert len(files) <= LIMITS[name], files


def test_there_are_not_too_many_files():
    assert source_files() <= MOST_FILES
