"""Other people's tools on our model: trainers of preferences, adapters, ONNX, paged batching, assisted decoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from looped_models import model, same, tokens
from transformers import GenerationConfig, TextIteratorStreamer, pipeline
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from loopscale.core.errors import InputError
from loopscale.model.export import write_onnx
from loopscale.model.loading import DEMO, load
from loopscale.model.model import LoopedMoEForCausalLM
from loopscale.train.data.tokenizer import ByteTokens, train_bpe

GREEDY: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False}


@pytest.fixture
def demo() -> tuple[LoopedMoEForCausalLM, Any]:
    return load(DEMO, dtype=torch.float32)


def test_paged_batching_generates_the_tokens_of_generate(demo: tuple[LoopedMoEForCausalLM, Any]) -> None:
    looped, tokenizer = demo
    prompts = [tokenizer(text)["input_ids"] for text in ("The state of", "My fellow citizens, it is", "War")]
    how = GenerationConfig(**GREEDY, eos_token_id=-1, pad_token_id=0)
    small = ContinuousBatchingConfig(num_blocks=8, max_batch_tokens=64)
    batch = looped.generate_batch(inputs=prompts, generation_config=how, continuous_batching_config=small)
    ours = [looped.generate(torch.tensor([ids]), **GREEDY)[0, len(ids) :].tolist() for ids in prompts]
    assert [request.generated_tokens for request in batch.values()] == ours


def test_an_early_exit_assistant_drafts_the_same_tokens(demo: tuple[LoopedMoEForCausalLM, Any]) -> None:
    looped, tokenizer = demo
    ids = torch.tensor([tokenizer("The state of")["input_ids"]])
    drafted = looped.generate(ids, **GREEDY, assistant_early_exit=looped.config.slots(1))
    assert torch.equal(drafted, looped.generate(ids, **GREEDY))
    assert looped.config.recurrence == 4


@pytest.mark.parametrize("how", [{"prompt_lookup_num_tokens": 3}, {"prefill_chunk_size": 2}, {"inputs_embeds": True}])
def test_other_ways_of_decoding_give_the_same_tokens(
    how: dict[str, Any], demo: tuple[LoopedMoEForCausalLM, Any]
) -> None:
    looped, tokenizer = demo
    ids = torch.tensor([tokenizer("The state of the state of")["input_ids"]])
    ours = looped.generate(ids, **GREEDY, recurrence=2)[0, ids.shape[1] :]
    if "inputs_embeds" in how:
        assert torch.equal(
            looped.generate(inputs_embeds=looped.model.embed_tokens(ids), **GREEDY, recurrence=2)[0], ours
        )
    else:
        assert torch.equal(looped.generate(ids, **GREEDY, **how, recurrence=2)[0, ids.shape[1] :], ours)


def test_an_assistant_model_with_one_pass_drafts_the_same_tokens(demo: tuple[LoopedMoEForCausalLM, Any]) -> None:
    looped, tokenizer = demo
    assistant, _ = load(DEMO, dtype=torch.float32)
    assistant.config.recurrence = 1
    ids = torch.tensor([tokenizer("The state of")["input_ids"]])
    drafted = looped.generate(ids, **GREEDY, assistant_model=assistant)
    assert torch.equal(drafted, looped.generate(ids, **GREEDY))


def test_pipelines_streamers_and_stop_strings_write_the_text_of_generate(
    demo: tuple[LoopedMoEForCausalLM, Any],
) -> None:
    looped, tokenizer = demo
    ids = torch.tensor([tokenizer("The state of")["input_ids"]])
    text = tokenizer.decode(looped.generate(ids, **GREEDY, recurrence=2)[0, ids.shape[1] :], skip_special_tokens=True)
    piped = pipeline("text-generation", model=looped, tokenizer=tokenizer, device="cpu")
    assert piped("The state of", **GREEDY, recurrence=2, return_full_text=False)[0]["generated_text"] == text
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    looped.generate(ids, **GREEDY, recurrence=2, streamer=streamer)
    assert "".join(streamer) == text
    second = text.split()[1]
    stopped = looped.generate(ids, **GREEDY, recurrence=2, stop_strings=[second], tokenizer=tokenizer)
    assert tokenizer.decode(stopped[0, ids.shape[1] :]) == text[: text.index(second) + len(second)]


@pytest.mark.parametrize("policy", [{"kept_passes": 1}, {"kept_window": 4}])
def test_assisted_decoding_with_a_cache_policy_is_refused(policy: dict[str, int]) -> None:
    with pytest.raises(InputError, match="would change the tokens of a model with kept_passes or kept_window"):
        model(**policy).generate(tokens(1, 9), **GREEDY, prompt_lookup_num_tokens=3)


def test_a_cropped_cache_without_the_positions_it_needs_is_refused() -> None:
    made = model(kept_window=4)
    cache = made(tokens(1, 9)).past_key_values
    cache.crop(-2)
    with pytest.raises(InputError, match="the cache was cropped, and kept_window has dropped"):
        made(tokens(1, 1), past_key_values=cache)


def test_generation_beyond_the_positions_is_refused_however_its_length_is_given() -> None:
    made = model()
    for how in ({"max_length": 90}, {"generation_config": GenerationConfig(max_new_tokens=80)}):
        with pytest.raises(InputError, match="more than max_position_embeddings"):
            made.generate(tokens(1, 9), **how)


@pytest.mark.parametrize("two", [np.int64(2), torch.tensor(2)])
def test_whole_numbers_of_numpy_and_torch_are_recurrences(two: Any) -> None:
    made = model()
    same(made(tokens(1, 5), recurrence=two).logits, made(tokens(1, 5), recurrence=2).logits)


def test_tokenizers_that_training_makes_can_write_a_conversation() -> None:
    for tokenizer in (train_bpe(["a b c"] * 9, 260), ByteTokens().tokenizer):
        turns = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I."}]
        written = tokenizer.apply_chat_template(turns, tokenize=False)
        assert written == "User: Who?\nAssistant: I.<|endoftext|>\n"
        ids = tokenizer.apply_chat_template(turns[:1], add_generation_prompt=True, return_dict=False)
        assert tokenizer.decode(ids) == "User: Who?\nAssistant:"


def test_lora_adapts_experts_merges_and_loads_again(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    made = model(shared_expert_intermediate_size=8)
    before = made(tokens(2, 9)).logits.detach()
    targets = made.lora_targets()
    assert targets["target_modules"] == ["down_proj", "gate_up_proj", "o_proj", "qkv_proj"]
    adapted = peft.get_peft_model(made, peft.LoraConfig(r=2, **targets))
    same(adapted(tokens(2, 9)).logits, before)  # adapters start at zero
    trained = {name for name, weight in adapted.named_parameters() if weight.requires_grad}
    for part in ("qkv_proj", "o_proj", "experts", "shared_expert"):
        assert any(part in name for name in trained), part
    optimizer = torch.optim.SGD((w for w in adapted.parameters() if w.requires_grad), lr=1.0)
    for _ in range(2):  # the second factor has no gradient while the first is zero
        adapted(tokens(2, 9), labels=tokens(2, 9)).loss.backward()
        optimizer.step()
    after = adapted(tokens(2, 9)).logits.detach()
    assert not torch.allclose(after, before, atol=1e-4)
    adapted.save_pretrained(tmp_path)
    again = peft.PeftModel.from_pretrained(model(shared_expert_intermediate_size=8), tmp_path)
    same(again(tokens(2, 9)).logits, after, 1e-5)  # adapters are saved in float32
    same(adapted.merge_and_unload()(tokens(2, 9)).logits, after)


def test_peft_without_targets_refuses_rather_than_leaving_the_experts_out() -> None:
    peft = pytest.importorskip("peft")
    with pytest.raises(ValueError, match="Please specify `target_modules` or `target_parameters`"):
        peft.get_peft_model(model(), peft.LoraConfig(r=2))


def test_an_adapter_without_targets_adapts_everything_with_weights(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    made = model()
    made.add_adapter(peft.LoraConfig(r=2))
    adapted = {name for name, weight in made.named_parameters() if weight.requires_grad}
    assert adapted
    assert all("lora_" in name for name in adapted)
    for part in ("qkv_proj", "o_proj", "experts"):
        assert any(part in name for name in adapted), part
    other = model()
    other.add_adapter(peft.LoraConfig(r=2, target_modules=["o_proj"]))  # targets that are given stay
    assert all("o_proj" in name for name, weight in other.named_parameters() if weight.requires_grad)


def test_onnx_computes_the_same_at_another_length(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    made = model(dtype=torch.float32, loop_layers=1, recurrence=2)
    write_onnx(made, tmp_path / "model.onnx", 2)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for batch, length in ((1, 14), (3, 5)):
        ids = tokens(batch, length)
        logits = session.run(None, {"input_ids": ids.numpy()})[0]
        torch.testing.assert_close(torch.tensor(logits), made(ids).logits.detach(), atol=1e-4, rtol=1e-4)


PAIRS = [
    {"prompt": "The state of", "chosen": " the Union is good", "rejected": " war"},
    {"prompt": "My fellow", "chosen": " citizens", "rejected": " the the"},
] * 2
"""Preferences for DPO; GRPO takes the prompts."""

TINY_STEPS: dict[str, Any] = {
    "per_device_train_batch_size": 2,
    "max_steps": 2,
    "learning_rate": 1e-9,
    "logging_steps": 1,
    "report_to": [],
    "save_strategy": "no",
    "use_cpu": True,
    "bf16": False,
    "disable_tqdm": True,
    "gradient_checkpointing": False,
}
"""Steps that change nothing: what a trainer reports then is what it starts from."""


@pytest.mark.parametrize("packing", [False, True])
def test_supervised_fine_tuning_trains_adapters(
    packing: bool, demo: tuple[LoopedMoEForCausalLM, Any], tmp_path: Path
) -> None:
    trl, peft, datasets = (pytest.importorskip(name) for name in ("trl", "peft", "datasets"))
    looped, tokenizer = demo
    rows = [{"text": pair["prompt"] + pair["chosen"]} for pair in PAIRS] if packing else [
        {"prompt": pair["prompt"], "completion": pair["chosen"]} for pair in PAIRS
    ]  # fmt: skip
    more = {"packing": True} if packing else {"completion_only_loss": True, "gradient_checkpointing": True}
    options = {**TINY_STEPS, "learning_rate": 1e-2, "max_steps": 3, **more}
    looped.config.random_recurrence = None  # so that the losses can be compared
    trainer = trl.SFTTrainer(
        looped,
        args=trl.SFTConfig(output_dir=str(tmp_path), max_length=24, **options),
        train_dataset=datasets.Dataset.from_list(rows),
        processing_class=tokenizer,
        peft_config=peft.LoraConfig(r=2, **looped.lora_targets()),
    )
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert losses[-1] < losses[0] - 0.05
    assert all("lora_" in name for name, weight in trainer.model.named_parameters() if weight.requires_grad)


def test_preference_training_starts_at_log_two(demo: tuple[LoopedMoEForCausalLM, Any], tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    looped, tokenizer = demo
    assert looped.config.random_recurrence == "uniform"
    trainer = trl.DPOTrainer(
        looped,
        args=trl.DPOConfig(output_dir=str(tmp_path), max_length=24, **TINY_STEPS),
        train_dataset=datasets.Dataset.from_list(PAIRS),
        processing_class=tokenizer,
    )
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert losses == pytest.approx([0.6931, 0.6931], abs=1e-3)


def test_grpo_clips_nothing_before_the_policy_has_moved(demo: tuple[LoopedMoEForCausalLM, Any], tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    looped, tokenizer = demo
    options = {"num_generations": 2, "max_completion_length": 6, "num_iterations": 2, "beta": 0.0}
    trainer = trl.GRPOTrainer(
        looped,
        reward_funcs=lambda completions, **_: [float(len(text)) for text in completions],
        args=trl.GRPOConfig(output_dir=str(tmp_path), **options, **TINY_STEPS),
        train_dataset=datasets.Dataset.from_list([{"prompt": pair["prompt"]} for pair in PAIRS]),
        processing_class=tokenizer,
    )
    trainer.train()
    rows = [row for row in trainer.state.log_history if "loss" in row]
    assert len(rows) == 2
    for row in rows:
        assert row["clip_ratio/region_mean"] == 0
        assert abs(row["loss"]) < 1e-3
