"""The first screen answers seven questions, and every kind of plan has its form of answer."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from simulated import H100, config, write_run, write_sample

from scalebook.cli import main
from scalebook.facts import catalog
from scalebook.measure.reliability import DRILL_FILE, DrillRecord
from scalebook.plan.document import KINDS
from scalebook.report import Places, build
from scalebook.report.base import comparisons, sections
from scalebook.report.base.frames import load
from scalebook.report.base.markup import Markup
from scalebook.report.base.naming import (
    apart,
    brief,
    changes_in_words,
    model_title,
    platform_title,
    titled,
    typed,
)
from scalebook.report.charts import css_charts
from scalebook.report.charts.css_charts import Dot
from scalebook.report.charts.figure import data_rows
from scalebook.report.charts.theme import FAINT, PALETTE
from scalebook.report.pages import curves_page, front, studies
from scalebook.settings import SETTINGS, SWITCHES
from scalebook.store import write_json

WHOLE: dict[str, Any] = {
    "platform": "h100", "model": "llama3.1-8b", "precision": "bf16", "sequence_length": 8192,
    "world_size": 8, "global_batch_size": 128,
}  # fmt: skip
MOST_WORDS = 25
NAMES = ("chromium", "chromium-browser", "google-chrome")


def asked(kind: str, question: str = "Is it so?") -> dict[str, Any]:
    return {"schedule": {"plan": f"my-{kind}", "kind": kind, "question": question}}


def wrote(runs: Path, name: str, kind: str, seconds: float = 12.0, **changes: Any) -> Path:
    """Write a run of the whole model on eight H100 GPUs for a plan of a kind."""
    device = H100 if changes.get("platform", "h100") == "h100" else "NVIDIA H200"
    names = ("status", "steps", "reason", "observed")
    more = {key: changes.pop(key) for key in names if key in changes}
    made = config(**(WHOLE | changes))
    return write_run(
        runs, name, made, seconds=seconds, device=device, source="measured", **more, **asked(kind)
    )


def sentences(html: object) -> list[str]:
    """Return the sentences of the running text: paragraphs, without tables and charts."""
    text = re.sub(r"<(table|ol|ul|summary|small)\b.*?</\1>", "", str(html), flags=re.DOTALL)
    text = re.sub(r'<p class="(head|foot|note|sb-unit)".*?</p>', "", text, flags=re.DOTALL)
    found = re.findall(r"<p[^>]*>(.*?)</p>", text, flags=re.DOTALL)
    plain = [Markup(one).striptags().replace("\N{NO-BREAK SPACE}", " ") for one in found]
    return [one for text in plain for one in re.split(r"(?<=[.?]) (?=[A-Z0-9])", text) if one]


def length(sentence: str) -> int:
    """Return the words of a sentence; a number and its unit or sign are one."""
    joined = re.sub(r" (%|tokens/s|GiB|to) ?", r"\1", sentence)
    return len(joined.split())


def few(runs: Path, kind: str) -> None:
    """Write runs that can answer a kind of question."""
    if kind in ("headline", "strategies", "tune"):
        wrote(runs, "dp", kind, 12.0)
        wrote(runs, "tp", kind, 14.0, tensor_parallel_size=2)
    elif kind == "scaling":
        wrote(runs, "one", kind, 12.0, world_size=1, global_batch_size=16)
        wrote(runs, "two", kind, 12.6, world_size=2, global_batch_size=32)
    elif kind == "ablation":
        wrote(runs, "on", kind, 12.0, fused_attention="on", fused_norm="on")
        wrote(runs, "no-attention", kind, 18.0, fused_attention="off", fused_norm="on")
        wrote(runs, "no-norm", kind, 12.6, fused_attention="on", fused_norm="off")
    elif kind == "map":
        for mode, seconds in (("none", 12.0), ("full", 15.0)):
            wrote(runs, f"{mode}-1", kind, seconds, recompute=mode)
        wrote(runs, "full-2", kind, 14.0, recompute="full", micro_batch_size=2)
        lost: dict[str, Any] = {"status": "out_of_memory", "steps": 0, "reason": "No memory left."}
        wrote(runs, "none-2", kind, recompute="none", micro_batch_size=2, **lost)
    elif kind == "precision":
        wrote(runs, "bf16", kind, 12.0)
        wrote(runs, "fp8", kind, 8.0, precision="fp8")
    elif kind == "experts":
        wrote(runs, "moe", kind, 30.0, model="mixtral-8x7b", expert_parallel_size=8)
    elif kind == "prediction":
        ran = {"observed": dict.fromkeys(SWITCHES, "on")}
        wrote(runs, "unseen", kind, 12.0, **ran)
        wrote(runs, "known", "headline", 6.0, global_batch_size=64, **ran)
    elif kind == "correctness":
        wrote(runs, "fast", kind, 12.0)
        wrote(runs, "plain", kind, 18.0, fused_attention="off")
    else:
        path = wrote(runs, "drill", kind)
        drill = DrillRecord(
            kill_rank=1, kill_during="step", killed_at="2026-01-01T00:00:00Z", last_step=8,
            resumed_step=6, steps_lost=2, detection_seconds=2.0, start_seconds=3.0,
            build_seconds=18.0, load_seconds=14.0, step_seconds=5.0, next_step_seconds=42.0,
        )  # fmt: skip
        write_json(path / DRILL_FILE, drill.model_dump(mode="json"))


SAID = {
    "headline": r"H100 trains Llama 3\.1 8B at [\d,]+ tokens/s per GPU"
    r"( \([\d,]+ to [\d,]+\))? in BF16",
    "scaling": r"keeps 9\d(\.\d+)? % \(\d.* to \d.*\) of the rate per GPU from 1 to 2 H100 GPUs",
    "strategies": r"DP8 is fastest for Llama 3\.1 8B on 8 H100 GPUs at sequence 8,192: "
    r"\+1\d.* against TP2",
    "ablation": r"Fused attention is worth most: \+\d\d\.\d % \(\+.* to \+.*\)",
    "map": r"Micro batch 1 without recomputation is fastest for .*: "
    r"[\d,]+ tokens/s per GPU \([\d,]+ to",
    "precision": r"FP8 is 1\.\d+× \(1\.\d+ to 1\.\d+\) as fast as BF16 for Llama 3\.1 8B on 8",
    "experts": r"Mixtral 8x7B on 8 H100 GPUs reaches "
    r"[\d,]+ tokens/s per GPU( \([\d,]+ to)?",
    "prediction": r"Half of 1 configuration ran within \d+(\.\d+)? % of the time predicted from "
    r"others; [01] of 1 intervals hold",
    "correctness": r"2 runs of Llama 3\.1 8B end within .* % of one loss \(\d.* to \d.*\)",
    "drill": r"continued 42(\.0)? s after a kill; 2 steps ran again",
    "tune": r"DP8 is fastest for Llama 3\.1 8B on 8 H100 GPUs",
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_plan_has_its_verdict_with_its_interval_and_its_chart(
    tmp_path: Path, kind: str
) -> None:
    few(tmp_path, kind)
    (found,) = [one for one in studies.studies(load(tmp_path)) if one.plans == (f"my-{kind}",)]
    assert (found.kind, found.question) == (kind, "Is it so?")
    verdict = found.verdict.striptags().replace("\N{NO-BREAK SPACE}", " ")
    assert re.search(SAID[kind], verdict), verdict
    assert length(verdict) <= MOST_WORDS
    assert found.answer
    assert re.search(r'class="sb-(bars|dots|cells|time)"', found.answer.chart)


def test_a_committed_question_has_the_form_of_answer_that_its_plan_names_today(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrote(tmp_path, "moe", "experts", 30.0, model="mixtral-8x7b", expert_parallel_size=8)
    for question, kind in (("Is it so?", "prediction"), ("Was it so?", "experts")):
        plans = {"my-experts": ("prediction", question)}
        monkeypatch.setattr(studies, "_committed", lambda plans=plans: plans)
        (found,) = [one for one in studies.studies(load(tmp_path)) if one.plans]
        assert found.kind == kind


def test_tuning_of_one_layout_tells_its_micro_batches_apart(tmp_path: Path) -> None:
    wrote(tmp_path, "one", "tune", 14.0)
    wrote(tmp_path, "two", "tune", 12.0, micro_batch_size=2)
    (found,) = [one for one in studies.studies(load(tmp_path)) if one.plans]
    said = found.verdict.striptags()
    assert re.match(
        "DP8, micro batch 2 is fastest for sequence 8,192: .* against micro batch 1", said
    )


def test_a_map_marks_the_place_where_memory_ran_out(tmp_path: Path) -> None:
    few(tmp_path, "map")
    (found,) = [one for one in studies.studies(load(tmp_path)) if one.plans]
    assert found.answer
    assert '<td class="out">memory</td>' in found.answer.chart


def test_three_sizes_show_what_their_law_says_of_twice_the_largest(tmp_path: Path) -> None:
    for size in (1, 2, 4):
        batch = {"world_size": size, "global_batch_size": 16 * size}
        wrote(tmp_path, f"on-{size}", "scaling", 12.0 + size / 10, **batch)
    (found,) = [one for one in studies.studies(load(tmp_path)) if one.plans]
    assert found.answer
    rows = re.findall(r"<li>.*?</li>", found.answer.chart, re.DOTALL)
    assert ["predicted" in row for row in rows] == [False, False, False, True]
    assert "8 GPUs" in rows[-1]
    assert "by a fitted law" in rows[-1]


def test_plans_that_ask_the_same_question_are_one_study(tmp_path: Path) -> None:
    for size in (1, 2, 4):
        batch = {"world_size": size, "global_batch_size": 16 * size}
        schedule = {"plan": f"part-{size}", "kind": "scaling", "question": "How far does it scale?"}
        write_run(
            tmp_path, f"on-{size}", config(**WHOLE | batch), seconds=12 + size / 10, device=H100,
            schedule=schedule,
        )  # fmt: skip
    (found,) = [one for one in studies.studies(load(tmp_path)) if one.plans]
    assert set(found.plans) == {"part-1", "part-2", "part-4"}
    assert found.answer and set(found.answer.run_ids) == {"on-1", "on-2", "on-4"}


def test_a_study_without_an_answer_comes_last(tmp_path: Path) -> None:
    wrote(tmp_path, "single", "headline")
    wrote(tmp_path, "lonely", "scaling")
    for size in (1, 2):
        batch = {"world_size": size, "global_batch_size": 16 * size}
        write_run(
            tmp_path, f"on-{size}", config(**WHOLE | batch), seconds=12, device=H100,
            schedule={"plan": "later", "kind": "scaling", "question": "And later?"},
        )  # fmt: skip
    kinds = [(one.kind, one.answer is None) for one in studies.studies(load(tmp_path))]
    assert kinds == sorted(kinds, key=lambda one: one[1])
    assert kinds[-1] == ("scaling", True)


def test_a_plan_whose_runs_answer_nothing_keeps_its_question(tmp_path: Path) -> None:
    wrote(tmp_path, "single", "scaling")
    (found,) = [one for one in studies.studies(load(tmp_path)) if one.plans]
    assert found.answer is None
    said = found.verdict.replace("\N{NO-BREAK SPACE}", " ")
    assert said == "Its 1 run does not answer this yet: that takes rates at two numbers of GPUs."


def test_a_record_without_a_kind_has_that_of_the_committed_plan_of_its_name(tmp_path: Path) -> None:
    made = config(**WHOLE)
    write_run(tmp_path, "old", made, seconds=12, device=H100, schedule={"plan": "headline"})
    (found,) = [one for one in studies.studies(load(tmp_path)) if one.plans]
    assert (found.kind, found.plans) == ("headline", ("headline",))
    assert found.question.startswith("Which platform trains the whole Llama 3.1 8B fastest")


def test_every_group_of_a_long_plot_keeps_its_fastest_rows(tmp_path: Path) -> None:
    for i in range(24):
        wrote(tmp_path, f"h200-{i}", "headline", 12 + i / 10, platform="h200", seed=i)
    wrote(tmp_path, "h100", "headline", 15.0, sequence_length=4096)
    html = str(front.screen(load(tmp_path)))
    plot = html[html.index('class="sb-dots"') : html.index('class="side"')]
    assert plot.count("<li>") <= front.MOST_DRAWN + 1  # and a prediction
    assert "H100, sequence 4,096" in plot
    assert "7\N{NO-BREAK SPACE}more configurations are on" in plot  # of 25, 18 are drawn


def test_a_model_that_the_chart_leaves_out_has_no_headline(tmp_path: Path) -> None:
    for length in (2048, 4096, 8192):
        wrote(tmp_path, f"of-{length}", "headline", length / 700, sequence_length=length)
    for i in range(2):  # more than half of three
        wrote(tmp_path, f"small-{i}", "headline", 5 + i, model="llama3.2-3b", seed=i)
    html = str(front.screen(load(tmp_path)))
    assert re.findall(r"trains (Llama [\d.]+ \w+) at", html) == ["Llama 3.1 8B"]
    assert "Other models: Llama 3.2 3B" in html


def test_no_two_rows_of_a_group_share_a_label(tmp_path: Path) -> None:
    for i, batch in enumerate((128, 128, 64, 64)):
        wrote(
            tmp_path, f"run-{i}", "headline", (12 + i / 10) * batch / 128, global_batch_size=batch,
            recompute="full" if i % 2 else "none",
        )  # fmt: skip
    wrote(tmp_path, "again", "headline", 12.05)  # a repeat is no row of its own
    html = str(front.screen(load(tmp_path)))
    plot = html[html.index('class="sb-dots"') : html.index('class="axis"')]
    names = re.findall(r'<li><span class="name">(.*?)</span>', plot)
    assert len(names) == len(set(names)) == 4


def test_a_label_takes_as_many_parts_as_tell_it_apart() -> None:
    names = [["DP4", "b32"], ["DP2"], ["DP4", "b32", "9 steps"], ["DP4", "b16"], ["PP2", "x"]]
    assert apart(names) == [2, 1, 3, 2, 1]


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("global batch 32", "batch 32"),
        ("12 layers in the last stage", "last stage 12"),
        ("gradients in BF16", "BF16 gradients"),
        ("20 layers offloaded", "offload 20"),
        ("9 steps", "9 steps"),
    ],
)
def test_a_part_of_a_name_has_a_short_form(text: str, short: str) -> None:
    assert brief(text) == short


def test_a_note_ends_where_the_plot_does() -> None:
    note = " · ".join(["55.5 %", *("a long part of a note",) * 6])
    html = css_charts.dots([("g", [Dot("a", 10.0, text="10", note=note)], {})], "unit", high=10.0)
    (shown,) = re.findall(r"<small>(.*?)</small>", str(html))
    assert shown == "a long part of a note"  # an option goes before a share of the peak


NEAR = {"best published FP8": 15_000.0, "best published BF16": 4_000.0}


@pytest.mark.parametrize(
    ("lines", "heading", "named"),
    [  # a track of 16,000: 76 % of it
        ({"best": 7_397.0}, "H200", [("after", "35.14", "best 7,397")]),
        ({"best": 16_000.0}, "H200", [("after", "76.00", "best 16,000")]),
        ({"a" * 40: 16_000.0}, "H200", [("before", "76.00", f"{'a' * 40} 16,000")]),
        (
            {"a": 8_000.0, "b": 12_000.0},
            "H200",
            [("before", "38.00", "a 8,000"), ("after", "57.00", "b 12,000")],
        ),
        # the first would begin left of the track
        (
            NEAR,
            "H200",
            [("before", "71.25", "best published BF16 4,000 · best published FP8 15,000")],
        ),
        # and here it would cover the heading, which is longer than its column
        (
            {"a": 4_000.0, "b": 6_000.0},
            "a heading of forty-eight characters in all it is",
            [("after", "28.50", "a 4,000 · b 6,000")],
        ),
    ],
)
def test_the_name_of_a_line_stands_at_its_line(
    lines: dict[str, float], heading: str, named: list[tuple[str, str, str]]
) -> None:
    drawn = [Dot("a", 9_000.0, text="9,000")]
    html = str(css_charts.dots([(heading, drawn, lines)], "unit", high=16_000.0))
    assert re.findall(r'<span class="(before|after)" style="left:([\d.]+)%">(.*?)<', html) == named


def test_a_line_crosses_only_the_rows_that_are_held_against_it() -> None:
    drawn = [
        Dot("a", 15_000.0, target="FP8"), Dot("b", 11_000.0, target="BF16"),
        Dot("c", 9_000.0, target="BF16"), Dot("d", 8_000.0),
    ]  # fmt: skip
    lines = {"BF16": 10_000.0, "FP8": 14_000.0}
    html = str(css_charts.dots([("g", drawn, lines)], "unit", high=16_000.0))
    assert [row.count('class="line"') for row in html.split("<li>")[1:]] == [2, 1, 1, 0]


def test_a_row_names_the_options_that_its_neighbours_do_not_have(tmp_path: Path) -> None:
    wrote(tmp_path, "plain", "headline", 12.0, tensor_parallel_size=2)
    more: dict[str, Any] = {"gradient_precision": "bf16", "offload_layers": 20}
    wrote(tmp_path, "tuned", "headline", 11.0, recompute="pointwise", **more)
    html = str(front.screen(load(tmp_path)))
    row = next(one for one in html.split("<li>") if one.startswith('<span class="name">DP8'))
    text = Markup(row).striptags()
    for option in ("pointwise recompute", "BF16 gradients", "offload 20"):
        assert option in text
    assert "DP8 (BF16 gradients, pointwise recompute, offload 20)" in Markup(html).striptags()


def test_only_lines_that_a_row_is_held_against_are_named_and_the_axis_holds_them(
    tmp_path: Path,
) -> None:
    wrote(tmp_path, "slow", "headline", 60.0)  # a fifth of the best published rates
    html = str(front.screen(load(tmp_path)))
    assert re.findall(r'class="(?:before|after)"[^>]*>(best published \w+)', html) == [
        "best published BF16"
    ]
    (place,) = set(re.findall(r'class="line" style="left:([\d.]+)%', html))
    assert float(place) <= 76


def test_forty_platforms_with_long_names_leave_room_for_the_chart(tmp_path: Path) -> None:
    for place in range(40):
        wrote(tmp_path, f"run-{place}", "headline", 9 + place / 3, platform=f"{'long-' * 9}{place}")
    html = str(front.screen(load(tmp_path)))
    plot = html[html.index('<div class="cols">') : html.index('class="side"')]
    assert "40 platforms, sequence 8,192" in plot or "39 platforms, sequence 8,192" in plot
    assert len(re.findall("LONG-", plot)) <= 9 * front.MOST_DRAWN


def test_runs_that_all_failed_say_how(tmp_path: Path) -> None:
    for name, status in (("a", "failed"), ("b", "timeout"), ("c", "failed")):
        write_run(tmp_path, name, config(), status=status, steps=0, reason="It broke.")
    said = " ".join(sentences(front.screen(load(tmp_path))))
    assert said == (
        "No run completed with a throughput. Without a result: 3 of 3 runs: 2 failed, 1 timeout."
    )


@pytest.mark.parametrize(
    ("losses", "step"),
    [
        ([10.0, 6.0, 8.1, 5.0], 3),  # more than half of the 4 that it had fallen by
        ([10.0, 6.0, 8.0, 5.0], None),  # half
        ([10.0, 9.1, 9.9, 5.0], None),  # it had fallen by less than a tenth
        ([10.0, 4.0, 8.0, 3.0, 9.0], 5),  # the largest of two
        ([4.0, 5.0, 6.0], None),
    ],
)
def test_a_loss_jumps_where_one_step_undoes_more_than_half_of_its_fall(
    tmp_path: Path, losses: list[float], step: int | None
) -> None:
    path = wrote(tmp_path, "run", "headline", steps=len(losses))
    lines = [json.loads(line) for line in (path / "steps.jsonl").read_text().splitlines()]
    for line, loss in zip(lines, losses, strict=True):
        line["loss"] = loss
    (path / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = sections.loss_jumps(load(tmp_path))
    assert {name: jump["step"] for name, jump in found.items()} == ({"run": step} if step else {})


def test_a_jump_of_the_loss_is_said_where_its_run_is_the_headline(tmp_path: Path) -> None:
    path = wrote(tmp_path, "run", "headline")
    lines = [json.loads(line) for line in (path / "steps.jsonl").read_text().splitlines()]
    lines[9]["loss"], last = 9.25, lines[-1]["loss"]
    (path / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = load(tmp_path)
    said = " ".join(sentences(front.screen(data)))
    before = lines[8]["loss"]
    assert f"The loss jumps: H100 BF16 at step 10 ({before:.3g} to 9.25, then {last:.3g})." in said
    assert "The loss jumps in 1 run" in words_of(curves_page.findings(data))


def words_of(fragment: Any) -> str:
    return Markup(str(fragment)).striptags().replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize(
    ("text", "words", "code"),
    [
        ("recompute=full repeats 23 %", "full recomputation repeats 23 %", ["recompute=full"]),
        ("Try micro_batch_size=2: more.", "Try micro batch 2: more.", ["micro_batch_size=2"]),
        (
            "last_pipeline_stage_layers=1",
            "1 layer in the last stage",
            ["last_pipeline_stage_layers=1"],
        ),
        ("environment.git_commit was set", "git commit was set", ["environment.git_commit"]),
        ("Name it with --peak-precision fp8 or bf16.", None, ["--peak-precision fp8 or bf16"]),
        ("mfu = 1 / base_mfu of b200_n8.toml", "mfu = 1 / base MFU of b200_n8.toml", ["base_mfu"]),
        ("tokens over steps, in words", "tokens over steps, in words", []),
    ],
)
def test_a_key_is_said_in_words_or_shown_as_code(
    text: str, words: str | None, code: list[str]
) -> None:
    assert words is None or titled(text) == words
    assert re.findall("<code>(.*?)</code>", typed(text)) == code
    assert typed(text).striptags() == text


def test_runs_of_no_plan_form_studies_and_an_unknown_kind_is_no_plan(tmp_path: Path) -> None:
    for name, split in (("dp", {}), ("tp", {"tensor_parallel_size": 2})):
        made = config(**(WHOLE | split))
        write_run(
            tmp_path, name, made, seconds=12, device=H100, schedule={"kind": ["x"], "plan": 3}
        )
    assert [(one.kind, one.plans) for one in studies.studies(load(tmp_path))] == [
        ("headline", ()),
        ("strategies", ()),
    ]


def test_no_chart_is_wider_than_its_track() -> None:
    drawn = [Dot("a", 10.0, 8.0, 12.0, "10"), Dot("b", -5.0, -6.0, -4.0, "-5")]
    for html in (
        css_charts.bars(drawn, "%"),
        css_charts.dots([("g", drawn, {"best": 11.0})], "unit"),
    ):
        places = [float(one) for one in re.findall(r"(?:left|width):(-?[\d.]+)%", html)]
        assert places
        assert all(0 <= place <= 100 for place in places)


@pytest.mark.parametrize(
    ("value", "end"), [(15487, 16000), (1, 1), (101, 120), (0.9, 1), (8000, 8000), (8001, 10000)]
)
def test_an_axis_ends_at_a_round_number_that_holds_the_value(value: float, end: float) -> None:
    assert css_charts.rounded_up(value) == pytest.approx(end)


@pytest.mark.parametrize(("least", "kind"), [(101.0, ""), (100.0, " (log)")])
def test_an_axis_of_values_six_times_apart_is_logarithmic_and_says_so(
    least: float, kind: str
) -> None:
    drawn = [Dot("slow", least, text="slow"), Dot("fast", 600.0, text="fast")]
    html = str(css_charts.dots([("g", drawn, {})], "tokens/s"))
    assert f">tokens/s{kind}</span>" in html
    numbers = re.findall(r'left:([\d.]+)%">([\d,]+)</span>', html)
    if kind:  # equal distances are equal ratios: 100 to 1,000 on three quarters of the track
        assert numbers == [("0.00", "100"), ("22.88", "200"), ("53.12", "500"), ("76.00", "1,000")]
        assert 'class="dot' in html and "left:59.14%" in html  # 76 log10(6)


def test_experts_of_different_models_are_compared_by_their_mfu(tmp_path: Path) -> None:
    few(tmp_path, "experts")
    wrote(tmp_path, "one", "experts", 3.0, model="mixtral-8x7b@1", expert_parallel_size=8)
    (found,) = [one for one in studies.studies(load(tmp_path)) if one.plans]
    rows = {row["model"]: row for row in load(tmp_path).completed.to_dicts()}
    whole, layer = rows["mixtral-8x7b"], rows["mixtral-8x7b@1"]
    assert layer["tokens_per_second_per_gpu"] > whole["tokens_per_second_per_gpu"]
    assert found.answer
    assert "MFU, %" in found.answer.chart
    assert found.verdict.striptags().startswith("Mixtral 8x7B on 8 H100")
    assert found.answer.chart.index("Mixtral 8x7B") < found.answer.chart.index("1 layer of")


def test_names_are_those_of_their_makers() -> None:
    assert model_title("qwen3-30b-a3b@6") == "6 layers of Qwen 3 30B-A3B"
    assert model_title("gpt3-2.7b") == "GPT 3 2.7B"
    assert model_title("gpt3-125m") == "GPT 3 125M"
    assert model_title("deepseek-v2-lite@6") == "6 layers of DeepSeek V2 Lite"
    assert model_title("llama3.1-8b") == "Llama 3.1 8B"
    assert model_title("llama3.1-8b@8") == "8 layers of Llama 3.1 8B"
    assert model_title("mixtral-8x7b@1") == "1 layer of Mixtral 8x7B"
    assert (model_title("tiny-moe"), model_title(None)) == ("tiny-moe", "unknown model")
    assert (platform_title("mi300x"), platform_title(None)) == ("MI300X", "unknown platform")
    assert platform_title("unknown platform [ingested]") == "unknown platform [ingested]"
    assert changes_in_words([("profile_steps", 1), ("offload_layers", 1)]) == [
        "1 profiled step", "1 layer offloaded",
    ]  # fmt: skip
    assert changes_in_words([("profile_steps", 11)]) == ["11 profiled steps"]


def assert_short_and_without_ids(page: object, run_ids: Iterable[str]) -> None:
    found, ids = sentences(page), list(run_ids)
    assert found
    assert ids
    assert [one for one in found if length(one) > MOST_WORDS] == []
    assert [one for one in found if re.search(r"\b[0-9a-f]{12}\b|\d{8}-\d{6}", one)] == []
    assert not any(run_id in one for one in found for run_id in ids)


def test_the_running_text_has_short_sentences_and_no_run_ids(tmp_path: Path) -> None:
    data = load(write_sample(tmp_path))
    for fragment in (front.screen(data), studies.page(data)):
        assert_short_and_without_ids(fragment, data.runs["run_id"])


@pytest.mark.slow
def test_the_running_text_of_the_examples_has_short_sentences_and_no_run_ids(
    example: Path, root: Path
) -> None:
    records = (root / "runs" / "examples").glob("*/record.json")
    run_ids = [json.loads(path.read_text())["run_id"] for path in records]
    for name in ("index.html", "studies.html"):
        assert_short_and_without_ids((example.parent / name).read_text(), run_ids)


def test_platforms_without_equal_work_are_not_compared(tmp_path: Path) -> None:
    wrote(tmp_path, "h100", "headline", sequence_length=4096)
    wrote(tmp_path, "h200", "headline", platform="h200")
    text = " ".join(sentences(front.screen(load(tmp_path))))
    assert "H100 and H200 have no equal work with an interval" in text
    assert "it decides" in text


def test_platforms_with_equal_work_are_compared_with_an_interval(tmp_path: Path) -> None:
    wrote(tmp_path, "h100", "headline", 15.0)
    wrote(tmp_path, "h200", "headline", 12.0, platform="h200")
    text = " ".join(sentences(front.screen(load(tmp_path))))
    assert re.search(
        r"At equal work \(DP8, sequence 8,192\), H200 is 1\.2\d× \(1.*\) as fast as H100", text
    )
    assert "cannot be compared" not in text


def test_the_example_of_a_cost_is_the_days_that_the_rate_implies(tmp_path: Path) -> None:
    wrote(tmp_path, "a", "headline")
    data = load(tmp_path)
    row = data.runs.row(0, named=True)
    ends = [1e12 / row[f"tokens_per_second_{end}"] / 86400 for end in ("high", "low")]
    days = f"{ends[0]:,.0f} to {ends[1]:,.0f} days in BF16"
    said = f"1 trillion tokens of Llama 3.1 8B on 8 H100 GPUs: {days}."
    assert said in sentences(front.screen(data))


def test_a_hollow_mark_has_no_interval_and_a_diamond_is_fp8(tmp_path: Path) -> None:
    wrote(tmp_path, "sure", "headline", precision="fp8")
    wrote(tmp_path, "few", "headline", 13.0, steps=8)
    html = str(front.screen(load(tmp_path)))
    assert len(re.findall(r'class="dot diamond c0"', html)) == 1
    assert len(re.findall(r'class="dot circle c0 hollow"', html)) == 1


def legend(html: object) -> str:
    found = re.search(r"<h3>[^<]* <small>(.*?)</small></h3>", str(html))
    assert found
    return Markup(found[1]).striptags().replace("\N{NO-BREAK SPACE}", " ")


def test_a_legend_names_what_is_drawn_and_nothing_else(tmp_path: Path) -> None:
    write_run(tmp_path, "cpu", config(world_size=1, platform="cpu", precision="fp32"), seconds=0.3)
    assert legend(front.screen(load(tmp_path))) == "● FP32 · line: 95 %"
    wrote(tmp_path, "wide", "headline", 12.0)
    assert legend(front.screen(load(tmp_path))) == "● BF16 · line: 95 % · %: MFU"
    wrote(tmp_path, "narrow", "headline", 9.0, precision="fp8", steps=8)
    wrote(tmp_path, "h200", "headline", 11.0, platform="h200")
    said = legend(front.screen(load(tmp_path)))
    assert said == "H100 · H200 · ● BF16 · ◆ FP8 · line: 95 % · hollow: few steps · %: MFU"


def test_platforms_of_one_length_share_a_group_and_other_models_a_line(tmp_path: Path) -> None:
    for number in range(2):
        wrote(tmp_path, f"h100-{number}", "headline", 12.0 + number, sequence_length=4096 << number)
    wrote(tmp_path, "h200", "headline", 9.0, platform="h200", sequence_length=4096)
    # faster than any layout is predicted to be
    wrote(tmp_path, "short", "headline", 2.5, sequence_length=2048)
    wrote(tmp_path, "other", "headline", 9.0, model="qwen3-8b")
    html = Markup(front.screen(load(tmp_path)))
    plot = html[html.index("sb-dots") : html.index('class="side"')]
    assert "H200 and H100, sequence 4,096" in plot
    names = re.findall(r'<li><span class="name">(.*?)</span>', plot)
    assert sorted(names) == ["DP8", "DP8", "H100 DP8", "H200 DP8"]
    assert "Other models: Qwen 3 8B" in plot


def test_published_results_are_looked_up_once_for_each_device_of_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for: list[str] = []

    def noted(row: dict[str, Any]) -> dict[str, float]:
        asked_for.append(row["run_id"])
        return {}

    monkeypatch.setattr(front, "best_by_precision", noted)
    for number in range(5):
        wrote(tmp_path, f"run-{number}", "headline", 12.0 + number)
    front.screen(load(tmp_path))
    assert len(asked_for) == 1  # counting all published FLOPs anew takes tens of milliseconds


def test_a_model_made_for_a_cpu_and_one_of_few_runs_have_no_headline(tmp_path: Path) -> None:
    for number in range(4):
        wrote(tmp_path, f"whole-{number}", "headline", 12.0 + number)
    tiny = {"model": "tiny-llama", "sequence_length": 128, "world_size": 1}
    wrote(tmp_path, "tiny", "headline", 1.0, **tiny)
    assert "tiny-llama" not in str(front.screen(load(tmp_path)))
    wrote(tmp_path, "other", "headline", 9.0, model="qwen3-8b", steps=8)
    html = str(front.screen(load(tmp_path)))
    headings = re.findall(r'<p class="sb-headline.*?</p>', html)
    assert len(headings) == 1
    assert "Llama 3.1 8B" in headings[0]
    assert "Qwen 3 8B, H100, sequence 8,192" in html


def test_only_a_model_made_for_a_cpu_is_shown_where_nothing_else_ran(tmp_path: Path) -> None:
    wrote(tmp_path, "tiny", "headline", 1.0, model="tiny-llama", sequence_length=128)
    assert "tiny-llama" in str(front.screen(load(tmp_path)))


def test_the_run_that_needs_more_steps_is_named_with_its_model(tmp_path: Path) -> None:
    wrote(tmp_path, "whole", "headline", 12.0)
    wrote(tmp_path, "second", "headline", 14.0, tensor_parallel_size=2)
    wrote(tmp_path, "short", "headline", 9.0, model="qwen3-8b", steps=8)
    html = Markup(front.screen(load(tmp_path))).striptags()
    assert "of Qwen 3 8B on H100 with more steps" in html


def test_the_first_screen_names_the_platform_of_a_best_layout_and_counts_in_words(
    tmp_path: Path,
) -> None:
    wrote(tmp_path, "h200", "headline", 12.0, platform="h200", sequence_length=4096)
    wrote(tmp_path, "dp", "headline", 12.0)
    text = Markup(front.screen(load(tmp_path))).striptags()
    assert "Best layout on H100: DP8 on 8" in text
    assert "Best layout on H100 in BF16: only one ran, DP8." in text
    assert "Every rate has an interval." in text
    wrote(tmp_path, "few", "headline", 14.0, tensor_parallel_size=2, steps=8)
    assert "1 of 3 rates has too few steps" in " ".join(
        one.replace("\N{NO-BREAK SPACE}", " ")
        for one in front._certainty(front.Front(load(tmp_path)))
    )


@pytest.mark.parametrize(("platform", "said"), [("h100", True), ("cpu", False)])
def test_only_a_prediction_that_was_made_has_a_sentence(
    tmp_path: Path, platform: str, said: bool
) -> None:
    wrote(tmp_path, "one", "headline", platform=platform)
    assert ("No layout is predicted" in front.screen(load(tmp_path))) == said


def test_a_study_says_of_equal_work_what_the_first_screen_says(tmp_path: Path) -> None:
    wrote(tmp_path, "h100", "headline", 15.0)
    wrote(tmp_path, "h200", "strategies", 12.0, platform="h200")
    data = load(tmp_path)
    said = comparisons.equal_work(front.Front(data).pairs)
    (study,) = [one for one in studies.studies(data) if one.kind == "headline"]
    assert said is not None
    assert "Only runs of other plans make two platforms comparable" in study.verdict
    assert study.verdict.endswith(said)


def test_the_best_ingested_run_has_a_sentence_beside_measured_ones(tmp_path: Path) -> None:
    wrote(tmp_path, "own", "headline", 15.0)
    made = config(**WHOLE)
    write_run(tmp_path, "log", made, seconds=9.0, device=H100, source="ingested")
    text = Markup(front.screen(load(tmp_path))).striptags()
    said = "Ingested runs are not ranked with measured ones: the best, Llama 3.1 8B on 8 H100 GPUs"
    assert said in text
    (tmp_path / "own").rename(tmp_path.parent / f"{tmp_path.name}-own")
    assert "not ranked with" not in front.screen(load(tmp_path))


def test_one_study_is_not_counted_as_several(tmp_path: Path) -> None:
    wrote(tmp_path, "one", "headline")
    wrote(tmp_path, "two", "headline", 13.0)
    asked = studies.studies(load(tmp_path))
    assert len(asked) == 1
    assert "All 1 studies" not in str(front._cards(asked, set()))


def test_a_kind_of_study_has_a_second_card_after_one_of_each_kind() -> None:
    def study(kind: str, name: str, *run_ids: str) -> studies.Study:
        answer = studies.StudyAnswer(Markup("An answer."), Markup(""), run_ids)
        return studies.Study(kind, (), name, run_ids, answer)

    asked = [
        study("map", "MAP", "e"), study("precision", "PART", "a", "b"),
        study("precision", "WHOLE", "c"), study("scaling", "SCALE", "d"),
    ]  # fmt: skip
    text = str(front._cards(asked, {"c", "d"}))
    places = [text.index(name) for name in ("SCALE", "WHOLE", "MAP", "PART")]
    assert places == sorted(places)


def test_memory_is_that_of_what_a_platform_counts(tmp_path: Path) -> None:
    write_run(tmp_path / "cpu", "one", config())
    (said,) = front._memory(front.Front(load(tmp_path / "cpu")))
    assert said.replace("\N{NO-BREAK SPACE}", " ") == "The fastest: 0.5 GiB per process."
    few(tmp_path / "gpu", "precision")
    (said,) = front._memory(front.Front(load(tmp_path / "gpu")))
    assert said == "The fastest: 0.5 (BF16) and 0.5 (FP8) GiB per GPU."


def test_logs_that_say_too_little_are_told_what_to_add(tmp_path: Path) -> None:
    write_run(tmp_path, "log", config(), source="ingested", requested={"world_size": 2})
    said = " ".join(sentences(front.screen(load(tmp_path)))).replace("\N{NO-BREAK SPACE}", " ")
    assert said.startswith("1 run has a rate, but no two can be compared: what they ran is not")
    assert "scalebook ingest LOG --model NAME --platform NAME --precision bf16" in said


def test_a_report_without_a_rate_says_so_in_the_first_screen(tmp_path: Path) -> None:
    write_run(tmp_path, "a", config(), status="failed", steps=0, reason="It broke.")
    said = sentences(front.screen(load(tmp_path)))
    assert said == [
        "No run completed with a throughput.",
        "Without a result: 1 of 1 run: 1 failed.",
    ]


ANSWERS = {  # of the example runs: what a buyer asks, and what must be seen without scrolling
    "fastest": r"H200 trains Llama 3\.1 8B at [\d,]+ tokens/s per GPU .*in BF16",
    "comparable": r"cannot be compared yet|At equal work",
    "certainty": r"ha(s|ve) too few steps for an interval|has an interval",
    "memory": r"GiB per GPU",
    "cost": r"1 trillion tokens of Llama 3.1 8B on 4 H200 GPUs: \d+ to \d+ days",
    "failures": r"\d+ of \d+ runs: ",
    "scaling": r"of the rate per GPU from 1 to",
}
LOOK = """addEventListener("load", () => setTimeout(() => {
  const found = {};
  for (const one of document.querySelectorAll("[data-answer]")) {
    const box = one.getBoundingClientRect();
    found[one.dataset.answer] ||= [one.innerText, box.bottom];
  }
  const cards = [...document.querySelectorAll('.sb-card')].map(one => one.getBoundingClientRect());
  // a text of a card ends before the border does
  const out = [...document.querySelectorAll('.sb-card :is(.value, .name, p, td)')].filter(one => {
    const box = one.getBoundingClientRect(), card = one.closest(".sb-card").getBoundingClientRect();
    return box.width && (box.right > card.right - 4 || box.left < card.left + 4);
  });
  // and no two texts of the first chart lie on each other
  const texts = [...document.querySelectorAll('.cols .sb-dots :is(.value, .name, .before, .after)')]
    .map(one => [one.textContent, one.getBoundingClientRect()]).filter(one => one[1].width);
  const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 &&
    a.top < b.bottom - 4 && b.top < a.bottom - 4;
  const lie = texts.filter(([text, box], i) => texts.slice(0, i).some(one => meet(box, one[1])));
  found.out = [[...out, ...lie].map(one => one.textContent || one[0]).join("; "), 0];
  found.whole = ["", cards.filter(one => one.bottom <= 900).length];
  found.width = ["", document.documentElement.scrollWidth];
  document.body.innerHTML = '<pre id="found"></pre>';
  document.getElementById("found").textContent = JSON.stringify(found);
}, 500));"""


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Path:
    """The first page of the report of the example runs."""
    site = tmp_path_factory.mktemp("example") / "site"
    return build(Places(root / "runs" / "examples", site, root), "preview", print)


class Words(HTMLParser):
    """What a reader of a page sees or hears, commands and code left out, and its charts' data."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.specs: list[dict[str, Any]] = []
        self._within: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        if tag in ("script", "style", "code", "pre"):
            self._within.append("spec" if known.get("class") == "sb-spec" else tag)
        self.words += [text for name in ("title", "aria-label") if (text := known.get(name))]

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style", "code", "pre"):
            self._within.pop()

    def handle_data(self, data: str) -> None:
        if not self._within:
            self.words.append(data.strip())
        elif self._within[-1] == "spec":
            self.specs.append(json.loads(data))


