"""The claims page: counts and contradictions are those of the audit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from scalebook.audit import sample_text, samples
from scalebook.report.base.markup import Markup
from scalebook.report.pages import published_page


def words(fragment: Any) -> str:
    text = Markup(re.sub(r"\s+", " ", str(fragment).replace("<", " <"))).striptags()
    return re.sub(r" +", " ", text.replace("\N{NO-BREAK SPACE}", " "))


def own(folder: Path, name: str, text: str) -> None:
    (folder / "claims").mkdir(exist_ok=True)
    (folder / "claims" / name).write_text(text)


def test_the_samples_are_audited_and_said_to_be_samples(tmp_path: Path) -> None:
    found, problems = published_page.audits(tmp_path)
    assert len(found) == len(samples())
    assert not problems
    text = words(published_page.claims_overview(tmp_path, found, problems))
    assert "not figures of these runs" in text
    table = words(published_page.verdicts(found))
    for one in found:
        assert f"{one.claims.title} {' '.join(map(str, one.counts().values()))}" in table
    assert "all sources" in table


def test_the_sparse_peak_is_found_with_the_value_that_should_stand_there(tmp_path: Path) -> None:
    """463 of 989.4 TFLOP/s are 46.8 %; the example claims 23.4 % of the sparse peak."""
    own(tmp_path, "mine.toml", sample_text("example"))
    found, _ = published_page.audits(tmp_path)
    html = str(published_page.contradictions(found))
    rows = re.findall(r"<tr .*?</tr>", html, re.DOTALL)
    assert any(">23.4%<" in row and ">46.80 %<" in row for row in rows)
    assert len(rows) == sum(one.counts()[name] for one in found for name in published_page.WRONG)
    assert "folder claims next to the runs" in words(
        published_page.claims_overview(tmp_path, found, ())
    )


def test_a_file_that_is_no_claims_file_is_listed_and_stops_nothing(tmp_path: Path) -> None:
    own(tmp_path, "good.toml", sample_text("example"))
    own(tmp_path, "bad<b>.toml", "rows = [")
    found, problems = published_page.audits(tmp_path)
    assert len(found) == 1
    html = str(published_page.claims_overview(tmp_path, found, problems))
    assert "bad&lt;b&gt;.toml" in html
    assert str(tmp_path) not in html


def test_only_bad_files_leave_sentences(tmp_path: Path) -> None:
    own(tmp_path, "bad.toml", "rows = [")
    found, _ = published_page.audits(tmp_path)
    assert "No file of claims" in words(published_page.verdicts(found))
    assert "No claim contradicts" in words(published_page.contradictions(found))


def test_a_hostile_label_stays_text(tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)>"
    text = sample_text("example").replace("the same, sparse peak", evil)
    own(tmp_path, "evil.toml", text.replace("An example", evil))
    found, problems = published_page.audits(tmp_path)
    html = "".join(
        str(part)
        for part in (
            published_page.claims_overview(tmp_path, found, problems),
            published_page.verdicts(found),
            published_page.contradictions(found),
        )
    )
    assert "<img" not in html
    assert "&lt;img" in html


def test_a_claim_is_set_next_to_the_best_published_rate_the_boldest_first(tmp_path: Path) -> None:
    """180,000 tokens/s on 8 H100 are 2.11 times the 10,682 per GPU of NVIDIA's recipes."""
    own(tmp_path, "mine.toml", sample_text("example"))
    text = words(published_page.next_to_published(published_page.audits(tmp_path)[0]))
    assert "A rate above the peak (An example, line 40) 1,158 550 2.11×" in text
    assert text.index("2.11×") < text.index("0.843×")
    assert "NVIDIA DGX Cloud Benchmarking recipes" in text
    assert "No claim states a rate" in words(published_page.next_to_published(()))
