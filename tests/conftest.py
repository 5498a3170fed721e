"""Property tests draw the same examples in every run, unless LOOPSCALE_RANDOM is set; no example has a time limit."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from wheels import unpack_wheel

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("random", derandomize=False, deadline=None)
settings.load_profile("random" if os.environ.get("LOOPSCALE_RANDOM") else "repeatable")

# Importing readline, as pytest does, hands COLUMNS=80 to child processes: the workers of `-n` would wrap at 80 columns.
for _name in ("COLUMNS", "LINES"):
    os.environ.pop(_name, None)
    os.unsetenv(_name)


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with loopscale as its wheel installs it."""
    return unpack_wheel(tmp_path_factory.mktemp("wheel"))
