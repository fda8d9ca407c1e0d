"""Fixtures that every test may use."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

# Deadlines of single examples would make a busy machine fail tests.
settings.register_profile("scalebook", deadline=None)
settings.load_profile("scalebook")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def root() -> Path:
    """The project's root."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of tables of facts that stands beside a developer's checkout."""
    path = ROOT.parent / "shared"
    if not (path / "facts").is_dir():
        pytest.skip("the folder of facts is not beside this checkout")
    return path
