"""Property tests draw the same examples in every run, unless LOOPSCALE_RANDOM is set; no example has a time limit."""

import os

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.register_profile("random", derandomize=False, deadline=None)
settings.load_profile("random" if os.environ.get("LOOPSCALE_RANDOM") else "repeatable")
