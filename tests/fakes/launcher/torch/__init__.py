"""A stand-in for torch that can start one process, and nothing else."""
