"""Less than one token, one parameter or one pass is refused; what a plan withholds, a profile withholds too."""

import json

import numpy as np
import pytest

import loopscale as ls
from loopscale.cli import main
from loopscale.core.errors import InputError
from loopscale.planning import search
from loopscale.planning.matching import matched


@pytest.mark.parametrize("field", ["tokens", "max_tokens", "unique_tokens", "serve_tokens"])
def test_a_budget_of_less_than_one_token(field):
    with pytest.raises(InputError, match=rf"{field}: 0\.5 is less than one"):
        ls.plan(**{"flops": "5e21", field: 0.5})


def test_a_context_without_memory_is_refused_in_python_as_on_the_command_line(capsys):
    with pytest.raises(InputError, match="`context` changes nothing alone; give `memory` or `bandwidth` with it"):
        ls.plan(flops="5e21", context=8192)
    with pytest.raises(SystemExit):
        main(["plan", "--flops", "5e21", "--context", "8192"])
    assert "--context changes nothing alone; give --memory or --bandwidth with it" in capsys.readouterr().err


def test_compute_that_pays_for_less_than_one_token():
    with pytest.raises(InputError, match="does not pay for one token of any candidate"):
        ls.plan(flops=256_400, extrapolate=True)
    with pytest.raises(InputError, match="less than one"):
        ls.predict("1.0B", flops=1e3, extrapolate=True)
    with pytest.raises(InputError, match="less than one"):
        matched("0.3B:8:4", "0.6B:8:1", 1e3, extrapolate=True)


def test_a_model_of_less_than_one_parameter():
    with pytest.raises(InputError, match=r"N: 0\.5 is less than one"):
        ls.predict(N=0.5, D=1e9, law="chinchilla-epoch-2024")


def test_designs_that_compute_cannot_train_on_one_token_are_ruled_out():
    grid = search(flops=1e9, extrapolate=True).grid
    tokens = grid.tokens_FSKP
    assert tokens.min() < 1 < tokens.max()
    assert not grid.within()[tokens < 1].any()
    assert np.isinf(grid.loss_ZFSKP[:, tokens < 1]).all()


def profile(capsys, *options):
    with pytest.raises(SystemExit) as stop:
        main(["profile", "recurrence", "--rung", "1.0B", "--experts", "1", "--recurrence", "1,2", "--json", *options])
    assert stop.value.code == 0
    return json.loads(capsys.readouterr().out)["rows"]


def test_a_profile_withholds_what_lies_more_than_10x_beyond_the_data(capsys):
    assert [(row["loss"], row["best"]) for row in profile(capsys, "--flops", "1e18")] == [(None, None)] * 2
    assert all(row["loss"] > 0 for row in profile(capsys, "--flops", "1e18", "--extrapolate"))
    assert all(row["loss"] > 0 for row in profile(capsys, "--flops", "5e21"))
