"""The laboratory's page shows what the shipped runs say, and its training file is the laboratory's recipe."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from loopscale.cli.verbs import cli
from loopscale.lab.recipes import LabRecipe
from loopscale.lab.shipped import shipped_model
from loopscale.train.config import TrainConfig

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "lab.md"


def shown(command: str) -> list[str]:
    """Return the lines that the page shows below a command."""
    block = rf"    loopscale {command}\n\n(?:<!-- output: measured -->\n)?```text\n(.*?)```"
    found = re.search(block, PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1].splitlines()


@pytest.mark.parametrize(
    "command", ["lab two-axes --shipped", "lab downstream --shipped", "lab downstream --shipped --law"]
)
def test_an_output_of_shipped_runs_is_what_the_command_prints(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    printed = CliRunner().invoke(cli, command.split()).output
    assert [line.rstrip() for line in printed.splitlines()] == shown(command)
    assert len(printed.splitlines()) <= 22
    assert max(map(len, printed.splitlines())) <= 80


def test_the_numbers_of_the_shipped_model_are_measured_again() -> None:
    """Kernels round otherwise: a few of 512 answers may change."""
    printed = CliRunner().invoke(cli, ["lab", "s3", "--shipped"]).output.splitlines()
    expected = shown("lab s3 --shipped")
    assert len(printed) == len(expected)
    for line, said in zip(printed, expected, strict=True):
        assert numbers(line) == pytest.approx(numbers(said), abs=2 if "%" in said else 0.02)
    weights = sum(weight.numel() for weight in shipped_model().parameters())
    assert f"{weights:,} weights" in PAGE.read_text()


def numbers(line: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", line)]


def test_the_training_file_of_the_page_is_the_recipe_of_the_command() -> None:
    text = re.search(r'```toml title="s3.toml"\n(.*?)```', PAGE.read_text(), re.DOTALL)
    assert text is not None
    whole = text[1].replace('"50k"', re.findall(r'"([\d.]+M)" is the whole run', text[1])[0].join('""'))
    assert TrainConfig.from_dict(tomllib.loads(whole), "s3.toml") == LabRecipe(task="s3", seed=0).config()


def test_the_tables_of_the_page_are_those_of_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "experiments" / "lab"), str(ROOT / "tools"), *sys.path])
    renew: Any = import_module("renew")
    page = PAGE.read_text()
    for name, table in renew.tables().items():
        assert f"<!-- begin {name} -->\n{table.rstrip()}\n<!-- end {name} -->" in page
