"""Router, dispatchers, experts and layer, each against a plain loop or Hugging Face's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from looped_models import config, model, same, tokens
from torch import Tensor
from transformers import DeepseekV3Config, Qwen3MoeConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

import model_references as references
from loopscale.model import experts, kernels
from loopscale.model.experts import expert_ffn
from loopscale.model.moe import MoELayer, capacity, drop_and_pad


def with_capacity(ids_TK: Tensor, weights_TK: Tensor, kept: int) -> Tensor:
    """Return the weights with those of dropped rows set to zero: an expert takes its first ``kept`` rows."""
    taken: Counter[int] = Counter()
    mask = torch.ones_like(weights_TK)
    for token, ids in enumerate(ids_TK.tolist()):
        for order, expert in enumerate(ids):
            taken[expert] += 1
            mask[token, order] = taken[expert] <= kept
    return weights_TK * mask


def routed(dtype: torch.dtype, T: int = 17, E: int = 5, K: int = 2) -> tuple[Tensor, ...]:
    """Return tokens, choices that leave one expert idle, weights and experts."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    scores = torch.rand(T, E, generator=generator)
    scores[:, 3] = -1
    return normal(T, 8), scores.topk(K).indices, normal(T, K), normal(E, 12, 8), normal(E, 8, 6)


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
@pytest.mark.parametrize("kept", [None, 3, 17])
def test_dispatchers_equal_the_reference_in_values_and_gradients(
    dtype: torch.dtype, close: float, kept: int | None
) -> None:
    inputs = routed(dtype)
    floats = [each for each in inputs if each.requires_grad]
    found = expert_ffn(*inputs) if kept is None else drop_and_pad(*inputs, kept)
    x, ids, weights, *matrices = (tensor.double() if tensor.is_floating_point() else tensor for tensor in inputs)
    weights = weights if kept is None else with_capacity(ids, weights, kept)
    expected = references.expert_ffn_reference(x, ids, weights, *matrices)
    torch.testing.assert_close(found.double(), expected, atol=close, rtol=close)
    grad = torch.randn(found.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ours = torch.autograd.grad(found, floats, grad.to(dtype))
    theirs = torch.autograd.grad(expected, floats, grad)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), other.double(), atol=close, rtol=close)


def test_every_hand_written_gradient_passes_gradcheck() -> None:
    x, ids, weights, gate_up, down = routed(torch.float64, T=6)
    assert torch.autograd.gradcheck(lambda *each: expert_ffn(each[0], ids, *each[1:]), (x, weights, gate_up, down))
    assert torch.autograd.gradcheck(
        lambda *each: kernels.rms_norm(*each, 1e-5), (x, gate_up[0, 0].detach().requires_grad_())
    )
    assert torch.autograd.gradcheck(kernels.swiglu, (x,))
    angle = torch.randn(2, 3, 1, 2, dtype=torch.float64)
    heads = torch.randn(2, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda each: kernels.rotary_heads(each, angle.cos(), angle.sin(), 2, 1), (heads,))


@pytest.mark.parametrize("tokens_", [1, 2, 17, 400])
def test_every_path_of_the_experts_equals_the_reference(tokens_: int) -> None:
    for dtype, close in ((torch.float64, 1e-10), (torch.float32, 1e-4)):
        x, ids, weights, gate_up, down = routed(dtype, T=tokens_)
        expected = references.expert_ffn_reference(x, ids, weights, gate_up, down)
        torch.testing.assert_close(expert_ffn(x, ids, weights, gate_up, down), expected, atol=close, rtol=close)
        with torch.no_grad():
            torch.testing.assert_close(expert_ffn(x, ids, weights, gate_up, down), expected, atol=close, rtol=close)


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("compiled", [False, True])
def test_every_path_of_norm_swiglu_and_rotary_equals_its_reference(gradients: bool, compiled: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((2, 5, 8), (8,)))
    qkv = torch.randn(2, 5, 6, 8, generator=generator, dtype=torch.float64)
    angle = torch.randn(2, 5, 1, 4, generator=generator, dtype=torch.float64)
    pairs = [
        (kernels.rms_norm, references.rms_norm_reference, (x, weight, 1e-5)),
        (kernels.swiglu, references.swiglu_reference, (x,)),
        (kernels.rotary_heads, references.rotary_reference, (qkv, angle.cos(), angle.sin(), 4, 1)),
    ]
    for fast, reference, inputs in pairs:
        run = torch.compile(fast, backend="aot_eager", fullgraph=True) if compiled else fast
        with torch.set_grad_enabled(gradients):
            ours = run(*(item.requires_grad_(gradients) if isinstance(item, Tensor) else item for item in inputs))
        theirs = reference(*inputs)
        for one, other in zip(ours, theirs, strict=True) if isinstance(ours, tuple) else [(ours, theirs)]:
            same(one, other)


