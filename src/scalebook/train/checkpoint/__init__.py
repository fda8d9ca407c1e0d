"""Checkpoints of a run: ``keeper.Keeper`` saves and loads them."""
