"""Matrix products of compiled runs: equal to PyTorch's within rounding, in every shape, and only within the block."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from training import corpus, small

from loopscale.train import products
from loopscale.train.trainer import Trainer


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Let oneDNN multiply on any machine, and list what it does."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("PyTorch was built without oneDNN")
    shapes: list[tuple[int, ...]] = []
    plain = products._onednn

    def onednn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        shapes.append((*a.shape, b.shape[1]))
        return plain(a, b)

    monkeypatch.setattr(products, "_onednn", onednn)
    monkeypatch.setattr(products, "onednn_is_faster", lambda: True)
    return shapes


@pytest.mark.parametrize("m", [0, 1, 31, 512, 517])
@pytest.mark.parametrize("k", [0, 16, 128, 517])
@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_any_shape_are_pytorchs_within_rounding(
    counted: list[tuple[int, ...]], m: int, k: int, transposed: bool
) -> None:
    a = torch.randn(k, m).t() if transposed else torch.randn(m, k)
    b = torch.randn(96, k).t()
    expected, out = a @ b, torch.full((m, 96), float("nan"))
    with products.fast_products():
        torch.testing.assert_close(a @ b, expected, rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(torch.mm(a, b, out=out), expected, rtol=1e-5, atol=1e-4)
    assert bool(counted) == (m * k * 96 >= products.LEAST)
    assert all(rows % products.GRAIN == inner % products.GRAIN == 0 for rows, inner, _ in counted)


def test_only_float32_within_the_block_is_multiplied_by_onednn(counted: list[tuple[int, ...]]) -> None:
    a = torch.randn(256, 256)
    with products.fast_products():
        for dtype in (torch.float64, torch.bfloat16):
            a.to(dtype) @ a.to(dtype)
        assert not counted
        a @ a
        assert len(counted) == 1
        with products.fast_products():  # as a validation within a run
            a @ a
        a @ a
    a @ a
    with products.fast_products(wanted=False):
        a @ a
    assert len(counted) == 3


def test_a_run_that_multiplies_by_onednn_has_the_losses_of_a_plain_one_and_resumes_bit_for_bit(
    counted: list[tuple[int, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = corpus(tmp_path / "text")
    monkeypatch.setattr(products, "LEAST", 1000)
    # What is tested of a compiled run is its products.
    monkeypatch.setattr(torch.nn.Module, "compile", lambda block, **options: None)

    def trained(name: str, *stops: int, fast: bool = True) -> Trainer:
        for stop in stops:
            trainer = Trainer(small(text, run={"compile": fast, "tokens": 12 * 128}), tmp_path / name)
            trainer.resume()
            trainer.train(until=stop)
            trainer.save()
        return trainer

    plain = trained("plain", 12, fast=False)
    assert not counted
    whole, resumed = trained("whole", 12), trained("resumed", 5, 12)
    assert counted
    for name, tensor in whole.tensors().items():
        assert torch.equal(tensor, resumed.tensors()[name]), name
        torch.testing.assert_close(tensor, plain.tensors()[name], rtol=1e-2, atol=1e-3)
