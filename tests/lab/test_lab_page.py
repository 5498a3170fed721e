"""The laboratory's page shows what the shipped runs say, to the last digit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from loopscale.cli.verbs import cli

PAGE = Path(__file__).parents[2] / "docs" / "lab.md"


@pytest.mark.parametrize("command", ["lab two-axes --shipped", "lab downstream --shipped"])
def test_an_output_of_shipped_runs_is_what_the_command_prints(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = re.search(
        rf"    loopscale {command}\n\n<!-- output: measured -->\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL
    )
    assert shown is not None
    printed = CliRunner().invoke(cli, command.split()).output
    assert [line.rstrip() for line in printed.splitlines()] == shown[1].splitlines()
    assert len(printed.splitlines()) <= 22
    assert max(map(len, printed.splitlines())) <= 80
