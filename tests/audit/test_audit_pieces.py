"""The pieces of an audit, each by itself and by hand: digits, identities, facts, tables, cells."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scalebook.audit import (
    Check,
    audit,
    claim_files,
    count_claims,
    device_tables,
    documents,
    knowledge,
    parse_claims,
    parse_results,
    read_document,
    row_checks,
)
from scalebook.audit import fields as vocabulary
from scalebook.audit.claimed_rows import Row
from scalebook.audit.identities import Identity, identities, in_unit, limits, parse_product, show
from scalebook.audit.printed import read_printed
from scalebook.errors import ClaimError
from scalebook.facts import catalog
from scalebook.facts.flops import flops_per_token, hardware_flops_per_token, parameter_count
from scalebook.measure.intervals import Interval, point


def checks_of(text: str) -> tuple[Check, ...]:
    return audit(parse_claims(text, "test.toml")).checks


def claim(**cells: str) -> tuple[Check, ...]:
    lines = [f"{name} = {value!r}" for name, value in cells.items()]
    return checks_of("[[claims]]\n" + "\n".join(lines))


def verdicts(name: str, **cells: str) -> set[str]:
    return {check.verdict for check in claim(**cells) if check.field == name}


def row_of(**words: str) -> Row:
    return Row("", "", None, {}, words)


# Digits


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("22.7%", 0.2265, 0.228),  # 22.799 % cut
        ("614", 613.5, 615),
        ("999", 998.5, 1000),
        ("1,000", 995, 1010),
        ("5,000", 4995, 5010),  # three digits count
        ("5,010", 5005, 5020),
        ("5,011", 5010.5, 5012),
        ("10,000", 9950, 10100),
        ("314,000", 313500, 315000),
        ("1,230,000", 1225000, 1240000),
        ("2.50", 2.495, 2.51),
        ("-614", -615, -613.5),
        ("-22.7%", -0.228, -0.2265),
        ("-10,000", -10100, -9950),
        ("7.6B", 7.55e9, 7.7e9),
    ],
)
def test_a_cut_value_may_be_a_unit_of_its_last_digit_that_counts_further_from_zero(
    text: str, low: float, high: float
) -> None:
    claimed = read_printed(text).claimed
    assert (claimed.low, claimed.high) == (pytest.approx(low), pytest.approx(high, rel=1e-6))
    assert claimed.high < high or text.startswith("-")  # the next value is another one


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("~390", 351, 429),
        ("~-20", -22, -18),
        ("~1", 0.5, 1.5),
        ("~100-200", 89.55, 220.55),
        ("<30", 0, 30.5),
        ("<=-3", -3, -2.5),
        (">400", 399.5, math.inf),
        ("3+", 2.5, math.inf),
        ("85..95%", 0.845, 0.955),
        ("5 to 7", 4.5, 7.5),
        ("$2-$3", 1.5, 3.5),
        ("1-2x", 0.5, 2.5),
        ("=22.7%", 0.227, 0.227),
    ],
)
def test_a_marked_value_may_be_claimed_for_what_it_stands_for_and_no_more(
    text: str, low: float, high: float
) -> None:
    for exact in (False, True):
        printed = read_printed(text, exact=exact)
        assert printed.claimed == printed.interval
        assert printed.interval.low == pytest.approx(low)
        assert printed.interval.high == pytest.approx(high)
        assert printed.between == (text in ("~100-200", "85..95%", "5 to 7", "$2-$3", "1-2x"))


def test_a_scale_turns_every_end_and_the_value_into_the_base_unit() -> None:
    printed = read_printed("2.5", scale=60)
    assert (printed.value, printed.text) == (150, "2.5")
    assert (printed.interval.low, printed.interval.high) == (pytest.approx(147), 153)
    assert printed.claimed.high == pytest.approx(156)
    assert read_printed("1".ljust(60)).value == 1
    with pytest.raises(ClaimError, match="61 characters long; a value has at most 60"):
        read_printed("1" * 61)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e-16, "0"),
        (1e-15, "1e-15"),
        (1e-4, "0.0001"),
        (9.9e-5, "9.9e-05"),
        (0.00012345678, "0.000123457"),
        (123456.4, "123,456"),
        (12345.67, "12,345.7"),
        (-1234.5678, "-1,234.57"),
        (1e15, "1e+15"),
        (999999999999999.0, "999,999,999,999,999"),
    ],
)
def test_a_number_is_shown_with_six_digits_that_count(value: float, text: str) -> None:
    assert show(value) == text


@pytest.mark.parametrize(
    ("scale", "text"), [(1, "9"), (3600, "9 / 3600"), (0.001, "9 * 1000"), (0.125, "9 * 8")]
)
def test_a_unit_is_shown_as_what_turns_the_number_into_it(scale: float, text: str) -> None:
    assert in_unit("9", scale) == text


# Identities


def test_a_product_is_read_with_its_constant_and_the_side_of_each_quantity() -> None:
    found = parse_product("2 * a / 4 * b / c / 1e-3")
    assert found.constant == pytest.approx(500)
    assert found.powers == (("a", 1), ("b", 1), ("c", -1))
    known = {"a": Interval(2, 4), "b": point(3), "c": Interval(1, 2)}
    value = found.value(known)
    assert (value.low, value.high) == pytest.approx((500 * 2 * 3 / 2, 500 * 4 * 3 / 1))


def field_for(quantity: str) -> vocabulary.Field | None:
    """Return the field that states a quantity, in its base unit where there is one."""
    base = quantity.startswith(vocabulary.BASE)
    plain = quantity.removeprefix(vocabulary.BASE)
    found = [one for one in vocabulary.fields().values() if one.quantity == plain]
    best = min(found, key=lambda one: (one.scale != 1, one.name != plain), default=None)
    return best and vocabulary.field(f"{vocabulary.BASE if base else ''}{best.name}")


def stated() -> list[Any]:
    """Return the identities of which a row can state every quantity."""
    whole = [one for one in identities() if all(field_for(name) for name in one.names)]
    return [pytest.param(one, id=one.text) for one in whole]


def printed(field: vocabulary.Field, value: float) -> str:
    text = f"{value / field.scale:.15g}"
    return text if field.exact else f"={text}"


@pytest.mark.parametrize("factor", [1, 2])
@pytest.mark.parametrize("identity", stated())
def test_every_identity_judges_a_row_that_states_all_of_it(identity: Identity, factor: int) -> None:
    """Numerators of 12 and divisors of 2 and 3 give whole numbers, as counts have to be."""
    powers = dict(identity.right.powers)
    sizes = iter((2.0, 3.0, 2.0))
    known = {name: 12.0 if power > 0 else next(sizes) for name, power in powers.items()}
    if identity.shape == "complement":
        known = dict.fromkeys(known, 0.25)
    if "state_bytes_per_parameter" in known:
        known["state_bytes_per_parameter"] = 16.0  # others are none of Adam's
    subject = identity.solve(identity.subject, {n: point(v) for n, v in known.items()}).middle
    cells = {identity.subject: factor * subject, **known}
    found = claim(
        **{
            item.name: printed(item, value)
            for name, value in cells.items()
            if (item := field_for(name)) is not None
        }
    )
    judged = [check for check in found if check.rule == identity.text]
    (own,) = judged
    assert own.verdict == ("holds" if factor == 1 else "contradicts")
    item = field_for(identity.subject)
    assert item is not None and own.field == item.name
    assert own.expected == pytest.approx(subject / item.scale)
    assert own.expected_low == own.expected_high == own.expected


@pytest.mark.parametrize(
    ("cells", "name", "broken"),
    [
        ({"mfu": "101%"}, "mfu", True),
        ({"mfu": "99%"}, "mfu", False),
        ({"hfu": "101%"}, "hfu", True),
        ({"mfu": "42%", "hfu": "39%"}, "mfu", True),
        ({"mfu": "39%", "hfu": "40%"}, "mfu", False),
        ({"pue": "0.99"}, "pue", True),
        ({"pue": "1.1"}, "pue", False),
        ({"gpu_power_watts": "720", "accelerator": "h100"}, "gpu_power_watts", True),
        ({"gpu_power_watts": "690", "accelerator": "h100"}, "gpu_power_watts", False),
        (
            {"bandwidth_gb_per_second": "950", "accelerator": "h100", "link": "inside node"},
            "bandwidth_gb_per_second",
            True,
        ),
        (
            {"bandwidth_gb_per_second": "850", "accelerator": "h100", "link": "inside node"},
            "bandwidth_gb_per_second",
            False,
        ),
        (
            {"bandwidth_gb_per_second": "950", "accelerator": "h100"},
            "bandwidth_gb_per_second",
            False,
        ),
        (
            {"pipeline_parallel_size": "4", "data_parallel_size": "4", "gpus": "8"},
            "data_parallel_size",
            True,
        ),
        (
            {"pipeline_parallel_size": "4", "data_parallel_size": "2", "gpus": "8"},
            "data_parallel_size",
            False,
        ),
        (
            {"checkpoint_gb_per_second": "12", "storage_gb_per_second": "10"},
            "checkpoint_gb_per_second",
            True,
        ),
        (
            {
                "parameters": "70B",
                "accelerator": "h100",
                "sharding": "none",
                "tensor_parallel_size": "8",
                "pipeline_parallel_size": "1",
            },
            "parameters",
            True,
        ),
        (
            {
                "parameters": "30B",
                "accelerator": "h100",
                "sharding": "none",
                "tensor_parallel_size": "8",
                "pipeline_parallel_size": "1",
            },
            "parameters",
            False,
        ),
        (
            {
                "parameters": "70B",
                "accelerator": "h100",
                "sharding": "full",
                "tensor_parallel_size": "8",
                "pipeline_parallel_size": "1",
            },
            "parameters",
            False,
        ),
    ],
)
def test_what_breaks_a_physical_limit_is_impossible(
    cells: dict[str, str], name: str, broken: bool
) -> None:
    """An H100 has 700 W, 900 GB/s of links and 80 GB; Adam keeps 16 bytes a parameter or more."""
    assert ("impossible" in verdicts(name, **cells)) is broken


def test_a_limit_of_stated_values_alone_says_nothing_where_it_is_kept() -> None:
    constant = [one for one in limits() if not one.right.names()]
    assert {one.text for one in constant} == {"mfu <= 1", "hfu <= 1"}
    assert not [check for check in claim(mfu="50%") if check.rule == "mfu <= 1"]
    (kept,) = [check for check in claim(mfu="39%", hfu="40%") if check.rule == "mfu <= hfu"]
    assert (kept.verdict, kept.arithmetic) == ("possible", "mfu <= hfu: 0.39 against 0.4")


# Facts of the catalog


@pytest.mark.parametrize(
    ("cells", "name", "right", "wrong"),
    [
        ({"accelerator": "h100"}, "device_memory_gb", "80", "94"),
        ({"accelerator": "h100"}, "tdp_watts", "700", "400"),
        ({"accelerator": "h100"}, "memory_bandwidth_tb_per_second", "3.35", "3.9"),
        ({"accelerator": "h100"}, "interconnect_gb_per_second", "900", "450"),
        (
            {"accelerator": "h100", "link": "inside node"},
            "peak_bandwidth_gb_per_second",
            "900",
            "450",
        ),
        ({"accelerator": "h100", "precision": "bf16"}, "peak_tflops_per_second", "989", "1,979"),
        ({"accelerator": "h100", "precision": "bf16"}, "peak_tflops_per_second", "990", "985"),
        ({"accelerator": "h100", "precision": "fp8"}, "peak_tflops_per_second", "1,979", "989"),
        (
            {"accelerator": "h100", "precision": "bf16"},
            "sparse_peak_tflops_per_second",
            "1,979",
            "989",
        ),
        ({"model": "llama3.1-8b"}, "num_layers", "32", "36"),
        ({"model": "llama3.1-8b"}, "hidden_size", "4096", "8192"),
        ({"model": "llama3.1-8b"}, "num_attention_heads", "32", "8"),
        ({"model": "llama3.1-8b"}, "parameters", "8.03B", "8.3B"),
        ({"model": "llama3.1-8b"}, "parameters", "7.5B", "7.0B"),  # without its input table
        ({"model": "mixtral-8x7b"}, "num_experts", "8", "16"),
        ({"model": "mixtral-8x7b"}, "active_parameters", "12.9B", "46.7B"),
        ({"parameters": "=10B", "precision": "bf16"}, "weights_gb", "20", "40"),
        ({"parameters": "=10B", "precision": "fp32"}, "weights_gb", "40", "20"),
        ({"parameters": "=10B", "precision": "fp8"}, "weights_gb", "10", "20"),
        ({"parameters": "=10B"}, "state_gb", "160", "120"),
        ({"parameters": "=10B"}, "state_gb", "180", "200"),
        ({"parameters": "=10B"}, "checkpoint_gb", "20", "30"),
        ({"parameters": "=10B"}, "checkpoint_gb", "40", "60"),
        ({"parameters": "=10B"}, "checkpoint_gb", "120", "100"),
        ({"parameters": "=10B"}, "checkpoint_gb", "140", "160"),
    ],
)
def test_a_figure_of_the_catalog_is_compared_with_what_a_row_states(
    cells: dict[str, str], name: str, right: str, wrong: str
) -> None:
    found = verdicts(name, **cells, **{name: right})
    assert "holds" in found and not found & {"contradicts", "impossible"}
    assert "contradicts" in verdicts(name, **cells, **{name: wrong})


@pytest.mark.parametrize("device", catalog.accelerators(), ids=lambda one: one.name)
def test_each_peak_of_each_device_holds_and_its_half_does_not(device: Any) -> None:
    for kind, peaks in (
        ("peak_tflops_per_second", device.peak_tflops),
        ("sparse_peak_tflops_per_second", device.sparse_peak_tflops),
    ):
        for precision, peak in peaks.items():
            cells = {"accelerator": device.name, "precision": precision}
            if precision not in device.peak_tflops or precision not in vocabulary.choices(
                "precision"
            ):
                continue
            found = {
                factor: verdicts(kind, **cells, **{kind: f"{factor * peak:.9g}"})
                for factor in (1, 0.5)
            }
            assert found[1] == {"holds"}
            assert "holds" not in found[0.5]


@pytest.mark.parametrize(
    ("size", "length", "low", "high"),
    [
        (1e9, None, 1 - 0.256512, 2.5),  # 2 x 1,000 x 128,256 rows of 1e9
        (1e9, "3900", 1 - 0.256512, 2),  # 3,900 / (3 x 1.3 x 1,000)
        (1e6, None, 0.6, 2.5),  # a table is two fifths at most
        (8e9, "7800", 1 - 2 * 2000 * 128_256 / 8e9, 2),
    ],
)
def test_attention_and_tables_bound_the_flops_of_a_size(
    size: float, length: str | None, low: float, high: float
) -> None:
    at = read_printed(length, exact=True) if length else None
    assert knowledge._attention_bound(size, at) == (pytest.approx(low), pytest.approx(high))


@pytest.mark.parametrize(
    ("words", "values", "experts"),
    [
        ({"architecture": "moe"}, {}, True),
        ({"architecture": "dense", "note": "8x7B"}, {}, False),
        ({}, {"num_experts": "8"}, True),
        ({}, {"num_experts": "1"}, False),
        ({}, {"expert_parallel_size": "2"}, True),
        ({"note": "a mixture"}, {}, True),
        ({"note": "8x22B"}, {}, True),
        ({"note": "30B-A3B"}, {}, True),
        ({"note": "dense 8B"}, {}, False),
    ],
)
def test_a_row_hints_at_experts_by_its_counts_or_its_names(
    words: dict[str, str], values: dict[str, str], experts: bool
) -> None:
    read = {name: read_printed(text, exact=True) for name, text in values.items()}
    assert knowledge.has_experts(Row("", "", None, read, words)) is experts


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("h100", "H100-SXM5-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("H100", "H100-SXM5-80GB"),
        ("H100-SXM5-80GB", "H100-SXM5-80GB"),
        ("cpu", None),
    ],
)
def test_a_device_is_named_by_the_catalog_a_platform_or_its_driver(
    name: str, device: str | None
) -> None:
    found = knowledge.accelerator_of(row_of(accelerator=name))
    assert (found and found.name) == device
    assert knowledge.accelerator_of(row_of()) is None


def test_wrong_counts_of_flops_are_named_with_what_they_leave_out_or_add() -> None:
    """Mixtral: 46.7 billion weights, of which a token meets 12.9; 10,000 tokens a second."""
    count = parameter_count(catalog.model("mixtral-8x7b"))
    rate = "model_tflops_per_second_per_gpu"
    cells = {"model": "mixtral-8x7b", "sequence_length": "4096"}
    core = 12 * 32 * 4096 * 4096
    for flops, words in (
        (2 * count.active, "2 N, the forward pass only"),
        (6 * count.total + core, "6 N + 12 L q s with every expert counted"),
    ):
        value = f"{flops / 1e9:.1f}"
        (check,) = (
            one
            for one in claim(**cells, tokens_per_second_per_gpu="=1000", **{rate: value})
            if one.rule.startswith(rate) and one.verdict == "contradicts"
        )
        assert f"the claim fits {words}" in check.note


RATE = "model_tflops_per_second_per_gpu"


@pytest.mark.parametrize(
    ("trained", "weights", "attention"), [("all", 6, 12), ("lora", 4, 12), ("forward", 2, 4)]
)
@pytest.mark.parametrize(("causal", "words"), [(1, "12 L h s"), (2, "6 L h s, causal")])
def test_a_stated_shape_adds_attention_to_the_flops_of_its_weights(
    trained: str, weights: int, attention: int, causal: int, words: str
) -> None:
    """By hand: 10 billion weights and 40 layers of 4,096 at 8,192 tokens, 1,000 tokens a second."""
    core = attention / causal * 40 * 4096 * 8192
    cells = {"parameters": "=10B", "num_layers": "40", "hidden_size": "4096", "trained": trained}
    cells |= {"sequence_length": "8192", "tokens_per_second_per_gpu": "=1000"}
    (check,) = (
        one
        for one in claim(**cells, **{RATE: f"{weights * 10 + core / 1e9:.2f}"})
        if one.rule.startswith(RATE) and one.verdict == "holds"
    )
    assert f"{weights} N + {words}" in check.note
    assert f"= {weights} * 10B + {attention / causal:g} * 40 * 4096 * 8192 = " in check.arithmetic
    assert f" = {show(weights * 10e9 + core)};" in check.arithmetic
    more = {RATE: f"{1.1 * (weights * 10 + core / 1e9):.2f}"}
    assert "holds" not in verdicts(RATE, **cells, **more)


@pytest.mark.parametrize(
    ("model", "fields", "words"),
    [
        ("llama3.1-8b", {"gated_mlp": False}, "a gated MLP counted as a plain one"),
        ("llama3.1-8b", {"num_query_groups": 32}, "every head counted as a key-value head"),
        ("llama3.1-8b", {"num_layers": 16}, "16 of 32 layers"),
        ("nemotron4-15b", {"num_layers": 16}, "16 of 32 layers"),
        ("llama3.1-8b@30", {"num_layers": 15}, "15 of 30 layers"),
    ],
)
@pytest.mark.parametrize("convention", ["megatron_causal", "full_attention"])
def test_the_shape_that_was_taken_for_the_models_is_named(
    model: str, fields: dict[str, Any], words: str, convention: str
) -> None:
    shape = replace(catalog.model(model), **fields)
    flops = flops_per_token(shape, 8192, convention)
    cells = {"model": model, "sequence_length": "8192", "tokens_per_second_per_gpu": "=1000"}
    (check,) = (
        one
        for one in claim(**cells, **{RATE: f"{flops / 1e9:.2f}"})
        if one.rule.startswith(RATE) and one.arithmetic
    )
    assert check.verdict == "contradicts"
    assert f"the claim fits {convention} with {words}" in check.note


@pytest.mark.parametrize("mode", ["none", "selective", "full"])
@pytest.mark.parametrize("trained", ["all", "lora"])
def test_hardware_flops_are_those_of_what_is_recomputed(mode: str, trained: str) -> None:
    rate = "hardware_tflops_per_second_per_gpu"
    shape = catalog.model("llama3.1-8b")
    every = {
        one: hardware_flops_per_token(shape, 8192, one, "megatron_causal", trained=trained)
        for one in ("none", "selective", "full")
    }
    cells = {"model": "llama3.1-8b", "sequence_length": "8192", "trained": trained}
    cells |= {"tokens_per_second_per_gpu": "=1000"}
    for stated, flops in every.items():
        value = {rate: f"{flops / 1e9:.2f}"}
        found = verdicts(rate, **cells, **value, recompute=mode)
        assert ("holds" in found) == (stated == mode), stated
        assert "holds" in verdicts(rate, **cells, **value)


def test_attention_of_documents_may_be_any_up_to_that_of_whole_samples() -> None:
    shape = catalog.model("llama3.1-8b")
    least, most = (flops_per_token(shape, one, "megatron_causal") for one in (1, 8192))
    cells = {"model": "llama3.1-8b", "sequence_length": "8192", "packed_sequences": "yes"}
    cells |= {"tokens_per_second_per_gpu": "=1000"}
    for flops, verdict in (
        (least, "holds"),
        ((least + most) / 2, "holds"),
        (most, "holds"),
        (0.95 * least, "contradicts"),
    ):
        assert verdict in verdicts(RATE, **cells, **{RATE: f"{flops / 1e9:.2f}"})


# Verdicts and tables


def check(verdict: Any, field: str = "mfu", line: int = 1) -> Check:
    return Check("t", "l", line, field, "1", "rule", verdict)


def test_a_claim_counts_once_by_its_worst_verdict() -> None:
    found = count_claims(
        (
            check("holds"),
            check("contradicts"),
            check("holds"),
            check("possible", "cost"),
            check("not checkable", "cost"),
            check("impossible", line=2),
            check("holds", "pue"),
        )
    )
    assert found == {
        "impossible": 1,
        "contradicts": 1,
        "holds": 1,
        "possible": 1,
        "not checkable": 0,
    }
    assert list(found) == ["impossible", "contradicts", "holds", "possible", "not checkable"]


def test_what_is_expected_is_given_in_the_unit_of_the_field_with_its_ends() -> None:
    """1,000 steps of 0.35 to 0.45 s are 5.83 to 7.5 minutes, 0.4 s give 6.67."""
    (found,) = (
        one
        for one in claim(steps="1000", step_seconds="0.4", elapsed_minutes="9.0")
        if one.field == "elapsed_minutes" and one.rule
    )
    assert found.verdict == "contradicts"
    ends = (found.expected_low, found.expected, found.expected_high)
    assert ends == pytest.approx((350 / 60, 400 / 60, 450 / 60))
    assert found.arithmetic.endswith("elapsed_minutes = elapsed_seconds / 60 = 400 / 60 = 6.66667")
    open_end = next(
        one
        for one in claim(tokens=">1B", tokens_per_second="=1000", elapsed_seconds="900000")
        if one.rule
    )
    assert (open_end.expected_high, open_end.expected) == (None, pytest.approx(1e6))


def test_a_value_in_the_base_unit_is_not_turned_into_it() -> None:
    (found,) = (
        one for one in claim(steps="1000", step_seconds="0.4", elapsed_seconds="540") if one.rule
    )
    assert found.arithmetic == "elapsed_seconds = steps * step_seconds = 1000 * 0.4 = 400"


@pytest.mark.parametrize(
    ("precision", "peak", "words"),
    [
        ({}, 989.4, "bf16 dense, H100-SXM5-80GB; precision not stated"),
        ({"precision": "bf16"}, 989.4, "bf16 dense, H100-SXM5-80GB"),
        ({"precision": "fp8"}, 1978.9, "fp8 dense, H100-SXM5-80GB"),
    ],
)
def test_a_peak_says_of_which_precision_it_is(
    precision: dict[str, str], peak: float, words: str
) -> None:
    cells = {"accelerator": "h100", "peak_tflops_per_second": "800"}
    (found,) = (one for one in claim(**cells, **precision) if one.rule)
    assert (found.note, found.expected) == (words, peak)


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"parameters": "=8B"}, "6 N of the stated size, taken as dense; or 44.9"),
        ({"active_parameters": "=8B"}, "6 N of the stated size; or 44.9"),
        ({"parameters": "=8B", "trained": "lora"},
         "4 N of the stated size, taken as dense with frozen weights; or 29.9"),
        ({"model": "llama3.1-8b", "parameters": "=8.03B", "sequence_length": "=8192"},
         "megatron_causal; or 57.9129 (full_attention), 51.4704 (sliding_window), "),
    ],
)  # fmt: skip
def test_what_a_count_of_flops_takes_for_granted_is_said(cells: dict[str, str], words: str) -> None:
    """8 billion weights lose 2 x 2,000 x 128,256 of a table at least: 6 N become 44.9."""
    (found,) = (
        one
        for one in claim(**cells, tokens_per_second_per_gpu="=1000", **{RATE: "9"})
        if one.field == RATE and one.rule
    )
    assert found.verdict == "contradicts"
    assert found.note.startswith(words)


def test_a_contradicted_claim_is_held_against_a_legitimate_value_where_there_is_one() -> None:
    row = Row("", "", None, {"mfu": read_printed("30%")}, {})
    item = vocabulary.field("mfu")
    assert item is not None
    wrong = knowledge._fact("mfu", 0.5, "wrong", legitimate=False)
    for facts, expected in (([wrong, knowledge._fact("mfu", 0.4, "right")], 0.4), ([wrong], 0.5)):
        found = row_checks.compare(row, item, "rule", facts)
        assert (found.verdict, found.expected) == ("contradicts", expected)


def test_what_is_not_the_best_alternative_is_named_behind_it() -> None:
    (found,) = claim(model="llama3.1-8b", parameters="3B")
    assert found.note == (
        "llama3.1-8b; or 7,504,924,672 (llama3.1-8b without input embedding), "
        "8,000,000,000 (llama3.1-8b, the size in its name)"
    )
    assert found.expected - 7_504_924_672 == 128_256 * 4096


def test_a_model_without_its_tables_is_without_positions_too() -> None:
    shape = catalog.model("mcore-1.7b")  # 4,096 positions and 128k rows of 2,304
    count = parameter_count(shape)
    rows = count.total - count.embedding - count.positions
    assert count.positions == shape.learned_positions * shape.hidden_size > 0
    (found,) = claim(model="mcore-1.7b", parameters=f"={rows}")
    assert (found.verdict, found.expected) == ("holds", rows)
    assert found.note == "mcore-1.7b without input embedding"


def test_a_checkpoint_may_hold_a_module_of_further_tokens_and_its_tables() -> None:
    """DeepSeek V3: the tables are two of 129,280 rows of 7,168; 671 billion weights, 685 stored."""
    count = parameter_count(catalog.model("deepseek-v3"))
    tables = 2 * 129_280 * 7168
    assert count.total + count.mtp + tables == pytest.approx(684.5e9, rel=1e-3)
    facts = knowledge._model_facts(catalog.model("deepseek-v3"), row_of())
    assert [(one.value, one.variant) for one in facts if one.quantity == "parameters"] == [
        (count.total, "deepseek-v3"),
        (count.total - tables // 2, "deepseek-v3 without input embedding"),
        (count.total + count.mtp, f"deepseek-v3{knowledge.MTP}"),
        (count.total + count.mtp + tables, f"deepseek-v3{knowledge.MTP} and tables"),
    ]


@pytest.mark.parametrize(
    ("model", "halved"),
    [("deepseek-v3@8", True), ("deepseek-v3@6", False), ("deepseek-v3@7", False)],
)
def test_half_of_the_layers_is_a_model_only_where_experts_are_left(
    model: str, halved: bool
) -> None:
    """The first 3 layers have none."""
    found = [words for _, words in knowledge._wrong_shapes(catalog.model(model), 4096)]
    assert any(words.endswith(" layers") for words in found) is halved


@pytest.mark.parametrize(
    ("cells", "needs"),
    [
        ({"parameters": "=10B", "num_experts": "8"}, "active_parameters: a token meets"),
        ({"num_experts": "8"}, "flops_per_token"), ({}, "flops_per_token"),
    ],
)  # fmt: skip
def test_active_weights_are_asked_for_where_all_are_stated(
    cells: dict[str, str], needs: str
) -> None:
    found = claim(**cells, tokens_per_second_per_gpu="=1000", **{RATE: "100"})
    notes = {one.field: one.note for one in found if one.verdict == "not checkable"}
    assert notes[RATE].startswith(f"needs {needs}")


def test_recomputation_counted_as_useful_is_eight_flops_for_each_weight() -> None:
    """512 tokens add at most 512 / (3 x 1.3 x 2154) = 6 % to 6 N: 8 N is beyond that."""
    cells = {"parameters": "=10B", "sequence_length": "=512", "tokens_per_second_per_gpu": "=1000"}
    for rate, fits in (("80.0", True), ("79.0", False), ("140.0", False)):
        (found,) = (one for one in claim(**cells, **{RATE: rate}) if one.rule)
        assert found.verdict == "contradicts"
        words = "8 N, taken as dense: recomputation of every layer counted as useful"
        assert (f"the claim fits {words}" in found.note) is fits


def test_a_count_that_nothing_finite_gives_has_no_expected_value() -> None:
    """1,000 tokens in steps of none would take steps without end."""
    text = """
    [[tables]]
    given = { tokens = "=1000", tokens_per_step = "=0" }
    columns = ["label", "steps"]
    rows = [["a", "5"]]
    """
    (found,) = (one for one in checks_of(text) if one.field == "steps" and one.rule)
    assert (found.expected, found.expected_high) == (None, None)


@pytest.mark.parametrize(
    ("cells", "left", "whole"),
    [
        ({"global_batch_size": "12", "data_parallel_size": "4"}, "batch_size_per_replica", True),
        ({"global_batch_size": "12", "data_parallel_size": "5"}, "batch_size_per_replica", False),
        ({"gpus": "12"}, "data_parallel_size", None),  # any other sizes make up for it
    ],
)
def test_sizes_leave_a_whole_number_of_the_one_that_is_not_stated(
    cells: dict[str, str], left: str, whole: bool | None
) -> None:
    found = [one for one in claim(**cells) if one.rule == f"whole {left}"]
    verdict = "holds" if whole else "contradicts"
    note = "" if whole else f"{left} is not a whole number"
    assert [(one.verdict, one.note) for one in found] == (
        [] if whole is None else [(verdict, note)]
    )


@pytest.mark.parametrize(("minutes", "verdict"), [("600", "holds"), ("500", "contradicts")])
def test_a_quantity_in_two_units_is_shown_turned_from_one_into_the_other(
    minutes: str, verdict: str
) -> None:
    (found,) = claim(elapsed_hours="=10", elapsed_minutes=minutes)[:1]
    assert (found.verdict, found.rule) == (verdict, "elapsed_minutes = elapsed_hours")
    assert found.arithmetic.startswith("elapsed_minutes = elapsed_hours * 60 = 10 * 60 = 600;")
    assert found.expected == 600


@pytest.mark.parametrize(
    ("second", "verdict"), [("$2.00", "holds"), ("$2.02", "contradicts"), ("$1.98", "contradicts")]
)
def test_a_price_that_is_the_same_for_all_rows_is_the_first_rows(second: str, verdict: str) -> None:
    text = f"""
    [[tables]]
    same = ["price_per_gpu_hour"]
    columns = ["label", "price_per_gpu_hour"]
    rows = [["a", "$2.00"], ["b", "{second}"], ["c", "$2.00"]]
    """
    found = {one.label: one for one in checks_of(text) if one.rule.startswith("same")}
    assert set(found) == {"b", "c"}
    assert (found["b"].verdict, found["c"].verdict) == (verdict, "holds")
    assert found["b"].rule == "same price_per_gpu_hour as 'a'"


def test_sizes_of_another_model_than_the_base_compare_by_utilisation_alone() -> None:
    """Half of the MFU is half of the efficiency; twice the rate is no speed-up of other work."""
    text = """
    [[tables]]
    base = "a"
    columns = ["label", "parameters", "gpus", "mfu", "tokens_per_second", "speedup",
               "scaling_efficiency"]
    rows = [["a", "7B", "8", "40%", "100", "", ""], ["b", "{}", "16", "20%", "100", "2.0", "50%"]]
    """
    other = {(one.field, one.verdict) for one in checks_of(text.format("70B")) if one.rule}
    assert ("scaling_efficiency", "holds") in other
    assert not [one for one in other if one == ("speedup", "contradicts")]
    same = {(one.field, one.verdict) for one in checks_of(text.format("7B")) if one.rule}
    assert ("speedup", "contradicts") in same


@pytest.mark.parametrize(
    ("cells", "needs"),
    [
        ({"cost": "$5"}, "needs gpu_hours, price_per_gpu_hour"),
        ({"cost": "$5", "gpu_hours": "2"}, "needs price_per_gpu_hour"),
        ({"elapsed_hours": "5"}, "needs step_seconds, steps"),
        ({"carbon_kg": "5", "energy_kwh": "9"}, "needs grid_kg_per_kwh"),
        ({"share": "5%"}, "no identity uses it"),
    ],
)
def test_what_is_unchecked_names_the_fewest_quantities_that_would_check_it(
    cells: dict[str, str], needs: str
) -> None:
    (name, *_) = cells
    (found,) = (one for one in claim(**cells) if one.field == name)
    assert (found.verdict, found.rule) == ("not checkable", "")
    asked = set(found.note.removeprefix("needs ").split(", "))
    assert (
        asked == set(needs.removeprefix("needs ").split(", ")) or len(asked) <= needs.count(",") + 1
    )


@pytest.mark.parametrize(
    ("sizes", "expected", "said"),
    [
        ({"tensor_parallel_size": "8", "gpus": "8"}, "holds", ""),
        ({"tensor_parallel_size": "64", "gpus": "64"}, "contradicts", "(32 heads"),
        ({"tensor_parallel_size": "2", "gpus": "7"}, "contradicts", "world_size"),
        ({"expert_parallel_size": "2"}, "contradicts", "expert"),
        ({"tensor_parallel_size": "0"}, "impossible", "tensor_parallel_size=0 is not a whole"),
        ({"tensor_parallel_size": "2", "gpus": "0"}, "impossible", "gpus=0 is not a whole number"),
    ],
)
def test_stated_sizes_are_those_of_a_configuration_that_can_run(
    sizes: dict[str, str], expected: str, said: str
) -> None:
    (found,) = (one for one in claim(model="llama3.1-8b", **sizes) if one.rule == "legality")
    assert found.verdict == expected
    assert said in found.note
    denied = claim(model="llama3.1-8b", legal="no", **sizes)
    (other,) = (one for one in denied if one.rule == "legality")
    assert other.verdict == ("contradicts" if expected == "holds" else "holds")
    assert other.field == "legal"


# Files of claims and of results


def test_a_row_stands_in_its_line_of_the_table() -> None:
    claims = parse_claims(
        '[[tables]]\nline = 7\ncolumns = ["label", "mfu"]\nrows = [["a", "1%"], ["b", "2%"]]\n'
        '[[tables]]\ncolumns = ["line", "mfu"]\nrows = [[3, "1%"], ["", "2%"]]\n'
        '[[claims]]\nline = 999999999\nmfu = "3%"\n[[claims]]\nmfu = "3%"\n',
        "a",
    )
    assert [row.line for row in claims.rows] == [7, 8, 3, None, 999_999_999, None]
    assert [table.name for table in claims.tables] == ["table 1", "table 2", "claim 1", "claim 2"]
    for line in ("0", "1000000000", "true", '"4"'):
        with pytest.raises(ClaimError, match="must be a line number"):
            parse_claims(f'[[claims]]\nline = {line}\nmfu = "3%"', "a")


@pytest.mark.parametrize(("length", "refused"), [(300, False), (301, True)])
def test_a_text_has_three_hundred_characters_at_most(length: int, refused: bool) -> None:
    text = f'[[claims]]\nlabel = "{"x" * length}"\nmfu = "3%"'
    if refused:
        with pytest.raises(ClaimError, match="a printable text of at most 300 characters"):
            parse_claims(text, "a")
    else:
        assert len(parse_claims(text, "a").rows[0].label) == length
    rows = [{"run_id": "x" * length, "mfu": 0.4}]
    if refused:
        with pytest.raises(ClaimError, match="a printable text of at most 300 characters"):
            parse_results(rows, "a")
    else:
        assert parse_results(rows, "a").rows[0].label == "x" * length


def test_what_a_table_gives_is_of_every_row_that_does_not_say_otherwise() -> None:
    text = """
    [[tables]]
    given = { gpus = "8", model = "llama3.1-8b" }
    note = "as printed"
    columns = ["label", "gpus", "mfu"]
    rows = [["a", "", "1%"], ["b", "16", "2%"]]
    """
    first, second = parse_claims(text, "a").rows
    assert (first.values["gpus"].value, second.values["gpus"].value) == (8, 16)
    assert first.given == {"gpus", "model", "note"}
    assert second.given == {"model", "note"}
    assert {row.words["note"] for row in (first, second)} == {"as printed"}


RESULT = {
    "world_size": ("gpus", 8),
    "nodes": ("nodes", 1),
    "tensor_parallel_size": (None, 2),
    "pipeline_parallel_size": (None, 2),
    "context_parallel_size": (None, 1),
    "expert_parallel_size": (None, 1),
    "data_parallel_size": (None, 2),
    "micro_batch_size": (None, 1),
    "global_batch_size": (None, 64),
    "sequence_length": (None, 4096),
    "num_layers": (None, 32),
    "tokens_per_second": (None, 1.5),
    "tokens_per_second_per_gpu": (None, 2.5),
    "model_tflops_per_second_per_gpu": (None, 3.5),
    "peak_tflops_per_second": (None, 989.4),
    "mfu": (None, 0.25),
    "peak_memory_gib": ("memory_gb", 70.5),
}


def test_each_column_of_a_result_row_is_the_claim_of_its_name() -> None:
    data = {name: value for name, (_, value) in RESULT.items()} | {"run_id": "r"}
    (row,) = parse_results([data | {"status": "completed"}, {"status": "failed"}], "a").rows
    found = {name: one.value for name, one in row.values.items()}
    assert found == {field or name: value for name, (field, value) in RESULT.items()}
    (unnamed,) = parse_results([data | {"run_id": None}], "a").rows
    assert (row.label, unnamed.label, unnamed.line) == ("r", "a row 1", None)


@pytest.mark.parametrize(
    ("precision", "peak", "kept"),
    [("fp8", "bf16", False), ("bf16", "bf16", True), ("fp8", None, True), (None, "bf16", False)],
)
def test_an_mfu_over_the_peak_of_another_precision_is_left_out(
    precision: str | None, peak: str | None, kept: bool
) -> None:
    data = {
        "mfu": 0.4,
        "peak_tflops_per_second": 989.4,
        "tokens_per_second": 1.0,
        "precision": precision,
        "peak_precision": peak,
    }
    (row,) = parse_results([data], "a").rows
    left = {"mfu", "peak_tflops_per_second"} if kept else set()
    assert set(row.values) == {"tokens_per_second", *left}
    assert row.words.get("note") == (None if kept else "MFU over the bf16 peak: left out")


@pytest.mark.parametrize(
    ("model", "accelerator", "left", "said"),
    [
        ("my-own", "h100", {"accelerator"}, ["'my-own'"]),
        ("llama3.1-8b", "Foo 9", {"model"}, ["'Foo 9'"]),
        ("my-own", "Foo 9", set(), ["'my-own'", "'Foo 9'"]),
        ("llama3.1-8b", "h100", {"model", "accelerator"}, []),
    ],
)
def test_a_result_row_keeps_the_names_that_the_catalog_has(
    model: str, accelerator: str, left: set[str], said: list[str]
) -> None:
    claims = parse_results([{"model": model, "accelerator": accelerator, "mfu": 0.4}], "a")
    assert claims.rows[0].words.keys() & {"model", "accelerator"} == left
    assert len(claims.unread) == len(said)
    assert all(name in text for name, text in zip(said, claims.unread, strict=True))


@pytest.mark.parametrize(
    ("value", "low", "high", "claimed"),
    [
        (8, 8, 8, 8),
        (0.25, 0.245, 0.255, 0.26),
        (3.14159265, 3.14159265 * (1 - 1e-6), 3.14159265 * (1 + 1e-6), None),
        (-0.25, -0.255, -0.245, -0.24),
    ],
)
def test_a_number_of_a_row_is_as_rounded_as_its_digits_or_a_millionth(
    value: float, low: float, high: float, claimed: float | None
) -> None:
    found = claim_files._number(value, "x")
    assert (found.interval.low, found.interval.high) == (pytest.approx(low), pytest.approx(high))
    assert found.claimed.high == pytest.approx(high if claimed is None else claimed)
    assert found.claimed.low == found.interval.low


def test_a_file_that_cannot_be_read_is_said_with_why(tmp_path: Path) -> None:
    with pytest.raises(ClaimError, match=r"a\.toml cannot be read: No such file or directory\.$"):
        claim_files.load_claims(tmp_path / "a.toml")


def test_result_rows_are_objects_of_a_json_array_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.json"
    monkeypatch.setattr(claim_files, "MOST_ROWS", 2)
    for text, said in (
        ("[]", "no result rows"),
        ("{}", "no result rows"),
        ("[1]", "no result rows"),
        ("[{}, {}, {}]", "more than 2 rows"),
        ("[{}", "not valid JSON"),
    ):
        path.write_text(text)
        with pytest.raises(ClaimError, match=said):
            claim_files.read_rows(path)
    path.write_text('[{"a": 1}, {"b": 2}]')
    assert claim_files.read_rows(path) == [{"a": 1}, {"b": 2}]


# Cells of documents


@pytest.mark.parametrize(
    ("line", "cells"),
    [
        ("| a | b |", [" a ", " b "]),
        ("a | b", ["a ", " b"]),
        (r"| a \| b | c |", [" a | b ", " c "]),
        ("||", [""]),
    ],
)
def test_a_line_of_a_table_is_cut_at_its_bars(line: str, cells: list[str]) -> None:
    assert documents._cells(line) == cells


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("**8**", "8"),
        ("[a](b)", "a"),
        ("![a](b) `c`[^1]", "a c"),
        ("x (baseline)", "x"),
        ("✅ yes†", "yes"),
        ("x" * 200, "x" * 120),
        ("a\u200b  b", "a b"),
    ],
)
def test_a_cell_is_read_without_its_marks(text: str, plain: str) -> None:
    assert vocabulary.plain(text) == plain


@pytest.mark.parametrize(
    ("head", "name", "unit"),
    [
        ("Step time (ms)", "step time", "ms"),
        ("Step time [s]", "step time", "s"),
        ("step_time_ms", "step time", "ms"),
        ("elapsed seconds", "elapsed seconds", ""),
        ("(ms)", "(ms)", ""),
        ("Tokens/s", "tokens/s", ""),
    ],
)
def test_a_heading_is_a_name_and_a_unit(head: str, name: str, unit: str) -> None:
    assert vocabulary.heading_of(head) == (name, unit)


@pytest.mark.parametrize(
    ("heading", "cell", "field", "value"),
    [
        ("Step time (ms)", "250", "step_milliseconds", 0.25),
        ("Step time", "0.25 s", "step_seconds", 0.25),
        ("Step time", "0.25", None, None),
        ("Training time", "2 days", "elapsed_days", 172_800),
        ("Training time (min)", "90", "elapsed_minutes", 5400),
        ("Training time (min)", "2 hours", "elapsed_hours", 7200),
        ("Bandwidth", "400 Gbps", "bandwidth_gbps", 50),
        ("Bandwidth", "2 TB/s", "bandwidth_gb_per_second", 2000),
        ("Memory", "70 GB (peak)", "memory_gb", 70),
        ("Memory", "70 MB", "memory_gb", 0.07),
        ("Total power", "10 kW", "power_kilowatts", 10_000),
        ("Energy", "2 kWh", "energy_kwh", 7.2e6),
        ("Total TFLOPS", "1.5 PFLOPS", "model_tflops_per_second", 1500),
        ("Throughput", "12 tokens/s/GPU", "tokens_per_second_per_gpu", 12),
        ("Throughput", "12 samples/s", "samples_per_second", 12),
        ("Throughput", "12 tokens/s", "tokens_per_second", 12),
        ("Throughput", "0.92x", None, None),
        ("Throughput", "12 parsecs", None, None),
        ("Training speed (samples/s)", "12", "samples_per_second", 12),
        ("Throughput [tokens/s/GPU]", "12", "tokens_per_second_per_gpu", 12),
        ("Model size", "8x7B (56B)", "parameters", 56e9),
        ("MFU", "40.4%", "mfu", 0.404),
        ("Speedup", "1.9x", "speedup", 1.9),
    ],
)
def test_a_cell_is_the_field_of_its_heading_and_unit(
    heading: str, cell: str, field: str | None, value: float | None
) -> None:
    claims = read_document(f"Steps\t{heading}\n12\t{cell}\n", ".tsv", "a.tsv")
    found = {name: one.value for name, one in claims.rows[0].values.items() if name != "steps"}
    assert found == ({field: pytest.approx(value)} if field else {})
    assert claims.unread == (() if field else (f"{cell!r} under {heading!r}, line 2",))


@pytest.mark.parametrize("cell", ["", "-", "–", "—", "n/a", "NA", "tbd", "None"])
def test_an_empty_cell_states_nothing_and_is_not_listed(cell: str) -> None:
    claims = read_document(f"Steps\tMFU\n12\t{cell}\n", ".tsv", "a.tsv")
    assert set(claims.rows[0].values) == {"steps"} and claims.unread == ()


def test_what_else_a_percentage_could_be_is_given_in_percent() -> None:
    text = (
        "Model\tDevice\tPrecision\tSequence length\tTokens/s/GPU\tMFU\n"
        "Llama 3.1 8B\tH200\tBF16\t8192\t10,982\t93%\n"
    )
    (check,) = [
        one for one in audit(read_document(text, ".tsv", "a.tsv")).checks
        if one.verdict == "contradicts"
    ]  # fmt: skip
    # 10,982 tokens/s x 57.9129 GFLOP of the whole attention square over 989.4 TFLOP/s
    assert "or 64.2813 % (full_attention" in check.note


@pytest.mark.parametrize(
    ("cell", "gpus"),
    [
        ("2x8 H100", 16),
        ("4 x 8", 32),
        ("2×8xMI300X", 16),
        ("8x H100", 8),
        ("8x80GB", 8),
        ("4 nodes x 8 H100", 32),
    ],
)
def test_a_count_of_gpus_may_be_nodes_times_those_of_a_node(cell: str, gpus: int) -> None:
    (row,) = read_document(f"GPUs\tMFU\n{cell}\t40%\n", ".tsv", "a.tsv").rows
    assert row.values["gpus"].value == gpus


@pytest.mark.parametrize(
    ("cell", "values"),
    [
        ("TP=4, PP 2", {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}),
        (
            "TP8-EP-2 CP=1 DP16",
            {
                "tensor_parallel_size": 8,
                "expert_parallel_size": 2,
                "context_parallel_size": 1,
                "data_parallel_size": 16,
            },
        ),
        ("8xA100", {"gpus": 8}),
        ("8 x NVIDIA H100", {"gpus": 8}),
        ("32 GPUs on 4 nodes", {"gpus": 32, "nodes": 4}),
        ("8 GPUs, 16 GPUs", {}),
        ("STEP=4", {}),
    ],
)
def test_sizes_stand_in_the_words_of_a_row(cell: str, values: dict[str, int]) -> None:
    (row,) = read_document(f"Run\tMFU\n{cell}\t40%\n", ".tsv", "a.tsv").rows
    assert {name: one.value for name, one in row.values.items() if name != "mfu"} == values
    assert all(row.values[name].interval.exact for name in values)


@pytest.mark.parametrize(
    ("rows", "base"),
    [
        ("a\t8\t100%\nb\t16\t95%", "a"),
        ("a\t16\t95%\nb\t8\t100%", "b"),
        ("a\t8\t98%\nb\t16\t95%", None),
        ("a\t8\t100%", None),
    ],
)
def test_the_base_is_the_smallest_row_that_says_100_percent(rows: str, base: str | None) -> None:
    text = f"Run\tGPUs\tScaling efficiency\n{rows}\n"
    assert read_document(text, ".tsv", "a.tsv").tables[0].base == base


def test_rows_of_one_name_are_told_apart_by_their_lines_and_a_total_is_one() -> None:
    text = "Run\tCost\na\t$1.00\na\t$2.00\nTotal\t$4.00\n"
    claims = read_document(text, ".tsv", "a.tsv")
    assert [row.label for row in claims.rows] == ["a", "a (line 3)", "Total"]
    assert claims.tables[0].total == "Total"
    found = [one for one in audit(claims).checks if one.rule == "sum of the rows above"]
    assert [(one.verdict, one.expected) for one in found] == [("contradicts", 3)]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("H100 and A100", ["h100", "a100"]),
        ("h100s", ["h100"]),
        ("B200, H100, B200", ["b200", "h100"]),
        ("HAL9000", []),
    ],
)
def test_the_devices_of_a_text_are_those_of_the_catalog_in_its_order(
    text: str, names: list[str]
) -> None:
    assert device_tables.devices_in(text) == names


@pytest.mark.parametrize(
    ("cell", "total"),
    [("1,978", False), ("1,979", False), ("1,980", True), ("2,500", True), ("900", False)],
)
def test_tflops_above_twice_the_peak_are_of_all_gpus(cell: str, total: bool) -> None:
    """Twice 989.4 is 1,978.8; 1,979 is within one of the sparse peak of 1,978.9."""
    sheet = documents.Sheet("t", ["GPU", "TFLOPS"], [(2, ["H100", cell])])
    assert (documents._totalled(sheet).head[1] == "total tflops") is total


@pytest.mark.parametrize(
    ("value", "near"), [("988.5", True), ("988", False), ("990.39", True), ("990.5", False)]
)
def test_a_figure_is_a_peak_where_less_than_one_lies_between(value: str, near: bool) -> None:
    assert device_tables.near(value, (989.4,)) is near


@pytest.mark.parametrize(
    ("text", "amount"), [("1,979 TFLOPS", 1979), ("12.5%", 12.5), ("n/a", 0), ("", 0), ("x8", 8)]
)
def test_a_text_has_the_amount_of_its_first_number(text: str, amount: float) -> None:
    assert device_tables.amount(text) == amount


def test_a_row_may_end_before_the_column_of_the_model() -> None:
    rows = ["8,1,100%,llama3.1-8b", "16,2,98%"]
    for more, base in ((["32,3,97%"], "8"), (["32,3,97%,qwen2.5-7b"], None)):
        text = "\n".join(["Run,GPUs,Scaling efficiency,Model", *rows, *more])
        (table,) = read_document(text, ".csv", "a.csv").tables
        assert (len(table.rows), table.base) == (3, base)


def test_a_document_has_as_many_rows_of_tables_as_the_limit_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(documents, "MOST_ROWS", 2)
    assert len(read_document("MFU\n1%\n2%\n", ".csv", "a").rows) == 2
    with pytest.raises(ClaimError, match="more than 2 rows of tables"):
        read_document("MFU\n1%\n2%\n3%\n", ".csv", "a")


def test_a_list_of_sizes_in_the_middle_of_a_table_leaves_the_other_columns_to_their_row() -> None:
    """Qwen 2.5 7B has 28 heads in 4 groups."""
    text = "Steps,Model,Valid TP,Layers,Heads\n9,Qwen 2.5 7B,"
    claims = read_document(f'{text}"2, 7",28,28\n', ".csv", "a.csv")
    sizes, rest = claims.tables
    assert [row.values["tensor_parallel_size"].value for row in sizes.rows] == [2, 7]
    assert [set(row.values) for row in sizes.rows] == [{"tensor_parallel_size"}] * 2
    assert {row.words["model"] for row in claims.rows} == {"qwen2.5-7b"}
    (row,) = rest.rows
    found = {name: one.value for name, one in row.values.items()}
    assert found == {"steps": 9, "num_layers": 28, "num_attention_heads": 28}


def test_a_row_may_end_before_its_list_of_sizes() -> None:
    text = 'Steps,Layers,Valid TP\n9,28,"2, 7"\n8,28\n'
    sizes, rest = read_document(text, ".csv", "a.csv").tables
    assert [row.values["tensor_parallel_size"].value for row in sizes.rows] == [2, 7]
    assert [row.values["steps"].value for row in rest.rows] == [9, 8]


@pytest.mark.parametrize(
    ("heading", "precision"),
    [("FP8", "fp8"), ("H100, BF16", "bf16"), ("BF16 and FP8", None), ("Rates", None)],
)
def test_a_heading_that_names_one_precision_says_that_of_its_table(
    heading: str, precision: str | None
) -> None:
    text = f"## {heading}\n\n| GPUs | MFU |\n|---|---|\n| 8 | 40% |"
    (row,) = read_document(text, ".md", "a.md").rows
    assert row.words.get("precision") == precision
    assert row.line == 5
    with pytest.raises(ClaimError, match="no table with a known heading"):
        read_document(text[: text.rindex("\n")], ".md", "a.md")


def test_two_times_of_a_row_are_two_runs_of_what_stands_beside_them() -> None:
    text = "Run,Steps,Baseline time,Optimized time\na,9,3 hours,90 min\nb,8,4 hours,\n"
    claims = read_document(text, ".csv", "a.csv")
    before, after = claims.tables
    assert [
        (row.values["elapsed_hours"].value, row.values["steps"].value) for row in before.rows
    ] == [(10800, 9), (14400, 8)]
    assert [set(row.values) for row in after.rows] == [{"elapsed_minutes", "steps"}, {"steps"}]
    # beside their ratio they are a pair, and no runs of their own
    text = text.replace("time\n", "time,Speedup\n").replace("min\n", "min,2x\n")
    assert len(read_document(text, ".csv", "a.csv").tables) == 1


def sheets(found: Any) -> list[tuple[str, list[str], list[tuple[int, list[str]]]]]:
    return [(one.name, one.head, one.rows) for one in found]


def test_tables_of_a_text_have_the_name_above_and_the_lines_of_their_rows() -> None:
    text = (
        "# A\n\n| x | y |\n|---|:-:|\n| 1 | 2 |\n| 3 | 4 |\n\nmore\n\n"
        "## B of H100s\n| z | w |\n|--|--|\n| 5 | 6 |"
    )
    found = list(documents._markdown(text))
    assert sheets(found) == [
        ("A", [" x ", " y "], [(5, [" 1 ", " 2 "]), (6, [" 3 ", " 4 "])]),
        ("B of H100s", [" z ", " w "], [(13, [" 5 ", " 6 "])]),
    ]
    assert [one.given for one in found] == [{}, {"accelerator": "h100"}]


def test_tables_of_a_page_are_named_by_their_caption_or_the_heading_above() -> None:
    row = "<tr><td>1</td><td>2 <b>3</b></td></tr>"
    html = f"<h3>A  b</h3>\n<table>\n<tr><th>x</th><th>y</th></tr>\n{row}\n</table>\n"
    html += f"<table><caption>C</caption><tr><th>z</th></tr>\n{row}</table><h2></h2><table></table>"
    assert sheets(device_tables.in_html(html)[0]) == [
        ("A b", ["x", "y"], [(4, ["1", "2 3"])]),
        ("C", ["z"], [(7, ["1", "2 3"])]),
        ("A b", [], []),
    ]


def test_rows_of_separated_values_have_their_lines_and_empty_ones_are_left_out() -> None:
    found = list(device_tables.separated('a,b\n"1\n2",3\n ,\n4,5\n', ",", "n"))
    assert sheets(found) == [("n", ["a", "b"], [(3, ["1\n2", "3"]), (5, ["4", "5"])])]
    assert list(device_tables.separated("", ",", "n")) == []


def test_lists_and_blocks_are_tables_of_one_row_under_their_heading() -> None:
    text = (
        "## Run on H100\n- **Steps**: 12\n- Batch size: 64 (global)\n\n- Loss: low\n\n"
        "**On 8 H100 GPUs:**\n- MFU: 40%\n\n```yaml\nseq_len: 4096  # tokens\nsteps: 9\n```\n"
        "```\nnot: read\n```\n"
    )
    unread: list[str] = []
    found = list(documents._lists(text, unread))
    assert sheets(found) == [
        (
            "Run on H100",
            ["", "Steps", "global Batch size"],
            [(2, ["Run on H100", "12", "64 (global)"])],
        ),
        ("Run on H100", ["", "Loss"], [(5, ["Run on H100", "low"])]),
        (
            "Run on H100: On 8 H100 GPUs:",
            ["", "MFU"],
            [(8, ["Run on H100: On 8 H100 GPUs:", "40%"])],
        ),
        (
            "Run on H100: On 8 H100 GPUs:",
            ["", "seq len", "steps"],
            [(11, ["Run on H100: On 8 H100 GPUs:", "4096", "9"])],
        ),
    ]
    assert unread == []
    assert found[0].given == {"accelerator": "h100"}
    assert found[2].given == {"accelerator": "h100", "gpus": "8"}


def test_a_list_of_peaks_has_a_row_for_each_precision() -> None:
    items = [(3, "Peak", ""), (4, "BF16", "989 TFLOPS"), (5, "FP8", "3,958 TFLOPS with sparsity")]
    (found,) = documents._listed("H100", items)
    assert found.head == ["", "precision", "peak tflops", "sparse peak tflops"]
    assert found.rows == [
        (4, ["H100", "BF16", "989 TFLOPS", ""]),
        (5, ["H100", "FP8", "", "3,958 TFLOPS with sparsity"]),
    ]
    assert found.given == {"accelerator": "h100"}
    # without the word they are no peaks
    assert list(documents._listed("H100", items[1:])) == []


def test_peaks_in_lines_of_a_text_are_of_bf16_where_one_of_their_block_is() -> None:
    text = (
        "# Devices\nH100: 989 TFLOPS\n- **MI300X**: 1,307 TFLOPS BF16\n"
        "H100: 450 / 1,979 = 22.7%\n\nH100: 1,979 TFLOPS\nH100: 123 TFLOPS\n"
        "# Next\nA100: 312 TFLOPS"
    )
    unread: list[str] = []
    found = [one for one in device_tables.peaks_in(text, unread) if one.rows]
    assert sheets(found) == [
        (
            "Devices",
            ["", "gpu", "peak tflops", "precision", "tflops per gpu", "mfu"],
            [
                (2, ["H100", "h100", "989", "bf16", "", ""]),
                (3, ["MI300X", "mi300x", "1,307", "BF16", "", ""]),
                (4, ["H100", "h100", "1,979", "bf16", "450", "22.7%"]),
            ],
        ),
        (
            "Next",
            ["", "gpu", "peak tflops", "precision", "tflops per gpu", "mfu"],
            [(9, ["A100", "a100", "312", "bf16", "", ""])],
        ),
    ]
    assert unread == ["'1,979' of 'H100', a peak without its precision"]


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("trained on 16 GPUs in fp8", {"gpus": "16", "precision": "fp8"}),
        ("on 8 GPUs per node", {}),
        ("on 8 GPUs and on 16 GPUs", {}),
        ("sequence length: 4K of a 7B model", {"sequence_length": "4k", "parameters": "7b"}),
        ("Llama 3.1 8B and not Llama2 7B", {"model": "llama3.1-8b"}),
        ("Llama 3.1 8B and Llama2 7B", {}),
        ("B200 versus H100", {"accelerator": "b200"}),
    ],
)
def test_a_text_states_a_fact_where_it_names_one_value(text: str, given: dict[str, str]) -> None:
    assert device_tables.context(text) == given


def test_a_strategy_of_whole_replicas_splits_no_model() -> None:
    text = "Strategy\tMFU\nDDP\t40%\nFSDP\t41%\n"
    first, second = read_document(text, ".tsv", "a.tsv").rows
    assert {name: first.values[name].value for name in first.given} == {
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
    }
    assert second.given == set()
    assert (first.words["sharding"], second.words.get("sharding")) != ("none", "none")


@pytest.mark.parametrize(("count", "counted"), [("8", True), ("64", False)])
def test_the_one_count_of_a_text_is_of_a_table_whose_row_it_makes_true(
    count: str, counted: bool
) -> None:
    """3,600 TFLOP/s of 8 GPUs over a peak of 989.4 are 45.5 %."""
    text = "GPU\tTotal TFLOPS\tMFU\nH100\t3,600\t45.5%\nH100\t1\t\n"
    (table,) = read_document(text, ".tsv", "a.tsv").tables
    found = documents._counted(table, count)
    assert [("gpus" in row.values, "gpus" in row.given) for row in found.rows] == [
        (counted, counted)
    ] * 2


# Rates that sources count in ways of their own


@pytest.mark.parametrize("name", ["llama3-8b", "llama-3-8b"])
def test_llama_3_has_the_shape_of_llama_3_1(name: str):
    # NeMo 24.03, README of the launcher: 11,879 tokens/s/GPU and 688 TFLOP/s/GPU at 8,192 tokens
    row = {"model": name, "sequence_length": "8192", "tokens_per_second_per_gpu": "11879"}
    field = "model_tflops_per_second_per_gpu"
    assert verdicts(field, **row, **{field: "688"}) == {"holds"}
    assert verdicts(field, **row, **{field: "744"}) == {"contradicts"}


@pytest.mark.parametrize(
    ("precision", "device", "printed", "verdict"),
    [
        ("bf16", "h100-pcie", "756.5", "holds"),  # half of the 1,513 of the data sheet
        ("fp8", "mi300x", "2610", "holds"),  # 2,614.9
        ("bf16", "mi300x", "1310", "holds"),
        ("bf16", "mi300x", "1250", "contradicts"),
        ("bf16", "h100", "1000", "contradicts"),
    ],
)
def test_a_peak_may_be_printed_in_three_digits_or_as_half_of_the_sparse_one(
    precision: str, device: str, printed: str, verdict: str
):
    field = "peak_tflops_per_second"
    row = {"accelerator": device, "precision": precision, field: printed}
    assert verdicts(field, **row) == {verdict}


def test_an_mfu_may_rest_on_a_peak_in_three_digits():
    # 716.97 / 2,610 = 27.47 %, of 2,614.9 27.42 %, of 2.6 PFLOP/s 27.58 %
    row = {"accelerator": "mi300x", "precision": "fp8", "model_tflops_per_second_per_gpu": "716.97"}
    assert verdicts("mfu", **row, mfu="27.47%") == {"holds"}
    assert verdicts("mfu", **row, mfu="27.58%") == {"possible"}
    assert verdicts("mfu", **row, mfu="27.78%") == {"contradicts"}


@pytest.mark.parametrize(
    ("hfu", "more", "verdict"),
    [
        ("0.69", {}, "possible"),  # 0.61 without, 0.61 x 4/3 = 0.81 with all of it again
        ("0.90", {}, "contradicts"),
        ("0.69", {"recompute": "full"}, "contradicts"),
    ],
)
def test_some_layers_may_be_computed_again(hfu: str, more: dict[str, str], verdict: str):
    row = {"model": "llama2-13b", "accelerator": "a100", "sequence_length": "4096"}
    row |= {"precision": "bf16", "tokens_per_second_per_gpu": "2150", "hfu": hfu}
    assert verdicts("hfu", **row, **more) == {verdict}


@pytest.mark.parametrize(
    ("mfu", "verdict"),
    [
        ("54.5%", "possible"),  # 6 x 7e9 x 4,047 / 312e12 = 54.48 %
        ("52.4%", "holds"),  # 6 x 6.738e9 x 4,047 / 312e12 = 52.44 %
        ("50.0%", "contradicts"),
    ],
)
def test_a_model_may_be_counted_by_the_size_in_its_name(mfu: str, verdict: str):
    row = {"model": "llama2-7b", "accelerator": "a100", "sequence_length": "4096"}
    row |= {"precision": "bf16", "tokens_per_second_per_gpu": "4047", "mfu": mfu}
    assert verdicts("mfu", **row) == {verdict}


@pytest.mark.parametrize(
    ("rate", "tflops", "said"),
    [  # full attention of Llama 3.1 8B at 8,192 tokens: 57.91 GFLOP, so 579.1 at 10,000 tokens/s
        ("640,000", "579.1", "a factor of 64, the number of GPUs"),  # of all 64
        ("10.00", "579.1", "a factor of 1,000: a unit"),
        ("10,000", "642.4", "a second forward pass"),  # 6 N: 481.8 x 4/3
    ],
)
def test_a_slip_is_named_by_whatever_convention_it_was_counted(rate: str, tflops: str, said: str):
    row = {"model": "llama3.1-8b", "sequence_length": "8192", "gpus": "64"}
    row |= {"tokens_per_second_per_gpu": rate, "model_tflops_per_second_per_gpu": tflops}
    notes = [check.note for check in claim(**row) if check.verdict == "contradicts"]
    assert len(notes) == 1
    assert said in notes[0]


def test_an_mfu_that_only_recomputation_gives_is_possible_and_named():
    # arXiv 2104.04473: 96 L h^2 (1 + s / 6h + V / 16Lh) = 1.434e12 FLOPs per token of GPT-3 175B,
    # a second forward pass in it: 143.4 TFLOP/s at 100 tokens/s, 45.96 % of an A100
    row = {"model": "gpt3-175b", "accelerator": "a100", "precision": "bf16"}
    row |= {"sequence_length": "2048", "tokens_per_second_per_gpu": "100"}
    assert verdicts("mfu", **row, mfu="46.0%") == {"possible"}
    assert "an HFU" in next(one.note for one in claim(**row, mfu="46.0%") if one.field == "mfu")
    assert verdicts("mfu", **row, mfu="34.0%") == {"holds"}
    tflops = "model_tflops_per_second_per_gpu"
    assert "holds" in verdicts(tflops, **row, **{tflops: "143.4"})


def test_a_count_that_is_as_many_times_wrong_as_there_are_gpus_is_no_slip_of_a_rate():
    row = {"gpus": "48", "global_batch_size": "48", "data_parallel_size": "1"}
    (check,) = (
        one for one in claim(**row, batch_size_per_replica="1") if one.verdict == "contradicts"
    )
    assert "of all GPUs or of one" not in check.note


def test_counts_too_small_to_divide_by_name_no_slip():
    least = 5e-324
    assert row_checks._slip(row_of(), least, [1e300]) is None
    assert row_checks._slip(row_of(), 1e300, [least]) is None


# Inputs that were chosen, and times in days


@pytest.mark.parametrize(
    ("tokens", "days", "verdict"),
    [("2T", "384", "contradicts"), ("2T", "350", "holds"), ("2.6T", "379", "holds")],
)
def test_a_round_number_with_a_letter_was_not_cut_off(tokens: str, days: str, verdict: str) -> None:
    """At 81,600 per second 2.5e12 tokens take 355 days, 2.65e12 376 and 2.7e12 383."""
    row = {"tokens_per_second": "81,600", "tokens": tokens, "elapsed_days": days}
    assert verdicts("elapsed_days", **row) == {verdict}


@pytest.mark.parametrize(
    ("heading", "cell", "verdict"),
    [
        ("Days", "284", "holds"),
        ("Training days", "284 days", "holds"),
        ("Days to train", "384", "contradicts"),
        ("Time to train (days)", "284", "holds"),
        ("Hours", "6808", "holds"),
        ("Hours", "9216", "not checkable"),
    ],
)
def test_a_heading_of_days_is_a_time(heading: str, cell: str, verdict: str) -> None:
    """2e12 tokens at 81,600 per second: 283.7 days or 6,808 hours; of what, Hours does not say."""
    text = f"Tokens/s,Tokens,{heading}\n81600,2.00T,{cell}\n"
    found = audit(read_document(text, ".csv", "a.csv")).checks
    assert {one.verdict for one in found if one.field.startswith("elapsed")} == {verdict}


def test_a_time_in_hours_is_none_in_days() -> None:
    text = "Tokens/s,Tokens,Days\n81600,2.00T,284 hours\n"
    read = read_document(text, ".csv", "a.csv")
    assert any("284 hours" in one for one in read.unread)


def test_a_bound_of_the_flops_of_a_size_is_shown_by_its_low_end() -> None:
    """Tables are at most two fifths of 499.5 million: 6 x 0.6 x 499.5e6 x 1e5 are 179.8 TFLOP/s."""
    name = "model_tflops_per_second_per_gpu"
    row = {"parameters": "500M", "tokens_per_second_per_gpu": "100,000", name: "250"}
    (found,) = (one for one in claim(**row) if one.field == name)
    assert (found.verdict, found.expected) == ("possible", pytest.approx(179.82))
