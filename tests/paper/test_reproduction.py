"""The paper's numbers beside ours: how many follow, and that each is typed once."""

import json
from collections import Counter
from pathlib import Path

import pytest

import loopscale
from loopscale.cli import main
from loopscale.cli.reproduce import DIFFERS, MEANINGS, MISSING, reproduction, summary
from loopscale.scaling import PAPER

SOURCE = Path(loopscale.__file__).parent


@pytest.fixture(scope="module")
def lines():
    return reproduction()


def test_at_least_120_numbers_are_recomputed(lines):
    counts = Counter(line.status for line in lines)
    assert set(counts) <= set(MEANINGS)
    assert len(lines) - counts[MISSING] >= 120
    assert counts["exact"] + counts["within rounding"] >= 85


def test_only_known_numbers_differ_and_each_says_why(lines):
    different = {line.what: line.note for line in lines if line.status == DIFFERS}
    assert set(different) == {
        "1.6B N_loop (B)",
        "2.4B N_total at E=8 (B)",
        "case study: compute (1e22 FLOPs)",
        "greater sparsity never lowers R* (E = 8 against 1)",
        "higher recurrence raises E* of a fixed size",
        "higher recurrence raises E* with the size free",
        "tight memory favours recurrence: each change of R* with memory is a fall",
    }
    assert all(different.values())


def test_simulated_held_out_errors_rank_the_mappings_as_the_paper_does(lines):
    ours = {line.what: line.ours for line in lines}
    for part in PAPER["held_out_moe"]["slices"]:
        errors = [ours[f"held-out {part}, {mapping}: RMSE"] for mapping in PAPER["held_out_moe"]["mappings"]]
        assert min(errors) == errors[-1]
        assert max(errors) == errors[0]


def test_the_papers_numbers_are_typed_in_one_file():
    texts = {path: path.read_text() for path in SOURCE.rglob("*.py")}
    coefficients = [str(abs(value)) for value in PAPER["coefficients"]["values"].values()]
    scores = [f"{value:.4f}" for row in PAPER["held_out_moe"]["rmse"] for value in row]
    for number in (*coefficients, *scores):
        if len(number) >= 6:
            assert [path.name for path, text in texts.items() if number in text] == []


def test_the_readme_shows_the_summary(lines):
    assert summary(lines) in (SOURCE.parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_command_prints_json_and_a_page(capsys, tmp_path, lines):
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "--json", "--report", str(tmp_path / "page.html")])
    assert not stop.value.code
    found = json.loads(capsys.readouterr().out)
    assert found["summary"] == summary(lines)
    assert len(found["lines"]) == len(lines)
    page = (tmp_path / "page.html").read_text()
    assert summary(lines) in page
    assert "http://" not in page.replace("http://www.w3.org", "")
