"""The loop is what it says: the same weights, run R times."""

from __future__ import annotations

import copy

import pytest
import torch
from looped_models import model, same, tokens
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from loopscale.model import LoopedMoEForCausalLM
from loopscale.model.blocks import Block
from loopscale.model.moe import MoELayer


def unrolled_by_hand(made: LoopedMoEForCausalLM, recurrence: int) -> LoopedMoEForCausalLM:
    """Return a plain deep model whose layers are copies of the loop's, one for each pass."""
    deep = copy.deepcopy(made.config)
    deep.prelude_layers, deep.loop_layers, deep.recurrence = deep.prelude_layers + recurrence * deep.loop_layers, 0, 1
    plain = LoopedMoEForCausalLM(deep).double().eval()
    plain.load_state_dict(
        {
            **{key: value for key, value in made.state_dict().items() if "prelude" not in key and "loop" not in key},
            **{
                f"model.prelude.{place}.{key}": value
                for place, block in enumerate([*made.model.prelude, *[*made.model.loop] * recurrence])
                for key, value in block.state_dict().items()
            },
        }
    )
    return plain


@pytest.mark.parametrize("experts", [1, 6])
@pytest.mark.parametrize("recurrence", [1, 3, 5])
def test_r_passes_equal_the_same_weights_unrolled_into_a_plain_model(experts: int, recurrence: int) -> None:
    made = model(num_experts=experts)
    looped = made(tokens(2, 12), recurrence=recurrence).logits
    same(unrolled_by_hand(made, recurrence)(tokens(2, 12)).logits, looped)


def by_formula(made: LoopedMoEForCausalLM, ids: Tensor, recurrence: int) -> Tensor:
    """Compute the model from its weights with plain loops and formulas, sharing none of its code."""
    body, config = made.model, made.config
    x = body.embed_tokens.weight[ids]
    for block in [*body.prelude, *[*body.loop] * recurrence, *body.coda]:
        assert isinstance(block, Block)
        x = x + attention_by_formula(block, norm_by_formula(x, block.input_layernorm.weight))
        y = norm_by_formula(x, block.post_attention_layernorm.weight)
        assert isinstance(block.mlp, MoELayer)
        x = x + torch.stack([torch.stack([token_by_formula(block.mlp, token) for token in row]) for row in y])
    assert config.rms_norm_eps == 1e-6
    return norm_by_formula(x, body.norm.weight) @ body.embed_tokens.weight.T


def norm_by_formula(x: Tensor, weight: Tensor) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6) * weight


