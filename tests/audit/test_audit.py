"""Claims about the audit of claims."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebook.audit import (
    Check,
    audit,
    claim_files,
    count_claims,
    parse_claims,
    parse_results,
    sample_text,
    samples,
)
from scalebook.audit.claimed_rows import read_bounded
from scalebook.audit.fields import field, fields, words
from scalebook.audit.identities import identities, limits, parse_identity, show
from scalebook.audit.printed import read_printed
from scalebook.errors import ClaimError
from scalebook.measure.intervals import Interval, point

SEEDS = {
    "peak-summary": "000_*.txt",
    "benchmark-suite": "001_*.txt",
    "scaling-analysis": "002_*.txt",
    "megatron-page": "003_*.txt",
    "platform-benchmark": "004_*.txt",
}
WRONG = ("contradicts", "impossible")


def checks_of(text: str) -> tuple[Check, ...]:
    """The checks of a claims file."""
    return audit(parse_claims(text, "test.toml")).checks


def claim(**cells: str) -> tuple[Check, ...]:
    """The checks of one claim."""
    lines = [f"{name} = {value!r}" for name, value in cells.items()]
    return checks_of("[[claims]]\n" + "\n".join(lines))


def verdict(field_name: str, **cells: str) -> str:
    """The worst verdict about a field of one claim."""
    found = tuple(check for check in claim(**cells) if check.field == field_name)
    counts = count_claims(found)
    return next(name for name, count in counts.items() if count)


def only(field_name: str, checks: tuple[Check, ...], rule: str = "") -> Check:
    """The first check about a field whose rule contains a text."""
    return next(c for c in checks if c.field == field_name and rule in c.rule)


# What printed digits stand for


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("38.3%", 0.3825, 0.3835),
        ("87,933", 87932.5, 87933.5),
        ("7.6B", 7.55e9, 7.65e9),
        ("$1,869.90", 1869.895, 1869.905),
        ("1.11x", 1.105, 1.115),
        ("1.92×", 1.915, 1.925),
        ("-15%", -0.155, -0.145),
        ("~390", 351, 429),
        ("~5", 4.5, 5.5),
        ("~2", 1.5, 2.5),
        ("85-95%", 0.845, 0.955),
        ("47–48%", 0.465, 0.485),
        ("6-20K", 5500, 20500),
        ("6K-20K", 5500, 20500),
        ("900M-1.2B", 899.5e6, 1.25e9),
        ("1-2", 0.5, 2.5),
        ("2.1..2.6", 2.05, 2.65),
        ("<30", 0, 30.5),
        ("up to 47%", 0, 0.475),
        ("175K+", 174500, float("inf")),
        (">400", 399.5, float("inf")),
        ("=1T", 1e12, 1e12),
        ("3e-4", 2.5e-4, 3.5e-4),
        ("1.5 trillion", 1.45e12, 1.55e12),
    ],
)
def test_a_printed_value_stands_for_what_rounds_to_it(text, low, high):
    interval = read_printed(text).interval
    assert interval.low == pytest.approx(low)
    assert interval.high == pytest.approx(high)


def test_a_count_is_exact_unless_it_has_a_suffix():
    assert read_printed("1,024", exact=True).interval == point(1024)
    assert read_printed("8K", exact=True).interval == Interval(7500, 8500)


def test_a_value_that_was_cut_and_not_rounded_may_be_claimed():
    printed = read_printed("22.7%")
    assert printed.claimed.meets(point(0.22799))
    assert not printed.interval.meets(point(0.22799))
    assert not printed.claimed.meets(point(0.2264))


@pytest.mark.parametrize(
    "text", ["", "abc", "1,00", "nan", "inf", "1e400", "--3", "9" * 70, "~", "="]
)
def test_what_is_no_value_is_refused(text):
    with pytest.raises(ClaimError):
        read_printed(text)


# Identities


def test_every_quantity_of_an_identity_is_in_the_vocabulary_or_defined_by_another():
    quantities = {item.quantity for item in fields().values()}
    defined = {identity.subject for identity in identities()}
    defined |= {"highest_peak_tflops_per_second", "most_device_memory_gb", "lowest_pue"}
    used = [name for identity in identities() for name in identity.names]
    used += [name for limit in limits() for name in limit.names]
    for name in used:
        assert name.removeprefix("base_") in quantities | defined, name


@given(st.lists(st.floats(0.01, 1e6), min_size=6, max_size=6))
def test_solving_an_identity_for_each_quantity_gives_it_back(values):
    for identity in identities():
        names = list(dict.fromkeys(identity.right.names()))
        known = dict(zip(names, (point(value) for value in values), strict=False))
        known[identity.subject] = identity.solve(identity.subject, known)
        for name in identity.names:
            solved = identity.solve(name, {k: v for k, v in known.items() if k != name})
            # 1 - (1 - x) loses digits where x is large
            assert solved.low == pytest.approx(known[name].low, rel=1e-6, abs=1e-8)


def test_an_equation_is_written_solved_for_any_quantity():
    identity = parse_identity("elapsed = 2 * tokens / rate")
    assert (identity.whole, identity.claimed) == (False, False)
    assert identity.expression("elapsed") == "2 * tokens / rate"
    assert identity.expression("tokens") == "0.5 * elapsed * rate"
    assert identity.expression("rate") == "2 * tokens / elapsed"


@pytest.mark.parametrize(
    ("constant", "shown"),
    [
        (10, "0.1 * b"),
        (16, "b / 16"),
        (3600, "b / 3600"),
        (1_000_000, "1e-06 * b"),
        (1_250_000, "8e-07 * b"),
    ],
)
def test_a_constant_is_shown_as_a_divisor_where_that_reads_better(constant, shown):
    assert parse_identity(f"b = {constant} * a").expression("a") == shown


# Verdicts


def test_100_billion_tokens_at_145267_a_second_do_not_take_6_hours():
    check = only(
        "elapsed_hours",
        claim(tokens="=100B", tokens_per_second="145,267", elapsed_hours="5.7"),
    )
    assert check.verdict == "contradicts"
    assert check.expected == pytest.approx(191.219, abs=1e-3)
    assert "100B / 145,267" in check.arithmetic


def test_a_sparse_peak_under_an_mfu_is_named():
    cells = {"accelerator": "h100", "model_tflops_per_second_per_gpu": "450", "mfu": "22.7%"}
    check = only("mfu", claim(**cells))
    assert check.verdict == "contradicts"
    assert check.expected == pytest.approx(450 / 989.4)
    assert "the claim fits bf16 2:4 sparse" in check.note


def test_390_tflops_are_not_47_percent_of_an_h100():
    check = only("mfu", claim(accelerator="h100", model_tflops_per_second_per_gpu="390", mfu="47%"))
    assert check.verdict == "contradicts"
    assert check.expected == pytest.approx(0.394, abs=1e-3)
    assert "fits" not in check.note


def test_an_mfu_over_the_dense_peak_holds():
    cells = {"accelerator": "mi300x", "model_tflops_per_second_per_gpu": "501"}
    assert verdict("mfu", **cells, mfu="38.3%") == "holds"


@pytest.mark.parametrize(
    ("tflops", "convention"),
    [("463", "megatron_causal"), ("521", "full_attention"), ("434", "six_n"), ("600", None)],
)
def test_the_flops_convention_that_fits_is_named(tflops, convention):
    checks = claim(
        model="llama3.1-8b", sequence_length="8192", tokens_per_second_per_gpu="9,000",
        model_tflops_per_second_per_gpu=tflops,
    )  # fmt: skip
    check = only("model_tflops_per_second_per_gpu", checks)
    if convention is None:
        assert check.verdict == "contradicts"
    else:
        assert check.verdict == "holds"
        assert convention in check.note


def test_a_rate_above_the_physical_peak_is_impossible():
    cells = {"model": "llama3.1-8b", "accelerator": "h100", "gpus": "8"}
    rate = {"tokens_per_second": "180,000"}
    assert verdict("tokens_per_second", **cells, **rate, precision="bf16") == "impossible"
    # without a precision it may have been fp8
    assert verdict("tokens_per_second", **cells, **rate) == "possible"


def test_a_time_below_that_of_the_peak_is_impossible_whatever_rate_is_stated():
    cells = {"accelerator": "A100-SXM4-40GB", "precision": "bf16", "gpus": "32", "parameters": "7B"}
    assert verdict("elapsed_hours", **cells, tokens="=1T", elapsed_hours="57") == "impossible"
    assert verdict("elapsed_hours", **cells, tokens="=1T", elapsed_hours="5,700") == "possible"


def test_memory_above_the_device_is_impossible():
    assert verdict("memory_gb", accelerator="h100", memory_gb="96") == "impossible"
    assert verdict("memory_gb", accelerator="h100", memory_gb="71.2") == "possible"


def test_efficiency_is_judged_against_the_base_row():
    text = """
    [[tables]]
    base = "1 node"
    line = 54
    columns = ["label", "gpus", "tokens_per_second", "scaling_efficiency"]
    rows = [["1 node", "8", "36,421", "100%"],
            ["2 nodes", "16", "70,234", "96.4%"],
            ["4 nodes", "32", "133,892", "92.0%"]]
    """
    checks = [check for check in checks_of(text) if check.field == "scaling_efficiency"]
    assert [check.verdict for check in checks] == ["holds", "holds", "contradicts"]
    assert [check.line for check in checks] == [54, 55, 56]
    assert checks[2].expected == pytest.approx(0.91906, abs=1e-5)


def test_the_rate_of_another_model_is_no_base():
    text = """
    [[tables]]
    base = "7B"
    given = { accelerator = "h100" }
    columns = ["label", "gpus", "parameters", "mfu", "scaling_efficiency"]
    rows = [["7B", "8", "7B", "42%", "100%"], ["70B", "64", "70B", "42%", "100%"]]
    """
    assert not [check for check in checks_of(text) if check.verdict in WRONG]


def test_what_a_row_says_of_its_base_counts_before_the_base_row():
    text = """
    [[tables]]
    base = "A"
    columns = ["label", "cost", "base_cost", "cost_reduction"]
    rows = [["A", "100", "", ""], ["B", "40", "", "{}"], ["C", "40", "80", "{}"]]
    """
    for of_a, of_80, wrong in (("60%", "50%", 0), ("50%", "60%", 2)):  # 1 - 40 / 100, 1 - 40 / 80
        checks = checks_of(text.format(of_a, of_80))
        assert len([check for check in checks if check.verdict in WRONG]) == wrong


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [(0.412, 0.4115, 0.4125), (12.5, 12.45, 12.55), (3, 3, 3), (1.5e3, 1499.95, 1500.05)],
)
def test_a_number_of_a_result_row_stands_for_what_rounds_to_it(value, low, high):
    interval = claim_files._number(value, "here").interval
    assert (interval.low, interval.high) == (pytest.approx(low), pytest.approx(high))


def test_a_link_is_followed_only_where_that_was_asked_for(tmp_path: Path):
    (tmp_path / "there").write_bytes(b"text")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "there")
    assert read_bounded(link, 10, follow=True) == b"text"
    with pytest.raises(ClaimError, match="cannot be read"):
        read_bounded(link, 10)


def test_a_total_is_the_sum_of_the_rows():
    rows = '["a", "$10.50"], ["b", "$2.25"], ["Total", "{}"]'
    head = '[[tables]]\ntotal = "Total"\ncolumns = ["label", "cost"]\nrows = ['
    good = checks_of(head + rows.format("$12.75") + "]")
    bad = checks_of(head + rows.format("$13.75") + "]")
    assert [check.verdict for check in good] == ["holds"]
    assert [check.verdict for check in bad] == ["contradicts"]
    assert "$10.50 + $2.25 = 12.75" in bad[0].arithmetic


def test_what_is_the_same_in_every_row_is_compared():
    text = """
    [[tables]]
    same = ["price_per_gpu_hour"]
    given = { gpus = "8" }
    columns = ["label", "elapsed_hours", "cost"]
    rows = [["a", "10", "$160"], ["b", "20", "$320"], ["c", "30", "$580"]]
    """
    found = [check for check in checks_of(text) if "same" in check.rule]
    # what the table gives is no claim of the row: the cost is judged
    assert [(check.label, check.field, check.verdict) for check in found] == [
        ("b", "cost", "holds"), ("c", "cost", "contradicts")
    ]  # fmt: skip


def test_a_value_said_twice_must_be_one_value():
    assert verdict("elapsed_minutes", elapsed_seconds="991.38", elapsed_minutes="16.5") == "holds"
    assert verdict("also_cost", cost="$2,216.00", also_cost="$2,416.00") == "contradicts"
    # what follows is counted from the first: 8 GPUs for 10 hours, not for 6,000 minutes
    twice = {"gpus": "8", "elapsed_hours": "10", "elapsed_minutes": "6,000"}
    assert verdict("gpu_hours", **twice, gpu_hours="80") == "holds"
    assert verdict("gpu_hours", **twice, gpu_hours="800") == "contradicts"


@pytest.mark.parametrize(
    ("model", "size", "legal", "expected"),
    [
        ("qwen2.5-7b", "4", "yes", "holds"),
        ("qwen2.5-7b", "7", "yes", "contradicts"),
        ("qwen2.5-7b", "8", "no", "holds"),
        ("llama3.1-8b", "8", "no", "contradicts"),
    ],
)
def test_tensor_parallel_sizes_are_judged_by_legality(model, size, legal, expected):
    assert verdict("legal", model=model, tensor_parallel_size=size, legal=legal) == expected


def test_a_size_that_legality_judged_needs_no_other_check():
    (judged,) = claim(model="qwen2.5-7b", tensor_parallel_size="4")
    assert (judged.rule, judged.verdict) == ("legality", "holds")
    (left,) = claim(tensor_parallel_size="4")
    assert (left.rule, left.verdict) == ("", "not checkable")


def test_sizes_that_leave_no_whole_number_of_replicas_contradict():
    sizes = {
        "tensor_parallel_size": "4", "pipeline_parallel_size": "2", "context_parallel_size": "1"
    }  # fmt: skip
    wrong, right = (only("gpus", claim(gpus=gpus, **sizes)) for gpus in ("12", "16"))
    assert (wrong.verdict, wrong.note) == (
        "contradicts", "data_parallel_size is not a whole number"
    )  # fmt: skip
    assert (right.verdict, right.note) == ("holds", "")


@pytest.mark.parametrize(
    ("model", "groups", "expected"),
    [
        ("llama3.1-8b", "8", "holds"), ("llama3.1-8b", "4", "contradicts"),
        ("deepseek-v3", "4", "not checkable"),  # its attention has a latent and no groups
    ],
)  # fmt: skip
def test_groups_of_heads_are_compared_where_the_model_has_them(model, groups, expected):
    assert verdict("num_query_groups", model=model, num_query_groups=groups) == expected


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({"parameters": "405B"}, "holds"),  # 405.85: cut, not rounded
        ({"parameters": "70B"}, "contradicts"),
    ],
)
def test_parameters_are_compared_with_the_named_model(cells, expected):
    assert verdict("parameters", model="llama3.1-405b", **cells) == expected


def test_a_dense_model_called_a_mixture_contradicts():
    assert verdict("architecture", model="nemotron4-340b", architecture="moe") == "contradicts"


def test_what_cannot_be_checked_says_what_it_needs():
    check = only("cost_reduction", claim(cost_reduction="63%"))
    assert check.verdict == "not checkable"
    assert check.note == "needs base_cost, cost"


def test_energy_is_power_times_time_and_pue():
    cells = {"power_kilowatts": "10.24", "elapsed_hours": "57", "pue": "1.12"}
    assert verdict("energy_kwh", **cells, energy_kwh="654") == "holds"
    assert verdict("energy_kwh", **cells, energy_kwh="584") == "contradicts"


def test_a_wrong_peak_does_not_make_the_utilisation_right():
    checks = claim(
        accelerator="h100", model_tflops_per_second_per_gpu="450", peak_tflops_per_second="1,979",
        mfu="22.7%",
    )  # fmt: skip
    assert only("peak_tflops_per_second", checks).verdict == "contradicts"
    assert only("mfu", checks).verdict == "contradicts"


# The arithmetic that is shown


def computed(expression: str) -> float:
    """What a reader gets who computes with the numbers that an expression shows."""
    expression = re.sub(r" \(middle of [^)]*\)", "", expression)
    result, operator = 0.0, "+"
    for part in re.split(r" ([-+*/]) ", expression):
        if part in tuple("+-*/"):
            operator = part
            continue
        number = float(part) if "e-" in part else read_printed(part).value
        result = {
            "+": result + number, "-": result - number, "*": result * number,
            "/": result / number if operator == "/" else 0.0,
        }[operator]  # fmt: skip
    return result


def is_true(step: list[str]) -> bool:
    """Whether the last part of a step is what the part before it comes to."""
    value = computed(step[-2])
    near = (value * factor for factor in (1 - 1e-12, 1, 1 + 1e-12))  # a half may round either way
    return step[-1] in map(show, near)


def steps_of(checks: tuple[Check, ...]) -> list[list[str]]:
    """Every step of the arithmetic, in its parts between the signs of equality."""
    lines = (line for check in checks for line in check.arithmetic.split("; "))
    return [parts for line in lines if " <= " not in line and len(parts := line.split(" = ")) > 2]


@pytest.mark.parametrize("name", samples())
def test_every_step_that_a_shipped_file_shows_is_true(name):
    for step in steps_of(audit(parse_claims(sample_text(name), name)).checks):
        if not re.fullmatch(r"[a-z]\w+", step[-2]):  # "a = b = 9" says that b is stated
            assert is_true(step), step


@given(*[st.integers(1, 10**6)] * 3, st.floats(0.01, 1e4), st.floats(1, 99).map("{:.1f}%".format))
def test_every_step_is_true_whatever_the_numbers(batch, length, gpus, seconds, mfu):
    step = f"{seconds:.2f}"
    checks = claim(
        accelerator="h100", parameters="7B", global_batch_size=f"{batch}",
        sequence_length=f"{length}", gpus=f"{gpus}", step_seconds=f"~{step}", mfu=mfu,
    )  # fmt: skip
    for parts in steps_of(checks):
        assert is_true(parts), parts


@pytest.mark.parametrize(
    ("sample", "line", "step"),
    [
        ("megatron-page", 115, "1536 * 2048 = 3,145,728"),
        ("megatron-page", 115, "3,145,728 / ~5 = 629,146"),
        ("megatron-page", 115, "1,061,947,441,152 * 1,228.8 = 1,304.92"),
        ("megatron-page", 87, "44% / 42% = 1.04762"),
        ("platform-benchmark", 65, "688,388 / 3600 = 191.219"),
        ("scaling-analysis", 19, "elapsed_seconds / 60 = 991.38 / 60 = 16.523"),
        ("peak-summary", 177, "175K+ / 87,933 = 1.99015"),
        ("peak-summary", 85, "listed_count = stated_count = 9"),
    ],
)
def test_the_steps_of_the_shipped_files_are_these(sample, line, step):
    checks = audit(parse_claims(sample_text(sample), sample)).checks
    lines = [
        part for check in checks if check.line == line for part in check.arithmetic.split("; ")
    ]
    assert any(part.endswith(step) for part in lines), lines


def test_what_it_should_be_is_what_the_last_step_says():
    """1536 x 2048 / 5 / 512 is 1228.8 tokens/s/GPU, whatever ~5 may stand for."""
    checks = audit(parse_claims(sample_text("megatron-page"), "x")).checks
    check = next(c for c in checks if c.line == 115 and c.verdict == "contradicts")
    assert check.expected == pytest.approx(1304.92, abs=0.01)
    assert check.expected_low < check.expected < check.expected_high


def test_a_count_that_it_should_be_is_a_whole_number():
    check = only("listed_count", claim(stated_count="9", listed_count="8"))
    assert (check.expected, type(check.expected)) == (9, int)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3_145_728.0, "3,145,728"), (10_147_509.7, "10,147,510"), (1_047_625_555_968, None),
        (1304.9211, "1,304.92"), (9.0, "9"), (2.0000000001, "2"), (0.0, "0"), (1e20, "1e+20"),
        (0.454821, "0.454821"),
    ],
)  # fmt: skip
def test_whole_numbers_are_shown_to_the_last_digit(value, text):
    assert show(value) == (text or f"{value:,}")


@pytest.mark.parametrize(
    ("text", "value"),
    [("~5", 5), ("175K+", 175_000), ("up to 47%", 0.47), ("=1T", 1e12), ("85-95%", 0.9),
     ("~6-20K", 13_000), (">400", 400), ("$1,869.90", 1869.9), ("-15%", -0.15), ("1.92x", 1.92)],
)  # fmt: skip
def test_the_value_of_a_printed_number_is_what_is_written(text, value):
    assert read_printed(text).value == pytest.approx(value)
    assert read_printed(text, scale=60).value == pytest.approx(60 * value)


def test_arithmetic_with_a_range_is_done_with_its_middle_and_says_so():
    cells = {"accelerator": "h100", "model_tflops_per_second_per_gpu": "300-400", "mfu": "90%"}
    check = only("mfu", claim(**cells))
    assert "350 (middle of 300-400) / 989.4 = 0.35375" in check.arithmetic


# Result rows


def row(**changes: object) -> dict[str, object]:
    """A result row as ``scalebook list --json`` prints it."""
    return {
        "run_id": "r1", "status": "completed", "model": "llama3.1-8b",
        "accelerator": "NVIDIA H100 80GB HBM3", "precision": "bf16", "world_size": 8,
        "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "context_parallel_size": 1,
        "data_parallel_size": 8, "sequence_length": 8192, "tokens_per_second": 72000.0,
        "tokens_per_second_per_gpu": 9000.0, "model_tflops_per_second_per_gpu": 463.2336,
        "mfu": 0.468196482716798, "peak_memory_gib": 71.5, "step_seconds_median": None,
        **changes,
    }  # fmt: skip


def test_the_projects_own_rows_hold():
    checks = audit(parse_results([row()], "rows.json")).checks
    assert not [check for check in checks if check.verdict in WRONG]
    assert only("mfu", checks).verdict == "holds"


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"mfu": 0.234}, "mfu"),
        ({"tokens_per_second_per_gpu": 9100.0}, "tokens_per_second_per_gpu"),
        ({"data_parallel_size": 4}, "gpus"),
        ({"peak_memory_gib": 120.0}, "memory_gb"),
    ],
)
def test_a_wrong_number_of_a_result_row_is_found(changes, name):
    checks = audit(parse_results([row(**changes)], "rows.json")).checks
    assert name in {check.field for check in checks if check.verdict in WRONG}


def test_a_row_of_packed_documents_may_count_less_attention():
    """Four documents of 2,048: a quarter of the attention of 8,192, by hand."""
    linear, attention = 6 * 7504658432, 6 * 32 * 4096 * 8192  # products; causal pairs
    tflops = (linear + attention / 4) * 9000 / 1e12
    rates = {"model_tflops_per_second_per_gpu": tflops, "mfu": tflops / 989.4}
    for packed, wrong in ((4, False), (1, True), (None, True)):
        made = row(**rates, packed_documents=packed)
        checks = audit(parse_results([made], "rows.json")).checks
        assert any(check.verdict in WRONG for check in checks) is wrong


def test_a_row_of_an_unknown_model_is_checked_without_it():
    checks = audit(parse_results([row(model="my-own", accelerator="Foo 9")], "rows.json")).checks
    assert not [check for check in checks if check.verdict in WRONG]


def test_runs_that_did_not_complete_claim_nothing():
    with pytest.raises(ClaimError, match="no completed run"):
        parse_results([row(status="failed", tokens_per_second=None)], "rows.json")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.01e30, 1.01e30, "9", True, [1]])
def test_a_number_that_is_none_is_refused(value):
    with pytest.raises(ClaimError, match="tokens_per_second"):
        parse_results([row(tokens_per_second=value)], "rows.json")


def test_the_largest_number_that_is_allowed_is_read_as_it_is():
    (read,) = parse_results([row(tokens_per_second=1e30)], "rows.json").rows
    assert read.values["tokens_per_second"].value == 1e30


# Files


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = ", "not valid TOML"),
        ("[" * 5000, "not valid TOML"),
        ("a = " + "9" * 5000, "not valid TOML"),
        ("", "no claims in it"),
        ("titel = 'x'", "Unknown key 'titel'"),
        ("tables = 3", "must be written as"),
        ("[[claims]]\nmfuu = '3'", "line 2: Unknown field 'mfuu'. Did you mean 'mfu'?"),
        ("[[claims]]\nlabel = 'x'\nmfu = 'high'", "line 3: mfu: 'high' is not a number"),
        ("[[claims]]\nmfu = 0.3\ngpus = true", "gpus must be a text"),
        ("[[claims]]\nprecision = 'bf17'", "line 2: precision='bf17' must be one of"),
        ('[[claims]]\nlabel = "a\\u001b[31m"', "printable"),
        ("[[claims]]\nline = -3\nmfu = '3%'", "must be a line number"),
        ("[[tables]]\ncolumns = ['mfu']\nrows = [['3%', '4%']]", "row 1 of table 'table 1' has 2"),
        ("[[tables]]\ncolumns = ['mfu', 'mfu']\nrows = []", "two columns of the same name"),
        ("[[tables]]\nbase = 'x'\ncolumns = ['mfu']\nrows = [['3%']]", "not the label of any row"),
        ("[[tables]]\nrows = []", "needs columns"),
        ("[[tables]]\ncolumns = [['mfu']]\nrows = []", "Unknown field"),
        ("[[tables]]\nsame = [{}]\ncolumns = ['mfu']\nrows = []", "Unknown field"),
    ],
)
def test_a_malformed_file_is_one_line_with_its_place(text, message):
    with pytest.raises(ClaimError) as caught:
        checks_of(text)
    assert message in str(caught.value)
    assert "test.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_that_the_catalog_lacks_is_said_and_costs_no_other_claim():
    claims = parse_claims(
        "[[claims]]\nmodel = 'llama9'\naccelerator = 'Ascend 910B'\ngpus = '8'\n"
        "tokens_per_second = '800'\ntokens_per_second_per_gpu = '90'\n"
        "[[claims]]\nmodel = 'Llama 3.1 8B'\nparameters = '9.03B'\n",
        "test.toml",
    )
    lost, named = claims.unread
    assert "the model 'llama9'" in lost and "the accelerator 'Ascend 910B'" in named
    wrong = [(c.field, c.stated) for c in audit(claims).checks if c.verdict in WRONG]
    # 800 / 8 are 100 tokens/s; the model has 8.03 billion parameters
    assert wrong == [("tokens_per_second_per_gpu", "90"), ("parameters", "9.03B")]


def test_a_name_that_is_written_with_escapes_is_placed_at_its_heading():
    with pytest.raises(ClaimError, match=r"^test.toml line 3: Unknown field 'mfuu'"):
        checks_of('\n\n[[claims]]\nlabel = "x"\n"mfu\\u0075" = "3"')


@pytest.mark.parametrize("size", [2_000_000, 2_000_001])
def test_a_file_of_two_million_bytes_is_read_and_a_longer_one_refused(tmp_path: Path, size: int):
    path = tmp_path / "claims.toml"
    path.write_text('[[claims]]\nmfu = "3%"\n'.ljust(size, "\n"))
    if size > 2_000_000:
        with pytest.raises(ClaimError, match="Split it"):
            claim_files.load_claims(path)
    else:
        assert len(claim_files.load_claims(path).rows) == 1


@pytest.mark.parametrize(("rows", "refused"), [(2, False), (3, True)])
def test_a_file_has_as_many_rows_as_the_limit_says(monkeypatch, rows, refused):
    monkeypatch.setattr(claim_files, "MOST_ROWS", 2)
    text = '[[claims]]\nmfu = "3%"\n' * rows
    if refused:
        with pytest.raises(ClaimError, match="more than 2 rows"):
            checks_of(text)
    else:
        assert len(checks_of(text)) == rows


@given(st.text(max_size=200))
def test_no_text_breaks_the_reader(text):
    for content in (text, f"[[claims]]\nmfu = '''{text}'''"):
        try:
            checks_of(content)
        except ClaimError as error:
            assert "\n" not in str(error)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(
    st.sampled_from(["base", "given", "line", "same", "total", "name", "columns", "rows", "note"]),
    JSON,
)
def test_no_shape_of_a_table_breaks_the_reader(key, value):
    table = {"columns": ["label", "mfu"], "rows": [["a", "3%"]], key: value}
    lines = [f"{name} = {toml(item)}" for name, item in table.items()]
    try:
        checks_of("[[tables]]\n" + "\n".join(lines))
    except ClaimError as error:
        assert "\n" not in str(error)


def toml(value: object) -> str:
    """A value as TOML writes it, null as a text."""
    if isinstance(value, dict):
        pairs = (f"{toml(name)} = {toml(item)}" for name, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value if value is not None else "null").replace("NaN", "nan")


@pytest.mark.parametrize("size", [-1, 0])
@pytest.mark.parametrize("name", ["world_size", "tensor_parallel_size"])
def test_a_size_that_is_no_number_of_processes_is_impossible(name, size):
    checks = audit(parse_results([row(**{name: size})], "rows.json")).checks
    (legality,) = [check for check in checks if check.rule == "legality"]
    assert legality.verdict == "impossible"
    assert "is not a whole number of at least 1" in legality.note


@pytest.mark.parametrize("length", ["0", ">4096", "-2048"])
def test_a_sequence_length_that_is_no_length_counts_nothing(length):
    cells = {
        "model": "llama3.1-8b",
        "sequence_length": length,
        "model_tflops_per_second_per_gpu": "1",
    }
    found = only(
        "model_tflops_per_second_per_gpu", claim(**cells, tokens_per_second_per_gpu="9000")
    )
    assert found.verdict in ("contradicts", "impossible")
    assert "megatron_causal" not in found.note


def test_sizes_that_no_machine_has_are_illegal_and_no_error():
    audited = audit(parse_results([row(context_parallel_size=2**30 + 1)], "rows.json"))
    (legality,) = (one for one in audited.checks if one.rule == "legality")
    assert legality.verdict == "impossible"
    assert "no machine can have these sizes" in legality.note


@given(st.dictionaries(st.sampled_from(sorted(row())), st.integers() | st.floats(), max_size=4))
def test_no_numbers_of_a_result_row_break_the_reader(changes):
    try:
        audit(parse_results([row(**changes)], "rows.json"))
    except ClaimError as error:
        assert "\n" not in str(error)


@given(JSON, st.sampled_from(["tokens_per_second", "model", "run_id", "world_size", "status"]))
def test_no_result_row_breaks_the_reader(value, key):
    try:
        audit(parse_results([row(**{key: value})], "rows.json"))
    except ClaimError as error:
        assert "\n" not in str(error)


@given(st.text(alphabet="0123456789.,-+~<>=%xKMBT$e ", max_size=20))
def test_no_value_breaks_the_arithmetic(text):
    try:
        claim(mfu=text, accelerator="h100", model_tflops_per_second_per_gpu=text, gpus="8")
    except ClaimError as error:
        assert "\n" not in str(error)


# No false accusations


def test_the_total_size_of_a_mixture_says_nothing_of_its_flops():
    rate = {"accelerator": "h100", "precision": "bf16", "sequence_length": "4096"}
    rate |= {"tokens_per_second_per_gpu": "10,000", "parameters": "30B", "mfu": "20%"}
    for hint in ({"architecture": "moe"}, {"num_experts": "128"}, {"label": "Ling-30B-A3B"}):
        found = claim(**rate, **hint)
        assert not [check for check in found if check.verdict in WRONG]
        assert "needs active_parameters" in only("parameters", found).note
    # 10,000 x 6 x 30e9 = 1,800 TFLOP/s: a dense model cannot
    assert verdict("tokens_per_second_per_gpu", **rate, architecture="dense") == "impossible"


def test_six_n_is_a_lower_bound_for_a_model_outside_the_catalog():
    # 6 x 3.09e9 + 12 x 36 x 2048 x 8192 = 25.79 GFLOP; x 20,000 = 515.8 TFLOP/s, 6 N gives 370.8
    cells = {
        "parameters": "3.09B",
        "sequence_length": "8192",
        "tokens_per_second_per_gpu": "20,000",
    }
    rate = "model_tflops_per_second_per_gpu"
    assert verdict(rate, **cells, model_tflops_per_second_per_gpu="515.8") == "possible"
    assert verdict(rate, **cells, model_tflops_per_second_per_gpu="370.8") == "holds"
    assert verdict(rate, **cells, model_tflops_per_second_per_gpu="200") == "contradicts"
    shape = {"num_layers": "36", "hidden_size": "2048"}
    assert verdict(rate, **cells, **shape, model_tflops_per_second_per_gpu="515.8") == "holds"
    assert verdict(rate, **cells, **shape, model_tflops_per_second_per_gpu="443.3") == "holds"


def test_flops_of_half_of_the_layers_are_named():
    # Of 16 layers: 6 x (16 x 218,103,808 weights + the output layer's 525,336,576) + attention
    # over half of 8,192 tokens, 12 x 16 x 4,096 x 4,096 = 27.31 GFLOP; x 10,000 tokens/s.
    cells = {"model": "llama3.1-8b", "sequence_length": "8192"}
    cells |= {"tokens_per_second_per_gpu": "10,000", "model_tflops_per_second_per_gpu": "273.1"}
    check = only("model_tflops_per_second_per_gpu", claim(**cells))
    assert check.verdict == "contradicts"
    assert "megatron_causal with 16 of 32 layers" in check.note


def test_a_table_whose_heading_is_quoted_is_read_without_lines_of_its_own():
    check = only("parameters", checks_of('[["claims"]]\nmodel = "llama3.1-8b"\nparameters = "9B"'))
    assert (check.verdict, check.line) == ("contradicts", None)


def test_without_a_sequence_length_attention_may_explain_more_than_six_n():
    # Megatron's count of Llama 3.1 8B at 8,192 tokens is 51.47 GFLOP, 6 N is 48.18
    cells = {"model": "llama3.1-8b", "tokens_per_second_per_gpu": "7,771"}
    rate = "model_tflops_per_second_per_gpu"
    assert verdict(rate, **cells, model_tflops_per_second_per_gpu="400") == "possible"
    assert verdict(rate, **cells, model_tflops_per_second_per_gpu="374.4") == "holds"
    assert verdict(rate, **cells, model_tflops_per_second_per_gpu="300") == "contradicts"


def test_deepseek_v3_may_be_counted_with_its_module_for_further_tokens():
    # 259,992,950,784 FLOP per token with the module (Megatron-LM) x 1,000 tokens/s
    cells = {
        "model": "deepseek-v3",
        "sequence_length": "4096",
        "tokens_per_second_per_gpu": "1,000",
    }
    check = only(
        "model_tflops_per_second_per_gpu", claim(**cells, model_tflops_per_second_per_gpu="260.0")
    )
    assert check.verdict == "holds"
    assert "MTP" in check.note
    # the checkpoint of 685B has the module and copies of both tables
    assert verdict("parameters", model="deepseek-v3", parameters="685B") == "holds"
    assert verdict("parameters", model="deepseek-v3", parameters="671B") == "holds"
    # A token meets 37.55 billion, and in the module 8 of 256 experts: 0.187 (attention) + 0.044
    # (the shared one) + 8 x 0.044 + 0.002 (router) + 2 x 7168 x 7168 / 10^9 = 0.688 more.
    for active, expected in (("37.55B", "holds"), ("38.24B", "holds"), ("49.2B", "contradicts")):
        found = verdict("active_parameters", model="deepseek-v3", active_parameters=active)
        assert found == expected


def test_an_input_that_was_cut_is_tried_before_a_claim_is_accused():
    # 450.9 / 989.4 = 45.57 %; the source prints 450
    cells = {"accelerator": "h100", "precision": "bf16", "mfu": "45.57%"}
    check = only("mfu", claim(**cells, model_tflops_per_second_per_gpu="450"))
    assert check.verdict == "holds"
    assert "holds if digits of the inputs were cut off" in check.note
    assert verdict("mfu", **cells, model_tflops_per_second_per_gpu="449") == "contradicts"


def test_every_row_of_llm_foundrys_table_holds_although_it_cuts_the_tflops(root: Path):
    with (root / "tests/golden/llm_foundry.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 103
    for row in rows:
        source, mfu = row.pop("source"), row.pop("mfu_percent")
        found = claim(**row, mfu=f"{mfu}%")
        checked = [check.verdict for check in found if check.field == "mfu"]
        assert "holds" in checked, (source, checked)
        assert not [check for check in found if check.verdict in WRONG], source


def test_a_total_of_a_rounded_rate_is_as_exact_as_that_rate():
    # 1,818.1 x 64 = 116,358.4; the step gives 2,048 x 256 / 4.50575 = 116,359.8
    cells = {"gpus": "64", "global_batch_size": "256", "sequence_length": "2048"}
    cells |= {"step_seconds": "4.50575", "tokens_per_second_per_gpu": "1,818.1"}
    found = claim(**cells, tokens_per_second="116,358")
    assert not [check for check in found if check.verdict in WRONG]
    assert any("rounded numbers" in check.note for check in found)
    assert verdict("tokens_per_second", **cells, tokens_per_second="116,500") == "contradicts"


def test_zeros_at_the_end_of_a_rate_may_be_rounded():
    # 614 x 512 = 314,368, printed as 314,000: three digits count; 315,000 is another rate
    cells = {"gpus": "512", "tokens_per_second_per_gpu": "614"}
    assert not [c for c in claim(**cells, tokens_per_second="314,000") if c.verdict in WRONG]
    assert [c for c in claim(**cells, tokens_per_second="316,000") if c.verdict in WRONG]
    assert [c for c in claim(**cells, tokens_per_second="314,001") if c.verdict in WRONG]


# Frozen weights, forward passes, recomputation


def test_packed_documents_may_have_less_attention_than_whole_samples():
    # 45.03 GFLOP of products x 17,000 / 989.4 = 77.4 %; with 6.44 of causal attention 88.4 %
    cells = {"model": "llama3.1-8b", "accelerator": "h100", "precision": "bf16"}
    cells |= {"sequence_length": "8192", "tokens_per_second_per_gpu": "17,000"}
    assert verdict("mfu", **cells, mfu="79.5%") == "contradicts"
    packed = {**cells, "packed_sequences": "yes"}
    assert verdict("mfu", **packed, mfu="79.5%") == "holds"
    assert verdict("mfu", **packed, mfu="70.0%") == "contradicts"
    assert "packed documents" in only("mfu", claim(**packed, mfu="79.5%"), "mfu = ").note


def test_what_is_trained_settles_the_flops():
    # (2/3 of 45.03 GFLOP of products + 6.44 of causal attention) x 17,000 / 989.4 = 62.7 %
    cells = {"model": "llama3.1-8b", "accelerator": "h100", "precision": "bf16"}
    cells |= {"sequence_length": "8192", "tokens_per_second_per_gpu": "17,000"}
    assert verdict("mfu", **cells, trained="lora", mfu="62.7%") == "holds"
    assert verdict("mfu", **cells, trained="lora", mfu="88.4%") == "contradicts"
    assert verdict("mfu", **cells, mfu="88.4%") == "holds"
    assert "frozen weights" in only("mfu", claim(**cells, mfu="62.7%"), "mfu = ").note
    assert verdict("mfu", **cells, trained="partial", mfu="62.7%") == "possible"
    assert verdict("mfu", **cells, label="8B LoRA", mfu="62.7%") == "holds"
    assert verdict("mfu", **cells, label="8B LoRA", mfu="88.4%") == "holds"


@pytest.mark.parametrize(("trained", "each"), [("all", 6), ("lora", 4), ("forward", 2)])
def test_a_stated_size_takes_two_flops_for_each_pass_that_is_made(trained, each):
    # LoRA leaves out the gradients of the weights; a forward pass is 2 N.
    rate = "model_tflops_per_second_per_gpu"
    cells = {"parameters": "=10B", "tokens_per_second_per_gpu": "=1000", "trained": trained}
    for factor in (2, 4, 6):
        check = only(rate, claim(**cells, **{rate: f"{10 * factor}"}))
        assert (check.verdict == "holds") is (factor == each)


def test_recomputation_counted_as_useful_is_named():
    cells = {"model": "llama3.1-8b", "accelerator": "h100", "sequence_length": "8192"}
    cells |= {"precision": "bf16", "tokens_per_second_per_gpu": "7,771"}
    # (51.47 + 17.16 of layers again - 1.05 of logits) GFLOP x 7,771 / 989.4 = 52.7 %
    check = only("mfu", claim(**cells, mfu="52.7%"), "mfu = ")
    assert check.verdict == "contradicts"
    assert "recomputation counted as useful" in check.note
    assert verdict("hfu", **cells, recompute="full", hfu="52.7%") == "holds"
    assert verdict("mfu", **cells, recompute="full", hfu="52.7%", mfu="55%") == "impossible"


def test_a_forward_pass_counted_for_training_is_named():
    # 2 x 8.03 billion weights x 10,000 tokens/s = 160.6 TFLOP/s
    cells = {"model": "llama3.1-8b", "sequence_length": "8192"}
    cells |= {"tokens_per_second_per_gpu": "10,000", "model_tflops_per_second_per_gpu": "160.6"}
    check = only("model_tflops_per_second_per_gpu", claim(**cells))
    assert check.verdict == "contradicts"
    assert "the claim fits 2 N, the forward pass only" in check.note


def test_an_fp8_rate_over_the_bf16_peak_is_possible_and_named():
    """780 of 989.4 are 78.8 %, of 1,978.9 39.4 %."""
    cells = {"accelerator": "h100", "precision": "fp8", "model_tflops_per_second_per_gpu": "780"}
    check = only("mfu", claim(**cells, mfu="78.8%"))
    assert check.verdict == "possible"
    assert verdict("mfu", **cells, mfu="78.8%", peak_precision="fp8") == "contradicts"
    assert "bf16 dense, H100-SXM5-80GB, under a rate in fp8" in check.note
    assert verdict("mfu", **cells, mfu="78.8%", peak_precision="bf16") == "holds"


# Money, failures, carbon


@pytest.mark.parametrize(
    ("cells", "right", "wrong"),
    [
        # 8 GPUs x 100 h
        ({"gpus": "8", "elapsed_hours": "100"}, {"gpu_hours": "800"}, {"gpu_hours": "8,000"}),
        # 1e12 / 10,000 / 3600 h
        (
            {"tokens": "=1T", "tokens_per_second_per_gpu": "=10000"},
            {"gpu_hours": "27,778"},
            {"gpu_hours": "2,778"},
        ),
        # 2 nodes x 80 an hour / 3600 / 145,267 tokens/s = 0.306 per million
        (
            {"nodes": "2", "price_per_node_hour": "$80.00", "tokens_per_second": "145,267"},
            {"cost_per_million_tokens": "$0.306"},
            {"cost_per_million_tokens": "$0.153"},
        ),
        # 12 x 45 s / 1000 h = 0.015 %
        (
            {"failures": "12", "recovery_seconds": "45", "elapsed_hours": "1,000"},
            {"recovery_overhead": "0.015%"},
            {"recovery_overhead": "2.3%"},
        ),
    ],
)
def test_hours_costs_and_overheads_follow_from_what_they_are_made_of(cells, right, wrong):
    (field_name,) = right
    assert verdict(field_name, **cells, **right) == "holds"
    assert verdict(field_name, **cells, **wrong) == "contradicts"


def test_a_pue_below_one_is_impossible():
    assert verdict("pue", pue="0.9") == "impossible"


def test_more_ranks_than_gpus_are_impossible():
    # 16 samples in batches of 2 are 8 replicas; of 4 GPUs each on 8 GPUs
    cells = {"gpus": "8", "tensor_parallel_size": "4", "micro_batch_size": "2"}
    cells |= {"num_microbatches": "1", "global_batch_size": "16"}
    assert verdict("tensor_parallel_size", **cells) == "impossible"


# The claims files that the package ships


@pytest.mark.parametrize("name", samples())
def test_a_shipped_file_names_only_known_fields_and_gives_lines(name):
    claims = parse_claims(sample_text(name), name)
    for row_ in claims.rows:
        assert set(row_.words) <= set(words())
        assert all(field(key) for key in row_.values)
        assert row_.line is not None


def test_the_wrong_claims_of_the_shipped_files_are_these(root: Path):
    with (root / "tests/golden/audit_wrong.csv").open(newline="") as stream:
        expected = {tuple(row_.values()) for row_ in csv.DictReader(stream)}
    found: dict[tuple[str, ...], str] = {}
    for name in SEEDS:
        for check in audit(parse_claims(sample_text(name), name)).checks:
            if check.verdict in WRONG:
                key = (name, str(check.line), check.label, check.field, check.stated)
                worst = found.get(key) == "impossible" or check.verdict == "impossible"
                found[key] = "impossible" if worst else "contradicts"
    assert {(*key, value) for key, value in found.items()} == expected


def test_most_claims_of_the_shipped_files_hold():
    checks = [
        check for name in SEEDS for check in audit(parse_claims(sample_text(name), name)).checks
    ]
    counts = count_claims(tuple(checks))
    assert counts["contradicts"] + counts["impossible"] > 60
    assert counts["holds"] > 100


def test_the_published_scaling_table_is_consistent():
    assert not [
        check
        for check in audit(parse_claims(sample_text("scaling-analysis"), "x")).checks
        if check.verdict in WRONG
    ]


def printed_figures(root: Path, name: str) -> list[tuple[str, str, str]]:
    """Return line, field and text of each figure that a sample's source prints."""
    with (root / "tests/golden/claims.csv").open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["sample"] == name]
    return [(row["line"], row["field"], row["printed"]) for row in rows]


