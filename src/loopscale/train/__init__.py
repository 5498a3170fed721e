"""Training: data, optimiser, schedule, checkpoints; one process, or many under torchrun."""

from loopscale.core.errors import check_extra

check_extra("train")
