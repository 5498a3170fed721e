"""Property tests draw the same examples in every run, unless LOOPSCALE_RANDOM is set; no example has a time limit."""

import getpass
import os
import signal
import tempfile
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

# A shell that starts its jobs in the background lets them ignore Ctrl-C, which children inherit: tests send it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Commands hide the traceback of an unexpected exception; the tests want it.
os.environ.setdefault("LOOPSCALE_DEBUG", "1")

# Compiled code is cached by what it computes, not by ATEN_CPU_CAPABILITY, and code for other kernels does not compile.
if _kernels := os.environ.get("ATEN_CPU_CAPABILITY"):
    _cache = Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}_{_kernels}"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(_cache))


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with loopscale as its wheel installs it."""
    return unpack_wheel(tmp_path_factory.mktemp("wheel"))