def test_the_experts_compile_and_keep_their_gradients() -> None:
    inputs = routed(torch.float64)
    floats = [each for each in inputs if each.requires_grad]
    compiled = torch.compile(lambda *each: expert_ffn(*each).sin(), backend="aot_eager", fullgraph=True)
    ours = torch.autograd.grad(compiled(*inputs).sum(), floats)
    theirs = torch.autograd.grad(expert_ffn(*inputs).sin().sum(), floats)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other)


def test_a_block_compiles_in_one_piece() -> None:
    plain, compiled = (model().train() for _ in range(2))
    for block in (*compiled.model.prelude, *compiled.model.loop, *compiled.model.coda):
        block.compile(backend="aot_eager", fullgraph=True)
    both = [each(tokens(2, 16), labels=tokens(2, 16), use_cache=False) for each in (compiled, plain)]
    for out in both:
        out.loss.backward()
    torch.testing.assert_close(both[0].loss, both[1].loss)
    assert torch.equal(both[0].expert_counts.loop, both[1].expert_counts.loop)
    for one, other in zip(compiled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_dropless_equals_drop_and_pad_when_nothing_drops() -> None:
    dropless, padded = (model(dispatch=name, capacity_factor=3.0).train() for name in ("dropless", "drop-and-pad"))
    ours, theirs = (each(tokens(2, 16), labels=tokens(2, 16)) for each in (dropless, padded))
    assert theirs.dropped == 0
    same(ours.logits, theirs.logits)
    ours.loss.backward(), theirs.loss.backward()
    for one, other in zip(dropless.parameters(), padded.parameters(), strict=True):
        same(one.grad, other.grad)


def test_the_dropped_share_is_what_no_expert_took() -> None:
    made = model(dispatch="drop-and-pad", capacity_factor=1.0).train()
    out = made(tokens(2, 16), output_routing=True)
    kept = capacity(32, made.config)
    assert kept == 11  # ceil(32 * 2 / 6)
    calls = [*out.routing.prelude, *out.routing.loop.flatten(0, 1), *out.routing.coda]
    over = sum((torch.bincount(ids.flatten(), minlength=6) - kept).clamp(min=0).sum() for ids in calls)
    assert over > 0
    torch.testing.assert_close(out.dropped, over / (64 * len(calls)))


def test_evaluation_drops_no_token() -> None:
    padded, dropless = model(dispatch="drop-and-pad", capacity_factor=0.1), model()
    out = padded(tokens(2, 16))
    assert out.dropped is None
    same(out.logits, dropless(tokens(2, 16)).logits)


def test_the_layer_equals_deepseeks_with_a_shared_expert() -> None:
    made = config(shared_expert_intermediate_size=20)
    theirs = DeepseekV3MoE(
        DeepseekV3Config(
            hidden_size=24,
            moe_intermediate_size=20,
            n_routed_experts=6,
            num_experts_per_tok=2,
            n_shared_experts=1,
            n_group=1,
            topk_group=1,
            routed_scaling_factor=1.0,
            norm_topk_prob=True,
        )
    )
    theirs.config._experts_implementation = "eager"
    torch.manual_seed(0)
    for weight in theirs.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    theirs.gate.e_score_correction_bias.normal_(std=0.2)
    ours = MoELayer(made)
    ours.router.load_state_dict(theirs.gate.state_dict())
    ours.experts.load_state_dict(theirs.experts.state_dict())
    shared = theirs.shared_experts
    ours.shared_expert.gate_up_proj.weight.data = torch.cat((shared.gate_proj.weight, shared.up_proj.weight)).data
    ours.shared_expert.down_proj.weight.data = shared.down_proj.weight.data
    x = torch.randn(3, 7, 24)
    torch.testing.assert_close(ours(x)[0], theirs(x), atol=1e-5, rtol=1e-5)


def test_the_experts_equal_qwens_with_equal_routing() -> None:
    theirs = Qwen3MoeSparseMoeBlock(
        Qwen3MoeConfig(
            hidden_size=24, moe_intermediate_size=20, num_experts=6, num_experts_per_tok=2, norm_topk_prob=True
        )
    )
    theirs.experts.config._experts_implementation = "eager"
    torch.manual_seed(0)
    for weight in theirs.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    layer = MoELayer(config())
    layer.experts.load_state_dict(theirs.experts.state_dict())
    x = torch.randn(3, 7, 24)
    _, weights, ids = theirs.gate(x.flatten(0, 1))
    torch.testing.assert_close(layer.experts(x.flatten(0, 1), ids, weights).view_as(x), theirs(x), atol=1e-5, rtol=1e-5)


def test_the_bias_chooses_and_the_raw_score_weighs() -> None:
    router = MoELayer(config()).router
    torch.nn.init.normal_(router.weight)
    x = torch.randn(9, 24)
    router.e_score_correction_bias[4] = 10.0
    logits, weights, ids, _ = router(x)
    assert (ids == 4).any(dim=1).all()
    scores = logits.sigmoid().gather(1, ids)
    torch.testing.assert_close(weights, scores / scores.sum(1, keepdim=True))


def test_the_router_computes_in_float32_inside_a_bfloat16_model() -> None:
    router = MoELayer(config()).bfloat16().router
    torch.nn.init.normal_(router.weight)
    x = torch.randn(9, 24).bfloat16()
    logits, weights, *_ = router(x)
    assert weights.dtype == logits.dtype == torch.float32
    expected = x.double() @ router.weight.double().T
    same(logits.double(), expected, 1e-5)  # rounded to float32, where bfloat16 would be off by 1e-2
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same(router(x)[0].double(), expected, 1e-5)


@pytest.mark.parametrize("cast", [lambda made: made.bfloat16(), lambda made: made.to(torch.float64)])
def test_the_balancing_bias_stays_in_float32_whatever_the_model_is_cast_to(cast: Callable[..., object]) -> None:
    made = model(dtype=torch.float32)
    before = {name: buffer.clone() for name, buffer in made.named_buffers()}
    cast(made)
    assert {buffer.dtype for buffer in made.buffers()} == {torch.float32}
    assert all(torch.equal(before[name], buffer) for name, buffer in made.named_buffers())


def test_a_bfloat16_model_runs_forward_and_backward() -> None:
    made = model().bfloat16().train()
    out = made(tokens(2, 9), labels=tokens(2, 9))
    out.loss.backward()
    assert out.logits.dtype == torch.bfloat16
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in made.parameters())


@pytest.mark.parametrize(
    ("rows", "width", "height"), [(0, 256, 512), (1, 256, 512), (5, 256, 512), (9, 256, 512), (3, 2048, 1024)]
)
def test_products_of_few_rows_are_those_of_many(rows, width, height):
    """Few rows of large experts are multiplied as columns, and rows of width 2048 only up to two of them."""
    torch.manual_seed(0)
    counts = torch.tensor([rows, 40])
    x, weights = torch.randn(int(counts.sum()), width), torch.randn(2, height, width)
    assert weights[0].numel() >= experts.LARGE
    expected = torch.cat([x[:rows].double() @ weights[0].double().T, x[rows:].double() @ weights[1].double().T])
    torch.testing.assert_close(experts._expert_products(x, weights, counts).double(), expected, rtol=0, atol=1e-3)
