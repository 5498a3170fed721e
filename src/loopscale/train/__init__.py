"""Training: data, optimiser, schedule, checkpoints; one process, or many under torchrun."""
