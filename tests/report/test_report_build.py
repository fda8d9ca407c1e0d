"""The site as a whole: built from runs of every kind, in one place, needing no network."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import altair as alt
import nbclient
import nbformat
import polars as pl
import pytest
import yaml
from jsonschema import Draft7Validator, ValidationError
from simulated import config, write_run, write_sample
from test_tables import Tags

from scalebook.cli import main
from scalebook.cli.terminal import site_folder
from scalebook.errors import ReportError
from scalebook.facts import catalog
from scalebook.report import PAGES, Places, build, check
from scalebook.report.base.frames import load
from scalebook.report.base.markup import anchor, callout, raw_block, raw_html
from scalebook.report.site import rendering
from scalebook.report.site.menu import menus
from scalebook.report.site.notebook import NotebookCell

OF_OTHERS = {"published"}  # results of others have the columns that their sources state
EVIL = "</script><script>alert(1)</script><b>\"'`*_[x](javascript:1) {{< env HOME >}} ```\n::: x"

Built = tuple[Path, list[str]]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Built:
    """A site over good, failed and broken runs, and what its build said."""
    folder = tmp_path_factory.mktemp("report")
    runs = write_sample(folder / "runs")
    evil = config(model=EVIL, strategy=EVIL)
    write_run(runs, "evil", evil, run_id=EVIL, status="failed", reason=EVIL, log_tail=(EVIL,))
    write_run(runs, "evil-good", evil)
    write_run(runs, "torn", config())
    (runs / "torn" / "record.json").write_text(f'{{"run_id": "{EVIL[:8]}')
    said: list[str] = []
    index = build(Places(runs, folder / "site", root), "preview", said.append)
    return index.parent, said


@pytest.fixture(scope="module")
def one_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one run, whose pages are executed once for all tests that build from it."""
    return write_run(tmp_path_factory.mktemp("one") / "runs", "a", config()).parent


@pytest.fixture(scope="module")
def html(site: Built) -> Callable[[str], str]:
    """Read a page."""
    return lambda name: (site[0] / name).read_text()


def test_every_page_is_there_with_the_same_navigation(html: Callable[[str], str]) -> None:
    for page in PAGES:
        text = html(page.html)
        links = re.findall(r'<a href="([a-z]+\.html)"(?: aria-current="page")?>', text)
        assert links[: len(PAGES)] == [other.html for other in PAGES]
        assert f'href="{page.html}" aria-current="page"' in text


def test_the_navigation_is_short_and_its_menus_need_no_script(html: Callable[[str], str]) -> None:
    entries = list(menus(PAGES))
    assert len(entries) <= 7
    assert [page for _, pages in entries for page in pages] == list(PAGES)
    text = html("scaling.html")
    titles = re.findall(r'<details name="menu">\s*<summary>(.*?)</summary>', text)
    assert titles == [title for title, _ in entries if title]


def test_notebooks_are_numbered_in_the_order_of_the_menu():
    names = [page.notebook for page in PAGES]
    assert names == sorted(names)
    assert len({name.partition("_")[0] for name in names}) == len(names)


def test_the_site_passes_its_own_check(site: Built) -> None:
    assert check(site[0]) == ()


def test_every_chart_is_valid_vega_lite(html: Callable[[str], str]) -> None:
    schema = Draft7Validator(alt.load_schema())
    with pytest.raises(ValidationError, match="baar"):
        schema.validate({"data": {"values": []}, "mark": "baar"})
    charts = 0
    for page in PAGES:  # a build itself leaves this check out
        for text in re.findall(r'class="sb-spec">(.*?)</script>', html(page.html), re.DOTALL):
            schema.validate(json.loads(text))
            charts += 1
    assert charts > 20


def test_a_table_of_runs_says_what_ran(html: Callable[[str], str]) -> None:
    work = {"model", "platform", "precision", "sequence_length"}
    parts = r'data-name="([^"]+)".*?<thead>(.*?)</thead>\s*<tbody[^>]*>(.*?)</tbody>'
    counted = 0
    for page in PAGES:
        for name, head, body in re.findall(parts, html(page.html), re.DOTALL):
            keys = set(re.findall(r'data-key="([^"]*)"', head))
            if 'data-run="' not in body or name in OF_OTHERS:
                continue
            counted += 1
            whole = work <= keys and keys & {"name", "tensor_parallel_size"}
            assert whole or keys & {"label", "what", "series"}, (page.slug, name, keys)
    assert counted > 10


