"""Load a checkpoint and its tokenizer for the commands; every error is one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoTokenizer
from transformers.utils import logging

from loopscale.core.errors import InputError, reason, require, shown
from loopscale.core.files import check_seal, read_json
from loopscale.model.config import LoopedMoEConfig
from loopscale.model.model import LoopedMoEForCausalLM
from loopscale.model.moe import Experts

ATTENTION = (None, "eager", "sdpa")
"""Attention implementations that a config may name; other names make Transformers fetch kernels from the hub."""


DEMO = Path(__file__).with_name("demo")
"""A small trained model that comes with the package; ``examples/demo.toml`` trains it."""


def load_model(checkpoint: str | Path, dtype: torch.dtype | None = None) -> LoopedMoEForCausalLM:
    """Return the model of a checkpoint folder, in evaluation mode; ``dtype`` None keeps the checkpoint's."""
    where = Path(checkpoint)
    if not where.is_dir():
        raise InputError(f"{checkpoint}: no such folder; give one that save_pretrained wrote")
    config = read_json(where / "config.json")
    kind = config.get("model_type") if isinstance(config, dict) else None
    if not isinstance(config, dict) or kind != LoopedMoEConfig.model_type:
        raise InputError(
            f"{checkpoint}: its model_type is {kind!r}; a {LoopedMoEConfig.model_type!r} model is needed here"
        )
    _check_config(config, where)
    check_seal(where)
    with quiet(), _one_sentence(checkpoint):
        _check_weights(where)
        model: LoopedMoEForCausalLM = LoopedMoEForCausalLM.from_pretrained(
            str(where), dtype=dtype or "auto", use_safetensors=True, trust_remote_code=False
        )
        check_finite(model.state_dict().items(), where)
    model.eval()  # type: ignore[no-untyped-call]
    return model


GROUP = 32
"""Weights that share a scale in 4 bits; torchao's kernel for CPUs also takes 64 and 128."""


def quantize(model: LoopedMoEForCausalLM, bits: int = 8) -> LoopedMoEForCausalLM:
    """Quantise the weights of attention and experts in place with torchao, to 8 or 4 bits; return the model.

    Embeddings, output head, routers and norms keep their format. 8 bits have a scale for each row of a matrix. 4 bits
    have one for each 32 weights of a row and need a CPU. The packed model cannot be saved.
    """
    if bits not in (8, 4):
        raise InputError(f"bits is {bits!r}; torchao quantises to 8 or 4 bits here")
    if model.packed_bits is not None:
        raise InputError(f"the weights are in {model.packed_bits} bits already; load the model again")
    torchao = require("torchao.quantization", "quant", "quantisation")

    # All of them before any is replaced, so that a refusal leaves the model as it was.
    replaced: list[tuple[nn.Module, str, nn.Module | nn.Parameter]] = []
    for name, module in model.named_modules():
        if isinstance(module, Experts):
            for projection in ("gate_up_proj", "down_proj"):
                weight_EOI = getattr(module, projection)
                if bits == 8:
                    replaced.append((module, projection, _eight_bits(weight_EOI, torchao)))
                else:
                    matrices = [_four_bits(weight_OI, f"{name}.{projection}") for weight_OI in weight_EOI]
                    replaced.append((module, projection, nn.ParameterList(matrices)))
        elif isinstance(module, nn.Linear) and module is not model.lm_head:
            weight_OI = module.weight
            packed = _eight_bits(weight_OI, torchao) if bits == 8 else _four_bits(weight_OI, name)
            replaced.append((module, "weight", packed))
    for module, attribute, weight in replaced:
        delattr(module, attribute)
        setattr(module, attribute, weight)
    model.packed_bits = bits
    return model


def _eight_bits(weight: Tensor, torchao: Any) -> nn.Parameter:
    """Return whole numbers with a scale for each row; of experts, for each row of each."""
    quantized: Tensor = torchao.Int8Tensor.from_hp(weight.detach(), granularity=torchao.PerRow())
    return nn.Parameter(quantized, requires_grad=False)


def _four_bits(weight_OI: Tensor, name: str) -> nn.Parameter:
    """Return the packed form of a matrix that the CPU kernel multiplies by."""
    outputs, inputs = weight_OI.shape
    if outputs % 16 or inputs % GROUP:
        raise InputError(
            f"{name}: 4 bits need a multiple of 16 rows and of {GROUP} columns, and it is {outputs} x {inputs}; "
            "quantise to 8 bits"
        )
    int4 = require("torchao.prototype.quantization.int4.int4_opaque_tensor", "quant", "quantisation to 4 bits")
    packed: Tensor = int4.Int4OpaqueTensor.from_hp(weight_OI.detach(), [1, GROUP])
    return nn.Parameter(packed, requires_grad=False)


def check_finite(tensors: Iterable[tuple[str, Tensor]], where: str | Path) -> int:
    """Refuse weights that are NaN or infinite, as a diverged run leaves them; return how many tensors there are."""
    count = 0
    for count, (name, tensor) in enumerate(tensors, 1):  # noqa: B007 - returned
        if not bool(torch.isfinite(tensor).all()):
            raise InputError(f"{where}: {name} holds values that are not finite; the model is damaged or has diverged")
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
            f"the tokenizer has {len(loaded)} tokens, more than the model's vocabulary of {model.config.vocab_size}"
        )
    return model, loaded


def read_prompts(path: str | Path) -> list[str]:
    """Return the prompts of a text file, one on each line; empty lines do not count."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as UTF-8 text: {reason(error)}") from None
    prompts = [line for line in lines if line.strip()]
    if not prompts:
        raise InputError(f"{path}: it holds no text; give one prompt a line")
    return prompts


def batches(tokenizer: Any, prompts: list[str], size: int, context: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (input_ids, attention_mask) of a few prompts at a time, cut at ``context`` tokens."""
    for start in range(0, len(prompts), size):
        part = tokenizer(
            prompts[start : start + size], return_tensors="pt", padding=True, truncation=True, max_length=context
        )
        yield torch.as_tensor(part["input_ids"]), torch.as_tensor(part["attention_mask"])


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
        raise InputError(f"{where}: found {others}; weights are read from .safetensors files only")
    bytes_on_disk = sum(file.stat().st_size for file in files)
    with torch.device("meta"):
        parameters = LoopedMoEForCausalLM(LoopedMoEConfig.from_pretrained(str(where))).num_parameters()
    if parameters > bytes_on_disk:  # no format has less than a byte for a weight
        raise InputError(
            f"{where}: config.json describes {parameters:,} parameters, and the weights have {bytes_on_disk:,} bytes; "
            "the two do not belong together, or a file is incomplete"
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
def _one_sentence(checkpoint: str | Path) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # Transformers, safetensors and torch raise many kinds for a damaged folder
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"{checkpoint}: the model cannot be loaded: {first}") from error
