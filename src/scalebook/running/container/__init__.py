"""Containers: ``engines.find`` looks for an image, ``nested.command`` runs this program in it."""
