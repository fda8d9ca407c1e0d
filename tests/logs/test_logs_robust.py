"""Damaged, hostile and huge files: no exception, no hang, no nonsense, bounded memory."""

from __future__ import annotations

import json
import math
import re
import textwrap
import time
import tracemalloc
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scalebook import logs
from scalebook.errors import IngestError
from scalebook.logs.collect import LARGEST
from scalebook.logs.dialects.nanotron import NanotronCSV
from scalebook.logs.ingest.group import find
from scalebook.logs.ingest.ingestion import ingest, summaries
from scalebook.logs.job import ColumnTable
from scalebook.logs.numbers import half_unit, integer, number, rounding, scaled
from scalebook.logs.setting_lines import partial_training
from scalebook.logs.source import LONGEST_LINE, clean

LOGS = Path(__file__).parents[1] / "logs"
EXCERPTS = sorted(path for path in LOGS.iterdir() if path.is_file() and path.suffix != ".py")
SMALL = ("megatron_2021_windows.log", "nemo2.log", "bridge_wrapped.log", "hf_trainer.log",
         "tprimat_old.json", "kineto.json", "nanotron.csv", "rocm_smi.csv")  # fmt: skip
RATES = (
    "step_seconds_median",
    "step_seconds_median_excluding_first",
    "tokens_per_second_median",
    "tokens_per_second_per_gpu_median",
)


def read(path: Path) -> list[dict[str, Any]]:
    """Return what a file holds, nothing where too little is left of it to be known."""
    try:
        return summaries(path, {})
    except IngestError as error:
        if not re.search("not a known log|contains no record that", str(error)):
            raise
        return []


def check(path: Path) -> list[dict[str, Any]]:
    """Read a file and hold what comes out against what can never be."""
    found = read(path)
    json.dumps(found, allow_nan=False)
    for summary in found:
        for name in RATES:
            value = summary[name]
            assert value is None or (value >= 0 and math.isfinite(value)), name
    return found


def check_bytes(path: Path, data: bytes) -> list[dict[str, Any]]:
    path.write_bytes(data)
    return check(path)


@pytest.mark.parametrize("name", SMALL)
def test_a_cut_at_any_byte_raises_nothing(tmp_path, name):
    data = (LOGS / name).read_bytes()
    whole = check_bytes(tmp_path / name, data)
    most = sum(summary["n_records"] for summary in whole)
    # No line is as short as this, so that each is cut several times, and elsewhere than the last.
    for end in range(0, len(data), 7):
        found = check_bytes(tmp_path / name, data[:end])
        assert sum(summary["n_records"] for summary in found) <= most


