"""What the README, the documentation and the notebooks show is true: it runs as written and says what it says."""

import contextlib
import io
import re
import shlex
import sys
import warnings
from pathlib import Path

import matplotlib as mpl
import pytest

from pages import NOT_RUN, NOTEBOOKS, PAGES, ROOT, all_steps, cells, run_command, run_from, steps, write_reader_files

sys.path.insert(0, str(ROOT / "docs"))
sys.path.insert(0, str(ROOT / "tools"))
import hooks
from page_outputs import with_outputs

SHOWING = [page for page in PAGES if steps(page)]
LONG = ("docs/evaluate.md", "docs/sweeps.md")
"""Pages that train and evaluate for minutes."""


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder with the files that pages take as the reader's own."""
    monkeypatch.chdir(tmp_path)
    write_reader_files(tmp_path)
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


TUTORIAL = ROOT / "docs" / "tutorial.md"


def test_every_part_of_the_tutorial_shows_what_comes_out():
    parts = re.split(r"^## ", TUTORIAL.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert len(parts) == 5
    for part in parts:
        assert "\n    loopscale " in part
        assert "<!-- output" in part
    assert sum("![" in part for part in parts) >= 2


@pytest.mark.parametrize("page", [page for page in PAGES if "<!-- output" in page.read_text(encoding="utf-8")], ids=str)
def test_pages_show_what_their_commands_print(page):
    text = page.read_text(encoding="utf-8")
    assert with_outputs(text) == text, f"{page}: run `make pages`"


def test_an_output_is_renewed_and_what_differs_between_machines_is_left():
    page = """
    loopscale laws chinchilla-2022 --json

<!-- output: 1 lines -->
```text
old
```

    loopscale generate demo --prompt "It was"

<!-- output: measured -->
```text
measured here
```
"""
    renewed = with_outputs(page)
    assert "old" not in renewed
    assert "```text\n{\n…\n```" in renewed
    assert "measured here" in renewed


def test_the_readme_is_short_and_opens_with_a_command_and_its_output():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = re.sub(r"(?<=```text\n).*?(?=```)", "", text, flags=re.DOTALL).splitlines()
    assert len(lines) <= 100
    assert max(map(len, lines)) < 140
    assert any(line.startswith("    loopscale plan") for line in lines[:12])


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
