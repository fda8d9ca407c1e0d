"""Sentences agree with the frame that they are made from."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import polars as pl
from simulated import H100, config, write_run, write_sample

from scalebook import store
from scalebook.report.base import scaling_series as series
from scalebook.report.base import sections
from scalebook.report.base.frames import ReportData, load
from scalebook.report.base.markup import Markup, by_cause, unreadable
from scalebook.report.pages import front, reliability_page, run_findings, studies

EVIL = "<img src=x onerror=alert(1)>"


def words(fragment: object) -> str:
    """Return a fragment's text without markup, glue as plain spaces."""
    html = getattr(fragment, "html", fragment)
    text = Markup(re.sub(r"\s+", " ", str(html).replace("</li>", " "))).striptags()
    return text.replace("\N{NO-BREAK SPACE}", " ")


def findings(data: ReportData) -> Markup:
    """What the pages say of the winners, the losses and the failures."""
    failed = reliability_page.failures(data)
    return Markup(" ").join((run_findings.throughput(data), losses(data), *failed))


def losses(data: ReportData) -> Markup:
    """What the page of training curves says of the losses of runs."""
    runs = data.completed
    return Markup(" ").join([*sections.loss_findings(runs), *sections.loss_agreement(runs)])


def test_the_winner_is_the_first_row_of_the_table(tmp_path: Path) -> None:
    data = load(write_sample(tmp_path))
    for _, runs in data.completed.group_by("group", maintain_order=True):
        sentences = words(" ".join(run_findings.group_findings(runs)))
        first = runs.row(0, named=True)
        best = runs.sort("rate", descending=True).row(0, named=True)
        assert first["run_id"] == best["run_id"]
        assert sentences.index(first["run_id"]) == min(
            sentences.index(run_id) for run_id in runs["run_id"] if run_id in sentences
        )


def test_a_winner_has_its_number_interval_unit_and_run(tmp_path: Path) -> None:
    write_run(tmp_path, "slow", config(world_size=2), seconds=0.4)
    write_run(tmp_path, "fast", config(world_size=2, tensor_parallel_size=2), seconds=0.1)
    data = load(tmp_path)
    text = words(findings(data))
    fast, slow = data.runs["tokens_per_second"]
    rate = rf"{fast:,.0f} tokens/s \([\d,]+ to [\d,]+\)"
    assert re.search(rf"TP2 on 2 processes \(fast\) is the fastest of 2 runs, with {rate}", text)
    loser = r"The other, DP2 on 2 processes \(slow\)"
    assert re.search(rf"{loser}, reached .*: a spread of {fast / slow:.2f}×", text)


def test_gpus_are_ranked_each_and_cpu_processes_in_total(tmp_path: Path) -> None:
    write_sample(tmp_path)
    text = words(findings(load(tmp_path)))
    assert "TP2 DP4 on 8 GPUs (h100-tp2-8) is the fastest of 3 runs" in text
    assert "DP2 on 2 processes (cpu-dp2) is the fastest of 4 runs" in text


def test_repeats_of_a_configuration_are_told_with_model_platform_and_length(tmp_path: Path) -> None:
    for i, seconds in enumerate((0.1, 0.101)):
        write_run(tmp_path, f"r{i}", config(world_size=2, repeat=i), seconds=seconds, steps=60)
    write_run(tmp_path, "tp2", config(world_size=2, tensor_parallel_size=2), seconds=0.3)
    text = words(findings(load(tmp_path)))
    group = "tiny-llama on CPU (FP32, sequence 128, simulated)"
    assert f"{group}: DP2 on 2 processes (r0, r1) is the fastest of 3 runs" in text


def test_losses_of_one_training_are_compared(tmp_path: Path) -> None:
    write_run(tmp_path, "a", config())
    write_run(tmp_path, "b", config(world_size=2))
    data = load(tmp_path)
    low, high = sorted(data.runs["loss_last"])
    apart = f"30 steps of a global batch of 8: {low:.4f} to {high:.4f}"
    assert apart in words(losses(data))
    assert "within 0.10 % in 0 of 1 group." in words(losses(data))
    equal = data.runs.with_columns(loss_last=pl.Series([2.5, 2.5 * (1 + 3e-7)]))
    same = ReportData(data.folder, equal, data.steps, {}, {}, ())
    assert "end at losses within 0.10 % in 1 of 1 group." in words(losses(same))
    assert "apart" not in words(losses(same))


