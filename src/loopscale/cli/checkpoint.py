"""The folder of a model that a command names."""

from __future__ import annotations

from pathlib import Path

from loopscale.train.run_dir import model_of


def model_folder(checkpoint: str) -> Path:
    """Return the model's folder of a run, or of the demo model that comes with the package."""
    from loopscale.model.loading import DEMO

    if checkpoint == "demo" and not Path(checkpoint).exists():
        return DEMO
    return Path(model_of(checkpoint))
