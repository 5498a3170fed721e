"""Muon beside AdamW, averaged weights, and runs that start from another model's weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from training import losses, small

from loopscale.train.config import TrainConfig
from loopscale.train.optimizers import AdamW, MuonAdamW, fill_state, orthogonal
from loopscale.train.step import gradients
from loopscale.train.trainer import Trainer, train

MUON = {"name": "muon", "learning_rate": 0.01}


def resumed_equals_whole(config: TrainConfig, folder: Path) -> None:
    """Train a run at once, and the same run stopped and resumed; all their tensors must be equal."""

    def trained(out: str, until: int | None = None) -> dict[str, torch.Tensor]:
        trainer = Trainer(config, folder / out)
        trainer.resume()
        trainer.train(until=until)
        trainer.save()
        tensors = {name: getattr(tensor, "_local_tensor", tensor) for name, tensor in trainer.tensors().items()}
        trainer.process.close()
        return tensors

    whole = trained("whole")
    trained("stopped", until=17)
    resumed = trained("stopped")
    assert losses(folder / "stopped") == losses(folder / "whole")
    for name, tensor in whole.items():
        assert torch.equal(tensor, resumed[name]), name


@pytest.mark.parametrize("shape", [(12, 30), (30, 12), (16, 16)])
def test_an_update_of_muon_is_that_of_torch(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    start, gradient = torch.randn(shape), torch.randn(shape)
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    group = {"params": [ours], "muon": True}
    own = MuonAdamW([group], lr=0.1, weight_decay=0.2)
    fill_state(own)
    reference = torch.optim.Muon([theirs], lr=0.1, weight_decay=0.2, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        own.step()
        reference.step()
    moved = (theirs - start).norm()
    assert (ours - theirs).norm() < 0.02 * moved, "torch's iterates in bfloat16"


def test_each_expert_is_a_matrix_of_its_own() -> None:
    torch.manual_seed(0)
    experts = torch.randn(3, 8, 20)
    torch.testing.assert_close(orthogonal(experts), torch.stack([orthogonal(expert) for expert in experts]))
    values = torch.linalg.svdvals(orthogonal(experts))
    assert values.min() > 0.5
    assert values.max() < 1.5


def test_muon_resumes_bit_for_bit_and_stores_one_moment(text: Path, tmp_path: Path) -> None:
    config = small(text, optimizer=MUON)
    resumed_equals_whole(config, tmp_path)
    names = Trainer(config, tmp_path / "whole").tensors()
    assert any(name.endswith("experts.down_proj.momentum_buffer") for name in names)
    assert any(name.endswith("embed_tokens.weight.exp_avg") for name in names)
    assert not any(name.endswith("down_proj.exp_avg") for name in names)


def test_muon_learns(text: Path, tmp_path: Path) -> None:
    muon, adamw = (
        losses_of(small(text, optimizer=values), tmp_path / str(number))
        for number, values in enumerate(({"name": "muon", "learning_rate": 0.01}, {"learning_rate": 0.01}))
    )
    assert muon[-1] < muon[0] - 0.5
    assert muon != adamw


def losses_of(config: TrainConfig, out: Path) -> list[float]:
    train(config, out)
    return losses(out)


def test_the_average_is_validated_exported_and_resumed(text: Path, tmp_path: Path) -> None:
    from loopscale.model import LoopedMoEForCausalLM

    config = small(text, run={"ema": 0.9})
    resumed_equals_whole(config, tmp_path)
    trainer = Trainer(config, tmp_path / "stopped")
    trainer.resume()
    trainer.train()
    summary = trainer.finish()
    name, weight = next((name, weight) for name, weight in trainer.model.named_parameters() if weight.dim() == 3)
    exported = LoopedMoEForCausalLM.from_pretrained(str(tmp_path / "stopped" / "model")).get_parameter(name)
    torch.testing.assert_close(exported, trainer.tensors()[f"average.{name}"])
    assert not torch.equal(exported, weight)
    plain = Trainer(small(text), tmp_path / "plain")
    plain.train()
    assert torch.equal(plain.tensors()[f"model.{name}"], weight.detach()), "averaging leaves the training as it is"
    assert summary["validation_loss"] != plain.validate()


def test_weights_in_bf16_resume_bit_for_bit_with_the_rest_in_fp32(text: Path, tmp_path: Path) -> None:
    config = small(text, run={"precision": "bf16-weights", "ema": 0.9, "accumulate": 2})
    resumed_equals_whole(config, tmp_path)
    trainer = Trainer(config, tmp_path / "types")
    types = {name: tensor.dtype for name, tensor in trainer.tensors().items()}
    trainer.train(until=1)
    weights = dict(trainer.model.named_parameters())
    assert {weight.dtype for name, weight in weights.items() if ".router." in name} == {torch.float32}
    assert {weight.dtype for name, weight in weights.items() if ".router." not in name} == {torch.bfloat16}
    others = {kind for name, kind in types.items() if name.startswith(("optimizer.", "average."))}
    assert others == {torch.float32}
    trainer.process.close()


def test_gradients_of_weights_in_bf16_are_fp32(text: Path, tmp_path: Path) -> None:
    trainer = Trainer(small(text, run={"precision": "bf16-weights"}), tmp_path / "run")
    try:
        gradients(trainer.model, trainer.parts(0), trainer.process, False)
        kinds = {weight.grad.dtype for weight in trainer.model.parameters() if weight.grad is not None}
    finally:
        trainer.process.close()
    assert kinds == {torch.float32}


def test_weights_in_bf16_learn_about_as_much(text: Path, tmp_path: Path) -> None:
    whole, rounded = (
        losses_of(small(text, run={"precision": name}), tmp_path / name) for name in ("bf16", "bf16-weights")
    )
    assert rounded[0] == pytest.approx(whole[0], abs=0.05)
    assert whole[0] - whole[-1] > 0.5
    assert rounded[-1] == pytest.approx(whole[-1], abs=0.25 * (whole[0] - whole[-1]))


def test_an_update_of_weights_in_bf16_is_that_of_adamw_rounded() -> None:
    torch.manual_seed(0)
    start = torch.randn(8, 6).bfloat16()
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.float())
    ours.grad_dtype = torch.float32
    own, reference = (
        kind([weight], lr=0.1, weight_decay=0.2) for kind, weight in ((AdamW, ours), (torch.optim.AdamW, theirs))
    )
    fill_state(own)
    gradient = torch.randn(8, 6)
    ours.grad, theirs.grad = gradient.clone(), gradient.clone()
    own.step()
    reference.step()
    assert torch.equal(ours.detach(), theirs.detach().bfloat16())


def test_a_checkpoint_of_the_other_optimiser_is_refused(text: Path, tmp_path: Path) -> None:
    from loopscale.core.errors import InputError

    Trainer(small(text), tmp_path / "run")
    other: dict[str, Any] = {"optimizer": MUON | {"learning_rate": 0.01}}
    with pytest.raises(InputError, match=r"another run: its \[optimizer\] name is 'adamw'"):
        Trainer(small(text, **other), tmp_path / "run")


@pytest.fixture(scope="module")
def trained(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(small(text), folder)
    return folder


def continued(text: Path, trained: Path, **model: Any) -> TrainConfig:
    data = small(text).to_dict()
    del data["data"]["tokenizer"]
    return TrainConfig.from_dict(data | {"model": {"init_from": str(trained), **model}})


def test_a_run_starts_where_another_ended(text: Path, tmp_path: Path, trained: Path) -> None:
    before = Trainer(small(text), trained)
    before.resume()
    before.train()
    trainer = Trainer(continued(text, trained), tmp_path / "run")
    assert trainer.model_config.hidden_size == before.model_config.hidden_size
    assert trainer.validate() == pytest.approx(before.validate(), abs=1e-6)
    trainer.train(until=6)
    resumed = Trainer(TrainConfig.from_dict(trainer.config.to_dict()), tmp_path / "run")
    assert resumed.resume()
    assert resumed.step == 6


@pytest.mark.parametrize("change", [{"experts": 4}, {"experts": 6}])
def test_copied_experts_change_nothing_at_first_and_are_used_later(
    text: Path, tmp_path: Path, trained: Path, change: dict[str, int]
) -> None:
    plain = Trainer(continued(text, trained), tmp_path / "plain")
    wide = Trainer(continued(text, trained, bias_update_rate=0.3, **change), tmp_path / "wide")
    assert wide.model_config.num_experts == 2 * change["experts"]
    assert wide.validate() == pytest.approx(plain.validate(), abs=1e-6)
    wide.train()
    bias = wide.model.get_buffer("model.loop.0.mlp.router.e_score_correction_bias")
    assert bias.max() - bias.min() < 1, "the balancing has raised the copies"


def test_a_dense_run_becomes_experts_and_trains_on(text: Path, tmp_path: Path) -> None:
    from click.testing import CliRunner

    from loopscale.cli.convert import convert_command
    from loopscale.cli.export import export_command

    dense = train(small(text, model={"experts": 1, "recurrence": 1, "layers": 3}), tmp_path / "dense")
    assert dense is not None
    plain, upcycled = str(tmp_path / "plain"), str(tmp_path / "upcycled")
    for command, arguments in (
        (export_command, [str(tmp_path / "dense"), "--to", "unrolled", "--out", plain]),
        (convert_command, [plain, "--prelude", "1", "--coda", "1", "-R", "1", "--experts", "8", "--out", upcycled]),
    ):
        done = CliRunner().invoke(command, arguments)
        assert done.exit_code == 0, done.output
    trainer = Trainer(continued(text, tmp_path / "upcycled", bias_update_rate=0.01), tmp_path / "run")
    assert trainer.model_config.num_experts == 16
    start = trainer.validate()
    assert start == pytest.approx(dense["validation_loss"], abs=1e-4)
    trainer.train()
    assert trainer.validate() < start
    down_EDH = trainer.model.get_parameter("model.loop.0.mlp.experts.down_proj")
    assert (down_EDH[0] - down_EDH[1]).abs().max() > 1e-4, "training makes the copies differ"


def test_a_model_continues_with_more_passes(text: Path, tmp_path: Path, trained: Path) -> None:
    plain = Trainer(continued(text, trained), tmp_path / "plain")
    deeper = Trainer(continued(text, trained, recurrence=4), tmp_path / "deeper")
    assert deeper.validate(recurrence=2) == pytest.approx(plain.validate(), abs=1e-6)
    assert deeper.validate() != pytest.approx(plain.validate(), abs=1e-6)


def test_sizes_and_folders_that_do_not_fit_are_refused(text: Path, tmp_path: Path, trained: Path) -> None:
    from loopscale.core.errors import InputError

    with pytest.raises(InputError, match="'width' is a size"):
        continued(text, trained, width=32)
    with pytest.raises(InputError, match="no looped MoE in Hugging Face form"):
        continued(text, tmp_path)
    with pytest.raises(InputError, match="by a whole factor"):
        Trainer(continued(text, trained, experts=3), tmp_path / "three")


@pytest.mark.parametrize(
    ("optimizer", "ema", "precision", "bytes_each"),
    [
        ("adamw", 0.0, "bf16", 12),
        ("muon", 0.0, "bf16", 8),
        ("adamw", 0.9, "bf16", 16),
        ("adamw", 0.0, "bf16-weights", 10),
    ],
)
def test_what_an_optimiser_keeps_is_in_the_estimated_memory(
    optimizer: str, ema: float, precision: str, bytes_each: float
) -> None:
    from loopscale.core.devices import DEVICES
    from loopscale.train.estimate import estimate
    from loopscale.train.job import model_without_text, step_cost

    config = TrainConfig.from_dict({
        "model": {
            "width": 256, "layers": 14, "head_size": 64, "experts": 8, "dispatch": "drop-and-pad", "vocab_size": 64
        },
        "data": {"context": 64},
        "optimizer": {"name": optimizer},
        "run": {"batch": 2, "ema": ema, "precision": precision},
    })  # fmt: skip
    result, model = estimate(config, 2, "h100"), model_without_text(config)
    kept = result.parts["weights"] + result.parts["optimizer"]
    assert kept == pytest.approx(bytes_each * float(model.to_architecture().parameters) / 2, rel=0.02)
    assert step_cost(config, model, 2, DEVICES["h100"]).memory == pytest.approx(result.peak_bytes, rel=0.1)
