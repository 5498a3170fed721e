"""The sweeps that come with loopscale: the paper's grid, its case study, a small version, and the micro-sweep."""

import json
import random

import pytest
from test_sweep_commands import call

from loopscale.core.devices import UTILISATION, find_device
from loopscale.sweep.cost import on_device, planned
from loopscale.sweep.spec import SHIPPED, executed_steps, read_sweep, shipped_sweeps
from loopscale.train.config import TrainConfig
from loopscale.train.estimate import estimate
from sweeps import write_sweep


def test_the_papers_sweep_is_450_points_of_90_trunks_and_the_held_out_runs_on_64_gpus():
    sweep = read_sweep("paper")
    assert (len(sweep.runs), sweep.observations) == (90 + 15, 450 + 75)
    cells = {(run.cell.size, run.cell.experts, run.cell.recurrence) for run in sweep.runs}
    sizes, experts, passes = (set(values) for values in zip(*cells, strict=True))
    assert (sizes, experts, passes) == ({"0.3B", "0.6B", "1.0B"}, {1, 2, 4, 8, 16}, {1, 2, 3, 4, 6, 8, 16})
    assert {run.resources.processes for run in sweep.runs} == {64}
    assert {run.config.step_tokens for run in sweep.runs} == {3072 * 2048}


def test_the_papers_sweep_and_its_recipe_train_alike():
    run = read_sweep("paper").runs[-1]
    cell = {"rung": run.cell.size, "experts": run.cell.experts, "recurrence": run.cell.recurrence}
    recipe = TrainConfig.from_dict({"recipe": {"name": "paper"}, "model": {**cell, "vocab_size": 202_048}})
    own = run.config
    assert (own.optimizer, own.schedule) == (recipe.optimizer, recipe.schedule)
    assert own.model.config(202_048, 2048).to_dict() == recipe.model.config(202_048, 2048).to_dict()
    for name in ("batch", "accumulate", "precision"):
        assert getattr(own.run, name) == getattr(recipe.run, name), name


def test_the_case_study_has_matched_compute_within_a_percent():
    code, text = call("plan", "case-study", "--device", "h100", "--json")
    small, large = json.loads(text)["runs"]
    assert code == 0
    assert small["flops"] == pytest.approx(large["flops"], rel=0.01)
    assert large["flops"] == pytest.approx(1.42e22, rel=0.01)
    # Per-loop supervision runs the coda and the output head after every pass, which the paper's count leaves out.
    # Padded experts take 1.5 times the rows in both.
    assert small["real_flops"] > 1.3 * large["real_flops"]


def test_every_shipped_sweep_can_be_planned_for_a_device_without_its_text(tmp_path):
    assert shipped_sweeps() == ("case-study", "micro", "micro-2", "paper", "paper-mini")
    code, text = call("plan", "paper", "--device", "h100")
    assert code == 0
    assert "105 runs, 525 losses" in text
    assert "by a closed-form estimate" in " ".join(text.split())
    assert "of listed rates (assumed, not measured)" in " ".join(text.split())
    assert "warning" not in text
    lines = text.rstrip().splitlines()
    assert len(lines) <= 22
    assert max(map(len, lines)) <= 80
    _, text = call("plan", "paper", "--device", "l40s")
    assert "do not fit" not in text  # every cell finds a setting for 48 GB
    fixed = (SHIPPED / "paper.toml").read_text().replace('accumulate = "auto"', "accumulate = 12")
    (tmp_path / "fixed.toml").write_text(fixed)
    _, text = call("plan", tmp_path / "fixed.toml", "--device", "l40s")
    assert "of 105 runs do not fit on l40s" in " ".join(text.split())
    code, text = call("plan", "paper-mini", "--device", "rtx4090", "--json")
    rows = json.loads(text)["runs"]
    assert (len(rows), max(row["memory"] for row in rows) < 0.94 * 24e9) == (90, True)
    assert sum(row["process_seconds"] for row in rows) < 86400


def test_a_wrong_name_or_device_is_one_sentence(tmp_path, capsys):
    path = write_sweep(tmp_path, "[grid]\ntokens = 64\n")
    for argv, said in (
        (("plan", "papr"), "(did you mean 'paper'?)"),
        (("plan", path, "--device", "h10"), "(did you mean 'h100'?)"),
        (("plan", path, "--device", "h100", "--speed", "1e9"), "give one of them"),
    ):
        code, _ = call(*argv)
        error = capsys.readouterr().err
        assert (code, error.count("\n"), said in error) == (2, 1, True)


SMALL = "tokens = 65536\n[resources]\ngpus = {processes}\n"
STEP = """
[base.model]
width = 64
layers = 4
head_size = 16
vocab_size = 1024
dispatch = "drop-and-pad"
[base.data]
tokenizer = "bytes"
context = 256
[base.run]
batch = 64
precision = "bf16"
"""


@pytest.mark.parametrize(
    ("processes", "cell", "settings"),
    [
        (1, "experts = 8\nrecurrence = 4", {}),
        (8, "experts = 1\nrecurrence = 2", {}),
        (8, "experts = 8\nrecurrence = 4", {"run.accumulate": 4}),
        (8, "experts = 16\nrecurrence = 1", {"run.accumulate": 2}),
        (8, "experts = 16\nrecurrence = 2", {"run.accumulate": 4, "parallel.reduce": '"pass"'}),
    ],
)
def test_the_memory_of_a_plan_is_that_of_the_simulated_step(tmp_path, processes, cell, settings):
    fields = "".join(f'"{name}" = {value}\n' for name, value in settings.items())
    path = write_sweep(tmp_path, f"[grid]\n{cell}\n{fields}{SMALL.format(processes=processes)}", base=STEP)
    (cost,) = planned(read_sweep(path))
    simulated = estimate(cost.run.config, processes, "h100").peak_bytes
    assert cost.memory == pytest.approx(simulated, rel=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("index", random.Random(32).sample(range(105), 5))
def test_a_cell_of_the_papers_sweep_lasts_as_long_as_its_simulated_step_says(index):
    cost = planned(read_sweep("paper"), find_device("h100"))[index]
    (seconds,) = on_device([cost], UTILISATION)
    steps = executed_steps(cost.run.config, cost.run.points)
    config = cost.run.config.changed(run={"tokens": steps * cost.run.config.step_tokens})
    simulated = estimate(config, cost.run.resources.processes, "h100")
    print(f"{cost.run.cell}: planned {seconds / 86400:.2f} days, simulated {simulated.days:.2f}, {simulated.chosen}")
    assert simulated.fits
    assert seconds / 86400 == pytest.approx(simulated.days, rel=0.15)
    assert cost.memory == pytest.approx(simulated.peak_bytes, rel=0.15)