def test_a_rate_of_a_gpu_is_ranked_where_the_total_is_unknown(tmp_path: Path) -> None:
    """A log may tell the rate of a GPU and not of how many: its total is nothing to compare."""
    big: dict[str, Any] = {"platform": "h100", "model": "llama3.1-8b", "precision": "bf16"}
    for name, split in (("all", {"tensor_parallel_size": 2}), ("each", {})):
        write_run(tmp_path, name, config(**big, world_size=2, **split), seconds=12, device=H100)
    unknown = pl.col("run_id") == "each"
    runs = load(tmp_path).runs.with_columns(
        tokens_per_second=pl.when(unknown).then(None).otherwise(0.5),
        rate=pl.when(unknown).then(9.0).otherwise(0.25),
        rate_low=pl.when(unknown).then(8.9).otherwise(0.249),
        rate_high=pl.when(unknown).then(9.1).otherwise(0.251),
    )
    text = words(" ".join(run_findings.group_findings(runs)))
    assert re.search(r"\(each\) is the fastest of 2 runs", text)


def test_overlapping_intervals_settle_no_winner(tmp_path: Path) -> None:
    write_run(tmp_path, "a", config(world_size=2), seconds=0.1)
    write_run(tmp_path, "b", config(world_size=2, tensor_parallel_size=2), seconds=0.1001)
    assert "is within the noise" in words(findings(load(tmp_path)))


def test_clear_intervals_do_not_hedge(tmp_path: Path) -> None:
    write_run(tmp_path, "a", config(world_size=2), seconds=0.1)
    write_run(tmp_path, "b", config(world_size=2, tensor_parallel_size=2), seconds=0.2)
    assert "do not show" not in words(findings(load(tmp_path)))


def test_simulated_runs_are_never_ranked_against_measured_ones(tmp_path: Path) -> None:
    write_run(tmp_path, "own", config(), seconds=0.2, source="measured")
    write_run(tmp_path, "made-up", config(), seconds=0.1)
    text = words(findings(load(tmp_path)))
    assert text.count("one run") == 2
    assert "spread" not in text
    assert "[simulated]" not in words(front.screen(load(tmp_path)))


def test_failed_runs_are_counted_with_their_reason(tmp_path: Path) -> None:
    text = words(findings(load(write_sample(tmp_path))))
    assert "out of memory: 1 run (h100-oom). GPU 3 ran out of memory in step 1" in text


def test_runs_that_failed_for_one_reason_share_a_sentence(tmp_path: Path) -> None:
    for name, reason in zip("abc", ("It broke.", "It burned.", "It broke."), strict=True):
        write_run(tmp_path, name, config(), status="failed", steps=0, reason=reason)
    text = words(findings(load(tmp_path)))
    assert text.endswith("failed: 2 runs (a, c). It broke. failed: 1 run (b). It burned.")


def test_a_run_that_failed_after_its_last_step_counts_with_its_rate_and_as_a_failure(tmp_path):
    write_run(tmp_path, "a", config(), seconds=0.1)
    directory = write_run(tmp_path, "b", config(seed=1), seconds=0.1)
    assert "None of 2 runs failed" in words(front.screen(load(tmp_path)))
    record = store.read_record(directory)
    after = {"reason": "What came after them failed.", "cause": "no_space"}
    store.write_record(directory, record.model_copy(update=after))
    data = load(tmp_path)
    assert data.completed["run_id"].sort().to_list() == ["a", "b"]
    said = words(reliability_page.statuses(data))
    assert said.startswith("2 runs: 2 completed.")
    assert said.endswith("failed after the last step: 1 run (b). What came after them failed.")
    assert "1 of 2 runs: 1 failed after the last step." in words(front.screen(data))


def test_failures_and_reasons_stand_in_the_order_of_the_runs(tmp_path: Path) -> None:
    ends = ("interrupted", "failed", "out_of_memory", "timeout", "diverged")
    for name, end in enumerate(ends):
        write_run(tmp_path, f"end{name}", config(), status=end, steps=0, reason="It ended.")
    for name, steps in enumerate((8, 7, 9)):
        write_run(tmp_path, f"short{name}", config(seed=name), steps=steps)
    data = load(tmp_path)
    text = words(findings(data))
    kept = data.unfinished["run_id"].to_list()
    assert len(kept) == len(ends)
    places = [text.index(f"({name}). It ended.") for name in kept]
    assert places == sorted(places)
    said = words(run_findings.warnings(data))
    reasons = data.completed["interval_reason"].to_list()
    assert len(set(reasons)) == 3
    ids = ", ".join(data.completed["run_id"])
    assert f"3 runs measured without an interval ({ids}): {reasons[0]} The figures are" in said


