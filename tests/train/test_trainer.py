"""A run trains, repeats bit for bit, resumes, reports and stops in time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from training import losses, small

from loopscale.cli.verbs import cli
from loopscale.core.errors import DivergenceError, InputError, MissingExtraError
from loopscale.evaluate import read_checkpoint
from loopscale.model import LoopedMoEForCausalLM
from loopscale.model.loading import load_model, load_tokenizer
from loopscale.train.config import TrainConfig
from loopscale.train.metrics import read_metrics
from loopscale.train.step import gradients
from loopscale.train.trainer import Trainer, train


@pytest.fixture(scope="module")
def finished(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "whole"
    train(small(text), out)
    return out


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_model(out / "model").state_dict()


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_learns_and_leaves_a_model_that_loads(finished: Path) -> None:
    curve = losses(finished)
    assert len(curve) == 40
    assert sum(curve[-5:]) / 5 < curve[0] - 1
    model, tokenizer = load_model(finished / "model"), load_tokenizer(finished / "model", None)
    ids = tokenizer(["the expert of a"], return_tensors="pt")["input_ids"]
    assert model(ids, labels=ids).loss < curve[0]


def test_the_summary_is_an_observation(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    architecture = load_model(finished / "model").config.to_architecture()
    assert summary["active"] == architecture.active
    assert summary["loop"] == architecture.loop
    assert summary["training_flops"] == pytest.approx(6 * (architecture.active + architecture.loop) * 40 * 4 * 32)
    assert summary["validation_loss"] == read_metrics(finished / "metrics.jsonl")[-1]["validation_loss"]


def test_the_same_seed_repeats_bit_for_bit_and_another_does_not(text: Path, finished: Path, tmp_path: Path) -> None:
    train(small(text), tmp_path / "again")
    assert losses(tmp_path / "again") == losses(finished)
    assert same(weights(tmp_path / "again"), weights(finished))
    train(small(text, run={"seed": 1}), tmp_path / "other")
    assert losses(tmp_path / "other") != losses(finished)


@pytest.mark.parametrize("options", [{}, {"random_recurrence": "uniform"}, {"dispatch": "drop-and-pad"}])
def test_a_run_stopped_at_any_step_goes_on_bit_for_bit(text: Path, tmp_path: Path, options: dict[str, str]) -> None:
    config = small(text, model=options, run={"tokens": 12 * 4 * 32})
    train(config, tmp_path / "whole")
    for stop in (1, 5, 11):
        out = tmp_path / f"stopped-{stop}"
        Trainer(config, out).train(until=stop)  # its last checkpoint is up to two steps back
        train(config, out)
        assert losses(out) == losses(tmp_path / "whole")
        assert same(weights(out), weights(tmp_path / "whole"))


def test_a_finished_run_is_not_trained_again_and_a_longer_one_goes_on(text: Path, finished: Path) -> None:
    before = (finished / "metrics.jsonl").stat().st_mtime_ns
    assert train(small(text), finished)["tokens"] == 40 * 4 * 32
    assert (finished / "metrics.jsonl").stat().st_mtime_ns == before


def test_a_branch_of_a_wsd_run_is_the_shorter_run(text: Path, tmp_path: Path) -> None:
    schedule = {"kind": "wsd", "cooldown": 0.25}
    short = small(text, schedule=schedule, run={"tokens": 12 * 4 * 32})
    train(short, tmp_path / "short")
    trunk = Trainer(small(text, schedule=schedule), tmp_path / "trunk")
    trunk.train(until=9)  # where the short run begins to cool down
    trunk.config = short
    trunk.train()
    assert same(dict(trunk.model.state_dict()), weights(tmp_path / "short"))


def test_a_moment_can_be_come_back_to(text: Path, tmp_path: Path) -> None:
    trainer = Trainer(small(text), tmp_path / "run")
    trainer.train(until=6)
    moment = trainer.snapshot()
    trainer.train(until=12)
    first = {name: tensor.clone() for name, tensor in trainer.tensors().items()}
    trainer.restore(moment)
    trainer.train(until=12)
    assert same(first, trainer.tensors())


def test_parts_of_a_batch_add_up_to_the_batch(text: Path, tmp_path: Path) -> None:
    whole = Trainer(small(text), tmp_path / "whole")
    split = Trainer(small(text, run={"accumulate": 4}), tmp_path / "split")
    for trainer in (whole, split):
        trainer.model.train()
        trainer.result = gradients(trainer.model, trainer.parts(0), trainer.process, False)  # type: ignore[attr-defined]
    assert float(whole.result.loss) == pytest.approx(float(split.result.loss), abs=1e-6)  # type: ignore[attr-defined]
    assert torch.equal(whole.result.counts.loop, split.result.counts.loop)  # type: ignore[attr-defined]
    for one, other in zip(whole.model.parameters(), split.model.parameters(), strict=True):
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, atol=1e-6, rtol=1e-4)


def test_the_step_is_adamw_of_the_recipe(text: Path, tmp_path: Path) -> None:
    config = small(text, model={"experts": 1}, run={"tokens": 3 * 4 * 32})
    trainer = Trainer(config, tmp_path / "run")
    by_hand = LoopedMoEForCausalLM(trainer.model_config)
    by_hand.load_state_dict(trainer.model.state_dict())
    by_hand.train()
    matrices = [weight for weight in by_hand.parameters() if weight.dim() > 1]
    vectors = [weight for weight in by_hand.parameters() if weight.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}], betas=(0.9, 0.95), eps=1e-15, weight_decay=0.1
    )
    for step in range(3):
        part = trainer.batches.batch(step)
        by_hand(torch.from_numpy(part.ids), labels=torch.from_numpy(part.labels)).loss.backward()
        torch.nn.utils.clip_grad_norm_(by_hand.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = (
                0.01 * min(1.0, (step + 1) / 5) * 0.5 * (1 + torch.cos(torch.tensor(torch.pi * step / 3))).item()
            )
        optimizer.step()
        optimizer.zero_grad()
    trainer.train()
    for one, other in zip(trainer.model.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_a_loss_that_is_no_number_stops_with_step_batch_and_checkpoint(text: Path, tmp_path: Path) -> None:
    trainer = Trainer(small(text), tmp_path / "run")
    trainer.train(until=6)
    with torch.no_grad():
        trainer.model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(DivergenceError, match="not finite at step 6") as error:
        trainer.train()
    assert "checkpoints/step-6" in str(error.value)
    batch = json.loads((tmp_path / "run" / "bad-batch.json").read_text())
    assert batch["ids"][0] == trainer.batches.batch(6).ids.tolist()


def test_a_climbing_loss_stops_the_run(text: Path, tmp_path: Path) -> None:
    config = small(text, optimizer={"learning_rate": 3.0, "clip": 0.0}, run={"tokens": 400 * 4 * 32, "divergence": 0.5})
    with pytest.raises(DivergenceError, match=r"the loss (has climbed|is not finite)"):
        train(config, tmp_path / "run")


def test_a_checkpoint_of_another_model_is_refused_by_the_field(text: Path, tmp_path: Path) -> None:
    train(small(text, run={"tokens": 4 * 4 * 32}), tmp_path / "run")
    with pytest.raises(InputError, match=r"holds another run: its \[model\] width is 16"):
        train(small(text, model={"width": 32}), tmp_path / "run")
    (tmp_path / "run" / "run.json").unlink()
    with pytest.raises(InputError, match="of another run: its hidden_size is 16"):
        train(small(text, model={"width": 32}), tmp_path / "run")


def test_speed_load_and_losses_are_reported(finished: Path) -> None:
    row = read_metrics(finished / "metrics.jsonl")[-1]
    assert row["step"] == 40
    assert row["tokens"] == 40 * 4 * 32
    assert row["tokens_per_second"] > 0
    assert 0 < row["peak_share"] < 1
    assert row["expert_load"] >= 1
    assert row["dropped"] == 0


def test_a_runs_folder_stands_for_its_model(finished: Path) -> None:
    for folder in (finished, finished / "model"):
        model = read_checkpoint(folder)
        assert (model.name, model.training_tokens) == ("whole", 40 * 4 * 32)
    assert read_checkpoint(finished, tokens=7).training_tokens == 7
    said = CliRunner().invoke(cli, ["generate", str(finished), "--prompt", "the expert", "--tokens", "3", "--json"])
    assert said.exit_code == 0, said.output


def test_per_loop_supervision_and_other_options_train(text: Path, tmp_path: Path) -> None:
    options = {"loop_loss_weights": [0.5, 1.0], "injection": "add", "balance": "pass"}
    train(small(text, model=options, run={"tokens": 6 * 4 * 32}), tmp_path / "run")
    assert load_model(tmp_path / "run" / "model").config.loop_loss_weights == [0.5, 1.0]


def test_compiled_blocks_give_the_same_losses(text: Path, finished: Path, tmp_path: Path) -> None:
    train(small(text, run={"compile": True, "tokens": 5 * 4 * 32}, schedule={"kind": "constant"}), tmp_path / "fast")
    train(small(text, run={"tokens": 5 * 4 * 32}, schedule={"kind": "constant"}), tmp_path / "plain")
    assert losses(tmp_path / "fast") == pytest.approx(losses(tmp_path / "plain"), abs=1e-4)


@pytest.mark.slow
def test_a_compiled_run_goes_on_bit_for_bit(text: Path, tmp_path: Path) -> None:
    fast = small(text, run={"compile": True})
    train(fast, tmp_path / "whole")
    cut = Trainer(fast, tmp_path / "cut")
    cut.train(until=17)
    cut.save()
    train(fast, tmp_path / "cut")
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    assert same(weights(tmp_path / "cut"), weights(tmp_path / "whole"))


def test_training_leaves_the_settings_of_torch_as_they_were(text: Path, tmp_path: Path) -> None:
    seen = []
    trainer = Trainer(small(text, run={"tokens": 2 * 4 * 32}), tmp_path / "run")
    trainer.train(stop=lambda: seen.append(torch.are_deterministic_algorithms_enabled()) or False)
    assert seen == [True, True]
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory


def test_documents_can_be_kept_apart(text: Path, tmp_path: Path) -> None:
    train(small(text, data={"document_mask": True}, run={"tokens": 5 * 4 * 32}), tmp_path / "apart")
    train(small(text, run={"tokens": 5 * 4 * 32}), tmp_path / "packed")
    assert losses(tmp_path / "apart") != losses(tmp_path / "packed")


def test_a_corpus_shorter_than_a_sequence_is_refused(text: Path, tmp_path: Path) -> None:
    config: TrainConfig = small(text, data={"context": 100_000})
    with pytest.raises(InputError, match=r"^0\.txt and others: .* less than one sequence of 100000"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_tracker_gets_every_row(text: Path, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(small(text, run={"track": ["tensorboard"], "tokens": 5 * 4 * 32}), tmp_path / "run")
    seen = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    seen.Reload()
    assert [event.value for event in seen.Scalars("loss")] == pytest.approx(losses(tmp_path / "run"), rel=1e-6)


def test_a_tracker_that_is_not_there_is_named(text: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingExtraError, match="'trackio', which is not installed; pip install trackio"):
        train(small(text, run={"track": ["trackio"]}), tmp_path / "run")
