"""Small experiments in which looping and experts visibly work: train a task in minutes, and score it pass by pass."""

from loopscale.core.errors import check_extra

check_extra("train", "the laboratory")
