"""Training: text in, tokens in memory-mapped shards, exact batches, and a model out."""
