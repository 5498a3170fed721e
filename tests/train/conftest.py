"""The text that most tests of training train on."""

from __future__ import annotations

from pathlib import Path

import pytest
from training import corpus


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus(tmp_path_factory.mktemp("corpus") / "text")
