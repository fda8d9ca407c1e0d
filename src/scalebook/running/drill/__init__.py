"""The recovery drill: ``drill`` kills a rank and compares the losses with a run without it."""
