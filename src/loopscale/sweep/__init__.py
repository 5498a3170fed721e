"""Sweeps: many training runs as one file says, on this machine, Ray or SLURM; every finished point an observation."""
