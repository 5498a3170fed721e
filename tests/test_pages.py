"""What the README, the documentation and the notebooks show is true: it runs as written and says what it says."""

import contextlib
import io
import re
import shlex
import sys
import warnings
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

from loopscale.fit.data.public import simulate_sweep
from pages import NOTEBOOKS, PAGES, ROOT, cells, run_command, run_from, steps

sys.path.insert(0, str(ROOT / "docs"))
import hooks

SHOWING = [page for page in PAGES if steps(page)]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder with the files that pages take as the reader's own: a sweep, and a plan."""
    monkeypatch.chdir(tmp_path)
    simulate_sweep(recurrences=(1, 2, 4, 8, 16), tokens=np.linspace(1e11, 5e11, 5).tolist()).to_csv("runs.csv")
    run_command("loopscale plan --flops 5e21 --memory 3GB --bits int4 --out plan.json")
    return tmp_path


@pytest.fixture
def checkpoint(folder) -> Path:
    """A model in FOLDER, and prompts."""
    from loopscale.architecture import at_width
    from loopscale.model import LoopedMoEConfig, LoopedMoEForCausalLM
    from loopscale.train.data.tokenizer import find_tokens

    (folder / "prompts.txt").write_text("It was a long way.\nAnd then it was not.\n")
    words = find_tokens("bytes", [])
    small = at_width(256, layers=5, experts=2, vocabulary=words.vocabulary)
    LoopedMoEForCausalLM(LoopedMoEConfig.from_architecture(small, recurrence=2)).save_pretrained("FOLDER")
    words.tokenizer.save_pretrained("FOLDER")
    return folder / "FOLDER"


@pytest.mark.parametrize("page", SHOWING, ids=lambda page: str(page.relative_to(ROOT)))
def test_everything_a_page_shows_runs_as_written_from_the_wheel(page, folder, installed, request):
    if any("FOLDER" in step.text for step in steps(page)):
        request.getfixturevalue("checkpoint")
    done = run_from(installed, page, folder)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def test_the_pages_show_commands_of_every_kind():
    verbs = {shlex.split(step.text)[1] for page in SHOWING for step in steps(page) if step.kind == "command"}
    core = {"plan", "profile", "predict", "laws", "fit", "compare", "next", "figures", "report", "count"}
    assert core | {"train", "generate", "routing"} <= verbs


def test_the_readmes_python_says_what_it_says(folder):
    block = next(step.text for step in steps(ROOT / "README.md") if "ls.plan(" in step.text)
    names: dict[str, object] = {}
    exec(block, names)
    choice = names["best"].choice
    assert choice.label == "1.0B E=8 R=2"
    assert choice.loss == pytest.approx(1.9757, abs=5e-5)
    assert "'1.0B E=8 R=2', 1.9757" in block


def test_the_readme_shows_the_plan_that_the_command_prints(folder, capsys):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = next(block for block in re.findall(r"```text\n(.*?)```", text, flags=re.DOTALL) if "verdict" in block)
    capsys.readouterr()
    assert run_command("loopscale plan --flops 5e21 --memory 3GB --bits int4") == 0
    printed = " ".join(capsys.readouterr().out.split())
    for line in shown.splitlines():
        for part in line.split("…"):
            assert " ".join(part.split()) in printed


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
