"""Many points from one trunk: each is what a run of that length alone would have been."""

import pytest
import torch

from loopscale.model import LoopedMoEForCausalLM
from loopscale.sweep.spec import executed_steps, read_sweep
from loopscale.sweep.trunk import Trunk
from loopscale.train.trainer import train
from sweeps import write_sweep

GRID = """[grid]
experts = 2
recurrence = 2
tokens = [320, 640, 1280]
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run with points after 10, 20 and 40 steps."""
    sweep = read_sweep(write_sweep(tmp_path, GRID))
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    return sweep.runs[0]


def keep(found):
    """Return what takes observations into a dictionary, each once."""

    def record(tokens, loss, facts):
        assert tokens not in found
        found[tokens] = (loss, facts)

    return record


@pytest.mark.parametrize("kind", ["wsd", "cosine", "constant"])
def test_every_point_equals_a_run_of_its_own_bit_for_bit(run, tmp_path, kind):
    config, found = run.config.changed(schedule={"kind": kind}), {}
    assert Trunk(config, run.points, tmp_path / "trunk", keep_models=True).run((), keep(found), lambda: False)
    assert sorted(found) == [320, 640, 1280]
    for tokens, (loss, facts) in found.items():
        alone = train(config.changed(run={"tokens": tokens}), tmp_path / f"alone{tokens}")
        assert loss == alone["validation_loss"]
        assert {key: facts[key] for key in alone} == alone
        ours, theirs = (
            LoopedMoEForCausalLM.from_pretrained(folder / "model").state_dict()
            for folder in (tmp_path / "trunk" / f"D{tokens}", tmp_path / f"alone{tokens}")
        )
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_trunk_stopped_at_any_step_ends_as_if_it_had_not_been(run, tmp_path):
    whole, found = {}, {}
    Trunk(run.config, run.points, tmp_path / "whole", keep_models=False).run((), keep(whole), lambda: False)
    for _ in range(100):
        left = iter(range(7))
        trunk = Trunk(run.config, run.points, tmp_path / "parts", keep_models=False)
        if trunk.run(found, keep(found), lambda left=left: next(left, None) is None):
            break
    else:
        pytest.fail("a run that is stopped every 7 steps never ends")
    assert {tokens: loss for tokens, (loss, _) in found.items()} == {t: loss for t, (loss, _) in whole.items()}
    assert trunk.steps_done == executed_steps(run.config, run.points) == 32 + 2 + 4 + 8


def test_a_shorter_point_that_is_added_later_is_found_too(run, tmp_path):
    found, late = {}, {}
    Trunk(run.config, [1280], tmp_path / "trunk", keep_models=False).run((), keep(found), lambda: False)
    Trunk(run.config, [320, 1280], tmp_path / "trunk", keep_models=False).run(found, keep(late), lambda: False)
    assert list(late) == [320]
    alone = train(run.config.changed(run={"tokens": 320}), tmp_path / "alone")
    assert late[320][0] == alone["validation_loss"]


def test_the_real_flops_of_a_point_count_what_its_run_computes(run, tmp_path):
    model = {"injection": "add", "loop_loss_weights": [1.0], "backprop_passes": 1}
    config, recorded = run.config.changed(model=model, schedule={"recurrence": [[0, 1], [0.5, 2]]}), {}
    Trunk(config, [320], tmp_path / "trunk", keep_models=False).run((), keep(recorded), lambda: False)
    alone = train(config.changed(run={"tokens": 320}), tmp_path / "alone")
    assert recorded[320][1]["real_training_flops"] == alone["real_training_flops"]
