"""Containers: ``engines.find`` looks for an image, ``nested.command`` starts this program in it."""
