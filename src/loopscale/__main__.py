"""``python -m loopscale``."""

from loopscale.cli import main

main()
