"""Charts are data: valid specifications, escaped, with words, readable in both themes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
import pytest
from simulated import H100, config, write_run, write_sample

from scalebook.report import charts
from scalebook.report.base.frames import load
from scalebook.report.base.markup import raw_html
from scalebook.report.base.quantities import percent
from scalebook.report.charts import css_charts
from scalebook.report.charts.figure import data_rows, name_only_drawn
from scalebook.report.charts.rate_charts import FEW_WHOLE, MAX_BARS, MAX_CHARTS
from scalebook.report.charts.step_charts import MAX_RUNS, thinned
from scalebook.report.charts.theme import FAINT, PALETTE, SURFACE, configs
from scalebook.report.pages import curves_page


def every_chart(folder: Path) -> list[charts.Figure]:
    data = load(folder)
    bars = charts.throughput(data.completed)
    found = [
        charts.utilisation(data.completed),
        charts.steadiness(data.measured_steps, data.runs),
    ]
    assert bars is not None
    return [figure for _, figure in bars.parts] + [figure for figure in found if figure]


def test_a_legend_of_lines_names_every_run_that_is_drawn(tmp_path: Path) -> None:
    """Their names are in the data of a look-up, which the lines share."""
    for name, status in (("a", "completed"), ("b", "completed"), ("c", "failed")):
        write_run(tmp_path, name, config(micro_batch_size=1 + "abc".index(name)), status=status)
    found = curves_page.curves(load(tmp_path), "loss")
    assert found is not None
    layers = found.parts[0][1].spec()["layer"]
    legends = [
        one["encoding"]["color"]["legend"]["values"] for one in layers if "color" in one["encoding"]
    ]
    assert legends
    assert all(len(names) == 3 for names in legends)


def test_one_slow_step_makes_the_axis_logarithmic_and_says_so(tmp_path: Path) -> None:
    path = write_run(tmp_path, "a", config(), steps=30)
    for slow in (1, 100):
        lines = [json.loads(line) for line in (path / "steps.jsonl").read_text().splitlines()]
        lines[20]["step_seconds"] *= slow
        (path / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        data = load(tmp_path)
        figure = charts.steadiness(data.measured_steps, data.runs)
        assert figure is not None
        y = figure.spec()["layer"][0]["encoding"]["y"]
        assert (y["scale"].get("type") == "log") == y["title"].endswith(" (log)") == (slow > 1)


def test_a_share_on_an_axis_is_written_like_one_in_a_sentence() -> None:
    number = configs()["light"]["locale"]["number"]
    assert f"41.9{number['percent']}" == percent(0.419)


def test_a_legend_names_only_the_values_that_rows_have() -> None:
    field = {"field": "word", "scale": {"domain": ["faster", "cannot tell", "slower"]}}
    spec = {
        "encoding": {"x": {"field": "rate", "scale": {"domain": [0, 1]}}, "tooltip": [field]},
        "layer": [{"encoding": {"color": {**field}, "stroke": {**field, "legend": None}}}],
    }
    name_only_drawn(spec, [{"word": "slower", "rate": 0.5}, {"word": "faster"}])
    inner = spec["layer"][0]["encoding"]
    assert inner["color"]["legend"] == {"values": ["faster", "slower"]}
    assert inner["stroke"]["legend"] is None
    assert "legend" not in spec["encoding"]["x"]


def test_every_chart_compiles_to_a_picture(tmp_path: Path) -> None:
    figures = every_chart(write_sample(tmp_path))
    assert len(figures) == 5
    for figure in figures:
        assert figure.picture().startswith("<svg")


def test_a_specification_holds_no_address_and_no_theme(tmp_path: Path) -> None:
    for figure in every_chart(write_sample(tmp_path)):
        text = json.dumps(figure.spec())
        assert "http" not in text
        assert '"url"' not in text
        assert "config" not in figure.spec()


def test_markup_in_a_run_cannot_leave_the_specification(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script>```\n{{< env HOME >}}"
    write_run(tmp_path, "evil", config(model=evil, strategy=evil), run_id=evil)
    for figure in every_chart(tmp_path):
        html = str(figure.html)
        assert html.count("</script>") == 1
        assert "alert(1)</script" not in html
        assert "{{<" not in html
        spec = html.partition('class="sb-spec">')[2].removesuffix("</script>")
        assert evil in json.dumps(json.loads(spec), ensure_ascii=False).replace("\\n", "\n")
        assert raw_html(figure._repr_markdown_()) == html


def test_a_chart_says_in_words_what_it_shows(tmp_path: Path) -> None:
    figures = every_chart(write_sample(tmp_path))
    assert figures[0].description.startswith("3\N{NO-BREAK SPACE}runs, from Llama 3.1 8B · TP2 DP4")
    assert all(figure.description in str(figure.html) for figure in figures)


def test_bars_hold_the_numbers_of_the_frame_in_order(tmp_path: Path) -> None:
    data = load(write_sample(tmp_path))
    figures = charts.throughput(data.completed)
    assert figures is not None
    name, figure = figures.parts[0]
    rows = figure.spec()["data"]["values"]
    frame = data.completed.filter(pl.col("group") == name)
    # Charts hold six digits.
    expected = pytest.approx(frame["tokens_per_second"].to_list(), rel=1e-5)
    assert [row["tokens_per_second"] for row in rows] == expected
    lows = pytest.approx(frame["rate_low"].to_list(), rel=1e-5)
    assert [row["rate_low"] for row in rows] == lows
    assert frame["rate"].to_list() == frame["tokens_per_second_per_gpu"].to_list()


def test_only_runs_of_the_same_work_share_an_axis(tmp_path: Path) -> None:
    figures = charts.throughput(load(write_sample(tmp_path)).completed)
    assert figures is not None
    assert [name for name, _ in figures.parts] == [
        "Llama 3.1 8B on H100 (BF16, sequence 8,192, simulated)",
        "tiny-llama on CPU (FP32, sequence 128, simulated)",
        "CPU runs without a comparable run",
    ]


def test_groups_beyond_the_last_chart_are_counted(tmp_path: Path) -> None:
    for length in range(MAX_CHARTS + 2):
        for size in (1, 2):
            write_run(tmp_path, f"{length}-{size}", config(sequence_length=64 + length,
                world_size=size), steps=9)  # fmt: skip
    figures = charts.throughput(load(tmp_path).completed)
    assert figures is not None
    assert len(figures.parts) == MAX_CHARTS
    assert "2 groups of runs are only in the table" in figures.parts[-1][0].replace("\xa0", " ")


def test_no_number_of_groups_or_proxies_pushes_the_run_of_a_whole_model_out(tmp_path: Path) -> None:
    work = {"platform": "h100", "precision": "bf16", "sequence_length": 8192}
    write_run(tmp_path, "whole", config(**work, model="llama3.1-8b"), seconds=90, steps=9)
    for i in range(MAX_BARS):
        cut = config(**work | {"sequence_length": 1024 + 8 * i}, model="llama3.1-8b@8")
        write_run(tmp_path, f"cut-{i}", cut, seconds=1e-3, steps=9)
    for length in range(MAX_CHARTS + 1):
        for size in (1, 2):
            write_run(tmp_path, f"{length}-{size}", config(sequence_length=64 + length,
                world_size=size), steps=9)  # fmt: skip
    figures = charts.throughput(load(tmp_path).completed)
    assert figures is not None
    shown = [row["run_id"] for _, figure in figures.parts for row in data_rows(figure.spec())]
    assert "whole" in shown


def test_where_not_all_have_room_whole_models_stand_alone_and_the_title_counts(
    tmp_path: Path,
) -> None:
    work = {"platform": "h100", "precision": "bf16", "sequence_length": 8192}
    for i in range(FEW_WHOLE):
        write_run(tmp_path, f"whole-{i}", config(**work, model="llama3.1-8b"), device=H100,
            seconds=90 + i, steps=9)  # fmt: skip
    for i in range(MAX_BARS):
        write_run(tmp_path, f"cut-{i}", config(**work, model="llama3.1-8b@8"), device=H100,
            seconds=60, steps=9)  # fmt: skip
    runs = load(tmp_path).completed
    figure = charts.utilisation(runs)
    assert figure is not None
    assert {row["run_id"][:5] for row in data_rows(figure.spec())} == {"whole"}
    words = f"Whole models: {FEW_WHOLE} runs; {MAX_BARS} with fewer layers"
    assert figure.spec()["title"].startswith(words)
    few = charts.utilisation(runs.filter(pl.col("run_id") != "whole-0"))
    assert few is not None
    assert few.spec()["title"] == (
        f"{MAX_BARS} of {MAX_BARS + FEW_WHOLE - 1} runs, whole models first, the highest first"
    )


def test_the_time_of_each_step_is_drawn_of_the_least_steady_runs(tmp_path: Path) -> None:
    for index in range(MAX_RUNS + 1):
        write_run(tmp_path, f"run-{index:02}", config(seed=index), steps=9)
    data = load(tmp_path)
    last = (pl.col("run_id") == f"run-{MAX_RUNS:02}") & (pl.col("step") == 7)
    moved = pl.when(last).then(9.0).otherwise(1.0)
    figure = charts.steadiness(data.steps.with_columns(step_seconds=moved), data.runs)
    assert figure is not None
    assert figure.spec()["title"] == f"The least steady {MAX_RUNS} of {MAX_RUNS + 1} runs"
    assert f"run-{MAX_RUNS:02}" in {row["run_id"] for row in data_rows(figure.spec())}


def test_simulated_runs_are_paler_than_measured_ones(tmp_path: Path) -> None:
    write_run(tmp_path, "own", config(), source="measured")
    write_run(tmp_path, "made-up", config(world_size=2))
    figures = charts.throughput(load(tmp_path).completed)
    assert figures is not None
    for _, figure in figures.parts:
        opacity = figure.spec()["layer"][0]["encoding"]["opacity"]
        assert opacity["condition"] == {"test": "datum.source == 'measured'", "value": 1}
        assert opacity["value"] == FAINT < 1


def test_no_data_is_no_chart(tmp_path: Path) -> None:
    write_run(tmp_path, "a", config(), status="failed", steps=0, reason="It broke.")
    data = load(tmp_path)
    assert charts.throughput(data.completed) is None
    assert charts.utilisation(data.completed) is None
    assert charts.steadiness(data.measured_steps, data.runs) is None
    assert curves_page.curves(data, "loss") is None


def test_a_chart_that_leaves_runs_out_says_so(tmp_path: Path) -> None:
    for index in range(MAX_BARS + 1):
        write_run(tmp_path, f"run-{index:02}", config())
    data = load(tmp_path)
    figures = charts.throughput(data.completed)
    assert figures is not None
    assert figures.parts[0][1].spec()["title"] == f"The {MAX_BARS} highest of {MAX_BARS + 1} runs"
    curves = curves_page.curves(data, "loss")
    assert curves is not None
    assert curves.parts[0][1].spec()["title"] == f"{MAX_RUNS} of {MAX_BARS + 1} runs"


def test_a_long_curve_keeps_its_ends(tmp_path: Path) -> None:
    steps = pl.DataFrame({"run_id": ["a"] * 5000 + ["b"] * 7, "step": [*range(5000), *range(7)]})
    short = thinned(steps, 200)
    assert short.filter(run_id="a").height <= 202
    assert short.filter(run_id="a")["step"].to_list()[0] == 0
    assert short.filter(run_id="a")["step"].to_list()[-1] == 4999
    assert short.filter(run_id="b").height == 7


def test_mfu_points_carry_their_interval(tmp_path: Path) -> None:
    made = config(platform="h100", model="llama3.1-8b", precision="bf16", sequence_length=8192)
    write_run(tmp_path, "a", made, seconds=12, device=H100)
    figure = charts.utilisation(load(tmp_path).completed)
    assert figure is not None
    row = figure.spec()["data"]["values"][0]
    assert row["mfu_low"] < row["mfu"] < row["mfu_high"] < 1


def luminance(colour: str) -> float:
    """Relative luminance, WCAG 2.2."""
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours, WCAG 2.2."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def mixed(colour: str, page: str, share: float) -> str:
    """A colour that covers a share of what is behind it."""
    pairs = [
        (int(one[start : start + 2], 16), share if one == colour else 1 - share)
        for start in (1, 3, 5)
        for one in (colour, page)
    ]
    sums = [round(a * x + b * y) for (a, x), (b, y) in zip(pairs[::2], pairs[1::2], strict=True)]
    return "#" + "".join(f"{part:02x}" for part in sums)


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_every_colour_has_a_contrast_of_three_to_one_with_the_page(mode: str) -> None:
    for colour in PALETTE[mode]:
        assert contrast(colour, SURFACE[mode]) >= 3, colour
        assert contrast(mixed(colour, SURFACE[mode], FAINT), SURFACE[mode]) >= 3, colour


def styles(mode: str, root: Path) -> dict[str, str]:
    """The colours that the style sheet names in a theme."""
    css = (root / "src/scalebook/report/site/assets/scalebook.css").read_text()
    dark = "".join(re.findall(r':root\[data-theme="dark"\] \{(.*?)\}', css, re.DOTALL))
    light = "".join(re.findall(r"^:root \{(.*?)\}", css, re.DOTALL | re.MULTILINE))
    return dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6});", dark if mode == "dark" else light))


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_every_text_of_a_page_has_a_contrast_of_four_and_a_half_to_one(
    mode: str, root: Path
) -> None:
    known = styles(mode, root)
    for page in ("surface", "raised"):
        for name in ("ink", "muted", "accent", "good", "bad", "warn"):
            assert contrast(known[name], known[page]) >= 4.5, (name, page)
    for name in ("ink", "warn"):
        assert contrast(known[name], known["warn-surface"]) >= 4.5, name
    assert [known[f"c{place}"] for place in range(10)] == list(PALETTE[mode])
    darkest = mixed(known["c0"], known["raised"], css_charts.MOST_TINT / 100)
    assert contrast(known["ink"], darkest) >= 4.5  # the number in a cell of a heat map


def test_the_style_sheet_makes_nothing_fainter_than_its_colour(root: Path) -> None:
    css = (root / "src/scalebook/report/site/assets/scalebook.css").read_text()
    rules = re.findall(r"([^{}]+)\{[^{}]*opacity: (0?\.\d+)", css)
    # what a filter leaves out, and a button that does nothing
    assert {rule.strip() for rule, _ in rules} == {
        ".sb-chart .sb-dim",
        ".pager button:disabled",
    }


def test_there_are_as_many_colours_as_curves_in_both_themes() -> None:
    assert {len(palette) for palette in PALETTE.values()} == {MAX_RUNS}
    assert set(configs()) == {"light", "dark"}


def test_steps_that_took_no_time_have_no_steadiness(tmp_path: Path) -> None:
    write_run(tmp_path, "still", config(), seconds=0.0)
    write_run(tmp_path, "moves", config(world_size=2))
    data = load(tmp_path)
    figure = charts.steadiness(data.measured_steps, data.runs)
    assert figure is not None
    assert {row["run_id"] for row in data_rows(figure.spec())} == {"moves"}
    json.dumps(figure.spec(), allow_nan=False)
