"""A stand-in for torch that can start processes, and nothing else."""