def test_one_thing_has_one_word_on_every_page(html: Callable[[str], str]) -> None:
    for page in PAGES:
        heads = re.findall(r"<th [^>]*>(.*?)</th>", html(page.html))
        assert not {"Ranks", "Switch", "Of", "dollar"} & set(heads), page.slug
        assert not re.search(r"throughput per rank|J/token|J a token", html(page.html)), page.slug


def test_no_page_names_a_server(html: Callable[[str], str]) -> None:
    for page in PAGES:
        # A link that a reader may follow asks nobody for anything while the page is open.
        loaded = re.sub(r"<a [^>]*>", "", html(page.html))
        assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", loaded)


def test_markup_of_a_run_file_is_text_on_every_page(html: Callable[[str], str]) -> None:
    for page in PAGES:
        text = html(page.html)
        assert "<script>alert" not in text
        assert "<b>\"'" not in text
        scripts = {a.get("src") or a.get("type") for a in Tags(text).attributes if a}
        assert "javascript:1" not in str(scripts)
        assert "{{< env" not in text


def test_every_mention_of_a_run_leads_to_its_row(site: Built, html: Callable[[str], str]) -> None:
    rows = Tags(html("throughput.html")).attributes
    ids = {attributes["id"] for attributes in rows if attributes.get("id")}
    # Results of others have no run here; their names serve the filter and the selection.
    published = {f"published {row.id}" for row in catalog.published()}
    for page in PAGES:
        for attributes in Tags(html(page.html)).attributes:
            if "data-run" in attributes and attributes["data-run"] not in published:
                assert anchor(str(attributes["data-run"])) in ids


def test_notebook_syntax_and_parameters_are_not_shown(html: Callable[[str], str]) -> None:
    for page in PAGES:
        text = html(page.html)
        assert "#|" not in text
        assert "{=html}" not in text
        assert "# Parameters" not in text
        assert "runs: str" not in text


def test_figures_and_tables_are_numbered_with_captions(html: Callable[[str], str]) -> None:
    text = html("throughput.html")
    assert re.findall(r"<figcaption><b>(.*?)</b> \S", text) == [
        *("Figure 1", "Table 1", "Figure 2", "Table 2", "Table 3", "Table 4"),
        "Figure 3",
    ]


def test_broken_directories_are_on_the_page(html: Callable[[str], str]) -> None:
    assert "torn/record.json cannot be read" in html("index.html")
    assert "Not readable" in html("throughput.html")


def test_failed_runs_are_on_the_page_with_their_reason(html: Callable[[str], str]) -> None:
    assert "GPU 3 ran out of memory in step 1" in html("reliability.html")
    assert 'href="reliability.html"' in html("index.html")


def test_the_chart_library_is_in_the_site_once(site: Built) -> None:
    big = [path for path in site[0].rglob("*") if path.stat().st_size > 500_000]
    assert [path.name for path in big] == ["vega-bundle.js"]
    assert "</script" not in big[0].read_text()


def test_a_page_without_charts_does_not_load_the_chart_library(html: Callable[[str], str]) -> None:
    assert "vega-bundle.js" in html("throughput.html")
    for name in ("index.html", "studies.html", "method.html"):
        assert "vega-bundle.js" not in html(name)


def test_the_data_files_hold_every_run(site: Built) -> None:
    frame = pl.read_parquet(site[0] / "data" / "runs.parquet")
    assert frame.height == 11
    assert pl.read_csv(site[0] / "data" / "runs.csv").height == 11
    assert pl.read_parquet(site[0] / "data" / "steps.parquet")["run_id"].n_unique() >= 9