def encoded(spec: Any) -> Iterator[str]:
    """Yield every field that a chart shows: on an axis, in a legend or a tooltip."""
    if isinstance(spec, dict):
        if isinstance(spec.get("field"), str):
            yield spec["field"]
        for key, part in spec.items():
            if key not in ("datasets", "data"):
                yield from encoded(part)
    elif isinstance(spec, list):
        for part in spec:
            yield from encoded(part)


def rows_of(page: Path) -> Iterator[str]:
    """Yield the rows that a page or a file of its rows makes when a reader asks for them."""
    text = page.read_text()
    held = re.findall(r'class="sb-rows">(\[.*?)</script>', text, re.DOTALL)
    for part in held if page.suffix == ".html" else [text.partition("\n")[2].rstrip(";\n")]:
        for _, _, _, *cells in json.loads(part):
            yield from (cell[-1] for cell in cells)


# The name of a setting, a field or a convention, and a setting with a value.
KEY = re.compile(
    r"(?<![\w./-])[a-z]+[a-z0-9]*(?:_[a-z0-9]+)+(?![\w/]|\.[a-z])|\b(?:"
    + "|".join(SETTINGS)
    + r")=\w"
)
# Not ours to put into words: a variable's value, and names in sources of others.
QUOTED = {"expandable_segments", "maximum_performance"}


