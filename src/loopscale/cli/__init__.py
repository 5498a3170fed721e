"""The command line: one file per verb, listed in ``verbs``."""

from loopscale.cli.verbs import main

__all__ = ["main"]
