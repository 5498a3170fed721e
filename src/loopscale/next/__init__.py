"""Which runs to train next, so that a plan becomes more certain."""
