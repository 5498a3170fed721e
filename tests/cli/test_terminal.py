"""Commands whose standard output is closed, full or of another encoding end in one sentence or nothing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PLAN = [sys.executable, "-m", "loopscale", "plan", "--flops", "5e21", "--memory", "3GB", "--bits", "int4"]


def run(command, **options):
    return subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace", timeout=3600, **options)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_full_disk_behind_standard_output(more):
    with open("/dev/full", "w") as full:  # noqa: PTH123
        ended = run([*PLAN, *more], stdout=full)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert "standard output cannot be written" in ended.stderr


def test_a_closed_standard_output():
    ended = run(["sh", "-c", 'exec "$@" >&-', "sh", *PLAN])
    assert (ended.returncode, ended.stderr) == (2, "loopscale: standard output is closed\n")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_an_encoding_without_the_characters_of_tables(encoding):
    ended = run(PLAN, stdout=subprocess.PIPE, env={**os.environ, "PYTHONIOENCODING": encoding})
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "Train 1.0B MoE" in ended.stdout


def test_one_column():
    assert run(PLAN, stdout=subprocess.DEVNULL, env={**os.environ, "COLUMNS": "1"}).returncode == 0


def test_an_interrupt_while_modules_are_imported():
    source = (
        "import os, signal, sys, loopscale.cli\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'loopscale.cli.verbs':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "loopscale.cli.main(['plan', '--flops', '5e21'])\n"
    )
    ended = run([sys.executable, "-c", source], stdout=subprocess.PIPE)
    assert (ended.returncode, ended.stdout, ended.stderr) == (128 + signal.SIGINT, "", "")
