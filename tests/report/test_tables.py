"""Tables are escaped HTML with exact values beside the rounded ones."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from simulated import config, write_run, write_sample

from scalebook.report.base import html_tables
from scalebook.report.base.frames import load
from scalebook.report.base.markup import Markup, anchor, run_link
from scalebook.report.pages.run_findings import failed
from scalebook.report.site import rendering

EVIL = "<script>alert(1)</script>\"'`&"


class Tags(HTMLParser):
    """Collects every start tag and all text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[dict[str, str | None]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.append(dict(attrs))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_markup_in_a_run_stays_text(tmp_path: Path) -> None:
    evil = config(model=EVIL, strategy=EVIL, platform=EVIL)
    write_run(tmp_path, "evil", evil, run_id=EVIL, reason=EVIL)
    html = str(html_tables.all_runs(load(tmp_path).runs))
    parsed = Tags(html)
    assert "script" not in parsed.tags
    assert EVIL in parsed.text
    assert any(attributes.get("data-value") == EVIL for attributes in parsed.attributes)


def test_markup_in_a_reason_and_a_log_stays_text(tmp_path: Path) -> None:
    write_run(tmp_path, "a", config(), status="failed", reason=EVIL, log_tail=(EVIL, "</pre>"))
    data = load(tmp_path)
    parsed = Tags(str(failed(data)))
    assert "script" not in parsed.tags
    assert parsed.text.count(EVIL) == 2


def test_a_cell_has_the_exact_value_and_shows_the_rounded_one(tmp_path: Path) -> None:
    write_run(tmp_path, "a", config())
    runs = load(tmp_path).runs
    exact = runs["tokens_per_second"][0]
    html = str(html_tables.all_runs(runs))
    assert f'data-value="{exact}"' in html
    assert f">{exact:,.0f}" in html


def test_a_missing_number_is_a_dash_with_an_empty_value(tmp_path: Path) -> None:
    write_run(tmp_path, "a", config(), status="failed", reason="It broke.")
    html = str(html_tables.all_runs(load(tmp_path).runs))
    assert '<td class="num" data-value="">–</td>' in html
    assert "-1" not in html


def test_every_heading_of_a_rate_has_its_unit(tmp_path: Path) -> None:
    html = str(html_tables.all_runs(load(write_sample(tmp_path)).runs))
    units = re.findall(r'<span class="unit">(.*?)</span>', html)
    assert units == ["tokens", "tokens/s", "tokens/s", "GiB", "TFLOP/s per GPU"]


def test_each_run_has_one_anchor_in_the_full_table_and_none_in_the_short_one(
    tmp_path: Path,
) -> None:
    runs = load(write_sample(tmp_path)).runs
    full = str(html_tables.all_runs(runs))
    short = str(html_tables.table(runs.iter_rows(named=True), (html_tables.RUN,), "short"))
    for run_id in runs["run_id"]:
        assert full.count(f'id="{anchor(run_id)}"') == 1
        assert f"throughput.html#{anchor(run_id)}" in short
    assert ' id="' not in short


def test_anchors_of_different_run_ids_differ() -> None:
    assert anchor("20260101-a.b_c") == "run-20260101-a.b_c"
    assert len({anchor(text) for text in ("a b", "a/b", "a<b", "a-b")}) == 4
    assert re.fullmatch(r"[A-Za-z0-9._-]+", anchor("\"><img src=x onerror='1'>"))


def test_a_run_that_was_not_measured_here_is_marked(tmp_path: Path) -> None:
    write_run(tmp_path, "a", config(), source="ingested")
    html = str(html_tables.all_runs(load(tmp_path).runs))
    assert 'class="badge source">ingested<' in html
    assert "from-ingested" in html


def test_the_mfu_table_names_convention_and_peak(tmp_path: Path) -> None:
    html = str(html_tables.utilisation(load(write_sample(tmp_path)).completed))
    assert html.count("megatron_causal") >= 3
    assert "989.4" in html
    assert "cpu-one" not in html


def test_a_run_is_named_by_the_end_of_its_id_and_its_whole_id_goes_with_it(tmp_path: Path) -> None:
    run_id = "20260101-120000-tiny-llama-w2-0123456789ab"
    assert f'title="{run_id}"' in run_link(run_id)
    assert run_link(run_id).endswith(">0123456789ab</a>")
    assert run_link("my-run").endswith(">my-run</a>")
    write_run(tmp_path, run_id, config())
    assert f'data-value="{run_id}"' in str(html_tables.all_runs(load(tmp_path).runs))


def test_the_rate_of_a_device_has_the_interval_of_the_whole_divided() -> None:
    ends = {"tokens_per_second_low": 780.0, "tokens_per_second_high": 840.0}
    row = {"tokens_per_second_per_gpu": 100.0, "world_size": 8, **ends}
    assert Tags(str(html_tables.TOKENS_EACH.show(row))).text == "100 97.5 to 105"
    assert html_tables.TOKENS_EACH.show({**row, "world_size": None}) == "100"


def test_a_verdict_that_decides_nothing_is_grey() -> None:
    column = html_tables.verdict_column("word", "Verdict")
    assert column.show({"word": "faster"}) == "faster"
    for word in ("cannot tell", "no interval"):
        assert 'class="undecided"' in column.show({"word": word})


def test_a_table_shows_ten_columns_at_first_with_the_work_and_the_rate_among_them(
    tmp_path: Path,
) -> None:
    write_run(tmp_path, "a", config())
    head = str(html_tables.all_runs(load(tmp_path).runs)).partition("<tbody>")[0]
    keys = re.findall(r'data-key="(\w+)"', head)[:10]
    work = {"model", "platform", "name", "precision", "sequence_length"}
    assert {*work, "tokens_per_second_per_gpu", "mfu"} <= {*keys}
    style = (Path(rendering.ASSETS) / "scalebook.css").read_text()
    assert ".is-short tr > :nth-child(n+11) { display: none; }" in style
    assert "const COLUMNS = 10;" in (Path(rendering.ASSETS) / "scalebook.js").read_text()


def test_a_value_that_is_markup_stays_inside_its_attribute() -> None:
    link = Markup('<a href="u">words</a>')
    column = html_tables.Column("x", "X", lambda row: row["x"], numeric=False)
    html = str(html_tables.table([{"x": link}], [column], "links"))
    assert html.count("<a ") == 1
    assert 'data-value="&lt;a href=&#34;u&#34;&gt;words&lt;/a&gt;"' in html
