"""What commands print by default fits a terminal of 80 columns and 24 lines."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from test_commands import run

from loopscale.cli.output import print_wide_table
from loopscale.fitting.data.public import simulate_sweep
from pages import ROOT, steps

COLUMNS, LINES = 80, 22
"""Two lines of the screen are the command and the next prompt."""
PRINTING = ("plan", "predict", "matched", "count", "laws", "fit", "compare", "next", "backtest")
NO_TABLE = ("--csv", "--json", "--help")
CONFIG = {
    "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 1000,
    "num_key_value_heads": 8, "intermediate_size": 1024, "tie_word_embeddings": True,
}  # fmt: skip
MADE = {
    "law.json": "fit runs.csv --resamples 20 --out law.json",
    "plan.json": "plan --flops 5e21 --memory 3GB --out plan.json",
}
"""How files are made that other commands of the README write."""
README = [
    step.text
    for step in steps(ROOT / "README.md")
    if step.kind == "command"
    and shlex.split(step.text)[1] in PRINTING
    and not any(option in step.text for option in NO_TABLE)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The files that the README's commands take: a sweep, a law, a plan and a config."""
    folder = tmp_path_factory.mktemp("screens")
    tokens = np.linspace(1e11, 5e11, 5).tolist()
    simulate_sweep(recurrences=(1, 2, 4, 8, 16), tokens=tokens).to_csv(folder / "runs.csv")
    (folder / "path/to").mkdir(parents=True)
    (folder / "path/to/config.json").write_text(json.dumps(CONFIG))
    return folder


def check_screen(text: str) -> None:
    lines = text.rstrip("\n").splitlines()
    assert len(lines) <= LINES, f"{len(lines)} lines:\n{text}"
    wide = [line for line in lines if len(line) > COLUMNS]
    assert not wide, wide


@pytest.fixture
def terminal(folder, monkeypatch):
    """A terminal of 80 columns in the folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", str(COLUMNS))


@pytest.mark.parametrize("command", README)
def test_the_readmes_commands_print_one_screen(command, terminal, capsys):
    words = shlex.split(command)[1:]
    for name, made in MADE.items():
        if name in words and words[words.index(name) - 1] != "--out" and not Path(name).exists():
            run(capsys, *shlex.split(made))
    check_screen(run(capsys, *words))


@pytest.mark.parametrize(
    "command",
    [
        "backtest runs.csv --resamples 10",
        "fit runs.csv --resample none --mapping none",
        "forecast runs.csv --flops 1e22 --resamples 10",
        "data",
        "laws --table",
        "laws looped-moe-2026",
        "profile best-recurrence",
        "profile experts",
        "profile size",
        "plan --flops 5e21 --memory 3GB --bits int4 --overhead 300MB --context 2048 --serve-flops 4e12",
    ],
)
def test_other_commands_print_one_screen(command, terminal, capsys):
    check_screen(run(capsys, *shlex.split(command)))


def test_a_wide_table_becomes_several_that_fit(terminal, capsys):
    passes = [f"R={k}" for k in range(1, 13)]
    print_wide_table("Psi", ["E", *passes], [[str(E), *["1.0000 ± 0.0000"] * 12] for E in (1, 2)])
    text = capsys.readouterr().out
    check_screen(text)
    assert [word for word in text.split() if word.startswith("R=")] == passes


def test_verbose_prints_more(terminal, capsys):
    commands = ("plan --flops 5e21 --memory 3GB", "fit runs.csv --resample none", "laws kaplan-2020", "profile size")
    for command in commands:
        brief, verbose = (run(capsys, *shlex.split(command), *more) for more in ((), ("--verbose",)))
        assert len(verbose) > len(brief)
