"""Real models: a Hugging Face ``config.json`` read and counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from loopscale.architecture.architecture import Architecture
from loopscale.architecture.config_fields import ConfigFields, found
from loopscale.architecture.families import FAMILIES
from loopscale.errors import InputError, nearest
from loopscale.files import read_json

MOST_BYTES = 2**24
"""A larger file is no model's config, and reading it would take long."""
MOST_PARAMETERS = 10**18


def read_config(path: str | Path) -> Architecture:
    """Return the architecture that a ``config.json``, or a folder with one, describes.

    It is named after the folder, or after the file where that is called otherwise.
    """
    file = _located(Path(path))
    name = file.absolute().parent.name if file.name == "config.json" else file.stem
    return _build(read_json(file), str(file), name)


def from_config(data: Mapping[str, Any], where: str = "config") -> Architecture:
    """Return the architecture that the fields of a config describe; ``where`` names their origin in errors.

    Fields that are absent mean what they mean to the family's own class. Of a model that also sees or hears only
    the language model is counted (its ``text_config``), and the name says so.
    """
    return _build(data, where, "")


def _build(data: object, where: str, name: str) -> Architecture:
    config = ConfigFields(data, where)
    inner = config.data.get("text_config")
    kind = config.data.get("model_type")
    if isinstance(inner, Mapping) and not (isinstance(kind, str) and kind in FAMILIES):
        tied = {key: value for key, value in config.data.items() if key == "tie_word_embeddings"}
        language = _of_family({**tied, **inner}, f"{where}: text_config")
        return replace(language, name=f"{name or language.name} (text)")
    architecture = _of_family(config.data, where)
    return replace(architecture, name=name or architecture.name)


def _of_family(data: Mapping[str, Any], where: str) -> Architecture:
    kind = ConfigFields(data, where).word("model_type")
    if kind not in FAMILIES:
        raise InputError(
            f"{where}: field 'model_type' is {found(kind)}, which cannot be counted{nearest(kind[:80], FAMILIES)}; "
            f"it should be one of {', '.join(FAMILIES)}"
        )
    family = FAMILIES[kind]
    architecture = replace(family.build(ConfigFields(data, where, family.defaults)), name=kind)
    if architecture.parameters > MOST_PARAMETERS:
        raise InputError(f"{where}: its sizes multiply to more than 10^18 parameters; some field must be wrong")
    return architecture


def _located(path: Path) -> Path:
    """Return the file to read, unless reading it would take forever."""
    try:
        file = path / "config.json" if path.is_dir() else path
        if file.exists() and not file.is_file():
            raise InputError(f"{file}: not a file; give a config.json or the folder that holds it")
        if file.exists() and file.stat().st_size > MOST_BYTES:
            raise InputError(f"{file}: larger than {MOST_BYTES // 2**20} MB, which no model's config is")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    return file
