"""What comes from the Hugging Face hub: whether it can be reached, and streamed datasets."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path

from loopscale.core.errors import InputError, MissingExtraError, missing_extra
from loopscale.train.data.documents import text_of

HUB_TIMEOUT = 10.0
"""Seconds to wait for an answer."""


def hub_answers() -> bool:
    """Tell whether the Hugging Face hub can be reached, with the proxies of the environment."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
    try:
        with urllib.request.urlopen(request, timeout=HUB_TIMEOUT):
            return True
    except urllib.error.HTTPError:
        return True  # an error page is an answer
    except (OSError, ValueError):
        return False


def streamed(name: str, field: str) -> Iterator[str]:
    """Yield the texts of a dataset of the hub or of a folder, ``name``, ``name:config`` or ``name:config:split``."""
    number = 0
    try:
        for number, row in enumerate(_open_dataset(name), start=1):
            yield text_of(row, field, f"dataset {name}: row {number}")
    except InputError:
        raise
    except Exception as error:  # the hub, the network and the file formats each raise their own
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"dataset {name}: cannot be read after {number} rows: {reason}") from None


def _open_dataset(name: str) -> Iterable[object]:
    try:
        from datasets import load_dataset
    except ImportError:
        raise MissingExtraError(missing_extra("datasets", "train", f"dataset {name}")) from None
    path, config, split = (*name.split(":"), "", "")[:3]
    if not Path(path).exists() and not hub_answers():
        raise InputError(
            f"dataset {name}: no such folder, and the hub cannot be reached; "
            "check the connection, or give files on this machine"
        )
    rows: Iterable[object] = load_dataset(path, config or None, split=split or "train", streaming=True)
    return rows
