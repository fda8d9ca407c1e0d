"""The trainer: ``torchrun -m scalebook.train`` starts ``__main__``, which calls ``loop.train``."""
