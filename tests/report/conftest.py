"""Fixtures of the tests of the report: what a page works out at length is shorter here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scalebook.audit import Audit, Claims
from scalebook.predict import search
from scalebook.report.pages import predicted_page, published_page

CONFIGURATIONS = 12  # of the example runs; each is predicted by a fit of its own


@pytest.fixture(scope="session", autouse=True)
def _quick_pages() -> Iterator[None]:
    """Audit the same claims once, rank few layouts, predict few configurations.

    These three are most of the time of a site; their own tests do them in full.
    """
    found: dict[str, Audit] = {}
    audit = published_page.audit

    def kept(claims: Claims) -> Audit:
        return found.get(repr(claims)) or found.setdefault(repr(claims), audit(claims))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(published_page, "audit", kept)
        patch.setattr(search, "_MICRO_BATCHES", (1, 2))
        patch.setattr(search, "_SHARDINGS", search._SHARDINGS[:1])
        patch.setattr(predicted_page, "MOST_CONFIGURATIONS", CONFIGURATIONS)
        yield
