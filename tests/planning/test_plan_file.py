"""A plan goes into a file and comes back equal; a file that is not whole is refused with what to do."""

import json

import pytest

from loopscale.core.errors import InputError
from loopscale.planning import Plan, plan

BUDGETS = [
    {"flops": 5e21, "memory": 3e9, "bits": 4},
    {"flops": 5e21, "memory": 3e9, "bits": 4, "context": 8192, "min_speed": 20, "bandwidth": "51GB/s"},
    {"flops": 5e20, "serve_tokens": 1e11, "inference_flops": 2e9},  # some designs leave no compute to train
    {"flops": 1e21, "law": "chinchilla-2022", "rule": "loss"},
    {"tokens": 3e11, "flops": 2e21, "unique_tokens": "50B"},
]


@pytest.mark.parametrize("asked", BUDGETS, ids=lambda asked: ",".join(asked))
def test_a_plan_loads_equal_to_what_was_saved(asked, tmp_path):
    made = plan(**asked, extrapolate=True)
    assert Plan.from_dict(made.to_dict()) == made
    made.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == made
    assert Plan.load(tmp_path / "plan.json").to_dict() == made.to_dict()


def test_a_plan_of_an_earlier_version_is_refused_with_what_to_do(tmp_path):
    data = plan(flops=5e21, memory="3GB", bits=4).to_dict()
    (tmp_path / "plan.json").write_text(json.dumps(data | {"schema": 1}))
    with pytest.raises(InputError, match=r"0\.2 or earlier; make it anew with `loopscale plan --out`"):
        Plan.load(tmp_path / "plan.json")
    with pytest.raises(InputError, match="unknown field 'choise'"):
        Plan.from_dict(data | {"choise": data["choice"]})


def test_an_incomplete_plan_file_says_to_make_it_anew():
    data = plan(flops=5e21).to_dict()
    del data["votes"]
    with pytest.raises(InputError, match=r"plan: field 'votes' is missing; make it anew with `loopscale plan --out`"):
        Plan.from_dict(data)
