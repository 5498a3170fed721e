"""Training on several processes: process groups, FSDP2 and expert parallelism."""
