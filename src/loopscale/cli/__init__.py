"""The command line: one file per verb, listed in ``verbs``."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; bad input ends in one sentence on standard error and exit code 2."""
    try:
        from loopscale.cli import verbs
    except KeyboardInterrupt:  # the imports take a moment
        sys.exit(130)
    verbs.main(argv)


__all__ = ["main"]
