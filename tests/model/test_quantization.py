"""Weights of attention and experts in 8 and 4 bits, held by torchao."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from looped_models import model, tokens

from loopscale.cli.generate import generate_command
from loopscale.core.errors import InputError, MissingExtraError
from loopscale.model import LoopedMoEForCausalLM
from loopscale.model.quantize import quantize

FITS: dict[str, Any] = {"hidden_size": 64, "moe_intermediate_size": 32, "head_dim": 16, "dtype": torch.float32}
"""Sizes that 4 bits allow."""


def closeness(made: LoopedMoEForCausalLM, reference: LoopedMoEForCausalLM, recurrence: int) -> float:
    """Return the cosine of the angle between the logits of both models."""
    ids = tokens(2, 12)
    with torch.no_grad():
        ours, theirs = (each(ids, recurrence=recurrence).logits.flatten() for each in (made, reference))
    return float(torch.cosine_similarity(ours, theirs, dim=0))


def test_only_8_and_4_bits_are_offered() -> None:
    with pytest.raises(InputError, match="8 or 4 bits"):
        quantize(model(), bits=3)


def test_without_torchao_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(MissingExtraError, match=r"loopscale\[quant\]"):
        quantize(model())


@pytest.mark.parametrize(("bits", "least"), [(8, 0.999), (4, 0.9)])
def test_quantised_experts_give_nearly_the_same_logits_at_every_recurrence(bits: int, least: float) -> None:
    pytest.importorskip("torchao")
    reference = model(**FITS, initializer_range=0.02)
    made = quantize(model(**FITS, initializer_range=0.02), bits)
    for recurrence in (1, 3):
        assert least < closeness(made, reference, recurrence) < 1
    assert made.lm_head.weight is made.model.embed_tokens.weight
    assert made.generate(tokens(1, 4), max_new_tokens=3, do_sample=False).shape == (1, 7)


def test_8_bits_through_from_pretrained_equal_those_in_place_and_survive_saving(tmp_path: Path) -> None:
    torchao = pytest.importorskip("torchao.quantization")
    from transformers import TorchAoConfig

    reference = model(**FITS, initializer_range=0.02)
    reference.save_pretrained(tmp_path / "whole")
    # Attention and experts alike have weights called ..._proj.
    config = TorchAoConfig(torchao.FqnToConfig({"re:.*_proj": torchao.Int8WeightOnlyConfig()}))
    made = LoopedMoEForCausalLM.from_pretrained(tmp_path / "whole", quantization_config=config, dtype=torch.float32)
    made.eval()
    made.save_pretrained(tmp_path / "quantised")
    loaded = LoopedMoEForCausalLM.from_pretrained(tmp_path / "quantised", dtype=torch.float32).eval()
    in_place = quantize(reference, 8)
    ids = tokens(2, 12)
    with torch.no_grad():
        for each in (made, loaded):
            assert type(each.model.loop[0].mlp.experts.down_proj).__name__ == "Int8Tensor"
            torch.testing.assert_close(each(ids).logits, in_place(ids).logits, atol=1e-5, rtol=1e-5)
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("whole", "quantised")]
    assert sizes[1] < 0.5 * sizes[0]


@pytest.mark.parametrize("bits", [8, 4])
def test_weights_packed_in_place_are_neither_saved_nor_packed_again(bits: int, tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    made = quantize(model(**FITS), bits)
    with pytest.raises(InputError, match=f"packed into {bits} bits in place cannot be saved"):
        made.save_pretrained(tmp_path / "packed")
    assert not (tmp_path / "packed").exists()
    with pytest.raises(InputError, match=f"in {bits} bits already"):
        quantize(made, 8)


@pytest.mark.parametrize("bits", ["8", "4"])
def test_the_demo_model_generates_in_few_bits(bits: str) -> None:
    pytest.importorskip("torchao")
    done = CliRunner().invoke(generate_command, ["demo", "--prompt", "The state of", "--tokens", "8", "--bits", bits])
    assert done.exit_code == 0, done.output


def test_4_bits_refuse_sizes_that_the_kernel_lacks() -> None:
    pytest.importorskip("torchao")
    made = model(dtype=torch.float32)
    with pytest.raises(InputError, match="multiple of 16 rows and of 32 columns"):
        quantize(made, bits=4)
    assert {type(weight) for weight in made.parameters()} == {torch.nn.Parameter}
