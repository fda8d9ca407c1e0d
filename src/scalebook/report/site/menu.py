"""The pages of the report: which notebook makes which file, in the order of the navigation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True, slots=True)
class Page:
    """One page: its notebook, the name of its HTML file without suffix, its navigation title.

    ``menu`` is the menu of the navigation that holds it; empty for an entry of its own.
    """

    notebook: str
    slug: str
    title: str
    menu: str = ""

    @property
    def html(self) -> str:
        """The page's file name."""
        return f"{self.slug}.html"


PAGES = (
    Page("20_summary.ipynb", "index", "Summary"),
    Page("21_studies.ipynb", "studies", "Studies"),
    Page("22_throughput.ipynb", "throughput", "Throughput and MFU", "Results"),
    Page("23_peak.ipynb", "peak", "Best configurations", "Results"),
    Page("24_scaling.ipynb", "scaling", "Scaling", "Results"),
    Page("25_comparison.ipynb", "comparison", "Comparison", "Results"),
    Page("26_published.ipynb", "published", "Published results", "Results"),
    Page("27_memory.ipynb", "memory", "Memory", "Inside a run"),
    Page("28_anatomy.ipynb", "anatomy", "Step anatomy", "Inside a run"),
    Page("29_curves.ipynb", "curves", "Training curves", "Inside a run"),
    Page("30_reliability.ipynb", "reliability", "Reliability", "Inside a run"),
    Page("31_cost.ipynb", "cost", "Cost"),
    Page("32_probe.ipynb", "probe", "Machine probe", "Evidence"),
    Page("33_claims.ipynb", "claims", "Claims audit", "Evidence"),
    Page("34_provenance.ipynb", "provenance", "Provenance", "Evidence"),
    Page("35_predicted.ipynb", "predicted", "Predicted and measured", "Evidence"),
    Page("36_method.ipynb", "method", "Method"),
)

# Only in a report that was asked what changed since older runs.
CHANGES = Page("37_changes.ipynb", "changes", "What changed since")


def shown(*, against: bool) -> tuple[Page, ...]:
    """Return the pages of a report, with the one of changes after the summary where asked for."""
    return (PAGES[0], CHANGES, *PAGES[1:]) if against else PAGES


def menus(pages: Sequence[Page]) -> Iterator[tuple[str, tuple[Page, ...]]]:
    """Yield each entry of the navigation: the title of a menu with its pages, or "" and a page."""
    for menu, members in groupby(pages, key=lambda page: page.menu):
        if menu:
            yield menu, tuple(members)
        else:
            yield from (("", (page,)) for page in members)
