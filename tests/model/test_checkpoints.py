"""Saving and loading, here and where loopscale is not installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from looped_models import WITHOUT_LOOPSCALE, config, model, same, tokens
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

from loopscale.architecture import read_config, rung
from loopscale.core.errors import InputError
from loopscale.model import (
    LoopedMoEConfig,
    LoopedMoEForCausalLM,
    LoopedMoEForSequenceClassification,
    LoopedMoEModel,
)

OPTIONS: dict[str, Any] = {
    "balance": "pass",
    "injection": "concat",
    "shared_expert_intermediate_size": 8,
    "residual_scale": "1/sqrt(R)",
    "pass_norms": True,
    "pass_attention": "low-rank",
    "pass_router": True,
    "exit_gate": True,
}
LOADED = """
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True, recurrence=4).eval()
assert "loopscale" not in sys.modules
ids = torch.tensor(eval(sys.argv[2]))
print(model.generate(ids, max_new_tokens=6, do_sample=False)[0].tolist(), model(ids).logits.double().sum().item())
"""


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    model(**OPTIONS).save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def edit_config(checkpoint: Path, **changes: object) -> None:
    path = checkpoint / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_tensors(checkpoint: Path, drop: str | None = None, **extra: torch.Tensor) -> None:
    path = checkpoint / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(path).items() if name != drop}
    save_file({**tensors, **extra}, path, {"format": "pt"})


def test_a_checkpoint_gives_back_the_model_through_every_door(checkpoint: Path) -> None:
    made = model(**OPTIONS)
    expected = made(tokens(2, 9)).logits
    for door in (LoopedMoEForCausalLM, AutoModelForCausalLM):
        same(door.from_pretrained(checkpoint).eval()(tokens(2, 9)).logits, expected)
    body = AutoModel.from_pretrained(checkpoint).eval()
    assert isinstance(body, LoopedMoEModel)
    same(made.lm_head(body(tokens(2, 9)).last_hidden_state), expected)
    assert isinstance(AutoConfig.from_pretrained(checkpoint), LoopedMoEConfig)
    assert "lm_head.weight" not in load_file(checkpoint / "model.safetensors")


def test_a_checkpoint_loads_where_loopscale_is_not_installed(checkpoint: Path, tmp_path: Path) -> None:
    made = LoopedMoEForCausalLM.from_pretrained(checkpoint, recurrence=4).eval()
    ids = tokens(1, 5)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LOOPSCALE + LOADED, str(checkpoint), repr(ids.tolist())],
        capture_output=True,
        text=True,
        check=False,
        env={"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    expected = made.generate(ids, max_new_tokens=6, do_sample=False)[0].tolist()
    assert done.stdout.startswith(f"{expected} ")
    assert float(done.stdout.split("]")[1]) == pytest.approx(made(ids).logits.double().sum().item(), rel=1e-6)


EVERY_CLASS = """
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification
where = {"trust_remote_code": True, "dtype": torch.float64}
ids = torch.tensor(eval(sys.argv[2]))
body = AutoModel.from_pretrained(sys.argv[1], **where).eval()
head = AutoModelForCausalLM.from_pretrained(sys.argv[1], **where).eval()
judge = AutoModelForSequenceClassification.from_pretrained(sys.argv[1], num_labels=3, pad_token_id=0, **where).eval()
assert AutoConfig.from_pretrained(sys.argv[1], trust_remote_code=True, num_hidden_layers=6).recurrence == 2
assert "loopscale" not in sys.modules
hidden = body(ids).last_hidden_state
torch.testing.assert_close(head.lm_head(hidden), head(ids).logits)
torch.testing.assert_close(judge.score(hidden[:, -1]), judge(ids).logits)
"""


def test_a_checkpoint_has_every_class_where_loopscale_is_not_installed(checkpoint: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_LOOPSCALE + EVERY_CLASS, str(checkpoint), repr([[5, 7, 9], [3, 4, 8]])],
        capture_output=True,
        text=True,
        check=False,
        env={"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr


def test_a_classifier_trains_saves_and_loads(tmp_path: Path) -> None:
    made = LoopedMoEForSequenceClassification(config(num_labels=2, pad_token_id=0)).train()
    ids, labels = tokens(3, 7).clamp(min=1), torch.tensor([0, 1, 1])
    out = made(ids, labels=labels)
    out.loss.backward()
    assert made.score.weight.grad is not None
    made.eval().save_pretrained(tmp_path)
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    torch.testing.assert_close(again(ids).logits, made(ids).logits)
    padded = torch.cat((ids, torch.zeros(3, 2, dtype=torch.long)), 1)
    torch.testing.assert_close(again(padded, attention_mask=(padded > 0).long()).logits, made(ids).logits)


def test_a_config_survives_its_file_to_the_last_field(tmp_path: Path) -> None:
    made = LoopedMoEConfig.from_architecture(rung("0.3B", experts=8), recurrence=5, loop_loss_weights=[1.0, 2.0])
    made.save_pretrained(tmp_path)
    again = LoopedMoEConfig.from_pretrained(tmp_path)
    ours, theirs = made.to_dict(), again.to_dict()
    assert {key: value for key, value in ours.items() if theirs[key] != value} == {}


@pytest.mark.parametrize(
    ("drop", "extra", "said"),
    [
        ("model.norm.weight", {}, "the checkpoint lacks tensor 'model.norm.weight', which the model needs"),
        (
            None,
            {"model.surplus": torch.ones(3)},
            "the checkpoint holds tensor 'model.surplus', which the model does not",
        ),
    ],
)
def test_missing_and_extra_tensors_are_refused_by_name(
    checkpoint: Path, drop: str | None, extra: dict[str, torch.Tensor], said: str
) -> None:
    edit_tensors(checkpoint, drop, **extra)
    for door in (LoopedMoEForCausalLM, AutoModelForCausalLM):
        with pytest.raises(InputError, match=said):
            door.from_pretrained(checkpoint)


def test_a_checkpoint_from_a_later_version_is_refused(checkpoint: Path) -> None:
    edit_config(checkpoint, format_version=3)
    with pytest.raises(InputError, match="format_version is 3, later than this code reads"):
        AutoModelForCausalLM.from_pretrained(checkpoint)


def test_the_recurrence_at_loading_is_checked(checkpoint: Path) -> None:
    for wrong in (0, -1, "auto", 2.5):
        with pytest.raises(InputError, match="recurrence is"):
            LoopedMoEForCausalLM.from_pretrained(checkpoint, recurrence=wrong)


def test_a_checkpoints_config_counts_as_the_model_does(tmp_path: Path) -> None:
    made = model(injection="concat", shared_expert_intermediate_size=8)
    made.save_pretrained(tmp_path / "made")
    read = read_config(tmp_path / "made")
    assert read.parameters == sum(weight.numel() for weight in made.parameters())
    assert (read.recurrence, read.loop) == (made.config.recurrence, made.config.to_architecture().loop)


@pytest.mark.parametrize("kind", [LoopedMoEForCausalLM, LoopedMoEModel])
@pytest.mark.parametrize("changes", [{}, OPTIONS, {"injection": "gated"}, {"injection": "diagonal", "num_experts": 1}])
def test_an_empty_state_dict_gives_new_weights_as_construction_does(kind: Any, changes: dict[str, Any]) -> None:
    # A model is then built on the meta device and every weight initialised after it.
    settings = config(**changes)
    loaded = kind.from_pretrained(None, config=settings, state_dict={}).state_dict()
    built = kind(settings).state_dict()
    assert loaded.keys() == built.keys()
    for name, weight in built.items():
        assert not loaded[name].is_meta
        constant = bool((weight == weight.flatten()[0]).all())
        if constant:
            assert torch.equal(loaded[name], weight), name
        else:
            assert 0.5 < loaded[name].std() / weight.std() < 2.0, name


def test_a_state_dict_with_some_of_the_tensors_is_refused() -> None:
    some = {"model.norm.weight": torch.ones(24)}
    with pytest.raises(InputError, match="lacks tensor"):
        LoopedMoEForCausalLM.from_pretrained(None, config=config(), state_dict=some)
