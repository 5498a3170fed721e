"""The local suite's data, read from the files beside this one wherever the command runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict


def load(file: str, **metadata: Any) -> DatasetDict:
    """Return the rows of a JSONL file as lm-eval's test split."""
    lines = (Path(__file__).parent / file).read_text(encoding="utf-8").splitlines()
    return DatasetDict({"test": Dataset.from_list([json.loads(line) for line in lines])})