def test_a_csv_cell_that_looks_like_a_formula_is_tamed(site: Built, tmp_path: Path) -> None:
    from scalebook.report.site.site_files import write_data

    write_run(tmp_path / "runs", "a", config(model="=cmd|' /C calc'!A0"))
    write_data(load(tmp_path / "runs"), tmp_path, tmp_path / "cache")
    assert (
        "\"'=cmd" in (tmp_path / "runs.csv").read_text()
        or ",'=cmd" in (tmp_path / "runs.csv").read_text()
    )


def test_a_missing_quarto_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, root: Path, one_run: Path
) -> None:
    monkeypatch.setattr(rendering, "find_quarto", lambda: None)
    said: list[str] = []
    with pytest.raises(ReportError, match=r"quarto was not found\. Install it from quarto.org"):
        build(Places(one_run, tmp_path / "site", root), "quarto", said.append)


def test_failed_runs_alone_give_a_site(tmp_path: Path, root: Path) -> None:
    runs = tmp_path / "runs"
    write_run(runs, "a", config(), status="timeout", steps=0, reason="It took more than 10 s.")
    index = build(Places(runs, tmp_path / "site", root), "preview", print)
    assert "No run completed with a throughput" in index.read_text()
    assert "It took more than 10 s" in (index.parent / "reliability.html").read_text()


def test_unreadable_runs_alone_give_a_site_that_says_so(tmp_path: Path, root: Path) -> None:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "record.json").write_text("")
    index = build(Places(tmp_path / "runs", tmp_path / "site", root), "preview", print)
    assert "No run could be read" in index.read_text()
    assert "a/record.json cannot be read" in index.read_text()


