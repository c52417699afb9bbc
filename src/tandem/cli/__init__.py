"""Argument parsing and wiring, nothing else."""
