"""Load a checkpoint and its tokenizer for the commands; every error is one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoTokenizer
from transformers.utils import logging

from loopscale.core.errors import InputError, shown
from loopscale.core.files import check_seal, read_json
from loopscale.model.config import LoopedMoEConfig
from loopscale.model.model import LoopedMoEForCausalLM

ATTENTION = (None, "eager", "sdpa")
"""Attention implementations that a config may name; other names make Transformers fetch kernels from the hub."""


DEMO = Path(__file__).with_name("demo")
"""A small trained model that comes with the package; ``examples/demo.toml`` trains it."""


def load_model(checkpoint: str | Path, dtype: torch.dtype | None = None) -> LoopedMoEForCausalLM:
    """Return the model of a checkpoint folder, in evaluation mode; ``dtype`` None keeps the checkpoint's."""
    where = Path(checkpoint)
    if not where.is_dir():
        raise InputError(f"{checkpoint}: no such folder; give one that save_pretrained wrote")
    config: Any = read_json(where / "config.json")
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind != LoopedMoEConfig.model_type:
        raise InputError(
            f"{checkpoint}: its model_type is {kind!r}; a {LoopedMoEConfig.model_type!r} model is needed here"
        )
    _check_config(config, where)
    check_seal(where)
    with quiet(), one_sentence(checkpoint):
        _check_weights(where)
        model: LoopedMoEForCausalLM = LoopedMoEForCausalLM.from_pretrained(
            str(where), dtype=dtype or "auto", use_safetensors=True, trust_remote_code=False
        )
        check_finite(model.state_dict().items(), where)
    model.eval()  # type: ignore[no-untyped-call]
    return model


def check_finite(tensors: Iterable[tuple[str, Tensor]], where: str | Path) -> int:
    """Refuse weights that are NaN or infinite, as a diverged run leaves them; return how many tensors there are."""
    count = 0
    for count, (name, tensor) in enumerate(tensors, 1):  # noqa: B007 - returned
        if not bool(torch.isfinite(tensor).all()):
            raise InputError(
                f"{where}: {name} holds values that are not finite; the model is damaged or has diverged: copy it "
                "again, or use an earlier checkpoint"
            )
    return count


def check_finite_files(folder: Path) -> int:
    """Refuse a folder whose safetensors hold values that are not finite; return how many tensors there are."""

    def tensors(file: Path) -> Iterator[tuple[str, Tensor]]:
        with safe_open(str(file), framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - not a dict
                yield name, opened.get_tensor(name)

    count = 0
    for file in sorted(folder.glob("*.safetensors")):
        try:
            count += check_finite(tensors(file), file)
        except InputError:
            raise
        except Exception as error:  # safetensors has its own errors for every kind of damage
            raise InputError(f"{file}: not readable as safetensors: {error}") from None
    return count


def load_tokenizer(checkpoint: str | Path, tokenizer: str | None) -> Any:
    """Return the tokenizer beside the checkpoint, or the one that ``tokenizer`` names; it pads on the left."""
    where = Path(tokenizer or checkpoint)
    absent = InputError(f"{where}: no tokenizer found there; save one beside the model, or name its folder")
    if not (where / "tokenizer_config.json").is_file():
        raise absent
    with quiet():
        try:
            loaded = AutoTokenizer.from_pretrained(str(where), trust_remote_code=False)
        except Exception as error:  # Transformers raises many kinds here
            raise absent from error
    if loaded.pad_token is None:
        loaded.pad_token = loaded.eos_token or loaded.convert_ids_to_tokens(0)
    loaded.padding_side = "left"
    return loaded


def load(
    checkpoint: str | Path, tokenizer: str | None = None, dtype: torch.dtype | None = None
) -> tuple[LoopedMoEForCausalLM, Any]:
    """Return a checkpoint's model and tokenizer; a vocabulary larger than the embeddings is refused."""
    model = load_model(checkpoint, dtype)
    loaded = load_tokenizer(checkpoint, tokenizer)
    if len(loaded) > model.config.vocab_size:
        raise InputError(
            f"the tokenizer has {len(loaded)} tokens, more than the model's vocabulary of {model.config.vocab_size}; "
            "name the tokenizer that the model was trained with"
        )
    return model, loaded


def _check_config(config: dict[str, Any], where: Path) -> None:
    """Refuse a config that asks for third-party code: kernels by name from the hub, or a quantisation package."""
    for key in ("attn_implementation", "_attn_implementation", "_attn_implementation_internal"):
        if config.get(key) not in ATTENTION:
            names = ", ".join(name for name in ATTENTION if name)
            raise InputError(f"{where}: {key} is {shown(config[key])} in its config; it should be one of {names}")
    if config.get("quantization_config") is not None:
        raise InputError(f"{where}: its config asks for quantised weights, which are not read; convert them to bf16")


def _check_weights(where: Path) -> None:
    """Refuse weights that are not safetensors, or too small for the model that the config describes."""
    files = sorted(where.glob("*.safetensors"))
    if not files:
        others = ", ".join(sorted(file.name for file in where.glob("*.bin"))) or "no weights"
        raise InputError(
            f"{where}: found {others}; weights are read from .safetensors files only: save it again with safetensors"
        )
    bytes_on_disk = sum(file.stat().st_size for file in files)
    with torch.device("meta"):
        parameters = LoopedMoEForCausalLM(LoopedMoEConfig.from_pretrained(str(where))).num_parameters()
    if parameters > bytes_on_disk:  # no format has less than a byte for a weight
        raise InputError(
            f"{where}: config.json describes {parameters:,} parameters, and the weights have {bytes_on_disk:,} bytes; "
            "the two do not belong together, or a file is incomplete: copy the folder again"
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Transformers' own reports out of a command's output."""
    level = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(level)
        logging.enable_progress_bar()  # type: ignore[no-untyped-call]


@contextmanager
def one_sentence(checkpoint: str | Path) -> Iterator[None]:
    """Report any error of loading in one sentence."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # Transformers, safetensors and torch raise many kinds for a damaged folder
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"{checkpoint}: the model cannot be loaded: {first}") from error
