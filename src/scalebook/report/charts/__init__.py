"""Data frames -> charts: each function returns a ``Figure``, or None where there is no data."""

from scalebook import light_jsonschema as light_jsonschema  # before altair
from scalebook.report.charts.figure import Figure, Figures
from scalebook.report.charts.rate_charts import throughput, utilisation
from scalebook.report.charts.scaling_charts import by_size
from scalebook.report.charts.step_charts import steadiness
from scalebook.report.charts.theme import configs

__all__ = ["Figure", "Figures", "by_size", "configs", "steadiness", "throughput", "utilisation"]
