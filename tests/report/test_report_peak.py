"""The peak page: the best run of each group, held against dense peaks alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from simulated import H100, config, write_run, write_sample
from test_report_findings import words

from scalebook.report.base import comparisons, frames
from scalebook.report.base import html_tables as tables
from scalebook.report.base import scaling_series as series
from scalebook.report.base.frames import load
from scalebook.report.base.stated import Stated
from scalebook.report.base.versus import Configuration, configurations
from scalebook.report.pages import peak_page, run_findings, side_by_side

BIG: dict[str, Any] = {
    "platform": "h100", "model": "llama3.1-8b", "precision": "bf16", "sequence_length": 4096,
    "world_size": 8, "global_batch_size": 64,
}  # fmt: skip


def write_three(folder: Path) -> None:
    """Write three configurations of 8 GPUs, and one of 16 that is slower per GPU."""
    for name, seconds, changes in (
        ("middle", 4.0, {"tensor_parallel_size": 2}), ("fast", 3.0, {}),
        ("slow", 6.0, {"tensor_parallel_size": 4}),
        ("wide", 2.0, {"world_size": 16, "nodes": 2}),
    ):  # fmt: skip
        write_run(folder, name, config(**(BIG | changes)), seconds=seconds, device=H100)


def bars(figure: Any) -> list[dict[str, Any]]:
    return figure.spec()["data"]["values"]


def test_the_best_of_a_group_has_the_most_tokens_per_gpu(tmp_path: Path) -> None:
    write_three(tmp_path)
    data = load(tmp_path)
    assert peak_page.best(data)["run_id"].to_list() == ["fast"]
    (bar,) = bars(peak_page.panel(data, "each"))
    assert bar["run_id"] == "fast"
    assert bar["value"] == pytest.approx(data.runs["tokens_per_second_per_gpu"].max(), rel=1e-4)


def test_panels_of_totals_are_of_the_run_with_the_most_in_all(tmp_path: Path) -> None:
    write_three(tmp_path)
    data = load(tmp_path)
    for name in ("total", "compute", "day"):
        (bar,) = bars(peak_page.panel(data, name))
        assert bar["run_id"] == "wide"
    (bar,) = bars(peak_page.panel(data, "day"))
    rate = data.runs["tokens_per_second"].max()
    assert bar["value"] == pytest.approx(rate * 86_400 / 1e9, rel=1e-4)  # type: ignore[operator]


def test_the_peak_beside_a_rate_is_the_dense_one(tmp_path: Path) -> None:
    write_three(tmp_path)
    (bar,) = bars(peak_page.panel(load(tmp_path), "rate"))
    assert bar["limit"] == 989.4  # dense BF16 of an H100 SXM; 1,979 is with sparsity
    (bar,) = bars(peak_page.panel(load(tmp_path), "memory"))
    assert bar["limit"] == 80


def test_utilisation_is_the_rate_over_the_peak(tmp_path: Path) -> None:
    write_three(tmp_path)
    data = load(tmp_path)
    (mfu,) = bars(peak_page.panel(data, "mfu"))
    (rate,) = bars(peak_page.panel(data, "rate"))
    assert mfu["value"] == pytest.approx(rate["value"] / 989.4, rel=1e-4)


def test_every_configuration_is_a_point_of_the_spread(tmp_path: Path) -> None:
    write_three(tmp_path)
    data = load(tmp_path)
    figure = peak_page.spread(data)
    assert figure is not None
    layer = figure.spec()["layer"][-1]
    values = layer["data"]["values"] if "data" in layer else figure.spec()["data"]["values"]
    assert {value["run_id"] for value in values} == {"fast", "middle", "slow", "wide"}


@pytest.mark.parametrize(
    ("half", "shown"),
    [(0.008, "5,890,000"), (0.04, "5,890,000"), (0.0006, "5,889,000"), (None, "5,890,000")],
)
def test_a_capacity_has_the_digits_that_its_rate_is_known_to(half: float, shown: str) -> None:
    ends = {
        "rate_low": None if half is None else 69_798 * (1 - half),
        "rate_high": None if half is None else 69_798 * (1 + half),
    }
    seen = {f"run_tokens_per_second_{end.removeprefix('rate_')}": ends[end] for end in ends}
    row = {"run_id": "one", "platform": "h100", "rate": 69_798.0, **ends, **seen}
    row["tokens_per_second"] = 69_798.0
    assert Configuration((row,)).derived(5_889_233) == shown


def write_repeats(folder: Path) -> None:
    """Write three repeats on an H100, the fastest too short for an interval, and an MI300X."""
    for i, (seconds, steps) in enumerate(((4.0, 60), (4.1, 60), (3.9, 8))):
        made = config(**BIG, repeat=i)
        write_run(folder, f"h-{i}", made, seconds=seconds, steps=steps, device=H100)
    amd = config(**(BIG | {"platform": "mi300x"}))
    write_run(folder, "amd", amd, seconds=2.0, steps=60, device="AMD Instinct MI300X OAM")


def test_repeats_are_one_rate_and_one_name_on_every_page(tmp_path: Path) -> None:
    write_repeats(tmp_path)
    data = load(tmp_path)
    rows = data.runs.filter(platform="h100").iter_rows(named=True)
    (one,) = configurations(rows)
    assert [row["run_id"] for row in one.runs] == ["h-0", "h-1"]
    assert [row["run_id"] for row in one.left_out] == ["h-2"]
    low, high = one.interval
    assert low is not None and high is not None and low < one.rate < high
    said = f"{one.rate:,.0f} tokens/s per GPU ({low:,.0f} to {high:,.0f})"
    rows = comparisons.ranked(data)
    pairs = comparisons.platform_pairs(rows)
    compared = words(side_by_side.chooser(rows, Stated()))
    text = words(run_findings.throughput(data))
    assert said in text
    assert "DP8 on 8 GPUs (h-0, h-1; without an interval and left out: h-2)" in text
    assert "repeat 2" not in text
    sides = {
        tuple(row["run_id"] for row in side.runs) for pair in pairs for side in (pair.a, pair.b)
    }
    assert sides == {("h-0", "h-1"), ("amd",)}
    assert "h-0, h-1" in compared
    assert "repeat" not in compared.replace("more repeats", "")
    assert peak_page.best(data)["run_id"].to_list() == ["amd", "h-0"]


def test_an_unknown_device_has_no_utilisation_and_says_why(tmp_path: Path) -> None:
    write_run(tmp_path, "odd", config(**BIG), device="NVIDIA X999")
    data = load(tmp_path)
    assert peak_page.panel(data, "mfu") is None
    (bar,) = bars(peak_page.panel(data, "memory"))
    assert bar["limit"] is None
    reason = data.runs["mfu_reason"][0]
    assert reason.split(":")[0] in words(peak_page.best_table(data))


def test_processes_of_a_cpu_stand_beside_no_gpu(tmp_path: Path) -> None:
    data = load(write_sample(tmp_path))
    assert set(peak_page.field(data)["platform"]) == {"h100"}
    assert "5 runs on a CPU left out" in words(peak_page.left_out(data))


def test_runs_on_a_cpu_alone_are_shown_and_say_so(tmp_path: Path) -> None:
    write_run(tmp_path, "one", config())
    (bar,) = bars(peak_page.panel(load(tmp_path), "total"))
    assert bar["platform"] == "CPU"


def test_every_panel_compiles_to_a_picture(tmp_path: Path) -> None:
    data = load(write_sample(tmp_path))
    figures = [peak_page.panel(data, name) for name in peak_page.PANELS]
    figures.append(peak_page.spread(data))
    assert len(figures) == 9
    for figure in figures:
        assert figure is not None
        assert figure.picture().startswith("<svg")
        assert figure.description.endswith(".")


def test_no_run_is_a_sentence_and_not_an_error(tmp_path: Path) -> None:
    data = frames.collect(tmp_path, (), ())
    text = words(peak_page.left_out(data))
    assert text == "No run has a throughput that can be ranked, so there is no best."
    assert [peak_page.panel(data, name) for name in peak_page.PANELS] == [None] * 8
    assert peak_page.spread(data) is None
    assert words(peak_page.best_table(data)) == ""


def test_runs_of_an_unknown_model_or_platform_are_ranked_and_scaled_nowhere(
    tmp_path: Path,
) -> None:
    write_run(tmp_path, "known", config(**BIG), seconds=3.0, device=H100)
    for name in ("platform", "model"):
        for size in (8, 16):
            # twice the GPUs at the same batch: the two would scale and rank well
            made = config(**BIG | {"world_size": size, "nodes": size // 8})
            directory = write_run(tmp_path, f"no-{name}-{size}", made, seconds=24 / size)
            record = json.loads((directory / "record.json").read_text())
            del record["requested"][name]
            (directory / "record.json").write_text(json.dumps(record))
    data = load(tmp_path)
    assert data.runs["group"].n_unique() == 5
    assert data.ranked["run_id"].to_list() == ["known"]
    assert series.scaling_series(data.completed) == ()
    assert peak_page.best(data)["run_id"].to_list() == ["known"]
    texts = [words(page) for page in (peak_page.left_out(data),
        run_findings.throughput(data), series.not_enough(data, ()))]  # fmt: skip
    for text in texts:
        assert "2 runs are not compared with any other: the model is unknown" in text
        assert "2 runs are not compared with any other: the platform is unknown" in text
        assert "on cpu" not in text


def test_a_group_without_one_rate_is_left_out_and_fails_nothing(tmp_path: Path) -> None:
    directory = write_run(tmp_path, "unsized", config(**BIG), seconds=3.0, device=H100)
    record = json.loads((directory / "record.json").read_text())
    record["requested"]["world_size"] = "eight"
    (directory / "record.json").write_text(json.dumps(record))
    data = load(tmp_path)
    assert data.completed["rate"].to_list() == [None]
    assert peak_page.best(data, "tokens_per_second").is_empty()
    assert peak_page.panel(data, "total") is None
    assert "No run has a throughput that can be ranked" in words(peak_page.left_out(data))
    assert "The number of ranks of unsized is not recorded" in words(peak_page.left_out(data))


def test_whole_models_come_before_the_first_layers_of_one_in_every_panel(tmp_path: Path) -> None:
    write_run(tmp_path, "middle", config(**BIG), seconds=9.0, device=H100)
    cut = config(**BIG | {"model": "llama3.1-8b@8"})
    write_run(tmp_path, "fast", cut, seconds=1.0, device=H100)
    data = load(tmp_path)
    for name in ("total", "mfu", "each"):
        assert [bar["run_id"] for bar in bars(peak_page.panel(data, name))] == ["middle", "fast"]
    assert peak_page.best(data)["run_id"].to_list() == ["middle", "fast"]


def test_the_model_of_most_runs_comes_first_whatever_its_rate(tmp_path: Path) -> None:
    made = {"platform": "h100", "precision": "bf16", "sequence_length": 4096}
    for name, model, seconds in (("a", "llama3.2-1b", 1.0), ("b", "llama3.1-8b", 8.0),
                                 ("c", "llama3.1-8b", 9.0)):  # fmt: skip
        settings = config(**made, model=model, micro_batch_size=2 if name == "c" else 1)
        write_run(tmp_path, name, settings, seconds=seconds, device=H100, source="measured")
    text = str(peak_page.best_table(load(tmp_path)))
    found = re.findall(r"Llama 3\.[12] \dB", text)
    assert found[0] == "Llama 3.1 8B"
    assert peak_page.best(load(tmp_path))["model"].to_list() == ["llama3.2-1b", "llama3.1-8b"]


def test_precision_and_sequence_are_in_the_main_tables(tmp_path: Path) -> None:
    made = config(**BIG | {"precision": "fp8"})
    write_run(tmp_path, "eight-bit", made, seconds=3.0, device=H100, source="measured")
    data = load(tmp_path)
    shown = (tables.all_runs(data.runs), peak_page.best_table(data))
    for page in shown:
        html = str(page)
        assert '<td class="txt" data-value="fp8">FP8</td>' in html
        assert '<td class="num" data-value="4096">4,096</td>' in html
