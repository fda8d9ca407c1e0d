"""What a user writes beside the runs: the samples that pages and documentation show are right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from simulated import config, write_run

from scalebook.audit import audit, parse_claims
from scalebook.report.base import stated
from scalebook.report.base.frames import load
from scalebook.report.pages import cost_page, published_page


@pytest.fixture
def shown(root: Path) -> list[str]:
    """The TOML files of the report's documentation."""
    text = (root / "src" / "scalebook" / "report" / "README.md").read_text()
    return re.findall(r"```toml\n(.*?)```", text, re.DOTALL)


def test_the_documentation_shows_the_samples_of_the_pages(shown: list[str]) -> None:
    assert shown[0] == stated.SAMPLE


def test_every_input_that_can_be_stated_is_in_the_sample_and_read(tmp_path: Path) -> None:
    (tmp_path / stated.FILE).write_text(stated.SAMPLE)
    found = stated.read_stated(tmp_path)
    assert found.problems == ()
    assert set(found.shared) == set(stated.SHARED)
    assert set(found.platforms["h100"]) == set(stated.EACH)


def test_the_documented_claims_can_be_audited(shown: list[str]) -> None:
    counts = audit(parse_claims(shown[1], "slides.toml")).counts()
    assert counts["contradicts"] == 1  # its MFU is over the peak with sparsity


def test_both_pages_show_their_sample_to_copy(tmp_path: Path) -> None:
    write_run(tmp_path, "a", config())
    cost = str(cost_page.overview(load(tmp_path), stated.read_stated(tmp_path)))
    claims = str(published_page.claims_overview(tmp_path, *published_page.audits(tmp_path)))
    assert "watts_per_gpu = 900" in cost
    assert "slides.toml" in claims
