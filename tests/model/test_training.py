"""What training adds: losses, balancing, truncated backpropagation, random recurrence, checkpointing."""

from __future__ import annotations

import pytest
import torch
from looped_models import config, model, tokens
from torch import Tensor
from torch.nn import functional

from loopscale.model import LoopedMoEForCausalLM, Trace, draw_recurrence
from loopscale.model.balancing import load_ratio, update_biases


def next_token_loss(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the loss as Transformers computes it: in float32, for any dtype of the model."""
    return functional.cross_entropy(logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten())


def grads(made: LoopedMoEForCausalLM) -> dict[str, Tensor]:
    return {name: weight.grad.clone() for name, weight in made.named_parameters() if weight.grad is not None}


def test_the_loss_is_the_last_passs_with_the_z_loss_in_training_only() -> None:
    made, ids = model(router_z_loss_coef=0.01), tokens(2, 9)
    evaluated = made(ids, labels=ids)
    torch.testing.assert_close(evaluated.loss, next_token_loss(evaluated.logits, ids))
    trained = made.train()(ids, labels=ids)
    torch.testing.assert_close(trained.cross_entropy, evaluated.loss, atol=1e-5, rtol=1e-5)
    assert trained.loss.item() == pytest.approx(evaluated.loss.item() + 0.01 * trained.z_loss.item(), rel=1e-5)


def test_the_z_loss_sums_over_layers_and_averages_over_passes() -> None:
    made, ids = model(recurrence=1).train(), tokens(2, 9)
    blocks = [*made.model.prelude, *made.model.loop, *made.model.coda]
    seen: list[Tensor] = []
    hooks = [block.mlp.router.register_forward_hook(lambda m, i, out: seen.append(out[0])) for block in blocks]
    found = made(ids).z_loss
    torch.testing.assert_close(found, sum(logits.logsumexp(-1).square().mean() for logits in seen))
    seen.clear()
    found = made(ids, recurrence=4).z_loss
    each = [logits.logsumexp(-1).square().mean() for logits in seen]
    torch.testing.assert_close(found, each[0] + sum(each[1:-1]) / 4 + each[-1])
    assert hooks


def test_per_loop_supervision_weighs_the_loss_of_every_pass() -> None:
    made, ids = model(loop_loss_weights=[1.0, 0.0, 3.0], router_z_loss_coef=0.0), tokens(2, 9)
    passes = made(ids, output_passes=True).pass_logits
    expected = (next_token_loss(passes[0], ids) + 3 * next_token_loss(passes[2], ids)) / 4
    assert made.train()(ids, labels=ids).loss.item() == pytest.approx(expected.item(), rel=1e-5)
    longer = made(ids, labels=ids, recurrence=4, output_passes=True)
    more = (next_token_loss(passes[0], ids) + 3 * next_token_loss(passes[2], ids)) / 7
    more = more + 3 * next_token_loss(longer.pass_logits[3], ids) / 7
    assert longer.loss.item() == pytest.approx(more.item(), rel=1e-5)
    torch.testing.assert_close(made.eval()(ids, labels=ids).loss, next_token_loss(passes[2], ids))


@pytest.mark.parametrize("injection", ["add", "concat"])
def test_the_injection_returns_the_loops_input_at_each_pass(injection: str) -> None:
    made, ids = model(injection=injection), tokens(2, 9)
    inputs: list[Tensor] = []
    made.model.loop[0].register_forward_pre_hook(lambda m, args: inputs.append(args[0]))
    out = made(ids, output_passes=True, output_hidden_states=True)
    entry = made.model.prelude[0](
        made.model.embed_tokens(ids),
        attention=made.model.attentions[0],
        angles=angles(made, 9),
        attention_mask=None,
    )[0]
    for state, found in zip((entry, *out.pass_states), inputs, strict=False):
        if injection == "add":
            torch.testing.assert_close(found, state + entry)
        else:
            torch.testing.assert_close(found, torch.cat((state, entry), dim=-1) @ made.model.injection.weight.T)


def angles(made: LoopedMoEForCausalLM, length: int) -> tuple[Tensor, Tensor]:
    from loopscale.model.blocks import rotary

    return rotary(torch.arange(length)[None], made.config, torch.float32)


def test_truncated_backpropagation_stops_at_the_last_passes() -> None:
    ids = tokens(2, 9)
    cut, whole = (
        model(injection="add", backprop_passes=kept, recurrence=4, router_z_loss_coef=0.0).train() for kept in (2, None)
    )
    loss = cut(ids, labels=ids).loss
    loss.backward()
    # The same by hand: the first two passes without a graph, then two more from where they end.
    body = whole.model
    parts = {"angles": angles(whole, 9), "attention_mask": None, "attention": body.attentions[0]}
    entry = body.prelude[0](body.embed_tokens(ids), **parts)[0]
    state = entry
    for place in range(4):
        with torch.set_grad_enabled(place >= 2):
            state = state + entry
            for block in body.loop:
                state = block(state, **parts)[0]
    hidden = body.norm(body.coda[0](state, **parts)[0])
    expected = next_token_loss(whole.lm_head(hidden), ids)
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for (name, one), other in zip(cut.named_parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize(("law", "mean"), [("uniform", 3.0), ("poisson", 5.0)])
def test_random_recurrence_draws_around_its_mean_in_training_and_not_in_evaluation(law: str, mean: float) -> None:
    made = model(random_recurrence=law, recurrence=5)
    generator = torch.Generator().manual_seed(0)
    drawn = [draw_recurrence(made.config, generator) for _ in range(2000)]
    assert min(drawn) == 1
    assert abs(sum(drawn) / 2000 - mean) < 0.15
    assert len(made(tokens(1, 4), output_passes=True).pass_logits) == 5
    made.train()
    ids = tokens(1, 4)
    assert len({len(made(ids, labels=ids, output_passes=True).pass_logits) for _ in range(20)}) > 2
    assert len(made(ids, labels=ids, output_passes=True, recurrence=2).pass_logits) == 2


def test_forwards_without_labels_run_the_configs_recurrence_in_training_too() -> None:
    # Preference training and reinforcement learning compare the logits of two such forwards.
    made, ids = model(random_recurrence="uniform", recurrence=5).train(), tokens(1, 4)
    expected = made(ids, recurrence=5)
    for _ in range(8):
        assert torch.equal(made(ids).logits, expected.logits)
        assert len(made.model(ids, output_passes=True).pass_states) == 5


def test_activation_checkpointing_changes_neither_gradients_nor_counts() -> None:
    made, ids = model().train(), tokens(2, 9)
    out = made(ids, labels=ids)
    out.loss.backward()
    expected = grads(made)
    made.zero_grad()
    made.gradient_checkpointing_enable({"use_reentrant": False})
    again = made(ids, labels=ids)
    again.loss.backward()
    assert all(map(torch.equal, out.expert_counts, again.expert_counts))
    for name, grad in grads(made).items():
        torch.testing.assert_close(grad, expected[name], msg=name)


def test_counts_add_up_to_the_routed_rows_of_every_call() -> None:
    made = model().train()
    counts = made(tokens(2, 9), recurrence=4, output_routing=True)
    assert counts.expert_counts.loop.shape == (4, 2, 6)
    assert (counts.expert_counts.loop.sum(-1) == 2 * 9 * 2).all()
    expected = torch.stack([torch.bincount(ids.flatten(), minlength=6) for ids in counts.routing.loop.flatten(0, 1)])
    assert torch.equal(counts.expert_counts.loop.flatten(0, 1), expected)


def one_sided(passes: int) -> Trace:
    """Return counts in which pass 0 prefers expert 0 and later passes prefer expert 5 more strongly."""
    loop = torch.ones(passes, 2, 6, dtype=torch.long)
    loop[0, :, 0], loop[1:, :, 5] = 7, 20
    return Trace(torch.ones(1, 6).long(), loop, torch.ones(1, 6).long())


def test_the_bias_moves_by_the_sign_of_the_load_and_stays_centred() -> None:
    made = LoopedMoEForCausalLM(config())
    update_biases(made, one_sided(3), rate=0.5)
    bias = made.model.loop[0].mlp.router.e_score_correction_bias
    assert bias.sum().abs() < 1e-6
    # Over all passes together expert 5 has most, expert 0 less than the mean.
    assert torch.equal((bias - bias[1]).sign(), torch.tensor([0.0, 0, 0, 0, 0, -1]))
    assert torch.equal(made.model.prelude[0].mlp.router.e_score_correction_bias, torch.zeros(6))


def test_with_a_bias_for_each_pass_each_follows_its_own_counts() -> None:
    made = LoopedMoEForCausalLM(config(balance="pass"))
    update_biases(made, one_sided(5), rate=0.5)
    bias = made.model.loop[0].mlp.router.e_score_correction_bias
    assert bias.shape == (3, 6)
    for row, busiest in ((0, 0), (1, 5), (2, 5)):
        assert bias[row].argmin() == busiest
    update_biases(made, one_sided(1), rate=0.5)
    assert torch.equal(bias[1], bias[2])


def skewed_batch(step: int) -> Tensor:
    """Return text in which a few tokens make up nearly everything."""
    generator = torch.Generator().manual_seed(step)
    odds = 1.0 / torch.arange(1, 62).double() ** 1.5
    return torch.multinomial(odds, 16 * 24, replacement=True, generator=generator).view(16, 24)


@pytest.mark.parametrize("balance", ["layer", pytest.param("pass", marks=pytest.mark.slow)])
def test_balancing_brings_the_busiest_expert_below_half_above_the_mean_and_without_it_does_not(balance: str) -> None:
    ratios = {}
    for rate in (0.0, 1e-3):
        made = model(dtype=torch.float32, balance=balance, recurrence=2, initializer_range=0.1).train()
        for name, buffer in made.named_buffers():
            assert name.endswith("bias")
            buffer.zero_()
        optimiser = torch.optim.AdamW(made.parameters(), lr=1e-3)
        steps = 300 if balance == "layer" else 600  # a pass sees fewer tokens than a layer
        # At a constant rate the routers never settle, and a change of 1e-7 in the weights moves the ratio by 0.5.
        decay = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, steps)
        late = []
        for step in range(steps):
            ids = skewed_batch(step)
            out = made(ids, labels=ids)
            optimiser.zero_grad()
            out.loss.backward()
            optimiser.step()
            decay.step()
            update_biases(made, out.expert_counts, rate)
            late.append(out.expert_counts.loop)
        over_steps = torch.stack(late[-30:]).sum((0, 1))
        ratios[rate] = max(load_ratio(counts) for counts in over_steps)
    assert ratios[1e-3] < 1.5 < ratios[0.0], ratios
