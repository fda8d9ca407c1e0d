"""A RunConfig becomes this rank's part of the model and its optimizer: ``chunks.build``."""
