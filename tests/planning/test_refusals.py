"""What is refused, in one place: far answers, degenerate laws, and variables that a law does not have."""

from dataclasses import replace

import pytest

from loopscale.architecture import ladder_space
from loopscale.core.errors import InputError
from loopscale.planning import WithheldError, plan
from loopscale.planning.matching import matched
from loopscale.planning.predictions import predict
from loopscale.scaling import find_law

DENSE = "chinchilla-epoch-2024"


@pytest.mark.parametrize(
    "ask",
    [
        lambda: predict("1.0B", experts=8, tokens="500B", law=DENSE, extrapolate=True),
        lambda: matched("1.0B:8:1", "1.0B:1:1", "5e21", DENSE, extrapolate=True),
        lambda: plan(flops=5e21, law=DENSE, rule="loss", space=ladder_space(["1.0B"], [8], [1])),
    ],
)
def test_a_law_without_experts_does_not_answer_for_them(ask):
    with pytest.raises(InputError, match="has no term for E, so it cannot answer for E = 8") as refused:
        ask()
    assert refused.value.field == "experts"


def test_a_law_without_recurrence_does_not_answer_for_it():
    with pytest.raises(InputError, match="has no term for R, so it cannot answer for R = 2"):
        predict("1.0B", recurrence=2, tokens="500B", law=DENSE)


def test_a_law_that_was_fitted_at_one_number_of_experts_plans_at_it():
    law = find_law(DENSE)
    sparse = replace(law, fitted_range=replace(law.fitted_range, experts=(8, 8)))
    assert plan(flops=5e21, law=sparse, rule="loss", extrapolate=True).choice.experts == 8


def test_a_refusal_names_everything_that_allows_the_answer():
    law = replace(find_law(), degenerate=("kappa1 ended on its bound",))
    with pytest.raises(WithheldError, match=r"is degenerate: kappa1.*10x beyond the runs") as refused:
        plan(flops=1e26, law=law)
    assert refused.value.overrides == ("allow_degenerate", "extrapolate")
    assert "`allow_degenerate` and `extrapolate`" in str(refused.value)
    with pytest.raises(WithheldError) as half:
        plan(flops=1e26, law=law, extrapolate=True)
    assert half.value.overrides == ("allow_degenerate",)
    assert plan(flops=1e26, law=law, extrapolate=True, allow_degenerate=True).trust.level == "beyond"


def test_a_plan_says_whose_discount_it_uses_for_repeated_tokens():
    asked = {"flops": "1e21", "unique_tokens": "5B", "rule": "loss", "extrapolate": True}
    reasons = {law: " ".join(plan(law=law, **asked).trust.reasons) for law in (DENSE, "data-constrained-2023")}
    assert "times, discounted as data-constrained-2023 found on dense models" in reasons[DENSE]
    assert "each token is seen" in reasons["data-constrained-2023"]
    assert "discounted" not in reasons["data-constrained-2023"]
