"""Data frames -> charts: each function returns a ``Figure``, or None where there is no data."""

from scalebook import light_jsonschema as light_jsonschema  # before altair
from scalebook.report.charts.anatomy import anatomy
from scalebook.report.charts.figure import Figure, Figures
from scalebook.report.charts.scaling import against_ideal, efficiency
from scalebook.report.charts.theme import configs
from scalebook.report.charts.throughput import throughput, utilisation
from scalebook.report.charts.training import curves, steadiness

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
