"""What the README shows is true: its commands run as written, and its Python block says what it says."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from loopscale.cli import main
from loopscale.fit.datasets import simulate_sweep

README = (Path(__file__).parents[1] / "README.md").read_text()
LINES = re.findall(r"^    (?:\$ )?(loopscale (?!count).+?)(?:\s{2,}#.*| # .*)?$", README, flags=re.MULTILINE)
COMMANDS = list(dict.fromkeys(line.strip() for line in LINES))


def test_the_readme_shows_commands_of_every_kind():
    verbs = {shlex.split(line)[1] for line in COMMANDS}
    assert {"plan", "profile", "predict", "laws", "fit", "compare", "next"} <= verbs


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with the files that the README's commands read, made as it says."""
    where = tmp_path_factory.mktemp("readme")
    tokens = np.linspace(1e11, 5e11, 5).tolist()
    simulate_sweep(recurrences=(1, 2, 4, 8, 16), tokens=tokens).to_csv(where / "runs.csv")
    sweep = re.findall(r"```toml\n# sweep\.toml\n(.*?)```", README, flags=re.DOTALL)[0]
    (where / "sweep.toml").write_text(sweep.replace('["1M", "2M"]', "[4096, 8192]"))
    return where


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_of_the_readme_runs_as_written(line, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    if "law.json" in line and "--out" not in line:
        _run("loopscale fit runs.csv --resamples 10 --out law.json")
    if "sweep status" in line or "sweep export" in line:
        _run("loopscale sweep run sweep.toml")
    if "plan.json" in line:
        _run("loopscale plan --flops 5e21 --memory 3GB --bits int4 --out plan.json")
    assert _run(line) == 0, capsys.readouterr().err


def _run(line: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(shlex.split(line)[1:])
    return int(stop.value.code or 0)


def test_the_python_block_says_what_it_says():
    block = next(text for text in re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL) if "Budget(" in text)
    names: dict[str, object] = {}
    exec(block, names)
    choice = names["found"].choice
    assert choice.label == "1.0B E=8 R=2"
    assert choice.loss == pytest.approx(1.9757, abs=5e-5)
    assert "'1.0B E=8 R=2', 1.9757" in block
