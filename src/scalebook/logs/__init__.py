"""Read logs of other trainers: one module a dialect, behind one interface (``dialect.Dialect``).

Text goes one way: a file (``source``) becomes cleaned lines (``clean``), a dialect turns lines into
step records and settings, a ``collect.Collector`` sorts these into jobs. What a file does not tell
stays missing. To add a dialect: write one module with a class and name it in ``registry``.
"""