def test_repeats_of_the_only_configuration_say_how_far_they_are_apart(tmp_path: Path) -> None:
    for i, seconds in enumerate((0.1, 0.125)):
        write_run(tmp_path, f"r{i}", config(repeat=i), seconds=seconds)
    data = load(tmp_path)
    fast, slow = data.runs.sort("run_id")["rate"]
    apart = f"the slowest is {100 * (1 - slow / fast):.2g} % below the fastest."
    text = words(findings(data))
    assert re.search(r"2 runs of one configuration, .* \(r0, r1\), together reached", text)
    assert apart in text


def test_a_repeat_without_an_interval_is_told_and_not_counted_in(tmp_path: Path) -> None:
    write_run(tmp_path, "long", config())
    write_run(tmp_path, "short", config(repeat=1), steps=8)
    text = words(findings(load(tmp_path)))
    names = r"\(long; without an interval and left out: short\)"
    assert re.search(rf"2 runs of one configuration, .* {names}, reached", text)


def test_the_slowest_of_a_group_is_named(tmp_path: Path) -> None:
    splits = ({}, {"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2})
    for name, split, seconds in zip("abc", splits, (0.1, 0.2, 0.4), strict=True):
        write_run(tmp_path, name, config(world_size=2, **split), seconds=seconds)
    text = words(findings(load(tmp_path)))
    assert re.search(r"\(a\) is the fastest of 3 runs", text)
    assert re.search(r"The slowest, PP2 on 2 processes \(c\), reached .*: a spread of [34]\.", text)


def test_the_table_of_runs_without_a_result_has_each_ones_reason(tmp_path: Path) -> None:
    write_run(tmp_path, "broke", config(), status="failed", steps=0, reason="It broke.")
    write_run(tmp_path, "brief", config(), steps=3)
    data = load(tmp_path)
    reasons = dict(zip(data.runs["run_id"], data.runs["throughput_reason"], strict=True))
    rows = str(run_findings.failed(data)).split("<tr")
    text = {name: words(next(row for row in rows if f">{name}<" in row)) for name in reasons}
    assert "It broke." in text["broke"]
    assert "None" not in text["broke"]  # of its log, which it has none of
    assert reasons["brief"] in text["brief"]


def test_where_every_run_has_a_throughput_a_sentence_says_so(tmp_path: Path) -> None:
    write_run(tmp_path, "a", config())
    text = words(run_findings.failed(load(tmp_path)))
    assert text == "Every run completed and has a throughput."


def test_the_end_of_a_log_is_folded_under_its_number_of_lines_in_a_cell_that_wraps(
    tmp_path: Path,
) -> None:
    tail = ("Traceback", "KeyError: 'x'")
    write_run(tmp_path, "broke", config(), status="failed", steps=0, log_tail=tail)
    cell = str(run_findings.failed(load(tmp_path))).rpartition("<td")[2]
    assert cell.startswith(' class="txt wide"')
    assert "<summary>2 lines</summary><pre>Traceback\nKeyError: &#39;x&#39;</pre>" in cell


def test_a_group_of_gpus_names_the_mfu_and_one_without_a_peak_none(tmp_path: Path) -> None:
    made = config(platform="h100", model="llama3.1-8b", precision="bf16", sequence_length=8192)
    write_run(tmp_path, "gpu", made, seconds=12, device=H100)
    write_run(tmp_path, "cpu", config())
    data = load(tmp_path)
    text = {str(runs["group"][0]): words(" ".join(run_findings.group_findings(runs)))
            for _, runs in data.ranked.group_by("group")}  # fmt: skip
    (gpu,), (cpu,) = ([t for g, t in text.items() if name in g] for name in ("H100", "on CPU"))
    mfu = data.runs.filter(pl.col("run_id") == "gpu")["mfu"].item()
    assert f", an MFU of {100 * mfu:.1f} %." in gpu
    assert "MFU" not in cpu
    assert "None" not in cpu


def test_a_completed_run_without_a_throughput_says_why(tmp_path: Path) -> None:
    write_run(tmp_path, "none", config(), steps=3)
    data = load(tmp_path)
    (reason,) = data.runs["throughput_reason"]
    text = words(run_findings.warnings(data))
    assert f"1 run completed without a throughput (none): {reason}" in text


def test_no_completed_run_names_no_winner(tmp_path: Path) -> None:
    write_run(tmp_path, "a", config(), status="failed", steps=0, reason="It broke.")
    text = words(findings(load(tmp_path)))
    assert text.startswith("No run completed with a throughput")
    assert "failed: 1 run (a). It broke." in text


def test_cpu_numbers_and_missing_mfu_come_with_a_warning(tmp_path: Path) -> None:
    text = words(run_findings.warnings(load(write_sample(tmp_path))))
    assert "says nothing about any accelerator" in text
    assert "9 runs are simulated, not measured here" in text
    assert "5 runs have no MFU. A CPU has no peak in the catalog" in text


def test_the_highest_mfu_is_that_of_each_peak_the_most_used_first(tmp_path: Path) -> None:
    for name, precision in (("a", "bf16"), ("b", "bf16"), ("c", "fp32")):
        made = config(platform="h100", model="llama3.1-8b", precision=precision, repeat=ord(name),
                      sequence_length=8192)  # fmt: skip
        write_run(tmp_path, name, made, seconds=300, device=H100, source="measured")
    text = words(sections.mfu(load(tmp_path)))
    assert text.startswith("The highest MFU in BF16 is ")
    assert text.index("The highest MFU in FP32 is ") > 0


def test_reasons_that_differ_in_their_figures_are_one() -> None:
    said = [("Too short: 1 step after 0.", "a"), ("No clock.", "b")]
    said += [("Too short: 2 steps after 1.", "c")]
    found = by_cause(said)
    first = "Too short: 1 step after 0. The figures are those of the first run."
    assert found == [(first, ["a", "c"]), ("No clock.", ["b"])]
    assert by_cause([("No clock.", "a"), ("No clock.", "b")]) == [("No clock.", ["a", "b"])]


def test_good_gpu_runs_come_without_a_warning(tmp_path: Path) -> None:
    made = config(platform="h100", model="llama3.1-8b", precision="bf16", sequence_length=8192)
    write_run(tmp_path, "a", made, seconds=12, device=H100, source="measured")
    assert str(run_findings.warnings(load(tmp_path))) == ""


def test_a_short_window_and_an_impossible_mfu_are_warned_of(tmp_path: Path) -> None:
    made = config(platform="h100", model="llama3.1-8b", precision="bf16", sequence_length=8192)
    write_run(tmp_path, "short", made, seconds=12, steps=8, device=H100, source="measured")
    write_run(tmp_path, "wrong", made, seconds=0.01, device=H100, source="measured")
    text = words(run_findings.warnings(load(tmp_path)))
    assert "1 run measured without an interval (short): Too short to say: 3 steps" in text
    assert "wrong is not counted. Void: " in text


def test_steps_that_still_drift_are_warned_of_with_the_largest_drift(tmp_path: Path) -> None:
    for name in "abc":
        write_run(tmp_path, name, config(seed=ord(name)))
    data = load(tmp_path)
    runs = data.runs.sort("run_id").with_columns(steady_change=pl.Series([0.0, 0.00512, 0.0033]))
    text = words(run_findings.warnings(ReportData(data.folder, runs, data.steps, {}, {}, ())))
    assert "The steps of 2 runs still drift or shift, by up to 0.51 % over their window" in text


def test_unreadable_directories_are_told_on_the_page(tmp_path: Path) -> None:
    write_run(tmp_path, "a", config())
    write_run(tmp_path, "b", config())
    (tmp_path / "b" / "record.json").write_text("no json")
    data = load(tmp_path)
    assert "1 part of the run files could not be read" in words(run_findings.warnings(data))
    assert "b/record.json cannot be read" in words(unreadable(data.problems))


def test_a_loss_that_rises_is_named(tmp_path: Path) -> None:
    write_run(tmp_path, "a", config())
    data = load(tmp_path)
    assert "The loss fell in 1 of 1 run with a throughput" in words(losses(data))
    rising = data.runs.with_columns(loss_last=pl.lit(9.0), loss_fell=pl.lit(value=False))
    worse = ReportData(data.folder, rising, data.steps, {}, {}, ())
    assert "The loss of a did not fall" in words(losses(worse))


def test_mfu_names_convention_peak_precision_and_device(tmp_path: Path) -> None:
    text = words(sections.mfu(load(write_sample(tmp_path))))
    assert "by Megatron causal, of the dense BF16 peak, 989.4 TFLOP/s, of" in text


def test_markup_in_names_stays_text_in_every_sentence(tmp_path: Path) -> None:
    evil = config(model=EVIL, platform=EVIL, strategy=EVIL)
    write_run(tmp_path, "a", evil, run_id=EVIL)
    write_run(tmp_path, "b", config(model=EVIL), status="failed", reason=EVIL, run_id="b" + EVIL)
    data = load(tmp_path)
    found = series.scaling_series(data.completed)
    for fragment in (
        *(front.screen(data), studies.page(data), run_findings.behind(data)),
        *(run_findings.failed(data), run_findings.throughput(data), sections.mfu(data)),
        *(losses(data), series.not_enough(data, found), reliability_page.statuses(data)),
    ):
        assert "<img" not in str(fragment)


def test_speedup_and_efficiency_are_against_the_fastest_smallest_run(tmp_path: Path) -> None:
    write_run(tmp_path, "base", config(global_batch_size=8), seconds=0.2)
    write_run(tmp_path, "slower-base", config(global_batch_size=8, seed=1), seconds=0.4)
    write_run(tmp_path, "two", config(world_size=2, global_batch_size=16), seconds=0.25)
    (found,) = series.scaling_series(load(tmp_path).completed)
    assert found.base["run_id"] == "base"
    two = found.points.row(by_predicate=pl.col("run_id") == "two", named=True)
    ratio = two["tokens_per_second"] / found.base["tokens_per_second"]
    assert two["speedup"] == ratio
    assert two["scaling_efficiency"] == ratio / 2
    assert two["kind"] == "weak"
    text = words(series.scaling_findings([found]))
    assert f"DP2 on 2 processes (two), {ratio:.2f} times 1 process (base)." in text


def test_one_size_says_that_it_is_not_enough(tmp_path: Path) -> None:
    write_run(tmp_path, "a", config())
    data = load(tmp_path)
    assert series.scaling_series(data.completed) == ()
    text = words(series.not_enough(data, ()))
    assert "Not enough sizes: 1 group has runs at one world size only." in text
    assert "tiny-llama on CPU" in text
    assert "more than one size" in words(series.scaling_findings(()))


def test_a_run_of_unknown_size_breaks_no_sentence(tmp_path: Path) -> None:
    write_run(tmp_path, "a", config())
    data = load(tmp_path)
    gone = pl.lit(None)
    runs = data.runs.with_columns(
        world_size=gone.cast(pl.Int64), rate=gone.cast(pl.Float64), platform=pl.lit("h100")
    )
    unknown = ReportData(data.folder, runs, data.steps, {}, {}, ())
    assert "of how many ranks is not recorded" in words(findings(unknown))
    assert words(run_findings.throughput(unknown))
    assert words(front.screen(unknown))


def test_what_records_note_is_told_once_with_its_runs(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path, name, config(), notes=(f"precision ran as fp32. {EVIL}",))
    notes = run_findings.notes(load(tmp_path))
    assert f"Precision ran as FP32. {EVIL} (a, b)" in words(notes).replace("&lt;", "<")
    assert str(notes).count("<li>") == 1
    assert "<img" not in str(notes)


def test_all_that_is_unknown_of_a_run_is_said_in_one_sentence(tmp_path: Path) -> None:
    write_run(tmp_path, "bare", config(), requested={"world_size": 1})
    text = words(run_findings.throughput(load(tmp_path)))
    said = "the model, platform and sequence length are unknown (bare)."
    assert text == f"1 run is not compared with any other: {said}"


def test_packed_documents_are_named_and_not_ranked_with_whole_samples(tmp_path: Path) -> None:
    write_run(tmp_path, "whole", config(sequence_length=128), seconds=0.2)
    write_run(tmp_path, "packed", config(sequence_length=128, packed_documents=4), seconds=0.1)
    data = load(tmp_path)
    assert dict(data.runs.select("run_id", "group").iter_rows()) == {
        "whole": "tiny-llama on CPU (FP32, sequence 128, simulated)",
        "packed": "tiny-llama on CPU (FP32, sequence 128 of 4 documents, simulated)",
    }
    assert "4 packed documents" in data.runs.filter(pl.col("run_id") == "packed")["name"][0]
    said = words(run_findings.warnings(data))
    assert "4 documents are packed into a sample of 128 tokens by packed." in said
    assert "Attention stays inside documents, so FLOPs, TFLOP/s and MFU count it over 32" in said
    shutil.rmtree(tmp_path / "packed")
    assert "packed" not in words(run_findings.warnings(load(tmp_path)))