def attention_by_formula(block: Block, x: Tensor) -> Tensor:
    size, heads, kv_heads = block.head_dim, block.heads, block.kv_heads
    qkv = (x @ block.qkv_proj.weight.T).unflatten(-1, (-1, size))
    angle = torch.arange(x.shape[1])[:, None].double() / 500_000 ** (torch.arange(size // 2) * 2 / size).double()
    turn = torch.polar(torch.ones_like(angle), angle)[:, None]
    half = size // 2
    complex_heads = torch.complex(qkv[..., :half].double(), qkv[..., half:].double())[:, :, : heads + kv_heads] * turn
    rotated = torch.cat((complex_heads.real, complex_heads.imag), dim=-1).to(x)
    out = torch.zeros(*x.shape[:2], heads, size).to(x)
    for head in range(heads):
        group = head // (heads // kv_heads)
        scores = rotated[:, :, head] @ rotated[:, :, heads + group].transpose(1, 2) / size**0.5
        scores = scores.masked_fill(torch.ones_like(scores[0], dtype=torch.bool).triu(1), -torch.inf)
        out[:, :, head] = scores.softmax(-1) @ qkv[:, :, heads + kv_heads + group]
    return out.flatten(2) @ block.o_proj.weight.T


def token_by_formula(layer: MoELayer, x: Tensor) -> Tensor:
    scores = torch.sigmoid(layer.router.weight @ x)
    chosen = (scores + layer.router.e_score_correction_bias.to(x)).topk(2).indices
    out = torch.zeros_like(x)
    for expert in chosen:
        gate, up = (layer.experts.gate_up_proj[expert] @ x).chunk(2)
        share = scores[expert] / scores[chosen].sum()
        out = out + share * (layer.experts.down_proj[expert] @ (gate * torch.sigmoid(gate) * up))
    return out


def test_the_model_equals_its_formulas_in_float64() -> None:
    made = model()
    with torch.no_grad():
        expected = by_formula(made, tokens(2, 7), 3)
        torch.testing.assert_close(made(tokens(2, 7)).logits, expected, atol=1e-6, rtol=1e-6)


def test_a_dense_model_equals_llama_with_the_same_weights() -> None:
    made = model(num_experts=1, recurrence=2)
    size = made.config
    llama = (
        LlamaForCausalLM(
            LlamaConfig(
                vocab_size=size.vocab_size,
                hidden_size=size.hidden_size,
                intermediate_size=size.intermediate_size,
                num_hidden_layers=6,
                num_attention_heads=size.num_attention_heads,
                num_key_value_heads=size.num_key_value_heads,
                head_dim=size.head_dim,
                rms_norm_eps=size.rms_norm_eps,
                rope_parameters=size.rope_parameters,
                tie_word_embeddings=True,
                max_position_embeddings=64,
            )
        )
        .double()
        .eval()
    )
    body, state = made.model, {}
    for place, block in enumerate([*body.prelude, *[*body.loop] * 2, *body.coda]):
        split = [size.num_attention_heads * 8, size.num_key_value_heads * 8, size.num_key_value_heads * 8]
        weights = dict(zip("qkv", block.qkv_proj.weight.split(split), strict=True))
        gate, up = block.mlp.gate_up_proj.weight.chunk(2)
        names = {f"self_attn.{name}_proj": weight for name, weight in weights.items()} | {
            "self_attn.o_proj": block.o_proj.weight,
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": block.mlp.down_proj.weight,
            "input_layernorm": block.input_layernorm.weight,
            "post_attention_layernorm": block.post_attention_layernorm.weight,
        }
        state |= {f"model.layers.{place}.{name}.weight": weight for name, weight in names.items()}
    state |= {"model.embed_tokens.weight": body.embed_tokens.weight, "lm_head.weight": body.embed_tokens.weight}
    llama.load_state_dict({**state, "model.norm.weight": body.norm.weight})
    torch.testing.assert_close(made(tokens(2, 12)).logits, llama(tokens(2, 12)).logits, atol=1e-5, rtol=1e-5)
    made.train(), llama.train()
    ours, theirs = (each(tokens(2, 12), labels=tokens(2, 12)).loss for each in (made, llama))
    torch.testing.assert_close(ours, theirs)
    ours.backward(), theirs.backward()
    torch.testing.assert_close(
        body.embed_tokens.weight.grad, llama.model.embed_tokens.weight.grad, atol=1e-5, rtol=1e-4
    )


def test_one_forward_gives_the_output_of_every_recurrence() -> None:
    made = model()
    out = made(tokens(2, 9), recurrence=4, output_passes=True)
    assert len(out.pass_logits) == len(out.pass_states) == len(out.pass_hidden_states) == 4
    for place, logits in enumerate(out.pass_logits):
        same(logits, made(tokens(2, 9), recurrence=place + 1).logits)
        same(logits, made.lm_head(out.pass_hidden_states[place]))
    assert torch.equal(out.logits, out.pass_logits[-1])


def test_hidden_states_hold_the_input_of_every_unrolled_layer() -> None:
    made = model()
    out = made(tokens(2, 9), output_hidden_states=True)
    assert len(out.hidden_states) == made.config.num_hidden_layers + 1
    same(made.lm_head(out.hidden_states[-1]), out.logits)


def test_return_dict_false_gives_plain_tuples() -> None:
    made = model()
    same(made(tokens(1, 5), use_cache=False, return_dict=False)[0], made(tokens(1, 5)).logits)
    assert made.model(tokens(1, 5), use_cache=False, return_dict=False)[0].shape == (1, 5, 24)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_attention_implementations_agree(implementation: str) -> None:
    made = model()
    expected = made(tokens(2, 9)).logits
    made.set_attn_implementation(implementation)
    mask = torch.ones(2, 9, dtype=torch.long)
    same(made(tokens(2, 9), attention_mask=mask).logits, expected)


def test_a_model_built_on_the_meta_device_lacks_nothing_but_its_weights() -> None:
    made = model()
    with torch.device("meta"):
        empty = LoopedMoEForCausalLM(made.config).double()
    empty = empty.to_empty(device="cpu").eval()
    empty.load_state_dict(made.state_dict())
    empty.tie_weights()
    same(empty(tokens(2, 9)).logits, made(tokens(2, 9)).logits)