def digits(printed: str) -> str:
    return re.sub(r"[,=~$<>+x%KBT]", "", printed).split("-")[0].split(" ")[0]


@pytest.mark.parametrize("name", SEEDS)
def test_the_shipped_files_hold_the_figures_of_their_sources(name: str, root: Path):
    typed = [
        (str(row_.line), key, printed.text)
        for row_ in parse_claims(sample_text(name), name).rows
        for key, printed in row_.values.items()
        if len(digits(printed.text)) >= 2 and key not in row_.given
    ]
    assert typed == printed_figures(root, name)


@pytest.mark.parametrize("name", SEEDS)
def test_the_figures_of_the_shipped_files_stand_in_their_source(name: str, root: Path, shared):
    (path,) = (shared / "seeds").glob(SEEDS[name])
    source = re.sub(r"[,_]", "", path.read_text())
    spelled = {"16384": "16K"}  # written out, so that it divides
    for line, key, printed in printed_figures(root, name):
        assert spelled.get(digits(printed), digits(printed)) in source, (line, key, printed)


def test_the_example_shows_every_verdict_but_one():
    counts = count_claims(audit(parse_claims(sample_text("example"), "example")).checks)
    assert counts == {
        "impossible": 1, "contradicts": 2, "holds": 10, "possible": 0, "not checkable": 0
    }  # fmt: skip


