"""Data frames -> charts: each function returns a ``Figure``, or None where there is no data."""

from scalebook import light_jsonschema as light_jsonschema  # before altair
from scalebook.charts.anatomy import anatomy
from scalebook.charts.figure import Figure, Figures
from scalebook.charts.scaling import against_ideal, efficiency
from scalebook.charts.theme import configs
from scalebook.charts.throughput import throughput, utilisation
from scalebook.charts.training import curves, steadiness

__all__ = [
    "Figure",
    "Figures",
    "against_ideal",
    "anatomy",
    "configs",
    "curves",
    "efficiency",
    "steadiness",
    "throughput",
    "utilisation",
]
