"""The pages of the report: which notebook makes which file, in the order of the navigation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Page:
    """One page: its notebook, the name of its HTML file without suffix, its navigation title."""

    notebook: str
    slug: str
    title: str

    @property
    def html(self) -> str:
        """The page's file name."""
        return f"{self.slug}.html"


PAGES = (
    Page("20_summary.ipynb", "index", "Summary"),
    Page("21_throughput.ipynb", "throughput", "Throughput"),
    Page("29_peak.ipynb", "peak", "Peak"),
    Page("22_scaling.ipynb", "scaling", "Scaling"),
    Page("27_memory.ipynb", "memory", "Memory"),
    Page("28_curves.ipynb", "curves", "Curves"),
    Page("24_anatomy.ipynb", "anatomy", "Step anatomy"),
    Page("25_reliability.ipynb", "reliability", "Reliability"),
    Page("26_probe.ipynb", "probe", "Probe"),
    Page("30_comparison.ipynb", "comparison", "Comparison"),
    Page("31_published.ipynb", "published", "Published"),
    Page("32_cost.ipynb", "cost", "Cost"),
    Page("33_claims.ipynb", "claims", "Claims"),
    Page("34_provenance.ipynb", "provenance", "Provenance"),
    Page("23_method.ipynb", "method", "Method"),
)
