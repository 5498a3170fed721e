"""Recipe switches: each is exactly the plain loop when off, and a whole model when on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from looped_models import WITHOUT_LOOPSCALE, config, model, same, tokens
from torch import Tensor
from torch.nn import functional

from loopscale.architecture import read_config
from loopscale.core.errors import InputError
from loopscale.model import Exit, LoopedMoEForCausalLM
from loopscale.model.blocks import Block, rotary
from loopscale.model.injection import inject
from loopscale.model.kernels import rotary_heads
from loopscale.model.moe import MoELayer

OFF: dict[str, Any] = {
    "residual_scale": "none",
    "pass_norms": False,
    "pass_attention": "shared",
    "pass_router": False,
    "exit_gate": False,
    "injection": "none",
    "backprop_passes": None,
}
SWITCHES: dict[str, dict[str, Any]] = {
    "branches / sqrt(R)": {"residual_scale": "1/sqrt(R)"},
    "branches / R": {"residual_scale": "1/R"},
    "norms": {"pass_norms": True},
    "low-rank attention": {"pass_attention": "low-rank", "pass_attention_rank": 3},
    "full attention": {"pass_attention": "full", "own_passes": 2},
    "router": {"pass_router": True},
    "add": {"injection": "add"},
    "concat": {"injection": "concat"},
    "gated": {"injection": "gated"},
    "diagonal": {"injection": "diagonal"},
    "normed": {"injection": "normed"},
    "truncated": {"injection": "diagonal", "backprop_passes": 1},
    "exit gate": {"exit_gate": True},
    "router and bias": {"pass_router": True, "balance": "pass"},
}


def plain_block(block: Block, x_BTD: Tensor, attention: torch.nn.Module, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Return a layer without any switch."""
    qkv_BTNh = block.qkv_proj(block.input_layernorm(x_BTD)).unflatten(-1, (-1, block.head_dim))
    mixed_BTD, _ = attention(*rotary_heads(qkv_BTNh, *angles, block.heads, block.kv_heads), None)
    x_BTD = x_BTD + block.o_proj(mixed_BTD)
    out = block.mlp(block.post_attention_layernorm(x_BTD))
    return x_BTD + (out[0] if isinstance(block.mlp, MoELayer) else out)


def plain_loss(made: LoopedMoEForCausalLM, ids_BT: Tensor) -> Tensor:
    """Return the loss of the plain loop: the same layers R times over."""
    body, settings = made.model, made.config
    angles = rotary(torch.arange(ids_BT.shape[1])[None], settings, torch.float32)
    x_BTD = body.embed_tokens(ids_BT)
    for block in (*body.prelude, *(list(body.loop) * settings.recurrence), *body.coda):
        x_BTD = plain_block(block, x_BTD, body.attentions[0], angles)
    logits_BTV = made.lm_head(body.norm(x_BTD))
    return made.loss_function(logits=logits_BTV, labels=ids_BT, vocab_size=settings.vocab_size)


def losses(made: LoopedMoEForCausalLM, plain: bool, steps: int) -> list[float]:
    """Return the losses of some training steps."""
    made.train()
    optimiser = torch.optim.AdamW(made.parameters(), lr=3e-3)
    curve = []
    for step in range(steps):
        ids = tokens(4, 12, seed=step)
        loss = plain_loss(made, ids) if plain else made(ids, labels=ids).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        curve.append(loss.item())
    return curve


@pytest.mark.parametrize(
    ("experts", "recurrence", "steps"),
    [
        (6, 2, 50),
        pytest.param(1, 3, 50, marks=pytest.mark.slow),
        pytest.param(6, 4, 400, marks=pytest.mark.slow),
        pytest.param(6, 1, 400, marks=pytest.mark.slow),
    ],
)
def test_with_every_switch_off_the_steps_are_those_of_the_plain_loop_bit_for_bit(
    experts: int, recurrence: int, steps: int
) -> None:
    options = {"num_experts": experts, "recurrence": recurrence, "router_z_loss_coef": 0.0, "dtype": torch.float32}
    expected = losses(model(**options), plain=True, steps=steps)
    assert losses(model(**options, **OFF), plain=False, steps=steps) == expected
    assert expected[-1] < expected[0]


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_is_counted_trained_saved_and_decoded(name: str, tmp_path: Path) -> None:
    made, ids = model(**SWITCHES[name]), tokens(2, 9)
    with torch.no_grad():
        for key, weight in made.named_parameters():
            if key.endswith(".up"):  # an adapter starts at zero
                weight.normal_(std=0.3)
    assert sum(weight.numel() for weight in made.parameters()) == made.config.to_architecture().parameters
    out = made(ids, labels=ids)
    plain = model(balance=made.config.balance)
    plain.load_state_dict(made.state_dict(), strict=False)
    trained = [which.train()(ids, labels=ids).loss.item() for which in (made, plain)]
    assert abs(trained[0] - trained[1]) > 1e-6, "the switch changes nothing"
    made.eval()
    same(
        made.generate(ids, max_new_tokens=5, do_sample=False),
        made.generate(ids, max_new_tokens=5, do_sample=False, use_cache=False),
    )
    cache = made(ids[:, :6], use_cache=True).past_key_values
    same(made(ids[:, 6:], past_key_values=cache).logits, out.logits[:, 6:])
    made.save_pretrained(tmp_path / "saved")
    same(LoopedMoEForCausalLM.from_pretrained(tmp_path / "saved").eval()(ids).logits, out.logits)
    assert read_config(tmp_path / "saved").parameters == made.config.to_architecture().parameters
    made.train()(ids, labels=ids).loss.backward()
    assert [key for key, weight in made.named_parameters() if weight.grad is None] == []