def raw_keys(path: Path) -> set[str]:
    """Return the keys of settings, fields and conventions that a page shows outside of code."""
    shown: list[str] = []
    if path.suffix == ".html":
        seen = Words(path.read_text())
        shown += seen.words
        for spec in seen.specs:
            # what a publication calls its run and its recipe
            fields = {*encoded(spec)} - {"run_id", "where", "precision"}
            shown += [
                str(v) for row in data_rows(spec) for name, v in row.items() if name in fields
            ]
            shown += re.findall(r'"(?:title|text)": ?"([^"]*)"', json.dumps(spec))
    shown += Words(" ".join(rows_of(path))).words
    return {found for text in shown for found in KEY.findall(text)} - QUOTED


def raw_names(page: str) -> set[str]:
    """Return the names of models, platforms and precisions that a page shows unwritten."""
    names = {one.name for one in (*catalog.models(), *catalog.platforms())}
    names = {name for name in names if model_title(name) != name and not name.startswith("tiny")}
    names |= {"cpu", "bf16", "fp16", "fp32", "fp8", "mxfp8"}
    longest = sorted(map(re.escape, names), key=len, reverse=True)
    pattern = re.compile(rf"(?<!plan )(?<![\w./=-])({'|'.join(longest)})(@\d+)?(?![\w/-]|\.\w)")
    seen = Words(page)
    shown = [text for text in seen.words if "--peak-precision" not in text]
    for spec in seen.specs:
        fields = {*encoded(spec)} - {"run_id"}
        shown += [str(v) for row in data_rows(spec) for name, v in row.items() if name in fields]
    return {found[0] for text in shown if (found := pattern.search(text))}


