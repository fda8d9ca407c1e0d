"""The trainer: torchrun starts ``python -m scalebook.train`` on every rank."""