def test_a_folder_that_is_no_report_is_never_replaced(
    tmp_path: Path, root: Path, one_run: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(ReportError, match="is not a report of Scalebook and would be replaced"):
        build(Places(one_run, tmp_path / "mine", root), "preview", print)
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_nothing_is_written_beside_the_folder_that_the_user_named(
    tmp_path: Path, root: Path, one_run: Path
) -> None:
    index = build(Places(one_run, tmp_path / "new" / "site", root), "preview", print)
    assert index.is_file()
    assert [path.name for path in one_run.parent.iterdir()] == ["runs"]
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["site"]


def test_the_demo_has_a_folder_of_its_own(root: Path) -> None:
    assert site_folder("", demo=True) == root / "reports" / "_demo"
    assert site_folder("") == root / "reports" / "_site"
    ignored = (root / ".gitignore").read_text().splitlines()
    assert {"/reports/_demo/", "/reports/_site/"} <= set(ignored)


def test_an_unwritable_place_is_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = write_run(tmp_path / "runs", "a", config()).parent
    (tmp_path / "file").write_text("")
    made = ["report", "--runs", str(runs), "--output", str(tmp_path / "file" / "site")]
    assert main(made) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_failed_build_leaves_the_site_before_it(
    site: Built, tmp_path: Path, root: Path, one_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(site[0], tmp_path / "site")
    monkeypatch.setattr("scalebook.report.site.builder.check", lambda *_: ("index.html: loads x",))
    with pytest.raises(ReportError, match=r"cannot be published: index\.html: loads x"):
        build(Places(one_run, tmp_path / "site", root), "preview", print)
    assert (tmp_path / "site" / "index.html").read_text() == (site[0] / "index.html").read_text()


def test_a_cell_that_raises_names_its_page_and_cell(tmp_path: Path) -> None:
    from scalebook.report.site.execute import execute
    from scalebook.report.site.menu import Page

    cell = {"cell_type": "code", "execution_count": None, "outputs": [], "metadata": {}}
    parameters = cell | {
        "id": "a",
        "source": 'runs: str = "runs"',
        "metadata": {"tags": ["parameters"]},
    }
    content = {
        "cells": [parameters, cell | {"id": "b", "source": "1 / 0"}],
        "metadata": {"kernelspec": {"name": "python3", "display_name": "x", "language": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    (tmp_path / "29_broken.ipynb").write_text(json.dumps(content))
    page, out = Page("29_broken.ipynb", "broken", "Broken"), tmp_path / "out {x}"
    words = "cell 2 of 29_broken.ipynb: division by zero (ZeroDivisionError)."
    # A brace in the name of a folder is no place for a parameter.
    assert execute((page,), tmp_path, tmp_path, out) == {page: words}
    assert words in (out / "broken.ipynb").read_text()
    assert "Traceback" in (out / "_failed-broken.ipynb").read_text()


def test_a_page_that_fails_names_its_run_and_takes_no_other_page_with_it(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(row: dict[str, object], _: object) -> None:
        raise ValueError(f"odd <b>{row['model']}</b>")

    monkeypatch.setattr("scalebook.report.pages.cost_page._choice", broken)
    monkeypatch.chdir(tmp_path)
    write_run(Path("runs"), "odd-run", config())
    assert main(["report", "--runs", "runs", "--output", "site", "--renderer", "preview"]) == 1
    page = (tmp_path / "site" / "cost.html").read_text()
    assert "This page could not be built" in page
    assert "Run odd-run: odd &lt;b&gt;tiny-llama&lt;/b&gt; (ValueError)." in page
    assert "tiny-llama" in (tmp_path / "site" / "throughput.html").read_text()
    assert len(list((tmp_path / "site").glob("*.html"))) == len(PAGES) + 1  # and run.html


def test_the_check_takes_a_site_by_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "a.html").write_text('<a href="b.html#x">b</a>')
    (tmp_path / "site" / "b.html").write_text('<p id="x">b</p>')
    monkeypatch.chdir(tmp_path)
    assert check(Path("site")) == ()


def test_the_quarto_project_brings_nothing_of_its_own_into_a_page(root: Path) -> None:
    text = (root / "reports" / "_quarto.yml").read_text()
    made = yaml.safe_load(text)
    html = made["format"]["html"]
    assert not re.search(r"https?://", text)
    assert html["minimal"] is True  # or Bootstrap, and modules that no browser loads from a file
    assert made["project"]["type"] == "default"  # a website rewrites the links of a page
    assert html["html-math-method"] == "mathml"  # MathJax would come from a CDN
    assert html["from"] == "markdown-smart"  # or quotes and dashes change
    assert (html["toc"], html["section-divs"]) == (False, False)


# Quarto as far as the project files go: the outputs of each notebook, in its template.
FAKE_QUARTO = """#!{python}
import json, pathlib, sys
import yaml
log = pathlib.Path(__file__).with_name("called")
if sys.argv[1] == "--version":
    print(log.with_name("version").read_text())
    sys.exit()
here = pathlib.Path(sys.argv[2])
pages = yaml.safe_load((here / "_quarto.yml").read_text())["project"]["render"]
with log.open("a") as file:
    file.write(f"{{' '.join(pages)}}\\n")
for page in pages:
    cells = json.loads((here / page).read_text())["cells"]
    front = yaml.safe_load("".join(cells[0]["source"]).strip().strip("-"))
    outputs = ["".join(out["text"]) for cell in cells[1:] for out in cell.get("outputs", ())]
    shown = "".join(text.split("\\n", 1)[1].rsplit("\\n", 2)[0] for text in outputs)
    html = (here / front["template"]).read_text().replace("$body$", shown).replace("$$", "$")
    (here / "_site" / page.replace(".ipynb", ".html")).write_text(html)
"""


def test_quarto_renders_only_what_changed(
    tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "quarto"
    fake.write_text(FAKE_QUARTO.format(python=sys.executable))
    fake.chmod(0o755)
    (tmp_path / "version").write_text("1.7.34")
    monkeypatch.setattr(rendering, "find_quarto", lambda: str(fake))
    monkeypatch.setattr(Places, "cache", tmp_path / "cache")
    runs = write_run(tmp_path / "runs", "a", config()).parent
    settings = tmp_path / "project" / "reports" / "_quarto.yml"
    settings.parent.mkdir(parents=True)
    shutil.copyfile(root / "reports" / "_quarto.yml", settings)
    shutil.copytree(root / "notebooks", tmp_path / "project" / "notebooks")
    places = Places(runs, tmp_path / "site", tmp_path / "project")

    said: list[str] = []

    def rendered() -> list[str]:
        (tmp_path / "called").write_text("")
        build(places, "quarto", said.append)
        return (tmp_path / "called").read_text().split()

    every = [f"{page.slug}.ipynb" for page in PAGES]
    assert rendered() == every
    first = (tmp_path / "site" / "cost.html").read_text()
    monkeypatch.setattr("scalebook.report.site.builder.__version__", "<2> & later")
    assert rendered() == []
    later = (tmp_path / "site" / "cost.html").read_text()
    assert " by Scalebook &lt;2&gt; &amp; later from " in later
    line = re.compile("<span>Built .*?</span>")
    assert line.sub("", first) == line.sub("", later)
    method = tmp_path / "project" / "notebooks" / "36_method.ipynb"
    method.write_text(method.read_text().replace("## ", "## On "))
    assert rendered() == ["method.ipynb"]
    (tmp_path / "version").write_text("1.7.35")
    assert rendered() == every


def test_quarto_gets_pages_as_printed_html_and_its_failure_is_one_line(
    site: Built, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "quarto"
    said = "WARN: old\nERROR: Theme failed:\n\nError: no pandoc here\nStack trace:\n    at x.ts:1"
    fake.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}\nEND\nexit 3\n")
    fake.chmod(0o755)
    monkeypatch.setattr(rendering, "find_quarto", lambda: str(fake))
    runs = site[0].parent / "runs"
    with pytest.raises(ReportError, match=r"ERROR: Theme failed: Error: no pandoc here\. Install"):
        build(Places(runs, tmp_path / "site", root), "quarto", print)
    for page in PAGES:
        assert_quarto_can_render(
            (Places(runs, tmp_path / "site", root).pages / f"{page.slug}.ipynb").read_text()
        )
    fake.write_text("#!/bin/sh\nexit 0\n")
    with pytest.raises(ReportError, match=r"quarto did not write index\.html\. Install it"):
        build(Places(runs, tmp_path / "site", root), "quarto", print)


def assert_quarto_can_render(notebook: str) -> None:
    """Check what the real Quarto breaks on a page, each of which was seen."""
    page = json.loads(notebook)
    outputs = [output for cell in page["cells"] for output in cell.get("outputs", [])]
    assert outputs
    # of an output of type text/html Quarto adds two scripts of a CDN to the page
    assert {output["output_type"] for output in outputs} == {"stream"}
    # of a source in one text Quarto joins the lines, front matter and paragraphs alike
    for cell in page["cells"]:
        assert isinstance(cell["source"], list)
        assert all(line.endswith("\n") and line.count("\n") == 1 for line in cell["source"][:-1])
    front = "".join(page["cells"][0]["source"])
    assert re.fullmatch(r"---\ntitle: .+\nsubtitle: .+\ntemplate: [a-z]+\.template\n---", front)
    code = ["".join(cell["source"]) for cell in page["cells"] if cell["cell_type"] == "code"]
    # a figure that is printed loses its caption, and its code comes before it
    for text in code:
        assert re.match(r"#\| echo: false\n#\| output: asis\n(?!#\|)", text)
    # what a cell warned of would stand in the page, and so would the cell of parameters
    assert {output["name"] for output in outputs} == {"stdout"}
    assert not any(re.search(r"^runs(: str)? = ", text, re.MULTILINE) for text in code)
    shown = "".join("".join(output["text"]) for output in outputs)
    markdown = ["".join(c["source"]) for c in page["cells"] if c["cell_type"] == "markdown"]
    words = shown + "".join("".join(cell["source"]) for cell in page["cells"])
    assert "{{<" not in words  # a shortcode reads files and variables of the machine
    assert not re.search(r"\\\(|\$\$|\\\[", re.sub(r"<script.*?</script>", "", words, flags=re.S))
    assert "<aside" not in shown  # it goes into the margin, 215 px wide
    assert set(re.findall(r"<script[^>]*?type=\"([^\"]+)\"", shown)) <= {"application/json"}
    assert shown.count("<script") == shown.count('<script type="application/json"')
    tables = re.findall(r"<table[^>]*>", shown)
    assert all("data-quarto-disable-processing" in one or "sb-cells" in one for one in tables)
    # Quarto would give a heading another id, and a reference another name
    for text in markdown:
        assert all(re.search(r"\{#[a-z0-9-]+\}$", line) for line in re.findall("^##.*", text, re.M))
        assert not re.search("@(fig|tbl)-", text)


def test_quarto_fills_the_page_of_the_built_in_renderer(tmp_path: Path) -> None:
    page = PAGES[1]
    cells = (
        NotebookCell("raw", "---\ntitle: Costs $5\nsubtitle: Words\n---"),
        NotebookCell("markdown", "## What it *takes*\n\nSee below."),
        NotebookCell(
            "code", "draw()", options=(("label", "fig-a"), ("fig-cap", "A $ & more.")),
            texts=(raw_block("<p>drawn</p>"),),
        ),
    )  # fmt: skip
    template, notebook = rendering.write_page(tmp_path, page, cells, PAGES)
    assert "<h1>Costs $$5</h1>" in template  # one $ begins a name
    whole = rendering.render(cells, page, PAGES, rendering.BUILT)
    start, end = template.replace("$body$", "<BODY>").replace("$$", "$").split("<BODY>")
    assert (whole.startswith(start), whole.endswith(end)) == (True, True)
    assert '<h1>Costs $5</h1>\n<p class="subtitle">Words</p>' in start
    assert '<a href="studies.html" aria-current="page">Studies</a>' in start
    _, text, code = json.loads(notebook)["cells"]
    body = whole.removeprefix(start).removesuffix(end)
    assert body == (
        '<h2 id="what-it-takes">What it <em>takes</em>'
        '<a class="here" href="#what-it-takes" aria-label="Link to this section">#</a></h2>\n'
        "<p>See below.</p>\n\n"
        '<figure id="fig-a" class="fig"><p>drawn</p>'
        "<figcaption><b>Figure 1</b> A $ &amp; more.</figcaption></figure>"
        '<details class="code"><summary>Code</summary><pre>draw()</pre></details>'
    )
    assert "".join(text["source"]) == (
        '## What it *takes*[#](#what-it-takes){.here aria-label="Link to this section"}'
        " {#what-it-takes}\n\nSee below."
    )
    printed = raw_html("".join(code["outputs"][0]["text"]))
    assert printed
    assert body.endswith(printed)


def test_quarto_by_hand_is_stopped_with_what_to_do_instead(root: Path) -> None:
    made = yaml.safe_load((root / "reports" / "_quarto.yml").read_text())
    script = (root / "reports" / made["project"]["pre-render"]).read_text()
    assert "make report RENDERER=quarto" in script
    assert script.rstrip().endswith("Deno.exit(1);")


def test_the_built_in_renderer_is_the_default_also_where_quarto_is_installed(
    tmp_path: Path, root: Path, one_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendering, "find_quarto", lambda: "/nowhere/quarto")
    said: list[str] = []
    index = build(Places(one_run, tmp_path / "site", root), "auto", said.append)
    chosen, sizes = said
    assert chosen == (
        "The pages are rendered by the built-in renderer; --renderer quarto uses Quarto."
    )
    assert sizes.startswith(f"Pages in kB: index {index.stat().st_size / 1e3:.0f}, studies ")
    assert sizes.count(",") == len(PAGES) - 1


def test_a_note_is_no_aside_which_quarto_moves_into_the_margin() -> None:
    html = str(callout("Note", ["x"]))
    assert html.startswith('<div class="sb-callout" role="note">')
    assert "<aside" not in html


@pytest.mark.quarto
def test_quarto_and_the_built_in_renderer_give_the_same_pages(
    site: Built, html: Callable[[str], str], tmp_path: Path, root: Path
) -> None:
    if rendering.find_quarto() is None:
        pytest.skip("quarto is not installed")
    runs = site[0].parent / "runs"
    folder = build(Places(runs, tmp_path / "site", root), "quarto", print).parent
    assert {path.name for path in folder.iterdir()} == {path.name for path in site[0].iterdir()}
    for page in PAGES:
        pair = [content(text) for text in (html(page.html), (folder / page.html).read_text())]
        assert pair[0] == pair[1], page.title


def content(html: str) -> tuple[str, list[tuple[str, dict[str, str]]]]:
    """Return the text of a page, with what its scripts hold, and its elements in order."""
    parsed = Tags(re.sub(r"<span>Built .*?</span>", "", html))
    elements = [
        (tag, {name: value or "" for name, value in attributes.items()})
        for tag, attributes in zip(parsed.tags, parsed.attributes, strict=True)
    ]
    empty = ("header", {"id": "title-block-header", "class": "quarto-title-block"})
    return " ".join(parsed.text.split()), [one for one in elements if one != empty]


@pytest.mark.slow
def test_every_page_runs_in_a_kernel_as_well(tmp_path: Path, root: Path) -> None:
    """One after another in the same kernel, whose start takes longer than a page."""
    runs = write_sample(tmp_path / "runs")
    pages = [nbformat.read(root / "notebooks" / page.notebook, as_version=4) for page in PAGES]
    for page in pages:
        for cell in page.cells:
            if "parameters" in cell.metadata.get("tags", ()):
                cell.source += f"\nruns = {str(runs)!r}"
    cells = [cell for page in pages for cell in page.cells]
    for number, cell in enumerate(cells):
        cell.id = str(number)
    whole = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(whole, resources={"metadata": {"path": str(tmp_path)}}).execute()
    for page in pages:
        outputs = [output for cell in page.cells for output in cell.get("outputs", ())]
        assert outputs, page.cells[0].source
        assert "error" not in {output.output_type for output in outputs}


def test_the_command_builds_what_is_asked_for_and_prints_the_path_of_the_first_page_last(
    tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def stand_in(places: Places, renderer: str, *, one_file: bool) -> Path:
        asked.extend((places, renderer, one_file))
        print("building")
        return places.output / "index.html"

    monkeypatch.setattr("scalebook.report.build", stand_in)
    runs, site = tmp_path / "runs", tmp_path / "site"
    made = ["report", "--runs", str(runs), "--output", str(site)]
    assert main([*made, "--renderer", "preview"]) == 0
    assert capsys.readouterr().out.splitlines() == ["building", str(site / "index.html")]
    assert asked == [Places(runs, site, root), "preview", False]


def test_the_command_on_an_empty_folder_is_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "--runs", str(tmp_path), "--output", str(tmp_path / "site")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "contains no run" in error
    assert not (tmp_path / "site").exists()


def test_opening_a_report_that_is_not_there_says_how_to_build_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["open", "--output", str(tmp_path)]) == 2
    assert "Build it with 'make report'" in capsys.readouterr().err


def test_opening_serves_the_site_on_this_machine_until_interrupted(site: Built) -> None:
    command = [sys.executable, "-m", "scalebook", "open", "--no-browser", "--output", str(site[0])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split()[0]
            assert address.startswith("http://127.0.0.1:")
            with urllib.request.urlopen(address, timeout=30) as answer:
                assert b"<h1>Summary</h1>" in answer.read()
            server.send_signal(signal.SIGINT)
            assert server.wait(timeout=30) == 0
        finally:
            server.kill()


def test_a_log_without_step_times_or_tokens_gives_a_site(tmp_path: Path, root: Path) -> None:
    runs = tmp_path / "runs"
    path = write_run(runs, "a", config(), source="ingested") / "steps.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    bare = [line | {"step_seconds": None, "tokens": None, "loss": None} for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in bare))
    index = build(Places(runs, tmp_path / "site", root), "preview", print)
    assert "completed without a throughput" in index.read_text()


@pytest.mark.parametrize(
    "command", [["report", "--output"], ["publish"]], ids=["report", "publish"]
)
def test_a_full_disk_is_one_short_sentence(tmp_path, monkeypatch, capsys, command):
    why = "[Errno 28] No space left on device: 'a.html' -> 'site/a.html'"
    error = shutil.Error([("a.html", "site/a.html", why), ("b.html", "site/b.html", why)])

    def full(*_, **__):
        raise error

    monkeypatch.setattr("scalebook.report.build", full)
    monkeypatch.setattr("scalebook.report.publish.publish", full)
    assert main([*command, str(tmp_path / "site"), "--runs", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"to {tmp_path / 'site'}: [Errno 28] No space left on device. Choose another" in said
    assert ".html" not in said
