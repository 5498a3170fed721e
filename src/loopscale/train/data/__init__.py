"""Training data: text sources, tokenizers, token stores and batches."""
