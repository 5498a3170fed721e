"""loopscale: design, predict, train and evaluate looped Mixture-of-Experts language models."""

__version__ = "0.1.0"
