"""The report in a real browser from the file system, with no network: needs Chromium."""

from __future__ import annotations

import functools
import html
import http.server
import json
import re
import shutil
import subprocess
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest
from simulated import H100, config, write_run, write_sample

from scalebook.report import PAGES, Places, build
from scalebook.report.site.rendering import find_quarto

WIDTHS = (390, 1400)
# Pages in one start of the browser: with all of them at once, a slow machine draws none in time.
TOGETHER = 4
VISITS = range(0, len(PAGES), TOGETHER)
NAMES = ("chromium", "chromium-browser", "google-chrome")
AXE = "axe-core@4.10.3"  # checks accessibility; MPL 2.0, half a megabyte: fetched, not kept here
CPU_RUNS = {"cpu-one", "cpu-tp2", "cpu-pp2", "cpu-dp2", "cpu-moe-ep2"}

EARLY = """<script>window.seen = []; sessionStorage.clear(); localStorage.clear();
addEventListener("error", e => seen.push(e.message || "not loaded: " + e.target.outerHTML), true);
for (const name of ["error", "warn"]) console[name] = (...words) => seen.push(words.join(" "));
</script>"""
HARNESS = """<!DOCTYPE html><pre id="found"></pre><script>
const found = [];
addEventListener("message", message => {
  found.push(message.data);
  document.getElementById("found").textContent = JSON.stringify(found);
});</script>"""

Seen = list[dict[str, Any]]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> str:
    """The path of a Chromium."""
    path = next((path for name in NAMES if (path := shutil.which(name))), None)
    if path is None:
        pytest.skip("Chromium is not installed")
    return path


@pytest.fixture(scope="module")
def axe(request: pytest.FixtureRequest) -> Path | None:
    """The script of axe-core, from the cache or from npm; None where neither has it."""
    folder = request.config.cache.mkdir(AXE)
    path = folder / "package" / "axe.min.js"
    if path.is_file() or not shutil.which("npm"):
        return path if path.is_file() else None
    command = ["npm", "pack", AXE, "--silent", "--fetch-retries=0"]
    try:
        subprocess.run(command, cwd=folder, capture_output=True, timeout=60, check=True)
        with tarfile.open(next(folder.glob("axe-core-*.tgz"))) as archive:
            archive.extract("package/axe.min.js", folder, filter="data")
    except (OSError, subprocess.SubprocessError, StopIteration, tarfile.TarError):
        return None
    return path


@pytest.fixture(
    scope="module", params=["preview", pytest.param("quarto", marks=pytest.mark.quarto)]
)
def site(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    root: Path,
    axe: Path | None,
) -> Path:
    """A site of each renderer whose pages say what happens in them."""
    if request.param == "quarto" and find_quarto() is None:
        pytest.skip("quarto is not installed")
    folder = tmp_path_factory.mktemp("browser")
    runs = write_sample(folder / "runs")
    name_at_length(runs)
    made = build(Places(runs, folder / "site", root), request.param, print).parent
    # a file, because the pages' policy lets no script run that is written into them
    shutil.copyfile(Path(__file__).parents[1] / "report_browser.js", made / "late.js")
    late = '<script src="late.js"></script></body>'
    if axe:
        shutil.copyfile(axe, made / "axe.js")
        late = '<script src="axe.js"></script>' + late
    for page in PAGES:
        text = (made / page.html).read_text().replace("<head>", "<head>" + EARLY)
        (made / page.html).write_text(text.replace("</body>", late))
    for place in VISITS:
        frames = (
            f'<iframe src="{page.html}" width="{width}" height="1500"></iframe>'
            for page in PAGES[place : place + TOGETHER]
            for width in WIDTHS
        )
        (made / f"harness-{place}.html").write_text(HARNESS + "".join(frames))
    return made


def name_at_length(runs: Path) -> None:
    """Add a run whose name is longer than a phone is wide; it has no throughput."""
    settings = config(
        platform="h100", model="llama3.1-8b", precision="bf16", sequence_length=8192, world_size=16,
        global_batch_size=64, tensor_parallel_size=2, pipeline_parallel_size=2, recompute="full",
        gradient_precision="bf16", cuda_graph="off", fused_weight_gradient="off",
    )  # fmt: skip
    write_run(runs, "h100-long", settings, steps=8, status="timeout", device=H100)


def look(browser: str, address: str, profile: Path) -> Seen:
    """Return what the pages in the harness at this address reported."""
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", f"--user-data-dir={profile}",
        "--virtual-time-budget=300000", "--dump-dom", address,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    match = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert match and match[1], done.stderr[-2000:]
    return json.loads(html.unescape(match[1]))