def test_bytes_of_a_weight_are_as_many_as_they_say():
    """70.6 billion x 2 bytes are 141.2 GB, and 151.6 = 141.2 x 1.0737 is none of them."""
    claim = "[[claims]]\nparameters = '70.6B'\nbytes_per_weight = '2'\nweights_gb = '{}'\n"
    assert {check.verdict for check in checks_of(claim.format("141.2"))} == {"holds"}
    assert "contradicts" in {check.verdict for check in checks_of(claim.format("151.6"))}


def test_tokens_for_a_dollar_follow_from_the_rate_and_the_price():
    """12,400 tokens/s x 3,600 s / $2.20 = 20.3 million."""
    claim = (
        "[[claims]]\ntokens_per_second_per_gpu = '12,400'\nprice_per_gpu_hour = '=$2.20'\n"
        "tokens_per_dollar = '{}'\n"
    )
    assert {check.verdict for check in checks_of(claim.format("20.3M"))} == {"holds"}
    assert "contradicts" in {check.verdict for check in checks_of(claim.format("23.3M"))}


def test_a_state_is_of_the_bytes_that_its_row_states():
    """8.19 billion x 12 bytes are 98.3 GB; 131 GB x 16 / 12 are no state of 12 bytes."""
    claim = "[[claims]]\nparameters='8.19B'\nstate_bytes_per_parameter='12'\nstate_gb='{}'\n"
    assert {check.verdict for check in checks_of(claim.format("98.3"))} == {"holds"}
    assert "contradicts" in {check.verdict for check in checks_of(claim.format("131"))}
    (gib,) = checks_of(claim.format("91.5"))  # 98.28 / 1.0737
    assert (gib.verdict, gib.note) == ("possible", "holds if the GB are GiB")