LOADED = """
for folder in sys.argv[1:]:
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    assert "loopscale" not in sys.modules
    print(model(torch.arange(9)[None]).logits.double().square().sum().item())
"""


@pytest.mark.slow  # test_checkpoints has a quick one
def test_a_model_with_switches_loads_where_loopscale_is_not_installed(tmp_path: Path) -> None:
    expected = []
    for number, options in enumerate(SWITCHES.values()):
        made = model(**options)
        made.save_pretrained(tmp_path / str(number))
        expected.append(made(torch.arange(9)[None]).logits.double().square().sum().item())
    folders = [str(tmp_path / str(number)) for number in range(len(SWITCHES))]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LOOPSCALE + LOADED, *folders],
        capture_output=True,
        text=True,
        check=False,
        env={"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]},
    )
    assert done.returncode == 0, done.stderr
    assert [float(line) for line in done.stdout.split()] == pytest.approx(expected, rel=1e-6)


def test_the_branches_of_the_loop_alone_are_scaled_by_the_recurrence_of_the_call() -> None:
    scaled, plain = model(residual_scale="1/R"), model()
    with torch.no_grad():
        for block in scaled.model.loop:  # undo the scale in the weights, for R = 4
            block.o_proj.weight *= 4
            block.mlp.experts.down_proj *= 4
    same(scaled(tokens(2, 9), recurrence=4).logits, plain(tokens(2, 9), recurrence=4).logits)
    assert config(residual_scale="1/sqrt(R)").branch_scale(4) == 0.5


def test_a_pass_computes_with_its_own_parts_and_passes_beyond_them_with_the_last() -> None:
    options = {"pass_norms": True, "pass_attention": "full", "pass_router": True, "own_passes": 2}
    own, plain = model(**options), model()
    first, later = plain.model.loop[0], own.model.loop[0]
    with torch.no_grad():  # a plain block with the second pass's parts
        first.load_state_dict(later.state_dict(), strict=False)
        first.load_state_dict(later.later[0].state_dict(), strict=False)
        first.mlp.router.weight.copy_(later.mlp.router.later[0])
    for pass_index in (1, 5):
        same(later(*hidden(own), pass_index=pass_index)[0], first(*hidden(own))[0])
    assert not torch.allclose(later(*hidden(own))[0], first(*hidden(own))[0])


def hidden(made: LoopedMoEForCausalLM) -> tuple[Any, ...]:
    """Return what a layer takes: states, attention, rotations and no mask."""
    states_BTD = made.model.embed_tokens(tokens(2, 9))
    return states_BTD, made.model.attentions[0], rotary(torch.arange(9)[None], made.config, torch.float64), None


def test_adapters_start_as_the_shared_attention() -> None:
    torch.manual_seed(0)
    fresh = LoopedMoEForCausalLM(config(pass_attention="low-rank")).eval()
    plain = LoopedMoEForCausalLM(config()).eval()
    plain.load_state_dict(fresh.state_dict(), strict=False)
    assert torch.equal(fresh(tokens(2, 9)).logits, plain(tokens(2, 9)).logits)


def test_what_later_passes_have_for_themselves_is_in_the_costs() -> None:
    plain, own = (config(**options).to_architecture() for options in ({}, SWITCHES["low-rank attention"]))
    # Three passes, two layers: queries, keys and values of 8 heads of 8 from 24, and 4 heads of 8 back to 24.
    adapters = 2 * 3 * (24 + 64 + 32 + 24)
    assert own.pass_weights == own.total - plain.total == 2 * adapters
    assert own.unrolled(5) - plain.unrolled(5) == 4 * adapters
    spent = own.real_inference_flops_per_token(5, context=9) - plain.real_inference_flops_per_token(5, context=9)
    assert spent == 2 * 4 * adapters
    assert config(pass_router=True).to_architecture().router == plain.router + 2 * 2 * 6 * 24
    assert config(pass_norms=True).to_architecture().norms == plain.norms + 2 * 2 * 2 * 24
    assert type(own).from_dict(own.to_dict()) == own


