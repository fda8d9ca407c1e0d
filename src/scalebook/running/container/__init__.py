"""What containers/ says: the image of each vendor, its run flags, and the variables of a run."""