@pytest.mark.parametrize("name", SMALL)
def test_a_start_at_any_byte_raises_nothing(tmp_path, name):
    data = (LOGS / name).read_bytes()
    for start in range(0, len(data), max(1, len(data) // 50)):
        check_bytes(tmp_path / name, data[start:])


def mutate(data: bytes, draw: Any) -> bytes:
    """Return data changed as disks, terminals and people change logs."""
    kind = draw(st.sampled_from(("bytes", "cut", "digits", "lines", "joined", "pieces", "others")))
    if kind == "bytes":
        changed = bytearray(data)
        for place in draw(st.lists(st.integers(0, len(data) - 1), max_size=20)):
            changed[place] = draw(st.integers(0, 255))
        return bytes(changed)
    if kind == "cut":
        first, second = sorted(draw(st.tuples(*[st.integers(0, len(data))] * 2)))
        return data[:first] + data[second:]
    if kind == "digits":
        digit = draw(
            st.sampled_from((b"9" * 40, b"9" * 5000, b"-1", b"nan", b"1e308", b"", b"0", b"1e-320"))
        )
        return data.replace(draw(st.sampled_from((b"0", b"1", b"2", b"."))), digit, 7)
    if kind == "lines":
        return b"".join(draw(st.permutations(data.splitlines(keepends=True))))
    if kind == "joined":
        return data.replace(b"\n", draw(st.sampled_from((b"", b"\r", b"\r\n", b"|", b"\n\n"))))
    if kind == "pieces":
        piece = draw(st.sampled_from((b"\x1b[31m", b"\x00", b"\xff\xfe", b" " * 300, b"{", b"[")))
        return data.replace(b" ", piece, draw(st.integers(1, 30)))
    lines = data.splitlines(keepends=True)
    other = draw(st.sampled_from(EXCERPTS)).read_bytes().splitlines(keepends=True)
    mixed = [line for pair in zip(lines, other, strict=False) for line in pair]
    return b"".join(mixed + lines[len(other) :])


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_changed_excerpt_raises_nothing_and_gives_no_nonsense(tmp_path, data):
    path = data.draw(st.sampled_from(EXCERPTS))
    check_bytes(tmp_path / path.name, mutate(path.read_bytes(), data.draw))


def places(data: bytes, most: int = 12) -> list[re.Match[bytes]]:
    """Return numbers of a file, one of each kind of place that a number stands in."""
    kinds: dict[bytes, re.Match[bytes]] = {}
    for found in re.finditer(rb"\d+", data):
        before = data[max(0, found.start() - 14) : found.start()]
        kinds.setdefault(re.sub(rb"\d+", b"0", before), found)
    return [*kinds.values()][:: max(1, len(kinds) // most)]


@pytest.mark.parametrize("path", EXCERPTS, ids=lambda path: path.name)
def test_a_number_of_any_length_raises_nothing_wherever_it_stands(tmp_path, path):
    """At each place once beyond what a float holds, and once beyond what Python takes for one."""
    data = path.read_bytes()
    found = [one.span() for one in places(data)]
    half = len(found) // 2
    for first, second in zip(found, found[half:] + found[:half], strict=True):
        changed = data
        # From the end, so that the other place stays where it is.
        for start, end in sorted({first, second}, reverse=True):
            digits = b"9" * (400 if (start, end) == first else 5000)
            changed = changed[:start] + digits + changed[end:]
        check_bytes(tmp_path / path.name, changed)


@pytest.mark.parametrize("error", [ValueError("odd"), OverflowError("odd"), RecursionError("odd")])
def test_a_file_that_its_reader_does_not_foresee_is_noted_and_the_folder_goes_on(
    tmp_path, monkeypatch, error
):
    def unforeseen(self: Any, source: Any) -> Any:
        raise error

    for name in ("megatron_2021_windows.log", "nanotron.csv"):
        (tmp_path / name).write_bytes((LOGS / name).read_bytes())
    monkeypatch.setattr(NanotronCSV, "read", unforeseen)
    files = find([tmp_path])
    (group,) = files.groups()
    (note,) = files.notes
    assert group.files[0].path.name == "megatron_2021_windows.log"
    assert "nanotron.csv" in note and "(odd)" in note


@pytest.mark.parametrize(
    ("digits", "value"), [("0", 0), ("0" * 5000 + "12", 12), ("9" * 18, 10**18 - 1)]
)
def test_digits_make_their_number(digits, value):
    assert integer(digits) == value


def test_more_skipped_steps_than_any_run_has_are_not_told(tmp_path):
    data = re.sub(
        rb"skipped=\d+", b"skipped=" + b"9" * 5000, (LOGS / "deepspeed_timer.log").read_bytes()
    )
    (summary,) = check_bytes(tmp_path / "deepspeed_timer.log", data)
    assert summary["skipped_iterations"] is None


def test_more_digits_than_any_run_has_make_a_number_that_no_bound_lets_pass():
    assert integer("9" * 5000) > LARGEST
    assert half_unit("1e" + "9" * 5000) != half_unit("1e" + "9" * 5000)
    assert half_unit("1e-9999999999") == 0


@pytest.mark.parametrize("name", ["wandb_export.csv", "nanotron.log", "key_value.log"])
def test_figures_beyond_all_measure_are_left_out_of_the_steps(tmp_path, name):
    text = (LOGS / name).read_bytes()
    for index, (digit, figure) in enumerate(product((b"0", b"2"), (b"9" * 40, b"1e-320"))):
        changed = tmp_path / f"{index}{name}"
        changed.write_bytes(text.replace(digit, figure, 7))
        with suppress(IngestError):
            ingest([changed], tmp_path / "runs", {})


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_changed_excerpt_can_be_written_as_runs(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("runs")
    path = data.draw(st.sampled_from(EXCERPTS))
    changed = folder / path.name
    changed.write_bytes(mutate(path.read_bytes(), data.draw))
    try:
        ingest([changed], folder / "runs", {})
    except IngestError as error:
        assert re.search("not a known log|contains no record that", str(error))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(junk=st.binary(max_size=3000))
def test_random_bytes_are_of_no_dialect_and_raise_nothing(tmp_path, junk):
    for summary in check_bytes(tmp_path / "junk.log", junk):
        assert summary["n_records"] == 0


LABELS = (
    "0: ", "[rank0]: ", "[default0]:", "[1,0]<stdout>: ", "worker-0: ", "trainer-1  | ",
    "[pod/job-worker-0/pytorch] ", "(main, pid=4112) ", "[stdout] ", "INFO:root:", "> ",
    "[pod/a-0/b] [rank0]:",
)  # fmt: skip
TEXTS = [path for path in EXCERPTS if path.suffix in (".log", ".txt")]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_what_only_names_the_source_of_each_line_changes_nothing(tmp_path, path):
    plain = path.read_text("utf-8").replace("\r\n", "\n").rstrip("\n") + "\n"
    copy = tmp_path / path.name
    copy.write_text(plain, "utf-8")
    expected = read(copy)
    for label in LABELS:
        copy.write_text(re.sub(r"^(?=[^\n]*\S)", label, plain, flags=re.MULTILINE), "utf-8")
        for job, other in zip(read(copy), expected, strict=True):
            said = {"reason": other["reason"]}  # it may name the rank
            assert job | said == other, label


@pytest.mark.parametrize("stamp", ["2026-03-01T10:00:00.123456789Z ", "Mar  1 10:00:00 n1 py[7]: "])
@pytest.mark.parametrize("name", ["hf_metrics.txt", "nvidia_dmon.txt", "nemo_rl.log"])
def test_a_time_stamp_before_each_line_hides_no_record_of_many_lines(tmp_path, name, stamp):
    plain, copy = (LOGS / name).read_text("utf-8"), tmp_path / name
    copy.write_text(re.sub(r"^(?=[^\n]*\S)", stamp, plain, flags=re.MULTILINE), "utf-8")
    assert read(copy) == read(LOGS / name)


def test_the_time_that_the_trainer_prints_counts_not_that_of_the_container(tmp_path):
    lines = [
        f"2026-03-01T10:00:59.123456789Z [titan] 2026-03-01 10:00:{second},500 - root - INFO - "
        f"step: {step}  loss: 7.5  memory: 10.00GiB(50.00%)  tps: 4,096  mfu: 30.00%\n"
        for step, second in ((1, "10"), (11, "30"), (21, "50"))
    ]
    (log := tmp_path / "titan.log").write_text("".join(lines))
    assert read(log)[0]["step_seconds_median"] == 2.0  # 20 s for 10 steps


def test_a_label_of_all_lines_is_the_rank_of_a_failure(tmp_path):
    (log := tmp_path / "oom.log").write_text(
        "[rank3]: iteration 1/ 9 | elapsed time per iteration (ms): 500.0 | lm loss: 2.0 |\n"
        "[rank3]: iteration 2/ 9 | elapsed time per iteration (ms): 500.0 | lm loss: 2.0 |\n"
        "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    )
    (job,) = read(log)
    assert (job["status"], job["n_records"]) == ("out_of_memory", 2)
    assert "on rank 3" in job["reason"]


def test_prefixes_of_several_ranks_are_no_label(tmp_path):
    (log := tmp_path / "two.log").write_text(
        "".join(
            f"[rank{rank}]:[titan] 2026-03-01 10:00:{step:02d},000 - root - INFO - step: {step}  "
            f"loss: {8 - rank}.0  memory: 10.00GiB(50.00%)  tps: 4,096  mfu: 30.00%\n"
            for step in (1, 2, 3)
            for rank in (0, 1)
        )
    )
    (job,) = read(log)
    assert (job["n_records"], job["loss_first"], job["loss_last"]) == (3, 8.0, 8.0)


@pytest.mark.parametrize("name", [path.name for path in EXCERPTS])
def test_carriage_returns_and_colours_change_nothing(tmp_path, name):
    data = (LOGS / name).read_bytes()
    plain = check(LOGS / name)
    lines = b"\r\n".join(b"\x1b[32m" + line + b"\x1b[0m" for line in data.split(b"\n"))
    for summary, other in zip(plain, check_bytes(tmp_path / name, lines), strict=True):
        for key in (*RATES, "n_records", "first_step", "last_step", "loss_last", "world_size"):
            if name.endswith((".json", ".jsonl", ".csv")) or name == "nemo1.log":
                continue  # a colour inside a document, or a bar that shares a line
            assert summary[key] == other[key], key


@pytest.mark.parametrize(
    "line",
    [
        "Step 1 | " * 100_000,
        "iteration 1/ 9 | " * 60_000,
        "9" * 1_000_000,
        "{'loss': " * 100_000,
        "step: 1  loss: 1 " * 50_000,
        "a" * 1_000_000 + " .. 1",
        "[" * 500_000,
        "Step 1 | Time: 1s | Loss: " * 40_000,
        "Step 1 | loss:1 tokens_per_second_per_gpu" * 25_000,
        "step 1 | epoch 1 | tps" * 45_000,
        "iter 1 step 1 | iter time: " * 37_000,
        "rank-1/2] iteration 1/ 2 | (ms): 1" * 30_000,
        "iteration: 1 / 2 | elapsed_time_per_iteration_ms: " * 20_000,
        "Training epoch 1, iteration 1/2 | " * 30_000,
        "1/2 [reduced_train_loss= global_step=" * 27_000,
        "steps: 1 loss: iter time (s): " * 33_000,
        "completed step: 1, seconds: " * 35_000,
        "Step Time : 1s GPU utilization: " * 31_000,
        "utilization.gpu, " * 58_000,
        "GPU[1] : " * 110_000,
        '{"traceEvents": [' + '{"ph":' * 100_000,
        '"performance_metrics" "training_config": ' + "[" * 200_000,
        ":::MLLOG " + '{"a":' * 100_000,
    ],
    ids=lambda line: line[:12],
)
def test_an_endless_line_is_left_out_in_time_that_grows_with_its_length(tmp_path, line):
    ordinary = line[:LONGEST_LINE] + "\n"
    started = time.perf_counter()
    check_bytes(tmp_path / "short.log", ordinary.encode() * 4)
    short = time.perf_counter() - started
    started = time.perf_counter()
    check_bytes(tmp_path / "long.log", (line[: 32 * LONGEST_LINE] + "\n").encode())
    assert time.perf_counter() - started < 100 * max(short, 0.05)


def test_digits_without_end_are_looked_through_once():
    started = time.process_time()
    assert partial_training("9" * 2 * LONGEST_LINE) is None
    assert time.process_time() - started < 0.2


def test_a_long_line_is_counted_in_a_note(tmp_path):
    text = (LOGS / "megatron_2021_windows.log").read_text()
    found = check_bytes(tmp_path / "a.log", (text + "x" * 50_000 + "\n").encode())
    assert found[0]["n_records"] == 3
    assert any("characters were left out" in warning for warning in found[0]["warnings"])


def big_log(path: Path, lines: int) -> None:
    with path.open("w") as stream:
        for step in range(1, lines + 1):
            stream.write(
                f" [2031-01-01 00:00:00] iteration {step:8d}/ {lines:7d} | consumed samples: "
                f"{64 * step:12d} | elapsed time per iteration (ms): {1000 + step % 7:.1f} | "
                f"learning rate: 1.000E-04 | global batch size:    64 | lm loss: 2.500000E+00 | "
                "loss scale: 1.0 | grad norm: 1.000 | number of skipped iterations:   0 | "
                "number of nan iterations:   0 |\n    forward-backward ......: (1.00, 2.00)\n"
            )


def test_memory_grows_with_the_records_kept_not_with_the_text(tmp_path):
    path = tmp_path / "big.log"
    big_log(path, 40_000)
    tracemalloc.start()
    found = logs.read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found.jobs[0].table) == 40_000
    assert path.stat().st_size > 12 << 20
    assert peak < 32 << 20  # a piece of text with its parts, and about 100 bytes a record


def test_the_layout_of_lines_and_field_by_field_reading_agree(tmp_path, monkeypatch):
    path = tmp_path / "big.log"
    big_log(path, 500)
    fast = check(path)[0]
    from scalebook.logs import iteration_line

    monkeypatch.setattr(iteration_line, "_FEW", 1 << 60)
    assert check(path)[0] == fast


@given(st.text(max_size=40))
def test_a_number_is_finite_or_missing(text):
    for value in (number(text), scaled(text), half_unit(text)):
        assert (
            math.isnan(value)
            or math.isfinite(value)
            or text.strip().lower().lstrip("+-")
            in (
                "inf",
                "infinity",
            )
        )


@pytest.mark.parametrize(
    ("text", "value"),
    [("5,856", 5856), ("34.29%", 34.29), ("92809.9/268751.1", 92809.9),
     ("496.3 (avg 496.1)", 496.3), ("1.5E-03", 0.0015), ("227.04GB", 227.04),
     ("'0.4247'", 0.4247), ("1,2", 1.2), ("1,234,567", 1234567), ("12,345.5 tok/s", 12345.5),
     ("8,450000E+00", 8.45), ("1500,5", 1500.5), ("0,125", 0.125), ("1.234,5", 1234.5),
     ("-12,345", -12345), ("3.2, v", 3.2)],
)  # fmt: skip
def test_a_number_is_read_as_printed(text, value):
    assert number(text) == value


@pytest.mark.parametrize(("text", "value"), [("11.5K", 11500), ("85.8G", 85.8e9), ("64", 64)])
def test_a_suffix_scales(text, value):
    assert scaled(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("value", "error"), [(22800, 50 / 22800), (0.008, 0.0625), (1024, 0.5 / 1024)]
)
def test_rounding_is_half_of_the_last_digit(value, error):
    assert rounding(value) == pytest.approx(error)


def test_clean_text_has_no_escape_and_one_kind_of_line_end():
    assert clean(b"\x1b[1;32mok\x1b[0m\r\nbar 1\rbar 2\x00\n") == "ok\nbar 1\nbar 2\n"


def test_a_table_fills_columns_that_come_late():
    table = ColumnTable()
    table.append({"step": 1.0})
    table.append({"step": 2.0, "loss": 3.0})
    assert [math.isnan(value) for value in table.column("loss")] == [True, False]
    assert table.row(0) == {"step": 1.0}


@pytest.mark.parametrize("mesh", ["4 3", "4,,3", " ", "4 3, 1", "٣ 2"])
def test_a_damaged_mesh_of_devices_is_no_size_and_raises_nothing(tmp_path, mesh):
    text = (LOGS / "torchtitan.log").read_text()
    lines = [one for one in text.splitlines(keepends=True) if "device mesh" not in one]
    said = f"Building 1-D device mesh with ['dp'], [{mesh}]\n"
    (found,) = check_bytes(tmp_path / "a.log", "".join([said, *lines]).encode())
    assert found["world_size"] == 8  # by the printed rates


def test_the_few_lines_of_another_rank_are_no_records_of_the_labelled_one(tmp_path):
    line = "[rank{rank}]:[titan] step: {n}  loss: {loss}  memory: 9.00GiB(20.00%)  tps: 4,096\n"
    text = "".join(line.format(rank=0, n=n, loss=7.5) for n in range(1, 41))
    (log := tmp_path / "a.log").write_text(text + line.format(rank=1, n=41, loss=9.5))
    (job,) = read(log)
    assert (job["n_records"], job["last_step"], job["loss_last"]) == (40, 40, 7.5)


APART = {"family": "", "warnings": [], "derived_from": {}}  # the same by another reader


def wrapped(text: str, width: int, *, at_words: bool) -> str:
    """Return a text as a terminal or a page of this width shows it."""
    pieces = [
        textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)
        if at_words
        else [line[at : at + width] for at in range(0, len(line), width)]
        for line in text.split("\n")
    ]
    return "\n".join(line for of in pieces for line in of or [""])


@pytest.mark.parametrize(("width", "at_words"), [(120, False), (120, True), (160, False)])
@pytest.mark.parametrize(
    "name",
    ["gpt_neox.log", "maxtext.log", "megatron_deepspeed_2021.log", "megatron_deepspeed_seconds.log",
     "nanotron.log", "nemo2.log", "prime_rl.log", "restart.log", "slime.log", "torchtitan.log"],
)  # fmt: skip
def test_lines_that_a_page_wrapped_say_the_same(tmp_path, name, width, at_words):
    text, copy = (LOGS / name).read_text("utf-8"), tmp_path / name
    copy.write_text(text.rstrip("\n") + "\n", "utf-8")
    expected = [{**job, **APART} for job in read(copy)]
    copy.write_text(wrapped(text, width, at_words=at_words).rstrip("\n") + "\n", "utf-8")
    assert [{**job, **APART} for job in read(copy)] == expected


def test_records_of_one_length_are_not_pieces_of_a_wrapped_line(tmp_path):
    line = "iteration {n}/ 9 | elapsed time per iteration (ms): 1500.0 | lm loss: {loss} |"
    lines = [line.format(n=n, loss=9.5 - n) for n in (1, 2, 3)]
    assert {len(one) for one in lines} == {73}
    (log := tmp_path / "a.log").write_text("\n".join([*lines, "grad norm: 2.5 | done", ""]))
    (job,) = read(log)
    assert (job["n_records"], job["loss_first"], job["loss_last"]) == (3, 8.5, 6.5)


@pytest.mark.parametrize(
    "name",
    ["bridge_wrapped.log", "key_value.log", "megatron_2024.log", "nanochat.log", "nemo2.log",
     "prime_rl_comma.log", "torchtitan.log"],
)  # fmt: skip
def test_a_log_that_is_cut_off_has_no_figure_that_the_whole_one_lacks(tmp_path, name):
    text, copy = (LOGS / name).read_text("utf-8"), tmp_path / name
    copy.write_text(text, "utf-8")
    known = {(row["step"], column, value) for row in rows(copy) for column, value in row.items()}
    for end in range(len(text) // 2, len(text), 7):
        copy.write_text(text[:end], "utf-8")
        cut = {(row["step"], column, value) for row in rows(copy) for column, value in row.items()}
        assert {one for one in cut - known if one[1] not in ("clock", "seconds")} == set(), end


def rows(path: Path) -> list[dict[str, float]]:
    """Return the steps of a file, column by column."""
    with suppress(IngestError):
        tables = [job.table for job in logs.read(path).jobs]
        return [table.row(index) for table in tables for index in range(len(table))]
    return []


@pytest.mark.parametrize("name", ["composer.log", "megatron_2024.log", "prime_rl.log", "sat.log"])
def test_thousands_may_be_separated(tmp_path, name):
    text, copy = (LOGS / name).read_text("utf-8"), tmp_path / name
    figure = re.compile(r"(?<=: )([1-9]\d{3,8})((?:\.\d+)?)(?=[ |]|$)", re.MULTILINE)
    copy.write_text(figure.sub(lambda found: f"{int(found[1]):,}{found[2]}", text), "utf-8")
    assert copy.read_text("utf-8") != text
    assert read(copy) == read(LOGS / name)
