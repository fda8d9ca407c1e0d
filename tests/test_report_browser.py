"""The report in a real browser from the file system, with no network: needs Chromium."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from simulated import write_sample

from scalebook.report import PAGES, Places, build

WIDTHS = (390, 1400)
NAMES = ("chromium", "chromium-browser", "google-chrome")

EARLY = """<script>window.seen = [];
addEventListener("error", e => seen.push(e.message || "not loaded: " + e.target.outerHTML), true);
for (const name of ["error", "warn"]) console[name] = (...words) => seen.push(words.join(" "));
</script>"""
LATE = """<script>setTimeout(() => {
  const charts = [...document.querySelectorAll(".sb-chart")];
  const heading = document.querySelector("th[data-key=tokens_per_second] button");
  if (heading) heading.click();
  const column = heading ? heading.parentElement.cellIndex : 0;
  const rows = [...document.querySelectorAll("tbody tr")].filter(row => heading &&
    row.closest("table").contains(heading));
  parent.postMessage({
    page: location.pathname.split("/").pop(), width: innerWidth, seen: seen,
    charts: charts.length, drawn: charts.filter(c => c.querySelector("svg.marks")).length,
    marks: document.querySelectorAll("svg.marks .role-mark path").length,
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    sorted: rows.map(row => row.cells[column].dataset.value).filter(Boolean).map(Number),
    links: performance.getEntriesByType("resource").map(entry => entry.name),
  }, "*");
}, 4000)</script>"""
HARNESS = """<pre id="found"></pre><script>
const found = [];
addEventListener("message", message => {
  found.push(message.data);
  document.getElementById("found").textContent = JSON.stringify(found);
});</script>"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, root: Path) -> list[dict[str, Any]]:
    """What the browser saw of every page at every width."""
    browser = next((path for name in NAMES if (path := shutil.which(name))), None)
    if browser is None:
        pytest.skip("Chromium is not installed")
    folder = tmp_path_factory.mktemp("browser")
    runs = write_sample(folder / "runs")
    site = build(Places(runs, folder / "site", root), "preview", print).parent
    frames = ""
    for page in PAGES:
        text = (site / page.html).read_text()
        text = text.replace("<head>", "<head>" + EARLY).replace("</body>", LATE + "</body>")
        (site / page.html).write_text(text)
        for width in WIDTHS:
            frames += f'<iframe src="{page.html}" width="{width}" height="1500"></iframe>'
    (site / "harness.html").write_text(HARNESS + frames)
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / 'profile'}",
        "--virtual-time-budget=15000", "--dump-dom", (site / "harness.html").as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    match = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert match and match[1], done.stderr[-2000:]
    return json.loads(html.unescape(match[1]))


pytestmark = pytest.mark.slow


def test_every_page_answers_at_every_width(found: list[dict[str, Any]]) -> None:
    seen = {(item["page"], item["width"]) for item in found}
    assert seen == {(page.html, width) for page in PAGES for width in WIDTHS}


def test_every_chart_is_drawn(found: list[dict[str, Any]]) -> None:
    assert sum(item["charts"] for item in found) >= 2 * 9
    for item in found:
        assert item["drawn"] == item["charts"], item["page"]
        assert item["charts"] == 0 or item["marks"] > 0


def test_the_console_stays_empty(found: list[dict[str, Any]]) -> None:
    assert [item["seen"] for item in found if item["seen"]] == []


def test_no_page_is_wider_than_its_window(found: list[dict[str, Any]]) -> None:
    assert {(item["page"], item["width"]) for item in found if item["overflow"] > 0} == set()


def test_every_request_is_for_a_file_of_the_site(found: list[dict[str, Any]]) -> None:
    for item in found:
        assert all(link.startswith(("file:", "data:")) for link in item["links"])


def test_a_click_on_a_heading_sorts_the_table(found: list[dict[str, Any]]) -> None:
    tables = [item["sorted"] for item in found if item["page"] == "throughput.html"]
    for values in tables:
        assert len(values) == 8
        assert values == sorted(values, reverse=True)
