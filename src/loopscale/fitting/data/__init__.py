"""Observations from any file or frame: column names, units, public sweeps."""
