"""Generated commands and files never end in a traceback, and at least a third of them work; see ``make attack``."""

from pathlib import Path

import pytest
from fuzz import attack

from attack import prepare


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("fuzz")
    prepare(made)
    return made


def test_generated_commands(folder, monkeypatch):
    monkeypatch.chdir(folder)
    verdicts, bad = attack(folder, 300)
    assert not bad
    works = sum(count for (_, verdict), count in verdicts.items() if verdict == "works")
    assert works >= 100, verdicts