def test_the_gated_injection_is_a_mean_and_the_diagonal_one_forgets_the_state() -> None:
    state, entry = torch.randn(2, 1, 9, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gated = model(injection="gated").model
    joined = inject("gated", gated.injection, state, entry)
    gate = (torch.cat((state, entry), -1) @ gated.injection.weight.T + gated.injection.bias).sigmoid()
    same(joined, gate * state + (1 - gate) * entry)
    diagonal = model(injection="diagonal").model
    torch.testing.assert_close(
        inject("diagonal", diagonal.injection, state, entry), (state + entry) / 2, atol=1e-6, rtol=1e-6
    )
    with torch.no_grad():
        diagonal.injection.rate.normal_(std=3.0)
    decay = inject("diagonal", diagonal.injection, torch.ones_like(state), torch.zeros_like(entry))
    assert 0 <= decay.min() < decay.max() < 1


def test_the_normed_injection_adds_the_projected_input_to_the_normalised_state() -> None:
    state, entry = torch.randn(2, 1, 9, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    normed = model(injection="normed").model
    unit = state / (state.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    joined = inject("normed", normed.injection, state, entry)
    same(joined, unit * normed.injection.norm.weight + entry @ normed.injection.proj.weight.T)
    same(inject("normed", normed.injection, 1e3 * state, entry), joined, tolerance=1e-5)
    plain, counted = (config(injection=kind).to_architecture() for kind in ("none", "normed"))
    assert counted.parameters - plain.parameters == counted.loop - plain.loop == 24 * 24 + 24


def test_a_config_of_an_earlier_version_may_say_that_the_block_repeats_as_a_whole() -> None:
    assert not hasattr(config(loop_order="cycle"), "loop_order")
    with pytest.raises(InputError, match="loop_order is no longer a field"):
        config(loop_order="sequence")


def test_the_exit_gate_weighs_the_losses_of_passes_and_keeps_them_all_in_use() -> None:
    made, ids = model(exit_gate=True, exit_entropy_coef=0.5, router_z_loss_coef=0.0), tokens(2, 9)
    with torch.no_grad():
        made.model.exit_gate.weight.normal_()
        made.model.exit_gate.bias.fill_(-0.5)
    out = made(ids, output_passes=True)
    leave = [made.model.exit_gate(state).sigmoid() for state in out.pass_states]
    chance = torch.stack([leave[0], (1 - leave[0]) * leave[1], (1 - leave[0]) * (1 - leave[1])])[:, :, :-1]
    same(chance.sum(0), torch.ones(2, 8, dtype=torch.float64))
    each = torch.stack(
        [functional.cross_entropy(x[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none") for x in out.pass_logits]
    )
    expected = (chance * each).sum(0).mean()
    entropy = -(chance * chance.log()).sum(0).mean()
    trained = made.train()(ids, labels=ids)
    torch.testing.assert_close(trained.cross_entropy.double(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(trained.loss.double(), expected - 0.5 * entropy, atol=1e-5, rtol=1e-5)
    trained.loss.backward()
    gradient = torch.autograd.grad(expected - 0.5 * entropy, made.model.exit_gate.weight)[0]
    torch.testing.assert_close(made.model.exit_gate.weight.grad, gradient, atol=1e-5, rtol=1e-4)


def test_the_exit_gate_stops_each_token_when_going_on_is_improbable() -> None:
    made, ids = model(exit_gate=True, recurrence=6), tokens(2, 9)
    with torch.no_grad():
        made.model.exit_gate.weight.normal_()
    out = made(ids, output_passes=True)
    stay = torch.stack([1 - made.model.exit_gate(state).sigmoid() for state in out.pass_states]).cumprod(0)
    passes = made(ids, recurrence="auto", exit=Exit("gate", 0.2)).passes
    first = torch.where((stay < 0.2).any(0), (stay < 0.2).int().argmax(0) + 1, 6)
    assert torch.equal(passes[:, 0], first[:, 0])  # later tokens attend to tokens that have left
    assert passes.min() < passes.max()
    assert (made(ids, recurrence="auto", exit=Exit("gate", 0.0)).passes == 6).all()
    with pytest.raises(InputError, match="trained with exit_gate"):
        model()(ids, recurrence="auto", exit=Exit("gate", 0.2))


def test_training_flops_leave_out_the_backward_of_passes_that_have_none() -> None:
    plain = config(injection="concat").to_architecture()
    whole, cut = (plain.real_train_flops_per_token(4, context=9, backprop_passes=kept) for kept in (None, 3))
    one_pass = plain.real_inference_flops_per_token(2, context=5) - plain.real_inference_flops_per_token(1, context=5)
    assert whole - cut == 2 * one_pass
    assert plain.real_train_flops_per_token(4, context=9, backprop_passes=9) == whole
