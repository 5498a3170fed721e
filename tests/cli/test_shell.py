"""The command behaves in a shell: colours, pipes, widths, completion, version."""

import os
import pty
import re
import subprocess
import sys

import pytest

from loopscale import __version__

PLAN = ["plan", "--flops", "5e21", "--memory", "3GB", "--bits", "int4"]


def in_terminal(argv: list[str], **environment: str) -> str:
    """Run a command on a pseudo-terminal and return what it printed there."""
    pid, terminal = pty.fork()
    if pid == 0:
        variables = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", **environment}
        os.execvpe(sys.executable, [sys.executable, "-m", "loopscale", *argv], variables)
    chunks = []
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # Linux: the other end is closed
            break
        if not chunk:
            break
        chunks.append(chunk)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    return b"".join(chunks).decode()


@pytest.mark.parametrize(
    "argv", [PLAN, ["laws"], ["count", "--rung", "0.3B"], ["profile", "joint", "--memory", "1GB,3GB"]]
)
def test_tables_fit_80_columns_and_cut_no_cell(argv):
    printed = in_terminal(argv, NO_COLOR="1")
    assert max(len(line.rstrip("\r")) for line in printed.split("\n")) <= 80
    assert "…" not in printed.replace("COUNT,…", "")


def test_no_color_means_no_escape_sequence_at_all():
    assert "\x1b[" in in_terminal(PLAN)
    assert "\x1b[" not in in_terminal(PLAN, NO_COLOR="1")


def test_a_reader_that_closes_the_pipe_is_no_error():
    line = f"set -o pipefail; {sys.executable} -m loopscale {' '.join(PLAN)} | head -1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1


def test_the_version_is_the_packages():
    done = subprocess.run([sys.executable, "-m", "loopscale", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith(__version__)


@pytest.mark.parametrize(("shell", "word"), [("bash", "1"), ("zsh", "1"), ("fish", "pl")])
def test_completion_offers_the_commands(shell, word):
    request = {"_LOOPSCALE_COMPLETE": f"{shell}_complete", "COMP_WORDS": "loopscale pl", "COMP_CWORD": word}
    code = "from loopscale.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **request}, capture_output=True, text=True)
    assert re.search(r"\bplan\b", done.stdout)