@pytest.mark.slow
def test_no_page_shows_a_raw_name_of_a_model_a_platform_or_a_precision(example: Path) -> None:
    pages = [path for path in sorted(example.parent.glob("*.html")) if path.stem != "method"]
    assert len(pages) > 15  # Method quotes its sources as they are
    assert {path.name: raw for path in pages if (raw := raw_names(path.read_text()))} == {}


@pytest.mark.slow
def test_no_page_shows_the_key_of_a_setting_but_as_code(example: Path) -> None:
    pages = [path for path in sorted(example.parent.glob("*.html")) if path.stem != "method"]
    rows = sorted((example.parent / "data" / "rows").glob("*.js"))
    pages += [path for path in rows if not path.stem.startswith("published")]  # names by others
    assert len(pages) > 17
    assert {path.name: raw for path in pages if (raw := raw_keys(path))} == {}


@pytest.mark.slow
def test_the_page_of_a_run_and_the_command_show_the_same_parts_of_its_step(
    example: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (example.parent / "data" / "run" / "0.js").read_text().partition("\n")[2]
    parts = {run["id"]: dict(run["parts"]) for run in json.loads(text.rstrip(";\n"))}
    chosen = [name for name, own in parts.items() if own.get("Other kernels")][::6]
    assert len(chosen) > 2
    for run_id in chosen:
        runs = str(root / "runs" / "examples")
        assert main(["diagnose", run_id, "--runs", runs, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)["waterfall"]["parts"]
        known = {one["name"]: one["step_fraction"] for one in told}
        assert parts[run_id]["Other kernels"] == pytest.approx(known["other_kernels"], rel=1e-9)
        assert len(parts[run_id]) == sum(1 for share in known.values() if share)


def opacities(spec: Any) -> Iterator[float]:
    """Yield how opaque a chart draws its marks, but those that a click has left out.

    Areas are left out too: lines bound them.
    """
    if isinstance(spec, list):
        for part in spec:
            yield from opacities(part)
    elif isinstance(spec, dict):
        mark = spec.get("mark")
        if isinstance(mark, dict) and mark["type"] not in ("area", "rect") and "opacity" in mark:
            yield mark["opacity"]
        encoding = spec.get("encoding", {}).get("opacity", {})
        if "param" not in encoding.get("condition", {}):
            yield from (
                one["value"] for one in (encoding, encoding.get("condition", {})) if "value" in one
            )
        for name, part in spec.items():
            if name not in ("datasets", "data"):
                yield from opacities(part)


@pytest.mark.slow
def test_no_mark_of_a_chart_is_faint_and_every_colour_has_its_dark_form(example: Path) -> None:
    specs = [
        spec for path in example.parent.glob("*.html") for spec in Words(path.read_text()).specs
    ]
    assert len(specs) > 100
    assert {one for spec in specs for one in opacities(spec) if one < FAINT} == set()
    named = {
        colour
        for spec in specs
        for colour in re.findall(
            r'"(#[0-9a-fA-F]{3,6}|gray|grey|white|black)"',
            json.dumps(
                {name: part for name, part in spec.items() if name not in ("datasets", "data")}
            ),
        )
    }
    assert named <= set(PALETTE["light"])


@pytest.mark.slow
def test_the_first_screen_answers_seven_questions_in_a_browser(
    tmp_path: Path, example: Path
) -> None:
    browser = next((path for name in NAMES if (path := shutil.which(name))), None)
    if browser is None:
        pytest.skip("Chromium is not installed")
    index = example
    # a file, because the pages' policy lets no script run that is written into them
    (index.parent / "look.js").write_text(LOOK)
    tag = '<script src="look.js"></script></body>'
    index.write_text(index.read_text().replace("</body>", tag))
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1400,900",
        f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=20000", "--dump-dom",
        index.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    match = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert match, done.stderr[-2000:]
    found = json.loads(unescape(match[1]))
    assert found["width"][1] <= 1400
    assert found["whole"][1] == 5  # a row of cards from border to border, none cut
    assert found["out"][0] == ""
    for name, words in ANSWERS.items():
        text, end = found[name]
        assert re.search(words, text.replace("\N{NO-BREAK SPACE}", " ")), (name, text)
        assert end < 900, name
