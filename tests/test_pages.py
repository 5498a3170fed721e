"""What the README, the documentation and the notebooks show is true: it runs as written and says what it says."""

import contextlib
import io
import json
import re
import shlex
import sys
import warnings
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

from loopscale.fitting.data.public import simulate_sweep
from pages import NOT_RUN, NOTEBOOKS, PAGES, ROOT, all_steps, cells, run_command, run_from, steps
from sweeps import BASE, write_sweep

sys.path.insert(0, str(ROOT / "docs"))
import hooks

SHOWING = [page for page in PAGES if steps(page)]
LONG = ("docs/evaluate.md", "docs/sweeps.md")
"""Pages that train and evaluate for minutes."""
CONFIG = {
    "model_type": "llama", "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 1000,
    "num_key_value_heads": 8, "intermediate_size": 1024, "tie_word_embeddings": True,
}  # fmt: skip
GRID = "keep_models = true\n[grid]\nrecurrence = [1, 2]\ntokens = [512, 1024]"


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder with the files that pages take as the reader's own: a sweep, a plan, and those in path/to."""
    monkeypatch.chdir(tmp_path)
    simulate_sweep(recurrences=(1, 2, 4, 8, 16), tokens=np.linspace(1e11, 5e11, 5).tolist()).to_csv("runs.csv")
    run_command("loopscale plan --flops 5e21 --memory 3GB --bits int4 --out plan.json")
    write_sweep(tmp_path / "path" / "to", GRID, base=BASE.replace("context = 16", "context = 64"))
    Path("path/to/config.json").write_text(json.dumps(CONFIG))
    Path("path/to/run.toml").write_text('[model]\nwidth = 64\n[run]\nbatch = 64\ntokens = "10M"\n')
    Path("valid.txt").write_text("It was a long way, and then it was not.\n" * 40)
    Path("next.csv").write_text("model,experts,recurrence,tokens\nbase,1,1,2048\n")
    return tmp_path


def make_checkpoint(target: Path) -> None:
    """Write a small model that was not trained."""
    from loopscale.architecture import at_width
    from loopscale.model import LoopedMoEConfig, LoopedMoEForCausalLM
    from loopscale.train.data.tokenizer import find_tokens

    words = find_tokens("bytes", [])
    small = at_width(256, layers=5, experts=2, vocabulary=words.vocabulary)
    LoopedMoEForCausalLM(LoopedMoEConfig.from_architecture(small, recurrence=2)).save_pretrained(str(target))
    words.tokenizer.save_pretrained(str(target))


@pytest.fixture
def checkpoint(folder) -> Path:
    """A model in FOLDER, and prompts."""
    (folder / "prompts.txt").write_text("It was a long way.\nAnd then it was not.\n")
    make_checkpoint(folder / "FOLDER")
    return folder / "FOLDER"


def with_marks(page: Path) -> object:
    name = str(page.relative_to(ROOT))
    return pytest.param(page, id=name, marks=pytest.mark.slow if name in LONG else ())


@pytest.mark.parametrize("page", [with_marks(page) for page in SHOWING])
def test_everything_a_page_shows_runs_as_written_from_the_wheel(page, folder, installed, request):
    text = " ".join(step.text for step in steps(page))
    if "FOLDER" in text:
        request.getfixturevalue("checkpoint")
    if "path/to/tiny" in text:
        make_checkpoint(folder / "path" / "to" / "tiny")
        assert run_command("loopscale sweep run path/to/sweep.toml --workers 1 --quiet") == 0
    done = run_from(installed, page, folder)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def test_what_is_not_run_has_a_reason_that_still_applies():
    everything = [step.text for page in PAGES for step in all_steps(page)]
    for mark in NOT_RUN:
        assert any(mark in text for text in everything), f"no page shows {mark!r} any more"
    for page in SHOWING:
        for step in steps(page):
            assert step.kind != "command" or step.text.startswith("loopscale "), f"{page}: {step.text!r} is never run"


def test_the_pages_show_commands_of_every_kind():
    verbs = {shlex.split(step.text)[1] for page in SHOWING for step in steps(page) if step.kind == "command"}
    core = {"plan", "profile", "predict", "laws", "fit", "compare", "next", "figures", "report", "count"}
    assert core | {"train", "generate", "routing"} <= verbs


def test_the_readmes_python_says_what_it_says(folder):
    block = next(step.text for step in steps(ROOT / "README.md") if "ls.plan(" in step.text)
    names: dict[str, object] = {}
    exec(block, names)
    choice = names["best"].choice
    assert choice.label == "1.0B 2/16 R=2"
    assert choice.loss == pytest.approx(1.9757, abs=5e-5)
    assert "'1.0B 2/16 R=2', 1.9757" in block


def test_the_readme_shows_the_plan_that_the_command_prints(folder, capsys):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = next(
        block for block in re.findall(r"```text\n(.*?)```", text, flags=re.DOTALL) if "Nearest designs" in block
    )
    capsys.readouterr()
    assert run_command("loopscale plan --flops 5e21 --memory 3GB --bits int4") == 0
    assert shown == capsys.readouterr().out


TUTORIAL = ROOT / "docs" / "tutorial.md"


def test_every_part_of_the_tutorial_shows_what_comes_out():
    parts = re.split(r"^## ", TUTORIAL.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert len(parts) == 5
    for part in parts:
        assert "\n    loopscale " in part
        assert "```text\n" in part or "![" in part
    assert sum("![" in part for part in parts) >= 2


def test_the_tutorial_shows_what_its_commands_print(folder, capsys):
    text = TUTORIAL.read_text(encoding="utf-8")
    capsys.readouterr()
    compared = 0
    for commands, shown in re.findall(
        r"((?:^    loopscale [^\n]*\n)+)\n```text\n(.*?)```", text, re.MULTILINE | re.DOTALL
    ):
        if not all(shlex.split(line)[1] in ("plan", "profile", "predict", "count") for line in commands.splitlines()):
            continue  # training and what follows it differ from machine to machine
        assert all(run_command(line.strip()) == 0 for line in commands.splitlines())
        printed = " ".join(capsys.readouterr().out.split())
        for part in (part for line in shown.splitlines() for part in line.split("…")):
            assert " ".join(part.split()) in printed
        compared += 1
    assert compared == 3


@pytest.mark.parametrize("name", sorted(hooks.TABLES))
def test_tables_in_the_docs_are_what_the_package_computes(name):
    pages = [page for page in PAGES if f"<!-- generated: {name} -->" in page.read_text(encoding="utf-8")]
    assert pages, f"no page shows {name}"
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert hooks.with_tables(text) == text, f"{page}: run `make pages`"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebooks_cells_print_what_the_notebook_shows(notebook, folder):
    names: dict[str, object] = {}
    with mpl.rc_context({"backend": "agg"}), warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        for source, shown in cells(notebook):
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(source, names)
            assert printed.getvalue() == shown
