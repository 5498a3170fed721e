"""``loopscale lab`` trains, scores every pass and saves what it measured."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForCausalLM, AutoTokenizer

from loopscale.cli.lab.scores import NAMES
from loopscale.cli.verbs import cli
from loopscale.core.errors import InputError
from loopscale.lab.charts import bar
from loopscale.lab.recipes import LabRecipe
from loopscale.lab.scores import AT_CHANCE, LEARNT, PARTLY, score, status
from loopscale.lab.shipped import shipped_folder, show_shipped
from loopscale.lab.training import load, task_of
from loopscale.train.data.labels import fixed_problems
from loopscale.train.data.puzzles import task_called
from loopscale.train.data.stores import model_config, open_tokens


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    out = tmp_path_factory.mktemp("lab") / "z2"
    arguments = ["lab", "z2", "--difficulty", "5", "--recurrence", "3", "--size", "32", "--steps", "150", "--json"]
    result = CliRunner().invoke(cli, [*arguments, "--out", str(out)])
    assert result.exit_code == 0, result.output
    return out, json.loads(result.stdout)


def test_the_answer_has_accuracy_by_test_time_r(trained: tuple[Path, dict[str, object]]) -> None:
    out, report = trained
    accuracy = report["accuracy"]
    assert isinstance(accuracy, dict)
    assert [int(R) for R in accuracy] == list(range(1, 25))
    assert all(0 <= share <= 1 for share in accuracy.values())
    assert {"seconds", "cpu_seconds", "seed", "chance", "weights", "training_flops", "status"} <= report.keys()
    assert report["chance"] == 0.5
    assert (out / "accuracy.svg").is_file()
    saved = json.loads((out / "lab.json").read_text())
    assert {name: saved[name] for name in report} == report


def test_the_model_loads_in_plain_transformers_and_scores_the_same(trained: tuple[Path, dict[str, object]]) -> None:
    out, report = trained
    model, tokenizer = (auto.from_pretrained(out / "model") for auto in (AutoModelForCausalLM, AutoTokenizer))
    task = task_called("z2", 5)
    ids, answers = fixed_problems(task, 1024, "validation")
    words = [" ".join(task.words[token] for token in row) for row in ids]
    inputs = tokenizer(words, return_tensors="pt")["input_ids"]
    said = model(inputs, recurrence=3).logits.argmax(-1).numpy()
    accuracy = report["accuracy"]
    assert isinstance(accuracy, dict)
    assert float((said[:, -1] == answers[:, -1]).mean()) == pytest.approx(accuracy["3"], abs=2e-3)


def test_scores_of_one_forward_are_those_of_each_recurrence(trained: tuple[Path, dict[str, object]]) -> None:
    out, _ = trained
    model, task = load(out), task_of(out)
    together = score(model, task, 4, count=128)
    ids, _ = fixed_problems(task, 128, "validation")
    for R in range(1, 5):
        said = model(torch.from_numpy(ids), recurrence=R, use_cache=False).logits.argmax(-1).numpy()
        assert task.check(ids, said).mean() == pytest.approx(together.at(R), abs=0.02)


def test_a_finished_run_is_scored_again_without_training(trained: tuple[Path, dict[str, object]]) -> None:
    out, report = trained
    result = CliRunner().invoke(cli, ["lab", "score", str(out), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["accuracy"] == report["accuracy"]


def test_positions_that_are_done_leave_the_loop(trained: tuple[Path, dict[str, object]]) -> None:
    out, _ = trained
    arguments = ["lab", "score", str(out), "--problems", "64", "--most", "6", "--exit", "argmax", "--threshold", "0.5"]
    result = CliRunner().invoke(cli, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    left = json.loads(result.stdout)["exit"]
    assert len(left["passes_by_position"]) == 5
    assert all(2 <= passes <= 6 for passes in left["passes_by_position"])
    assert "passes on average" in CliRunner().invoke(cli, arguments).stdout


def test_the_shipped_model_goes_from_chance_to_right() -> None:
    scores = show_shipped(count=256)
    assert scores.status(1) == AT_CHANCE
    assert scores.at(1) < 0.3
    assert scores.at(12) > 0.85
    assert scores.status(12) == LEARNT


def test_a_task_without_a_shipped_model_says_so() -> None:
    result = CliRunner().invoke(cli, ["lab", "z2", "--shipped"])
    assert "no trained model of 'z2'" in str(result.exception)


def test_the_chart_fits_a_screen(trained: tuple[Path, dict[str, object]]) -> None:
    out, _ = trained
    result = CliRunner().invoke(cli, ["lab", "score", str(out)])
    lines = result.stdout.splitlines()
    assert len(lines) <= 22
    assert max(map(len, lines)) <= 80
    assert "R = 24" in result.stdout
    assert "chance 0.50" in result.stdout


def test_a_model_of_no_task_needs_its_name(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["lab", "score", str(tmp_path)])
    assert isinstance(result.exception, InputError)
    assert "name its --task" in str(result.exception)


def test_a_damaged_model_is_refused_by_name(tmp_path: Path) -> None:
    shutil.copytree(shipped_folder("s3-experts"), tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    result = CliRunner().invoke(cli, ["lab", "score", str(tmp_path / "model"), "--task", "s3"])
    assert isinstance(result.exception, InputError)
    assert str(tmp_path / "model") in str(result.exception)


def test_a_recipe_has_few_weights() -> None:
    recipe = LabRecipe()
    config = recipe.config()
    counted = model_config(config, open_tokens(config, progress=False)).to_architecture()
    # Attention, feed-forward of 3 x width, injection, norms; embeddings and a head of 8 rows each.
    assert counted.parameters == 4 * 64**2 + 3 * 64 * 192 + 2 * 64 + 3 * 64 + 2 * 8 * 64


def test_separate_layers_do_not_loop() -> None:
    with pytest.raises(InputError, match="separate layers"):
        LabRecipe(layers=4, recurrence=2)
    assert LabRecipe(layers=4, recurrence=1).config().model.options["injection"] == "none"


@pytest.mark.parametrize(
    ("share", "count", "expected"), [(0.18, 1024, AT_CHANCE), (0.25, 1024, PARTLY), (0.95, 1024, LEARNT)]
)
def test_a_score_at_chance_is_reported_as_that(share: float, count: int, expected: str) -> None:
    assert status(share, count, 1 / 6) == expected


def test_a_bar_is_as_long_as_its_share() -> None:
    assert bar(0.5, 4) == "██  "
    assert bar(0.0, 4) == "    "
    assert bar(1.0, 4) == "████"


def test_tasks_are_listed_on_one_screen_and_shown_one_by_one_with_a_problem() -> None:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(cli, ["lab", "tasks"])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert len(lines) <= 22
    assert max(map(len, lines)) <= 80
    for name in NAMES:
        assert any(line.startswith(name) for line in lines)
        assert CliRunner().invoke(cli, ["lab", "tasks", name]).stdout.count("answers ") == 1


def test_eval_of_a_task_is_its_score_at_each_recurrence(trained: tuple[Path, dict[str, object]]) -> None:
    folder, _ = trained
    scored = CliRunner().invoke(cli, ["lab", "score", str(folder), "--most", "3", "--json"])
    evaluated = CliRunner().invoke(cli, ["eval", str(folder), "--recurrence", "1..3", "--json"])
    assert evaluated.exit_code == 0, evaluated.output
    assert json.loads(evaluated.output) == json.loads(scored.output)


def test_test_time_scaling_has_longer_problems_and_passes_by_position(trained: tuple[Path, dict[str, object]]) -> None:
    result = CliRunner().invoke(cli, ["lab", "test-time", str(trained[0]), "--problems", "32", "--json"])
    assert result.exit_code == 0, result.output
    values = json.loads(result.output)
    first, *longer = values["difficulties"]
    assert all(one["difficulty"] > first["difficulty"] for one in longer)
    assert len(first["accuracy"]) == round(2.4 * values["trained_recurrence"])
    for left in values["exits"].values():
        assert len(left["passes_by_position"]) == first["difficulty"]
    shown = CliRunner().invoke(cli, ["lab", "test-time", str(trained[0]), "--problems", "32"]).output.splitlines()
    assert len(shown) <= 22
    assert max(map(len, shown)) <= 80
