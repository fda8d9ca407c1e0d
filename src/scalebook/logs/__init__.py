"""Read logs of other trainers: one module per framework family, behind one interface.

``read(path)`` returns the jobs of a file. A file becomes cleaned lines (``source``), a dialect
(``dialects.dialect``) turns lines into step records and settings, a ``collect.Collector`` sorts
these into jobs. What a file does not say stays missing. To add a dialect: write a class in the
module of its family and name it in ``dialects.registry``.
"""

from scalebook.logs.dialects.registry import read

__all__ = ["read"]
