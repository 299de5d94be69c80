"""The documentation says what is there, and nothing else."""
