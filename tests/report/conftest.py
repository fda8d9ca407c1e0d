"""Fixtures of the tests of the report: what a page works out at length is shorter here."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

from scalebook.audit import Audit, Claims
from scalebook.predict import search
from scalebook.report import Places
from scalebook.report.base import frames
from scalebook.report.pages import predicted_page, published_page
from scalebook.report.site import site_files

CONFIGURATIONS = 12  # of the example runs; each is predicted by a fit of its own
_audits: dict[str, Audit] = {}


@pytest.fixture(scope="session")
def _cache(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    """What outlives a build: the project's chart library, but no page that it would show later."""
    folder, own = tmp_path_factory.mktemp("cache"), root / "reports" / ".cache"
    site_files.chart_library(own)
    for path in own.glob("vega-bundle-*.kept"):
        shutil.copy(path, folder)
    return folder


@pytest.fixture(scope="session", autouse=True)
def _several_folders() -> Iterator[None]:
    """Keep the data of more folders than one: those of the examples take five seconds to read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "_load", lru_cache(maxsize=8)(frames._load.__wrapped__))
        yield


@pytest.fixture(scope="module", autouse=True)
def _quick_pages(_cache: Path) -> Iterator[None]:
    """Audit the same claims once, rank few layouts, predict few configurations.

    These three are most of the time of a site; their own tests do them in full.
    """
    audit = published_page.audit

    def kept(claims: Claims) -> Audit:
        name = repr(claims)
        return _audits.get(name) or _audits.setdefault(name, audit(claims))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Places, "cache", _cache)
        patch.setattr(published_page, "audit", kept)
        patch.setattr(search, "_MICRO_BATCHES", (1, 2))
        patch.setattr(search, "_SHARDINGS", search._SHARDINGS[:1])
        patch.setattr(predicted_page, "MOST_CONFIGURATIONS", CONFIGURATIONS)
        yield
