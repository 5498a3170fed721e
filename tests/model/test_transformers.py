"""What Hugging Face users expect of a causal model: outputs, configs, loading, caches, experts, padding."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from inspect import signature
from pathlib import Path

import pytest
import torch
from looped_models import config, model, same, tokens
from transformers import GenerationConfig, LlamaConfig, StaticCache
from transformers.integrations.executorch import TorchExportableModuleForDecoderOnlyLM
from transformers.modeling_utils import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from loopscale.model import LoopedMoEConfig, LoopedMoEForCausalLM, LoopedMoEModel
from loopscale.model.blocks import RotaryEmbedding, rotary_frequencies

GREEDY = {"max_new_tokens": 6, "do_sample": False}


def eager(**changes: object) -> LoopedMoEForCausalLM:
    """Return a model whose attention gives its weights."""
    made = model(**changes)
    made.set_attn_implementation("eager")
    return made


@torch.no_grad()
def test_attention_weights_of_every_unrolled_layer_sum_to_one() -> None:
    made = eager()
    out = made(tokens(2, 9), recurrence=4, output_attentions=True)
    assert len(out.attentions) == made.config.slots(4)
    assert {weights.shape for weights in out.attentions} == {(2, 4, 9, 9)}
    for weights in out.attentions:
        same(weights.sum(-1), torch.ones(2, 4, 9, dtype=torch.float64), 1e-6)
    generated = made.generate(tokens(1, 5), output_attentions=True, return_dict_in_generate=True, **GREEDY)
    assert [len(step) for step in generated.attentions] == [made.config.num_hidden_layers] * 6
    assert "output_attentions" in signature(made.forward).parameters  # where tools look for it


@torch.no_grad()
def test_optional_outputs_follow_the_config_unless_the_call_says_otherwise() -> None:
    made = eager()
    made.config.output_hidden_states = made.config.output_attentions = made.config.output_router_logits = True
    out = made(tokens(2, 9))
    assert len(out.hidden_states) == len(out.attentions) + 1 == len(out.router_logits) + 1 == 9
    assert made(tokens(2, 9), output_hidden_states=False, output_attentions=False).hidden_states is None
    made.config.return_dict = False
    assert isinstance(made(tokens(2, 9)), tuple)
    assert isinstance(made.model(tokens(2, 9)), tuple)
    same(made(tokens(2, 9))[0], made(tokens(2, 9), return_dict=True).logits)


@torch.no_grad()
def test_router_logits_are_those_that_choose_the_experts() -> None:
    made = model()
    for _, buffer in made.named_buffers():
        buffer.zero_()
    out = made(tokens(2, 9), output_router_logits=True, output_routing=True)
    assert len(out.router_logits) == made.config.num_hidden_layers
    chosen = out.router_logits[1].topk(2, dim=-1).indices.sort().values
    assert torch.equal(chosen, out.routing.loop[0, 0].flatten(0, 1).sort().values)


def test_the_recurrence_of_a_generation_config_is_used_and_saved(tmp_path: Path) -> None:
    made = model()
    made.generation_config.recurrence = 1
    expected = made.generate(tokens(1, 9), recurrence=1, **GREEDY)
    assert torch.equal(made.generate(tokens(1, 9), **GREEDY), expected)
    assert not torch.equal(made.generate(tokens(1, 9), recurrence=3, **GREEDY), expected)
    made.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "generation_config.json").read_text())["recurrence"] == 1
    loaded = LoopedMoEForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(loaded.generate(tokens(1, 9), **GREEDY), expected)


@pytest.mark.parametrize("tied", [True, False])
def test_the_base_model_loads_from_a_causal_checkpoint_and_back(tmp_path: Path, tied: bool) -> None:
    made = model(tie_word_embeddings=tied)
    made.save_pretrained(tmp_path / "causal")
    body = LoopedMoEModel.from_pretrained(tmp_path / "causal").eval()
    same(body(tokens(2, 9)).last_hidden_state, made.model(tokens(2, 9)).last_hidden_state)
    made.model.save_pretrained(tmp_path / "base")
    again, info = LoopedMoEForCausalLM.from_pretrained(tmp_path / "base", output_loading_info=True)
    same(again.eval().model(tokens(2, 9)).last_hidden_state, made.model(tokens(2, 9)).last_hidden_state)
    assert set(info["missing_keys"]) <= {"lm_head.weight"}
    if tied:
        same(again(tokens(2, 9)).logits, made(tokens(2, 9)).logits)


@torch.no_grad()
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_sequences_packed_with_position_ids_equal_sequences_in_a_padded_batch(implementation: str) -> None:
    made = model()
    made.set_attn_implementation(implementation)
    first, second = tokens(1, 9), tokens(1, 5, seed=2)
    positions = torch.cat((torch.arange(9), torch.arange(5)))[None]
    packed = made(torch.cat((first, second), dim=1), position_ids=positions, use_cache=False).logits
    same(packed[:, :9], made(first).logits)
    same(packed[:, 9:], made(second).logits)


SCALINGS = {
    "linear": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 2.0, "original_max_position_embeddings": 32},
    "llama3": {
        "factor": 2.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
}


@torch.no_grad()
@pytest.mark.parametrize("kind", SCALINGS)
def test_rope_scaling_changes_the_frequencies_as_transformers_defines_them(kind: str) -> None:
    scaled = config(rope_parameters={"rope_type": kind, "rope_theta": 1e4, **SCALINGS[kind]})
    plain = config(rope_parameters={"rope_type": "default", "rope_theta": 1e4})
    long = torch.arange(100)[None]
    ours, _ = rotary_frequencies(long, scaled)
    theirs, _ = rotary_frequencies(long, plain)
    assert not torch.allclose(ours, theirs)
    if kind == "linear":
        torch.testing.assert_close(ours, theirs / 2)
    if kind == "dynamic":  # up to the trained length nothing changes
        torch.testing.assert_close(rotary_frequencies(long[:, :60], scaled)[0], theirs)
    made = model(rope_parameters=scaled.rope_parameters)
    assert made(tokens(1, 9)).logits.isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize("kind", ["default", *SCALINGS])
def test_the_rotary_module_gives_the_cosines_and_sines_of_llama(kind: str) -> None:
    parameters = {"rope_type": kind, "rope_theta": 1e4, **SCALINGS.get(kind, {})}
    made = model(rope_parameters=parameters)
    theirs = LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=made.config.hidden_size,
            num_attention_heads=made.config.num_attention_heads,
            head_dim=made.config.head_dim,
            max_position_embeddings=made.config.max_position_embeddings,
            rope_parameters=parameters,
        )
    )
    position_ids, x = torch.arange(100)[None], torch.zeros(1)
    for ours_BT1r, theirs_BTh in zip(
        made.model.rotary_emb(x, position_ids), theirs(x, position_ids=position_ids), strict=True
    ):
        torch.testing.assert_close(ours_BT1r.squeeze(2), theirs_BTh.chunk(2, dim=-1)[0], atol=1e-5, rtol=1e-5)
    if kind != "dynamic":  # Llama's module keeps the frequencies of its last call
        torch.testing.assert_close(made.model.rotary_emb.inv_freq, theirs.inv_freq)
    assert not made.model.rotary_emb.state_dict()


def test_the_rotary_module_needs_no_weights_in_a_model_built_on_the_meta_device() -> None:
    with torch.device("meta"):
        made = LoopedMoEModel(config())
    position_ids, x = torch.arange(9)[None], torch.zeros(1)
    expected = RotaryEmbedding(config())(x, position_ids)
    for ours, theirs in zip(made.rotary_emb(x, position_ids), expected, strict=True):
        assert torch.equal(ours, theirs)


@torch.no_grad()
@pytest.mark.parametrize("implementation", ["grouped_mm", "batched_mm"])
def test_transformers_implementations_of_experts_equal_ours(implementation: str) -> None:
    made = model(dtype=torch.float32, hidden_size=32, moe_intermediate_size=16)
    expected = made(tokens(2, 9)).logits
    made.set_experts_implementation(implementation)
    assert made.config._experts_implementation == implementation
    torch.testing.assert_close(made(tokens(2, 9)).logits, expected, atol=1e-3, rtol=1e-3)


@torch.no_grad()
def test_a_static_cache_decodes_in_one_compiled_graph() -> None:
    made = model()
    compiled = torch.compile(made, backend="aot_eager", fullgraph=True)
    ids = tokens(1, 9)
    outputs = []
    for run in (made, compiled):
        cache = StaticCache(config=made.config, max_cache_len=16)
        made(ids[:, :6], past_key_values=cache)
        steps = [run(ids[:, at : at + 1], past_key_values=cache).logits for at in range(6, 9)]
        outputs.append(torch.cat(steps, dim=1))
    same(outputs[1], outputs[0])
    same(outputs[0], made(ids).logits[:, 6:])


@torch.no_grad()
def test_decoding_with_a_static_cache_exports() -> None:
    made = model()
    made.generation_config = GenerationConfig(
        use_cache=True,
        cache_implementation="static",
        max_length=16,
        cache_config={"batch_size": 1, "max_cache_len": 16},
    )
    ids = tokens(1, 6)
    program = TorchExportableModuleForDecoderOnlyLM(made, batch_size=1, max_cache_len=16).export(
        input_ids=ids[:, :1], cache_position=torch.tensor([0]), strict=False
    )
    exported = program.module()
    steps = [exported(input_ids=ids[:, at : at + 1], cache_position=torch.tensor([at])) for at in range(6)]
    same(torch.cat(steps, dim=1), made(ids).logits)


@torch.no_grad()
def test_an_exported_program_has_no_operation_of_loopscale() -> None:
    made = model(dtype=torch.float32, hidden_size=32, moe_intermediate_size=16)
    ids = tokens(2, 9)
    program = torch.export.export(made, (ids,), {"use_cache": False}, strict=False)
    operations = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert not [name for name in operations if name.startswith("loopscale")]
    same(program.module()(ids, use_cache=False).logits, made(ids, use_cache=False).logits, 1e-4)


@torch.no_grad()
@pytest.mark.parametrize("implementation", ["eager", pytest.param("flex_attention", marks=pytest.mark.slow)])
def test_every_attention_implementation_gives_the_logits_of_sdpa(implementation: str) -> None:
    made, ids = model(dtype=torch.float32), tokens(2, 9)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0  # left padding
    expected = made(ids, attention_mask=mask).logits
    made.set_attn_implementation(implementation)
    real = mask.bool()
    same(made(ids, attention_mask=mask).logits[real], expected[real], 1e-3)


@torch.no_grad()
def test_a_device_map_places_whole_blocks_and_offloads_some(tmp_path: Path) -> None:
    made, ids = model(dtype=torch.float32), tokens(1, 7)
    made.save_pretrained(tmp_path / "model")
    parts = dict.fromkeys(("model.embed_tokens", "model.prelude", "model.coda", "model.norm", "lm_head"), "cpu")
    places = {**parts, "model.attentions": "cpu", "model.loop.0": "cpu", "model.loop.1": "disk"}
    loaded = LoopedMoEForCausalLM.from_pretrained(
        tmp_path / "model", dtype=torch.float32, device_map=places, offload_folder=str(tmp_path / "offload")
    )
    assert next(loaded.model.loop[1].parameters()).is_meta  # it is read from disk at each pass
    same(loaded(ids, recurrence=4).logits, made(ids, recurrence=4).logits, 1e-4)


def test_embeddings_and_head_are_resized_together() -> None:
    made = model()
    before = made(tokens(1, 5)).logits
    made.resize_token_embeddings(70)
    after = made(tokens(1, 5)).logits
    assert after.shape == (1, 5, 70)
    same(after[..., :61], before)
    assert made.config.vocab_size == 70
    assert made.lm_head.weight is made.model.embed_tokens.weight


@pytest.mark.parametrize("dispatch", ["dropless", "drop-and-pad"])
def test_padding_counts_in_no_load_no_z_loss_and_no_capacity(dispatch: str) -> None:
    made = model(dispatch=dispatch, capacity_factor=6.0).train()
    short = tokens(2, 6)
    padded, mask = torch.zeros(2, 9, dtype=torch.long), torch.zeros(2, 9, dtype=torch.long)
    padded[:, 3:], mask[:, 3:] = short, 1
    alone = made(short, labels=short)
    position_ids = (mask.cumsum(1) - 1).clamp(min=0)
    together = made(padded, attention_mask=mask, position_ids=position_ids, labels=torch.where(mask > 0, padded, -100))
    for ours, theirs in zip(together.expert_counts, alone.expert_counts, strict=True):
        assert torch.equal(ours, theirs)
    same(together.z_loss, alone.z_loss)
    same(together.logits[:, 3:], alone.logits)


def test_parallel_plans_name_modules_that_exist() -> None:
    for changes in ({}, {"num_experts": 1}, {"shared_expert_intermediate_size": 8, "prelude_layers": 0}):
        made = model(**changes)
        names = {name for name, _ in (*made.model.named_parameters(), *made.model.named_modules())}
        patterns = {"".join(name.replace(f".{index}.", ".*.") for index in "0") for name in names}
        patterns |= {name.removesuffix(".weight") for name in patterns}
        assert set(made.config.base_model_tp_plan) <= patterns
        assert set(made.config.base_model_ep_plan or {}) <= patterns
    assert not [name for name in config().to_dict() if name.endswith("_plan")]


def test_two_processes_with_the_parallel_plans_give_the_logits_of_one(tmp_path: Path) -> None:
    # An even vocabulary: the halves of the output head are then of equal size.
    model(dtype=torch.float32, num_experts=4, vocab_size=62).save_pretrained(tmp_path)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    script = [sys.executable, str(Path(__file__).with_name("parallel_plans.py")), str(tmp_path)]
    ranks = [
        subprocess.Popen(script, env={**shared, "RANK": rank, "LOCAL_RANK": rank}, stdout=subprocess.PIPE, text=True)
        for rank in "01"
    ]
    said = "".join(rank.communicate()[0] for rank in ranks)
    assert [rank.returncode for rank in ranks] == [0, 0], said
    for rank in "01":
        assert f"rank {rank}, tensor: head True, experts True" in said
        assert f"rank {rank}, experts: head False, experts True" in said
        assert f"rank {rank}, both: head True, experts True" in said


def test_the_model_is_a_pretrained_model_with_a_config_that_survives_a_copy() -> None:
    made = model()
    assert isinstance(made, PreTrainedModel)
    assert LoopedMoEConfig.from_dict(made.config.to_dict()).to_dict() == made.config.to_dict()
