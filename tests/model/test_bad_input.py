"""Bad input ends in one sentence that says what would do."""

from __future__ import annotations

import subprocess
import sys

import pytest
from looped_models import config, model, tokens

from loopscale.core.errors import InputError


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"num_experts_per_tok": 7}, "num_experts_per_tok is 7, more than the 6 experts there are"),
        ({"num_experts_per_tok": 1}, "the one gate divided by itself is always 1, so the router would get no gradient"),
        ({"num_experts": 0}, "num_experts is 0; it should be a whole number, 1 or more"),
        ({"recurrence": 0}, "recurrence is 0; it should be a whole number from 1 to"),
        ({"recurrence": "auto"}, "recurrence is 'auto'; it should be a whole number"),
        ({"recurrence": True}, "recurrence is True"),
        ({"recurrence": 2, "loop_layers": 0}, "there is nothing to repeat"),
        ({"prelude_layers": 0, "loop_layers": 0, "coda_layers": 0, "recurrence": 1}, "the model has no layers"),
        ({"hidden_size": -4}, "hidden_size is -4"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is no multiple of num_key_value_heads 3"),
        ({"head_dim": 7}, "rotary positions need an even number"),
        (
            {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}},
            "rope_type 'longrope'; it should be 'default' or",
        ),
        ({"dispatch": "drop"}, "dispatch is 'drop'; it should be 'dropless' or 'drop-and-pad'"),
        ({"capacity_factor": 0.0}, "capacity_factor is 0.0"),
        ({"balance": "expert"}, "balance is 'expert'"),
        ({"injection": "sum"}, "injection is 'sum'"),
        ({"random_recurrence": "normal"}, "random_recurrence is 'normal'"),
        ({"backprop_passes": 0, "injection": "add"}, "backprop_passes is 0"),
        ({"backprop_passes": 2}, "the prelude would get no gradient"),
        ({"kept_passes": 0}, "kept_passes is 0"),
        ({"loop_loss_weights": [0.0]}, "not all zero"),
        ({"loop_loss_weights": [1.0, -1.0]}, "weights of zero or more"),
        ({"recurence": 3}, "unknown field 'recurence' .did you mean 'recurrence'"),
    ],
)
def test_a_config_that_no_model_can_have_is_refused(fields: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        config(**fields)
    assert "\n" not in str(caught.value)


def test_one_active_expert_is_fine_when_gates_are_not_normalised() -> None:
    made = model(num_experts_per_tok=1, norm_topk_prob=False).train()
    made(tokens(2, 9), labels=tokens(2, 9)).loss.backward()
    assert made.model.loop[0].mlp.router.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("wrong", [0, -2, "three", 1.5, True])
def test_a_recurrence_that_means_nothing_is_refused_at_call_and_at_generate(wrong: object) -> None:
    for call in (model(), model().generate):
        with pytest.raises(InputError, match="it should be a whole number from 1 to 4096, or 'auto'"):
            call(tokens(1, 4), recurrence=wrong)


def test_a_model_without_a_loop_block_cannot_repeat() -> None:
    with pytest.raises(InputError, match="has no loop block to repeat"):
        model(loop_layers=0, recurrence=1)(tokens(1, 4), recurrence=2)


def test_the_core_and_the_command_line_never_import_torch() -> None:
    code = """
import sys
import loopscale.architecture, loopscale.scaling, loopscale.planning, loopscale.cli
from loopscale.cli.verbs import VERBS, cli
for verb in VERBS:
    assert cli.get_command(None, verb) is not None
assert "torch" not in sys.modules and "transformers" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
