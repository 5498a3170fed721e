"""Every object that can be saved comes back equal, from its plain values and from its file."""

import json

import numpy as np
import pytest

import loopscale as ls
from loopscale.architecture import rung
from loopscale.choosing import Goal, Target, next_runs
from loopscale.core.files import write_json
from loopscale.fitting import simulate_sweep
from loopscale.saved import OBJECTS


@pytest.fixture(scope="module")
def objects():
    """An object of each kind that ``load`` opens."""
    from loopscale.evaluate.store import EvaluatedModel, Key, Result, Score

    fit = ls.fit(simulate_sweep(recurrences=(1, 2, 4), tokens=np.linspace(1e11, 5e11, 3).tolist()), resamples=5)
    plan = ls.plan(flops="5e21", memory="3GB", bits="int4")
    target = Target.of_plan(plan, fit.observations.counts, Goal.CHOICE)
    return {
        "law": fit.law,
        "architecture": rung("0.3B", experts=8),
        "fit": fit,
        "plan": plan,
        "next-runs": next_runs(fit, 1e21, target, most=2),
        "evaluation": Result(Key("c" * 64, "task", 2, {"batch": 4}), {"acc,none": Score(0.5, 0.1)}, 10, 1.0),
        "evaluated-model": EvaluatedModel("c" * 64, "small", rung("0.3B"), 1e9),
    }


@pytest.mark.parametrize("kind", OBJECTS)
def test_an_object_equals_the_one_that_was_saved(kind, objects, tmp_path):
    saved = objects[kind]
    plain = json.loads(json.dumps(saved.to_dict(), allow_nan=False))
    assert plain["kind"] == kind
    assert type(saved).from_dict(plain, "values") == saved
    write_json(tmp_path / "object.json", saved.to_dict())
    assert ls.load(tmp_path / "object.json") == saved