def test_a_ratio_may_be_before_over_after():
    """1,840 / 1,472 = 1.25, a reduction by 20 %."""
    claim = "[[claims]]\nbefore='1,840'\nafter='1,472'\nratio='{}'\nreduction='20%'\n"
    for ratio in ("1.25x", "0.80"):
        assert {check.verdict for check in checks_of(claim.format(ratio))} == {"holds"}
    assert "contradicts" in {check.verdict for check in checks_of(claim.format("1.35x"))}


def test_the_price_of_a_node_is_that_of_its_gpus():
    claim = "[[claims]]\ngpus_per_node='8'\nprice_per_node_hour='$22.40'\nprice_per_gpu_hour='{}'\n"
    assert {check.verdict for check in checks_of(claim.format("$2.80"))} == {"holds"}
    assert "contradicts" in {check.verdict for check in checks_of(claim.format("$3.80"))}


def test_stages_of_uneven_layers_are_possible():
    claim = "[[claims]]\nmodel='llama3.1-8b'\npipeline_parallel_size='{}'\n"
    verdicts = {size: {c.verdict for c in checks_of(claim.format(size))} for size in (4, 5)}
    assert verdicts == {4: {"holds"}, 5: {"possible"}}  # of 32 layers


@pytest.mark.parametrize(
    ("efficiency", "found"),
    [("107.8%", "holds"), ("98.2%", "contradicts"), ("215%", "contradicts")],
)
def test_a_row_is_compared_with_the_base_that_it_states_itself(efficiency: str, found: str):
    """15,302 / 14,201 = 107.75 % of each GPU's rate, on 32 instead of 16 GPUs."""
    rates = {"base_tokens_per_second_per_gpu": "14,201", "tokens_per_second_per_gpu": "15,302"}
    sizes = {"base_gpus": "16", "gpus": "32"}
    for cells in (rates, rates | sizes):
        assert verdict("scaling_efficiency", scaling_efficiency=efficiency, **cells) == found
    checks = claim(scaling_efficiency=efficiency, **rates, **sizes)
    assert "not checkable" not in {one.verdict for one in checks}


def test_the_rate_of_a_base_follows_from_its_batch_and_step():
    """512 x 4,096 / 8 s = 262,144 tokens/s; 1,024 x 4,096 / 10 s are 1.6 times that."""
    base = {"base_global_batch_size": "512", "base_sequence_length": "4096"}
    cells = {"global_batch_size": "1024", "sequence_length": "4096", "step_seconds": "10.0"}
    for speedup, found in (("1.60x", "holds"), ("2.60x", "contradicts")):
        stated = base | cells | {"base_step_seconds": "8.00", "speedup": speedup}
        assert verdict("speedup", **stated) == found
