"""``torchrun --nproc-per-node 2 -m loopscale.train CONFIG.toml``: the same as ``loopscale train``, for launchers."""

import sys

from loopscale.cli import main

main(["train", *sys.argv[1:]])