@pytest.fixture(scope="module")
def found(browser: str, site: Path, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """What the browser saw of every page at every width, from files."""
    profile = tmp_path_factory.mktemp("profile")
    visits = [look(browser, (site / f"harness-{place}.html").as_uri(), profile) for place in VISITS]
    return [item for visit in visits for item in visit]


def test_every_page_answers_at_every_width(found: Seen) -> None:
    seen = {(item["page"], item["width"]) for item in found}
    assert seen == {(page.html, width) for page in PAGES for width in WIDTHS}


def test_the_console_stays_empty(found: Seen) -> None:
    assert [(item["page"], item["seen"]) for item in found if item["seen"]] == []


def test_every_chart_is_drawn_in_both_themes(found: Seen) -> None:
    assert sum(item["charts"] for item in found) >= 2 * 9
    for item in found:
        assert item["drawn"] == item["charts"], item["page"]
        assert item["charts"] == 0 or item["marks"] > 0
        assert item["dark"][:2] == ["rgb(22, 26, 33)", f"{item['charts']}/{item['charts']}"]
        assert item["dark"][3] == "dark"


def test_no_page_is_wider_than_its_window(found: Seen) -> None:
    wide = {(i["page"], i["width"]) for i in found if i["overflow"] > 0 or i["dark"][2] > 0}
    assert wide == set()


def test_no_page_is_longer_than_eight_screens_before_a_reader_opens_more(found: Seen) -> None:
    lengths = {item["page"]: item["height"] for item in found if item["width"] == 1400}
    print(lengths)
    assert {page for page, height in lengths.items() if height > 8 * 900} == set()


def test_no_words_reach_beyond_the_window(found: Seen) -> None:
    assert [(i["page"], i["width"], i["beyond"]) for i in found if i["beyond"]] == []


def test_no_two_labels_of_an_axis_are_equal_and_none_is_cut_off(found: Seen) -> None:
    assert [(i["page"], i["width"], i["alike"]) for i in found if i["alike"]] == []
    assert [(i["page"], i["width"], i["cut"]) for i in found if i["cut"]] == []
    assert [(i["page"], i["width"], i["covered"]) for i in found if i["covered"]] == []


def test_every_request_is_for_a_file_of_the_site(found: Seen) -> None:
    for item in found:
        assert all(link.startswith(("file:", "data:")) for link in item["links"])


def test_a_click_on_a_heading_sorts_the_table(found: Seen) -> None:
    tables = [item["sorted"] for item in found if item["page"] == "throughput.html"]
    assert len(tables) == len(WIDTHS)
    for values in tables:
        assert len(values) == 8
        assert values == sorted(values, reverse=True)


def test_every_table_gives_all_its_rows_as_csv(found: Seen) -> None:
    for item in found:
        assert item["bare"] == 0, item["page"]
        for label, name, lines, rows in item["csv"]:
            assert label == "CSV"
            assert name
            assert lines == rows


def test_a_tooltip_names_the_run(found: Seen) -> None:
    tips = [item["tooltip"] for item in found if "tooltip" in item]
    assert len(tips) >= 4
    for text, run in tips:
        assert run in text


def test_a_picked_run_stands_out_in_its_charts_and_rows(found: Seen) -> None:
    for item in (item for item in found if item["page"] == "throughput.html"):
        run, bright, wrong, rows = item["picked"]
        assert wrong == 0
        assert bright < item["marks"]
        assert rows
        assert set(rows) == {run}


def test_a_filter_acts_on_every_chart_and_table_of_a_page(found: Seen) -> None:
    filtered = [item for item in found if "filtered" in item]
    assert {item["page"] for item in filtered} >= {"throughput.html", "scaling.html"}
    for item in filtered:
        left = item["filtered"]
        own = {run for run in (*left["marks"], *left["rows"]) if not run.startswith("published ")}
        assert own <= CPU_RUNS, item["page"]  # results of others have no platform of ours
        assert item["restored"] == left["before"], item["page"]
    of = next(item["filtered"] for item in filtered if item["page"] == "throughput.html")
    assert set(of["marks"]) == CPU_RUNS
    assert 0 < len(of["rows"]) < of["before"][1]


def test_accessibility_has_no_serious_finding(found: Seen, axe: Path | None) -> None:
    if axe is None:
        pytest.skip(f"{AXE} is not in the cache and npm did not give it")
    for item in found:
        where = f"{item['page']} at {item['width']}"
        assert item["light"] == [], where
        assert item["darkFindings"] == [], where


def test_the_site_works_the_same_from_a_server(
    browser: str, site: Path, tmp_path: Path, found: Seen
) -> None:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            return

    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        here = f"http://127.0.0.1:{server.server_port}/"
        frames = "".join(f'<iframe src="{p.html}" width="1400"></iframe>' for p in PAGES[:3])
        (site / "served.html").write_text(HARNESS + frames)
        seen = look(browser, here + "served.html", tmp_path / "profile")
        server.shutdown()
    files = {item["page"]: item for item in found if item["width"] == 1400}
    assert len(seen) == 3
    for item in seen:
        assert item["seen"] == []
        assert item["drawn"] == files[item["page"]]["drawn"]
        assert all(link.startswith((here, "data:")) for link in item["links"])
