"""Write the JSON Schema of every kind of file beside this script: ``python docs/schemas/write.py``."""

from __future__ import annotations

import json
from pathlib import Path

from loopscale.core.files import write_text
from loopscale.saved import MODELS, json_schema


def text_of(name: str) -> str:
    """Return the schema file of one kind."""
    return json.dumps(json_schema(name), indent=1) + "\n"


if __name__ == "__main__":
    for name in MODELS:
        write_text(Path(__file__).with_name(f"{name}.json"), text_of(name))
