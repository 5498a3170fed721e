"""A law does not answer for experts, passes or repeated tokens that it lacks: in Python, by command, HTTP and page."""

import json

import pytest
from engine import PLANNER, run_node

from loopscale.architecture import architecture_space, ladder_space, rung
from loopscale.cli import main
from loopscale.core.errors import InputError
from loopscale.planning import plan
from loopscale.planning.predictions import predict
from loopscale.scaling import find_law

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


@pytest.mark.parametrize(("design", "noun"), [(EXPERTS, "experts"), (PASSES, "passes")], ids=["experts", "recurrence"])
def test_the_page_does_not_answer_for_a_variable_that_the_law_lacks(design, noun):
    options = {"experts": [design["experts"]], "recurrences": [design["recurrence"]]}
    code = """
      try { spaceOf(preparedLaw(tasks.law), tasks.options); return null; }
      catch (error) { if (!(error instanceof Refusal)) throw error; return [error.field, error.problem]; }
    """
    field, problem = run_node(code, {"law": find_law(LAW).to_dict(), "options": options}, *PLANNER)
    assert field == noun
    assert f"has no term for {noun}" in problem


REPEATED = "each token is seen 20 times, discounted as data-constrained-2023 found on dense models"


def test_a_law_without_repetition_discounts_repeated_tokens_alike_everywhere(client, capsys, tmp_path):
    law = "chinchilla-epoch-2024"
    asked = {"tokens": "100B", "unique_tokens": "5B"}
    planned = plan(**asked, law=law, space=architecture_space([rung("0.6B")], [1]), rule="loss").choice.loss
    answer = predict("0.6B", law=law, **asked)
    assert answer.loss == planned > predict("0.6B", "100B", law=law).loss + 0.01
    assert REPEATED in answer.trust.reasons
    with pytest.raises(SystemExit):
        main(["predict", "--rung", "0.6B", "--tokens", "100B", "--unique-tokens", "5B", "--law", law, "--json"])
    printed = json.loads(capsys.readouterr().out)
    sent = client.send("/api/predict", {"rung": "0.6B", **asked, "law": law}).json
    assert printed["loss"] == sent["loss"] == planned
    assert REPEATED in printed["trust"]["reasons"]
    assert REPEATED in sent["trust"]["reasons"]
    file = tmp_path / "law.json"
    find_law(law).save(file)
    size = answer.design.active_parameters  # this law counts embeddings
    with pytest.raises(SystemExit):
        main(["forecast", str(file), "--params", str(size), "--tokens", "100B", "--unique-tokens", "5B", "--json"])
    forecast = json.loads(capsys.readouterr().out)
    assert forecast["repetition"] == REPEATED
    assert forecast["forecasts"][0]["parts"]["law"]["loss"] == pytest.approx(planned)


def test_a_law_with_repetition_answers_alike_everywhere(client, capsys):
    law = "data-constrained-2023"
    fresh, repeated = (predict("0.6B", "100B", law=law, unique_tokens=unique).loss for unique in (None, "5B"))
    assert repeated > fresh + 0.01
    with pytest.raises(SystemExit):
        main(["predict", "--rung", "0.6B", "--tokens", "100B", "--unique-tokens", "5B", "--law", law, "--json"])
    assert json.loads(capsys.readouterr().out)["loss"] == repeated
    body = {"rung": "0.6B", "tokens": "100B", "unique_tokens": "5B", "law": law}
    assert client.send("/api/predict", body).json["loss"] == repeated


def test_a_plan_says_that_it_discounts_repeated_tokens(client, capsys):
    told = "each token is seen"
    asked = {"flops": "1e21", "unique_tokens": "5B", "law": "chinchilla-epoch-2024", "extrapolate": True}
    assert any(reason.startswith(told) for reason in plan(**asked).trust.reasons)
    with pytest.raises(SystemExit):
        main(["plan", "--flops", "1e21", "--unique-tokens", "5B", "--law", asked["law"], "--extrapolate", "--verbose"])
    assert told in capsys.readouterr().out
    assert told in client.send("/api/plan", asked).body.decode()
