"""Property tests draw the same examples in every run, unless LOOPSCALE_RANDOM asks for new ones."""

import os

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True)
settings.register_profile("random", derandomize=False)
settings.load_profile("random" if os.environ.get("LOOPSCALE_RANDOM") else "repeatable")
