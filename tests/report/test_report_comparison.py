"""The comparison page: matched and best apart, verdicts with intervals, each switch's worth."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from simulated import H100, config, write_run

from scalebook.measure.verdicts import differences as verdict_differences
from scalebook.report.base import comparisons
from scalebook.report.base.comparisons import Pair, platform_pairs, ranked
from scalebook.report.base.frames import load
from scalebook.report.base.html_tables import Row
from scalebook.report.base.markup import Markup
from scalebook.report.base.stated import Stated, read_stated
from scalebook.report.pages import comparison_page, cost_page, side_by_side
from scalebook.report.site.rendering import ASSETS
from scalebook.store import read_record

MI300X = "AMD Instinct MI300X OAM"
EVIL = "<img src=x onerror=alert(1)>"
JOB = {
    "model": "llama3.1-8b",
    "world_size": 8,
    "global_batch_size": 8,
    "sequence_length": 2048,
    "precision": "bf16",
}


def rows_of(spec: Any) -> Iterator[dict[str, Any]]:
    """Yield every row of data with a ratio in a chart."""
    for value in spec.values() if isinstance(spec, dict) else spec:
        if isinstance(value, dict) and "change" in value and "label" in value:
            yield value
        elif isinstance(value, dict | list):
            yield from rows_of(value)


def words(fragment: Any) -> str:
    text = Markup(re.sub(r"\s+", " ", str(fragment).replace("<", " <"))).striptags()
    return re.sub(r" +", " ", text.replace("\N{NO-BREAK SPACE}", " "))


def job(platform: str, **changes: Any) -> Any:
    return config(**(JOB | {"platform": platform} | changes))


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """An H100 is twice as fast in the split that both ran; the MI300X ran a better one alone."""
    write_run(tmp_path, "h-tp2", job("h100", tensor_parallel_size=2), seconds=1.0, device=H100)
    write_run(tmp_path, "m-tp2", job("mi300x", tensor_parallel_size=2), seconds=2.0, device=MI300X)
    write_run(tmp_path, "m-dp8", job("mi300x"), seconds=0.5, device=MI300X)
    return tmp_path


def compared(folder: Path) -> tuple[tuple[Row, ...], tuple[Pair, ...]]:
    rows = ranked(load(folder))
    return rows, platform_pairs(rows)


def test_matched_configurations_and_the_best_of_each_are_kept_apart(two: Path) -> None:
    _, found = compared(two)
    by_kind = {pair.kind: pair for pair in found}
    assert set(by_kind) == {"matched configuration", "best against best"}
    runs = {kind: {row["run_id"] for row in pair.rows} for kind, pair in by_kind.items()}
    assert runs["matched configuration"] == {"h-tp2", "m-tp2"}
    assert runs["best against best"] == {"h-tp2", "m-dp8"}


def test_a_run_from_before_a_setting_existed_ran_with_its_default(tmp_path: Path) -> None:
    write_run(tmp_path, "old", job("h100"), seconds=1.0, device=H100)
    write_run(tmp_path, "new", job("h200"), seconds=1.0, device="NVIDIA H200")
    path = tmp_path / "old" / "record.json"
    record = json.loads(path.read_text())
    for name in ("gradient_precision", "offload_layers", "last_pipeline_stage_layers"):
        del record["requested"][name]
    path.write_text(json.dumps(record))
    _, found = compared(tmp_path)
    matched = next(pair for pair in found if pair.kind == "matched configuration")
    names = {item.name for item in matched.differences}
    assert "platform" in names
    assert not names & {"gradient_precision", "offload_layers", "last_pipeline_stage_layers"}


def test_the_verdict_is_said_with_the_ends_of_its_interval(two: Path) -> None:
    items, found = compared(two)
    (matched,) = (pair for pair in found if pair.kind == "matched configuration")
    verdict = matched.verdict
    assert verdict is not None
    first, second = matched.a.row, matched.b.row
    assert verdict.low < first["rate"] / second["rate"] < verdict.high
    word = "faster" if verdict.low > 1 else "slower"
    ends = f"{verdict.low:.3f} to {verdict.high:.3f}"
    text = words(side_by_side.chooser(items, Stated()))
    assert f"{ends}, {word}" in text
    assert "cannot tell" not in text
    table = str(comparisons.per_basis((matched,), Stated()))
    assert ends in table
    assert f'data-value="{word}"' in table


def test_everything_that_differs_beside_the_gpu_is_listed(two: Path) -> None:
    (two / "h-tp2" / "record.json").write_text(
        (two / "h-tp2" / "record.json")
        .read_text()
        .replace('"accelerator":', '"nccl": "2.28.9", "accelerator":')
    )
    _, found = compared(two)
    (matched,) = (pair for pair in found if pair.kind == "matched configuration")
    assert {one.name for one in matched.differences} == {"accelerator", "nccl", "platform"}
    assert "2.28.9" in words(comparison_page.differing(found))


def test_of_what_differs_beside_the_gpu_its_own_facts_are_not_counted(tmp_path: Path) -> None:
    for name, platform, device, memory, torch in (
        ("h", "h100", H100, 79.1, "2.11.0"),
        ("m", "mi300x", MI300X, 191.9, "2.11.0"),
    ):
        stood_on = {"accelerator": device, "accelerator_memory_gib": memory, "torch": torch}
        write_run(tmp_path, name, job(platform), device=device, environment=stood_on)
    items, found = compared(tmp_path)
    assert {len(pair.differences) for pair in found} == {3}
    assert "nothing else that was recorded." in words(side_by_side.chooser(items, Stated()))
    assert "Nothing that the runs recorded differs" in words(comparison_page.differing(found))


@pytest.mark.parametrize(("ranks", "ending"), [(1, "sequence 2,048"), (8, "sequence 2,048, DP8")])
def test_the_number_of_ranks_is_in_a_title_once(tmp_path: Path, ranks: int, ending: str) -> None:
    write_run(tmp_path, "h", job("h100", world_size=ranks), seconds=4.0, device=H100)
    write_run(tmp_path, "m", job("mi300x", world_size=ranks), seconds=4.0, device=MI300X)
    _, found = compared(tmp_path)
    (matched,) = (pair for pair in found if pair.kind == "matched configuration")
    assert comparisons.title(matched).endswith(f"BF16, {ending}")


def test_dividing_by_prices_and_peaks_follows_by_hand(two: Path) -> None:
    (two / "economics.toml").write_text(
        "[h100]\nprice_per_gpu_hour = 3.6\n[mi300x]\nprice_per_gpu_hour = 1.8\n"
    )
    _, found = compared(two)
    (pair,) = (pair for pair in found if pair.kind == "matched configuration")
    rows = {row["per"]: row for row in comparisons.basis_rows(pair, read_stated(two))}
    ratio = rows["GPU"]["ratio"]
    on_h100 = pair.a.row["platform"] == "h100"
    rate = pair.a.row["tokens_per_second"] / 8
    assert rows["GPU"]["a"] == pytest.approx(rate)
    assert rows["price"]["a"] == pytest.approx(rate * 3600 / (3.6 if on_h100 else 1.8))
    assert rows["price"]["ratio"] == pytest.approx(ratio / 2 if on_h100 else ratio * 2)
    # dense bf16 peaks: 989.4 and 1,307.4 TFLOP/s
    factor = 1307.4 / 989.4 if on_h100 else 989.4 / 1307.4
    assert rows["peak FLOP"]["ratio"] == pytest.approx(ratio * factor, rel=1e-3)
    assert rows["peak FLOP"]["low"] / rows["GPU"]["low"] == pytest.approx(factor, rel=1e-3)


def test_without_a_price_or_a_power_the_cell_is_empty_and_says_why(two: Path) -> None:
    _, found = compared(two)
    for pair in found:
        rows = {row["per"]: row for row in comparisons.basis_rows(pair, Stated())}
        assert rows["price"]["ratio"] is None
        assert rows["price"]["reason"].startswith("no price is stated")
        assert rows["watt"]["reason"].startswith("power was not measured")


def test_stated_numbers_that_cannot_be_are_refused_with_words(tmp_path: Path) -> None:
    text = 'pue = 0.5\nrent = 3\n[h100]\nprice_per_gpu_hour = "-2"\nwatts_per_gpu = "700..900"\n'
    (tmp_path / "economics.toml").write_text(text)
    stated = read_stated(tmp_path)
    assert stated.shared == {}
    assert set(stated.platforms["h100"]) == {"watts_per_gpu"}
    assert len(stated.problems) == 3
    (tmp_path / "economics.toml").write_text("[h100\n")
    assert "cannot be read" in read_stated(tmp_path).problems[0]


def test_one_platform_alone_is_a_sentence(tmp_path: Path) -> None:
    write_run(tmp_path, "one", config(), source="measured")
    items, found = compared(tmp_path)
    assert comparison_page.chart(found) is None
    text = words(comparison_page.overview(items, found))
    assert text.strip() == "All runs with a throughput are of CPU: there is no second side."


def test_no_run_at_all_is_a_sentence(tmp_path: Path) -> None:
    write_run(tmp_path, "none", config(), status="failed", reason="It broke.")
    items, found = compared(tmp_path)
    assert "nothing to compare" in words(comparison_page.overview(items, found))
    assert "No two runs differ" in words(
        comparison_page.ablation_overview(comparison_page.ablations(items))
    )
    assert "No group" in words(comparison_page.against_best(load(tmp_path)))


def test_names_of_runs_are_never_markup(two: Path) -> None:
    write_run(two, "x", job("h100"), seconds=0.2, device=H100, run_id=EVIL)
    items, found = compared(two)
    html = "".join(
        str(part)
        for part in (
            comparison_page.overview(items, found),
            comparison_page.differing(found),
            comparison_page.against_best(load(two)),
            comparisons.per_basis(found, Stated()),
        )
    )
    figure = comparison_page.chart(found)
    assert figure is not None
    assert "<img" not in html + figure._repr_markdown_()
    assert "&lt;img" in html


@pytest.fixture
def switched(tmp_path: Path) -> Path:
    """All on 1 s, without attention 1.5 s, without norms 1 s, all off 3 s."""
    off = {"fused_attention": "off", "fused_norm": "off", "fused_rope": "off"}
    for name, changes, seconds in (
        ("on", {}, 1.0),
        ("no-attention", {"fused_attention": "off"}, 1.5),
        ("no-norm", {"fused_norm": "off"}, 1.0),
        ("off", off, 3.0),
    ):
        ran = {key: changes.get(key, "on") for key in off}
        settings = job("h100", **changes)
        write_run(tmp_path, name, settings, seconds=seconds, device=H100, observed=ran, steps=60)
    return tmp_path


def test_the_optimised_run_is_the_one_that_others_differ_from_in_one_switch(switched: Path) -> None:
    (found,) = comparison_page.ablations(ranked(load(switched)))
    assert [row["run_id"] for row in found.optimised.runs] == ["on"]
    assert [item.name for item in found.switches] == ["fused_attention", "fused_norm"]
    assert found.plain is not None
    assert set(found.plain_changes) == {"fused_attention", "fused_norm", "fused_rope"}


def test_a_switch_is_worth_the_ratio_of_the_rates_with_its_interval(switched: Path) -> None:
    items = ranked(load(switched))
    (found,) = comparison_page.ablations(items)
    attention, norm = (item.verdict for item in found.switches)
    assert attention is not None and norm is not None
    assert attention.word == "faster"
    assert attention.low < 1.5 < attention.high
    assert norm.word == "cannot tell"
    text = words(comparison_page.ablation_overview((found,)))
    assert "Certainly faster with: fused attention: on, not off" in text
    assert "Undecided: fused norm: on or off." in text


def test_the_chart_of_switches_shows_what_the_table_holds(switched: Path) -> None:
    found = comparison_page.ablations(ranked(load(switched)))
    figures, bars = comparison_page.worth(found), comparison_page.bars(found)
    assert figures is not None and bars is not None
    html = str(comparison_page.switches(found))
    values = list(rows_of(figures.parts[0][1].spec()))
    assert {row["label"] for row in values} == {item.label for item in found[0].switches}
    for row in values:
        shown = [float(value) for value in re.findall(r'data-value="([-0-9.e]+)"', html)]
        assert any(value == pytest.approx(row["change"], rel=1e-5) for value in shown)
        assert row["source"] == "simulated"
    assert "baseline: several changed" in bars.parts[0][1].description


def test_a_switch_left_open_on_both_sides_is_no_change(tmp_path: Path) -> None:
    for name, ran in (("a", "on"), ("b", "off")):
        seen = {"fused_norm": ran}
        write_run(tmp_path, name, job("h100"), device=H100, observed=seen)
    assert comparison_page.ablations(ranked(load(tmp_path))) == ()


def switches_of(folder: Path) -> dict[str, set[str]]:
    """Return the runs with one option changed by the name of their ablation."""
    found = comparison_page.ablations(ranked(load(folder)))
    return {one.name: {item.pair.b.row["run_id"] for item in one.switches} for one in found}


@pytest.mark.parametrize(
    ("setting", "version"),
    [
        ({}, {"megatron_core": "0.19.2"}),
        ({}, {"torch": "2.12.0"}),
        ({}, {"transformer_engine": "2.20.2"}),
        ({"last_pipeline_stage_layers": 8}, {}),
        ({"expert_tensor_parallel_size": 2}, {}),
        ({"nodes": 2}, {}),
    ],
)
def test_runs_that_differ_in_more_than_a_switch_say_nothing_of_its_worth(
    tmp_path: Path, setting: dict[str, Any], version: dict[str, str]
) -> None:
    usual = {"accelerator": H100, "torch": "2.11.0", "megatron_core": "0.16.1"}
    write_run(tmp_path, "on", job("h100"), observed={"layer_spec": "torch"}, environment=usual)
    other = job("h100", layer_spec="transformer_engine", **setting)
    write_run(tmp_path, "off", other, environment=usual | version)
    assert switches_of(tmp_path) == {}
    alone = job("h100", layer_spec="transformer_engine")
    write_run(tmp_path, "alone", alone, environment=usual)
    assert list(switches_of(tmp_path).values()) in ([{"alone"}], [{"on"}])


def test_steps_seed_and_learning_rate_leave_a_switch_its_worth(tmp_path: Path) -> None:
    write_run(tmp_path, "on", job("h100"), device=H100)
    other = job("h100", recompute="full", steps=30, seed=7, learning_rate=1e-4)
    write_run(tmp_path, "off", other, device=H100)
    assert set.union(*switches_of(tmp_path).values()) <= {"on", "off"}
    assert len(switches_of(tmp_path)) == 1


def test_ablations_of_one_work_are_named_by_what_tells_them_apart(tmp_path: Path) -> None:
    for size in (1, 2):
        for recompute in ("none", "full"):
            made = job("h100", micro_batch_size=size, recompute=recompute)
            write_run(tmp_path, f"{size}-{recompute}", made, device=H100)
    head = "Llama 3.1 8B on H100 [simulated], DP8 on 8 GPUs, BF16, sequence 2,048"
    assert set(switches_of(tmp_path)) == {f"{head}, micro batch 1", f"{head}, micro batch 2"}


def test_ablations_on_two_versions_are_named_by_them(tmp_path: Path) -> None:
    for version in ("0.16.1", "0.19.2"):
        for recompute in ("none", "full"):
            made = job("h100", recompute=recompute)
            stood_on = {"accelerator": H100, "megatron_core": version}
            write_run(tmp_path, f"{version}-{recompute}", made, environment=stood_on)
    names = set(switches_of(tmp_path))
    assert {name.rpartition(", ")[2] for name in names} == {
        "megatron-core 0.16.1",
        "megatron-core 0.19.2",
    }


def test_long_names_in_a_chart_are_shown_to_their_end(tmp_path: Path) -> None:
    for platform, device, factor in (("h100", H100, 1.0), ("mi300x", MI300X, 2.0)):
        for size, length in ((32, 2048), (64, 4096)):
            changes = {"gradient_precision": "bf16", "offload_layers": 2, "recompute": "full"}
            made = job(platform, global_batch_size=size, sequence_length=length, **changes)
            write_run(tmp_path, f"{platform}-{size}", made, seconds=factor, device=device)
            usual = job(platform, global_batch_size=size, sequence_length=length)
            write_run(tmp_path, f"{platform}-{size}-usual", usual, seconds=4, device=device)
    _, found = compared(tmp_path)
    figures = comparison_page.chart(found)
    assert figures is not None
    picture = figures.parts[0][1].picture()
    assert "2 layers offloaded" in picture
    assert "…" not in picture


def panels(folder: Path) -> list[side_by_side.TwoSides]:
    return side_by_side.panels(ranked(load(folder)))


def chooser(folder: Path) -> str:
    items = ranked(load(folder))
    return str(side_by_side.chooser(items, read_stated(folder)))


def test_a_reader_begins_with_the_two_platforms_of_the_most_matched_pairs(two: Path) -> None:
    device = "NVIDIA H200"
    for name, size in (("x-tp4", 4), ("x-tp8", 8)):
        write_run(two, name, job("h200", tensor_parallel_size=size), device=device)
        write_run(two, f"h{name}", job("h100", tensor_parallel_size=size), device=H100)
    first = panels(two)[0]
    assert ({first.a.name, first.b.name}, len(first.of("matched configuration"))) == (
        {"H100 [simulated]", "H200 [simulated]"},
        2,
    )
    shown = re.findall(r'<section class="sb-panel" data-by="(\w+)"[^>]*?( hidden)?>', chooser(two))
    assert next(hidden for _, hidden in shown) == ""
    assert all(hidden for _, hidden in shown[1:])


def test_two_models_match_where_only_the_model_differs_and_never_across_platforms(
    tmp_path: Path,
) -> None:
    write_run(tmp_path, "a", job("h100"), device=H100)
    write_run(tmp_path, "b", job("h100", model="qwen2.5-7b"), device=H100)
    write_run(tmp_path, "c", job("mi300x", model="qwen2.5-7b"), device=MI300X)
    (models,) = (one for one in panels(tmp_path) if one.by.key == "model")
    runs = [{row["run_id"] for row in pair.rows} for pair in models.of("matched configuration")]
    assert runs == [{"a", "b"}]


def test_a_panel_says_what_it_compares_with_the_numbers_of_the_page(two: Path) -> None:
    (platforms,) = (one for one in panels(two) if one.by.key == "platform")
    (pair,) = platforms.of("matched configuration")
    verdict = pair.verdict
    assert verdict is not None
    text = words(fragment(chooser(two)))
    a, b = pair.name_a, pair.name_b
    told = f"{verdict.ratio:.2f}× ({verdict.low:.2f} to {verdict.high:.2f})"
    assert f"{a} is {told} as fast as {b}" in text
    assert f"{verdict.low:.3f} to {verdict.high:.3f}, {verdict.word}" in text


def fragment(html: str) -> Any:
    return Markup(html)


def test_the_run_that_would_make_a_matched_pair_is_named_with_its_side(two: Path) -> None:
    text = words(fragment(chooser(two)))
    # the MI300X ran DP8 alone: on the H100 the same would match
    assert re.search(r"What is missing : repeat m-dp8 \(DP8 [^)]*\) on H100", text)
    write_run(two, "h-dp8", job("h100"), seconds=1.0, device=H100)
    assert "nothing: each side ran the other" in words(fragment(chooser(two)))


def test_what_a_price_buys_is_that_of_the_cost_page(two: Path) -> None:
    (two / "economics.toml").write_text(
        '[h100]\nprice_per_gpu_hour = "2..3"\n[mi300x]\nprice_per_gpu_hour = 1.8\n'
    )
    stated = read_stated(two)
    (platforms,) = (one for one in panels(two) if one.by.key == "platform")
    (pair,) = platforms.of("matched configuration")
    on_h100 = next(s for s in (pair.a, pair.b) if s.row["platform"] == "h100")
    inputs = side_by_side.side_inputs(on_h100, stated)
    value = comparisons.answer("tokens_per_dollar", inputs).value
    rate = inputs.tokens_per_second
    assert value is not None
    assert rate is not None
    assert value.low == pytest.approx(rate.low * 3600 / (8 * 3))
    assert value.high == pytest.approx(rate.high * 3600 / (8 * 2))
    assert cost_page.shown(value) in chooser(two)
    assert 'data-price="h100" value="2..3"' in chooser(two)


def test_a_name_of_a_side_is_never_markup(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path, name, job("h100"), device=H100)
        path = tmp_path / name / "record.json"
        record = json.loads(path.read_text())
        record["schedule"] = {"plan": f"{EVIL}{name}"}
        path.write_text(json.dumps(record))
    html = chooser(tmp_path)
    assert "<img" not in html
    assert "&lt;img" in html


CHOOSE = """
for (const [choice, value] of CHOICES) {
  const menu = document.querySelector(`select[data-choice=${choice}]`);
  menu.value = value;
  menu.dispatchEvent(new Event("change"));
}
for (const [platform, price] of PRICES) {
  const field = document.querySelector(`input[data-price=${platform}]`);
  field.value = price;
  field.dispatchEvent(new Event("input"));
}"""


def seen_by_a_reader(
    folder: Path, choices: list[tuple[str, str]], prices: list[tuple[str, str]]
) -> str:
    """Return the page after a reader has chosen sides and typed prices in Chromium."""
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next((path for name in names if (path := shutil.which(name))), None)
    if browser is None:
        pytest.skip("Chromium is not installed")
    scripts = [(ASSETS / name).read_text() for name in ("cost.js", "compare.js")]
    act = CHOOSE.replace("CHOICES", json.dumps(choices)).replace("PRICES", json.dumps(prices))
    scripts.append(f"document.addEventListener('DOMContentLoaded', () => {{{act}}})")
    page = folder / "page.html"
    page.write_text(
        f'<!DOCTYPE html><meta charset="utf-8">{chooser(folder)}'
        + "".join(f"<script>{script}</script>" for script in scripts)
    )
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
        f"--user-data-dir={folder / '.profile'}", "--dump-dom", page.as_uri()]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def open_panels(html: str) -> list[str]:
    found = re.findall(r'<section class="sb-panel"([^>]*)>(.*?)</section>', html, re.DOTALL)
    return [words(fragment(body)) for about, body in found if "hidden" not in about]


def test_a_price_gives_one_result_with_the_script_and_without_it(two: Path) -> None:
    (two / "economics.toml").write_text(
        '[h100]\nprice_per_gpu_hour = "2.1..2.6"\n[mi300x]\nprice_per_gpu_hour = 1.8\n'
    )
    without = open_panels(chooser(two))
    assert open_panels(seen_by_a_reader(two, [], [])) == without
    (two / "economics.toml").unlink()
    assert open_panels(chooser(two)) != without
    typed = seen_by_a_reader(two, [], [("h100", "2.1..2.6"), ("mi300x", "1.8")])
    assert open_panels(typed) == without


def test_columns_of_prices_are_shown_once_a_price_is_typed(two: Path) -> None:
    def headings(*prices: tuple[str, str]) -> list[str]:
        page = seen_by_a_reader(two, [], [*prices])
        heads = re.findall(r"<th [^>]*>.*?</th>", page.partition("sb-panel")[2], re.DOTALL)
        return [words(head) for head in heads if " hidden" not in head.partition(">")[0]]

    priced = headings(("h100", "2"))
    assert [head for head in priced if "rice" not in head] == headings()
    assert len(priced) > len(headings())


def test_a_reader_sees_the_two_sides_that_are_chosen_in_either_order(two: Path) -> None:
    write_run(two, "x", job("h200", tensor_parallel_size=2), device="NVIDIA H200")
    sides = ["H200 [simulated]", "MI300X [simulated]"]
    for a, b in (sides, sides[::-1]):
        (panel,) = open_panels(seen_by_a_reader(two, [("a", a), ("b", b)], []))
        assert panel.split(" Matched")[0] in {f"{a} against {b}", f"{b} against {a}"}
    same = seen_by_a_reader(two, [("a", sides[0]), ("b", sides[0])], [])
    assert open_panels(same) == []
    assert 'data-none="">These two are one and the same' in same


def test_the_settings_of_a_side_are_gathered_once_and_never_mistaken_for_those_of_its_namesake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "x", "one", config(micro_batch_size=1), run_id="one")
    write_run(tmp_path / "y", "one", config(micro_batch_size=2), run_id="one")
    first, second = (read_record(tmp_path / name / "one") for name in "xy")
    seen: list[object] = []
    whole = verdict_differences._settings
    monkeypatch.setattr(
        verdict_differences, "_settings", lambda record: [seen.append(record), whole(record)][1]
    )
    for _ in range(3):
        found = verdict_differences.differences([first], [second])
        assert "micro_batch_size" in {one.name for one in found}
    assert len(seen) == 2
