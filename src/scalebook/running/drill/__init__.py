"""The recovery drill: ``drill`` kills a rank and compares the losses with those of a run without."""
