"""loopscale: design, predict and build looped Mixture-of-Experts language models."""

__version__ = "0.1.0"
