"""A law without experts or loops answers for neither: the same refusal on the command line, in Python and by HTTP."""

import pytest

from loopscale.architecture import ladder_space, rung
from loopscale.cli import main
from loopscale.core.errors import InputError
from loopscale.planning import plan
from loopscale.planning.predictions import predict

LAW = "chinchilla-2022"
PASSES = {"experts": 1, "recurrence": 2}
EXPERTS = {"experts": 8, "recurrence": 1}


@pytest.mark.parametrize("design", [EXPERTS, PASSES], ids=["experts", "recurrence"])
@pytest.mark.parametrize("verb", ["predict", "plan"])
def test_a_law_does_not_answer_for_a_variable_that_it_lacks(client, capsys, verb, design):
    field, symbol = ("experts", "E") if design["experts"] > 1 else ("recurrence", "R")
    refusal = f"has no term for {symbol}, so it cannot answer for {symbol} = {design[field]}"
    if verb == "predict":
        with pytest.raises(InputError, match=refusal) as refused:
            predict(rung("0.6B", design["experts"]), 1e11, design["recurrence"], law=LAW)
        body = {"rung": "0.6B", "tokens": "100B", **design}
        line = ["--rung", "0.6B", "--tokens", "100B"]
    else:
        with pytest.raises(InputError, match=refusal) as refused:
            plan(
                flops=1e21, space=ladder_space(experts=[design["experts"]], recurrences=[design["recurrence"]]), law=LAW
            )
        body = {"flops": "1e21", "experts": [design["experts"]], "recurrences": [design["recurrence"]]}
        line = ["--flops", "1e21"]
    assert refused.value.field == field
    with pytest.raises(SystemExit) as ended:
        main([verb, *line, f"--{field}", str(design[field]), "--law", LAW])
    told = capsys.readouterr().err
    assert (ended.value.code, told.count("\n")) == (2, 1)
    assert told.startswith(f"loopscale: --{field}: ")
    assert refusal in told
    answer = client.send(f"/api/{verb}", body | {"law": LAW})
    assert answer.status == 422
    assert refusal in answer.body.decode()
