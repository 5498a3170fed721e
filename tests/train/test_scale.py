"""Training at scale, without a GPU: losses in chunks, sharded initial weights, fake tensors and fake process groups."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from training import losses, small

from loopscale.architecture import rung
from loopscale.cli.verbs import cli
from loopscale.core.devices import DEVICES
from loopscale.core.errors import DivergenceError, InputError
from loopscale.model import LoopedMoEConfig, LoopedMoEForCausalLM
from loopscale.model.experts import grouped_ffn
from loopscale.model.injection import inject
from loopscale.model.losses import chunked_cross_entropy
from loopscale.planning.recipes import RECIPES
from loopscale.planning.step_memory import stored_numbers
from loopscale.train import init
from loopscale.train.config import TrainConfig
from loopscale.train.estimate import estimate
from loopscale.train.job import model_without_text, step_cost
from loopscale.train.memory import block_bytes, block_calls, stored_blocks
from loopscale.train.metrics import read_metrics
from loopscale.train.timing import measured_device
from loopscale.train.trainer import Trainer, train
from loss_speed import in_a_process
from model_references import cross_entropy_reference, expert_ffn_reference


@pytest.mark.parametrize("chunk", [1, 7 * 50, 1 << 24])
def test_the_chunked_loss_equals_the_whole_one(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr("loopscale.model.losses.CHUNK", chunk)
    torch.manual_seed(0)
    hidden, weight = torch.randn(90, 8, requires_grad=True), torch.randn(50, 8, requires_grad=True)
    labels = torch.randint(0, 50, (90,))
    labels[::9] = -100
    scale = torch.rand(90) * (labels != -100)
    chunked = chunked_cross_entropy(hidden, weight, labels, scale)
    whole = cross_entropy_reference(hidden, weight, labels, scale)
    torch.testing.assert_close(chunked, whole, rtol=1e-5, atol=1e-5)
    for one, other in zip(*(torch.autograd.grad(3 * loss, (hidden, weight)) for loss in (chunked, whole)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        without = chunked_cross_entropy(hidden, weight, labels, scale)
    torch.testing.assert_close(without, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("weights", [None, [0.5, 1.0, 2.0]])
def test_a_model_without_logits_has_the_same_loss_and_gradients(weights: list[float] | None) -> None:
    torch.manual_seed(0)
    config = LoopedMoEConfig(
        vocab_size=40, hidden_size=16, prelude_layers=1, loop_layers=1, coda_layers=1, recurrence=3,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, intermediate_size=32, num_experts=4,
        moe_intermediate_size=16, loop_loss_weights=weights,
    )  # fmt: skip
    model = LoopedMoEForCausalLM(config).train()
    ids = torch.randint(0, 40, (2, 12))
    labels = ids.clone()
    labels[0, :4] = -100
    whole, chunked = (model(ids, labels=labels, output_logits=wanted) for wanted in (True, False))
    assert chunked.logits is None
    torch.testing.assert_close(chunked.loss, whole.loss, rtol=1e-5, atol=1e-5)
    parameters = list(model.parameters())
    for one, other in zip(*(torch.autograd.grad(out.loss, parameters) for out in (chunked, whole)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_a_shard_is_drawn_like_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init, "BLOCK", 64)
    whole = torch.empty(37, 6, 5)
    init._draw(whole, (37, 6, 5), (0, 0, 0), "0/weight", 0.5)
    for rows, columns in ((slice(0, 20), slice(0, 3)), (slice(20, 37), slice(3, 6)), (slice(36, 37), slice(0, 6))):
        part = torch.empty_like(whole[rows, columns])
        init._draw(part, (37, 6, 5), (rows.start, columns.start, 0), "0/weight", 0.5)
        assert torch.equal(part, whole[rows, columns])
    assert float(whole.std()) == pytest.approx(0.5, rel=0.1)


def test_initial_weights_have_the_sizes_that_the_model_asks_for(text: Path, tmp_path: Path) -> None:
    trainer = Trainer(small(text), tmp_path / "run")
    reference = LoopedMoEForCausalLM(trainer.model_config)
    for (name, ours), theirs in zip(trainer.model.named_parameters(), reference.parameters(), strict=True):
        assert ours.shape == theirs.shape, name
        few = ours.numel() < 500
        depth = 1 + 2 * 1 + 1  # prelude, two passes of the loop's layer, coda
        factor = (2 * depth) ** -0.5 if name.endswith(init.RESIDUAL) else 1.0
        expected = pytest.approx(factor * float(theirs.std(correction=0)), rel=0.5 if few else 0.15, abs=1e-6)
        assert float(ours.std(correction=0)) == expected, name
    assert trainer.model.lm_head.weight is trainer.model.model.embed_tokens.weight
    assert all(not buffer.any() for buffer in trainer.model.buffers())


def test_output_projections_may_start_at_zero_beside_an_untied_head(text: Path, tmp_path: Path) -> None:
    switches = {"residual_init": "zero", "tie_word_embeddings": False, "injection": "normed", "experts": 2}
    model = Trainer(small(text, model=switches), tmp_path / "run").model
    for name, weight in model.named_parameters():
        is_output = name.endswith(("o_proj.weight", "down_proj.weight", "down_proj"))
        assert bool(weight.any()) is not is_output, name
    assert not torch.equal(model.lm_head.weight, model.model.embed_tokens.weight)
    embedded, entry = model(torch.arange(5)[None], recurrence=1, output_hidden_states=True).hidden_states[:2]
    # The prelude adds nothing yet.
    torch.testing.assert_close(entry, inject("normed", model.model.injection, embedded, embedded))
    assert (model.model.injection.norm.weight == 1).all()


def test_grouped_products_equal_the_reference() -> None:
    torch.manual_seed(0)
    x, weights = torch.randn(12, 16, requires_grad=True), torch.rand(12, 2, requires_grad=True)
    gate_up, down = (torch.randn(4, 16, width, requires_grad=True) for width in (16, 8))
    ids = torch.stack([torch.randperm(4)[:2] for _ in range(12)])
    arguments = (x, ids, weights, gate_up, down)
    one, other = grouped_ffn(*arguments), expert_ffn_reference(*arguments)
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)
    grad = torch.randn_like(one)
    inputs = (x, weights, gate_up, down)
    for ours, theirs in zip(*(torch.autograd.grad(out, inputs, grad) for out in (one, other)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)


def scaled(**sections: dict[str, object]) -> TrainConfig:
    data: dict[str, dict[str, object]] = {
        "model": {"width": 64, "layers": 4, "experts": 4, "recurrence": 2, "vocab_size": 4096},
        "data": {"context": 64},
        "run": {"batch": 16, "accumulate": 2, "tokens": "1M"},
    }
    for name, values in sections.items():
        data[name] = data.get(name, {}) | values
    return TrainConfig.from_dict(data)


@pytest.mark.parametrize("dispatch", ["dropless", "drop-and-pad"])
@pytest.mark.parametrize("options", [{}, {"loop_loss_weights": [1.0]}])
def test_a_whole_step_of_the_gpu_path_reads_nothing_on_the_host(dispatch: str, options: dict[str, object]) -> None:
    result = estimate(scaled(model={"dispatch": dispatch, **options}), 4, "h100").to_dict()
    assert result["simulated"]
    assert result["host_syncs"] == 0
    assert result["peak_bytes"] >= sum(result["parts"].values()) > 0
    assert result["step_seconds"] > 0
    parameters = LoopedMoEForCausalLM(scaled().model.config(4096, 64)).num_parameters()
    assert result["parts"]["weights"] == pytest.approx(4 * parameters / 4, rel=0.05)
    assert result["parts"]["optimizer"] == pytest.approx(2 * result["parts"]["weights"], rel=0.05)


def test_a_layer_of_a_model_stores_what_a_block_by_itself_stores() -> None:
    """No mask and no repeated keys beside it: plain batches are causal, which attention kernels know themselves."""

    def simulated(layers: int) -> tuple[int, TrainConfig]:
        config = TrainConfig.from_dict({
            "model": {"width": 128, "layers": layers, "head_size": 32, "kv_heads": 2, "vocab_size": 64},
            "data": {"context": 512},
            "run": {"batch": 32},
            "parallel": {"reduce": "block"},
        })  # fmt: skip
        result = estimate(config, 2, "h100")
        return result.peak_bytes - result.parts["weights"] - result.parts["optimizer"], config

    (few, _), (many, config) = simulated(4), simulated(8)
    stored, _ = block_bytes(config.model.config(64, 512), 16, 512, torch.bfloat16)
    assert (many - few) / 4 == pytest.approx(stored, rel=0.02)


def test_keeping_loop_gradients_sharded_trades_communication_for_memory() -> None:
    big = {"width": 128, "layers": 6, "experts": 16, "dispatch": "drop-and-pad"}
    found = {
        reduce: estimate(scaled(model=big, parallel={"reduce": reduce}), 8, "h100")
        for reduce in ("step", "pass", "block")
    }
    peaks = {reduce: result.peak_bytes for reduce, result in found.items()}
    moved = {reduce: sum(result.communication_bytes.values()) for reduce, result in found.items()}
    assert peaks["step"] > peaks["pass"] > peaks["block"]
    assert moved["step"] < moved["pass"] < moved["block"]
    reduced = {reduce: result.communication_bytes["reduce_scatter_base"] for reduce, result in found.items()}
    # Four of six blocks are in the loop, and their gradients are reduced at both passes of both parts of the batch.
    assert reduced["pass"] == reduced["block"] == pytest.approx(reduced["step"] * 2 * 10 / 6, rel=0.1)


def test_more_processes_than_experts_hold_no_padding() -> None:
    few = scaled(model={"experts": 2})  # four experts for eight processes
    parameters = LoopedMoEForCausalLM(few.model.config(4096, 64)).num_parameters()
    assert estimate(few, 8, "h100").parts["weights"] == pytest.approx(4 * parameters / 8, rel=0.05)


def test_offloaded_weights_and_optimiser_are_counted_on_the_host() -> None:
    here, there = (estimate(scaled(parallel={"offload": offload}), 4, "h100") for offload in (False, True))
    assert there.host_bytes == here.parts["weights"] + here.parts["optimizer"] == here.peak_bytes - there.peak_bytes
    assert here.host_bytes == 0
    assert not {"weights", "optimizer"} & there.parts.keys()


def test_expert_parallelism_and_replicas_are_simulated_too() -> None:
    config = scaled(model={"dispatch": "drop-and-pad"}, parallel={"experts": 2, "replicas": 2})
    assert any("alltoall" in kind for kind in estimate(config, 8, "h100").communication_bytes)
    with pytest.raises(InputError, match="dispatch = 'drop-and-pad'"):
        estimate(scaled(parallel={"experts": 2}), 8, "h100")
    with pytest.raises(InputError, match="a multiple of 6"):
        estimate(scaled(), 3, "h100")
    with pytest.raises(InputError, match=r"did you mean 'h100'"):
        estimate(scaled(), 4, "h10")


@pytest.mark.parametrize("kind", ["uniform", "poisson"])
def test_passes_that_are_drawn_are_estimated_at_their_config(kind: str) -> None:
    drawn, fixed = (
        estimate(scaled(model={"recurrence": 3, "random_recurrence": value}), 2, "h100") for value in (kind, None)
    )
    assert drawn.peak_bytes == fixed.peak_bytes
    assert drawn.flops <= fixed.flops * (1 + 1e-9)


@pytest.mark.parametrize(("stored", "precision"), [(True, "bf16"), (False, "bf16"), (True, "fp32")])
def test_the_closed_form_of_shared_experts_is_near_the_simulated_step(stored: bool, precision: str) -> None:
    config = TrainConfig.from_dict({
        "model": {"width": 256, "layers": 6, "head_size": 64, "experts": 8, "recurrence": 2, "vocab_size": 512,
                  "dispatch": "drop-and-pad"},
        "data": {"context": 256},
        "run": {"batch": 64, "accumulate": 2, "activation_checkpointing": not stored, "precision": precision},
        "parallel": {"experts": 4, "reduce": "step"},
    })  # fmt: skip
    result, model = estimate(config, 8, "h100"), model_without_text(config)
    cost = step_cost(config, model, 8, DEVICES["h100"])
    assert cost.moved == pytest.approx(sum(result.communication_bytes.values()), rel=0.1)
    assert cost.memory == pytest.approx(result.peak_bytes, rel=0.15)


@pytest.mark.parametrize("name", ["dense", "mixture"])
def test_the_closed_form_names_every_tensor_that_a_block_stores(name: str) -> None:
    architecture = rung("0.1B", 1 if name == "dense" else 8)
    config = LoopedMoEConfig.from_architecture(architecture, recurrence=2, dispatch="drop-and-pad", capacity_factor=1.5)
    stored, _ = block_bytes(config, 2, 512, torch.bfloat16)
    layer = architecture.loop_block[0].layer
    assert 2 * 2 * 512 * stored_numbers(layer, architecture.width, 1.5) == pytest.approx(stored, rel=0.03)


def test_a_device_that_no_table_has_is_measured() -> None:
    device = measured_device("cpu", size=128)
    assert 1e6 < device.flops < 1e15
    assert 1e6 < device.bandwidth < 1e13


def test_offload_pays_for_copies_and_for_the_optimiser_of_the_host() -> None:
    here, there = (
        estimate(scaled(parallel={"offload": offload, "reduce": "block"}), 4, "h100") for offload in (False, True)
    )
    # A gradient is as large as its weight, and goes to the host too once the next part begins.
    assert there.host_bytes == pytest.approx(2 * here.parts["weights"] + here.parts["optimizer"], rel=0.02)
    assert there.peak_bytes < here.peak_bytes
    assert there.step_seconds > here.step_seconds + there.host_seconds > here.step_seconds


def test_the_command_prints_an_estimate(tmp_path: Path) -> None:
    toml = tmp_path / "run.toml"
    toml.write_text("[model]\nvocab_size = 512\n[data]\ncontext = 32\n[run]\nbatch = 4\n")
    said = CliRunner().invoke(cli, ["train", str(toml), "--estimate", "--gpus", "2", "--json"])
    assert said.exit_code == 0, said.output
    assert {"peak_bytes", "parts", "communication_bytes", "host_syncs", "step_seconds"} <= json.loads(
        said.output
    ).keys()
    cost = json.loads(said.output)["cost"]
    said = CliRunner().invoke(cli, ["train", str(toml), "--estimate", "--gpus", "2", "--price", "5", "--json"])
    assert json.loads(said.output)["cost"] == pytest.approx(2 * cost)
    said = CliRunner().invoke(cli, ["train", str(toml), "--estimate", "--gpus", "2"])
    assert "simulated on fake tensors: no GPU was used" in said.output
    assert said.output.startswith("Fits each of 2 h100: ")
    lines = said.output.splitlines()
    assert len(lines) <= 22
    assert max(map(len, lines)) <= 80


def test_activations_fit_the_memory_given_and_losses_stay(text: Path, tmp_path: Path) -> None:
    config = small(text, run={"tokens": 5 * 128})
    trainer = Trainer(config, tmp_path / "plain")
    stored, kept = block_bytes(trainer.model_config, 4, 32, torch.float32)
    calls = block_calls(trainer.model_config)
    needed = calls * kept + stored
    for count in (0, 2, calls):
        budget = needed + count * (stored - kept)
        assert stored_blocks(trainer.model_config, 4, 32, torch.float32, budget) == count
    with pytest.raises(InputError, match=r"need .* GB when every block is recomputed"):
        stored_blocks(trainer.model_config, 4, 32, torch.float32, needed - 1)
    trainer.train()
    half = small(text, run={"tokens": 5 * 128, "activation_memory": needed + 2 * (stored - kept)})
    train(half, tmp_path / "half")
    assert losses(tmp_path / "half") == pytest.approx(losses(tmp_path / "plain"), abs=1e-5)


def test_checkpoints_in_the_background_resume_bit_for_bit(text: Path, tmp_path: Path) -> None:
    options = {"tokens": 9 * 128, "async_checkpoints": True}
    train(small(text, run={"tokens": 9 * 128}), tmp_path / "plain")
    trainer = Trainer(small(text, run=options), tmp_path / "async")
    trainer.train(until=7)
    trainer.checkpoints.wait()
    assert trainer.checkpoints.steps() == [6, 3]
    train(small(text, run=options), tmp_path / "async")
    assert losses(tmp_path / "async") == losses(tmp_path / "plain")


def test_a_spike_is_skipped_and_too_many_stop_the_run(text: Path, tmp_path: Path) -> None:
    trainer = Trainer(small(text, run={"skip_spikes": 2}), tmp_path / "run")
    trainer.train(until=2)
    norm = trainer.model.model.norm.weight
    kept = norm.detach().clone()
    with torch.no_grad():
        norm.fill_(float("nan"))
    trainer.train(until=4)
    assert read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]["skipped"] == 2
    with torch.no_grad():
        norm.copy_(kept)
    trainer.train(until=6)
    assert losses(tmp_path / "run")[-1] < 10
    with torch.no_grad():
        norm.fill_(float("nan"))
    with pytest.raises(DivergenceError, match="2 batches were skipped before"):
        trainer.train()


@pytest.mark.parametrize("name", ["paper", "paper-supervised"])
def test_a_recipe_fills_what_the_file_leaves_out(name: str) -> None:
    config = TrainConfig.from_dict({"recipe": {"name": name}, "model": {"rung": "0.3B", "experts": 8, "recurrence": 5}})
    model = config.model.config(1000, 2048)
    assert (model.dispatch, model.capacity_factor, model.injection) == ("drop-and-pad", 1.5, "none")
    assert (config.run.batch, config.data.context, config.run.precision) == (3072, 2048, "bf16")
    assert (model.loop_loss_weights is not None) == (name == "paper-supervised")
    assert TrainConfig.from_dict(config.to_dict()) == config
    own = TrainConfig.from_dict({"recipe": {"name": name}, "run": {"batch": 8}})
    assert own.run.batch == 8


def test_presets_are_listed() -> None:
    said = CliRunner().invoke(cli, ["presets"])
    assert said.exit_code == 0
    assert "paper-supervised" in said.output
    assert json.loads(CliRunner().invoke(cli, ["presets", "paper", "--json"]).output) == RECIPES["paper"]


@pytest.mark.slow
def test_the_loss_of_a_large_vocabulary_needs_little_memory(tmp_path: Path) -> None:
    """Five supervised passes in chunks take less than an eighth of the whole logits of a single pass."""
    peaks = {
        (form, passes): in_a_process(form, passes, str(tmp_path / f"{form}-{passes}"))["bytes"]
        for form, passes in (("chunked", 5), ("chunked", 1), ("whole", 1))
    }
    assert peaks["chunked", 5] <= peaks["whole", 1] / 8, peaks
    for one, other in zip(torch.load(tmp_path / "chunked-1"), torch.load(tmp_path / "whole-1"), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def measured(config: dict[str, object], processes: int, folder: Path) -> list[dict[str, int]]:
    """Return the memory that each of some real processes took to build a model and to train two steps."""
    settings, out = folder / f"config-{processes}.json", folder / f"run-{processes}"
    settings.write_text(json.dumps(config))
    # Freed memory returns to the system at once, so that the peak is that of tensors.
    allocator = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}
    script = Path(__file__).with_name("memory_runs.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **allocator}
    subprocess.run([*command, str(script), str(settings), str(out)], env=environment, check=True)
    return [json.loads(Path(f"{out}-{rank}.json").read_text()) for rank in range(processes)]


@pytest.mark.slow
@pytest.mark.parametrize("reduce", ["step", "block"])
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_estimated_memory_is_what_real_processes_take(text: Path, tmp_path: Path, processes: int, reduce: str) -> None:
    config = {
        "model": {
            "width": 384, "layers": 4, "head_size": 32, "experts": 8, "recurrence": 2, "dispatch": "drop-and-pad",
            "vocab_size": 4096,
        },
        "data": {"files": [str(text)], "context": 64, "validation": 0.2, "folder": str(text.parent / "tokens")},
        "run": {"batch": 8, "tokens": 2 * 8 * 64, "checkpoint_every": 0, "validation_sequences": 4, "log_every": 1},
        "parallel": {"reduce": reduce},
    }  # fmt: skip
    result = estimate(TrainConfig.from_dict(config), processes, "cpu")
    share = result.parts["weights"] + result.parts["optimizer"]
    for memory in measured(config, processes, tmp_path):
        assert memory["peak"] == pytest.approx(result.peak_bytes, rel=0.15)
        assert memory["built"] <= 1.3 * share


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_a_process_needs_its_share_and_the_activations_of_its_sequences(
    text: Path, tmp_path: Path, processes: int
) -> None:
    def config(batch: int) -> dict[str, object]:
        return {
            "model": {
                "width": 128, "layers": 16, "head_size": 32, "experts": 4, "recurrence": 2, "dispatch": "drop-and-pad",
                "vocab_size": 2048,
            },
            "data": {"files": [str(text)], "context": 128, "validation": 0.2, "folder": str(text.parent / "tokens")},
            "run": {"batch": batch, "tokens": 2 * batch * 128, "validation_sequences": 4, "log_every": 1},
            "parallel": {"reduce": "block"},
        }  # fmt: skip

    alone = estimate(TrainConfig.from_dict(config(2)), 1, "cpu")
    activations = sum(alone.parts.get(kind, 0) for kind in ("activations", "logits"))
    state = 4 * alone.parts["weights"]  # weights, gradients and two moments, all in fp32
    for memory in measured(config(2 * processes), processes, tmp_path):
        assert memory["peak"] <= 1.2 * (state / processes + activations)


@pytest.mark.slow
@pytest.mark.parametrize(("rung", "gpus"), [("1.0B", 64), ("0.6B", 8), ("0.3B", 8)])
def test_the_papers_largest_runs_fit_without_further_settings_and_are_bound_by_arithmetic(rung: str, gpus: int) -> None:
    config = {
        "recipe": {"name": "paper"},
        "model": {"rung": rung, "experts": 16, "recurrence": 8, "vocab_size": 202_048},
        "run": {"tokens": "100B"},
    }
    result = estimate(TrainConfig.from_dict(config), gpus, "h100")
    print(f"{rung} on {gpus}: {result.peak_bytes / 1e9:.1f} GB, {result.chosen}, step {result.step_seconds:.2f} s,"
          f" arithmetic {result.compute_seconds:.2f} s, links {result.communication_seconds:.2f} s,"
          f" memory {result.traffic_seconds:.2f} s")  # fmt: skip
    assert result.fits, result.parts
    assert result.step_seconds <= 1.3 * result.compute_seconds
    assert result.host_syncs == 0, "a step that reads a value of the device cannot be simulated"
