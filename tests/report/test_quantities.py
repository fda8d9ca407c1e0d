"""Numbers as people read them."""

from __future__ import annotations

import pytest

from scalebook.report.base.quantities import (
    GLUE,
    NONE,
    change,
    count,
    duration,
    interval,
    number,
    percent,
    quantity,
    times,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (0.0, "0"),
        (12345.6, "12,346"),
        (0.012345, "0.0123"),
        (9.999, "10.0"),
        (-3.14159, "−3.14"),
        (128, "128"),
        (1_234_567, "1,234,567"),
        (1e-9, "1.00e-09"),
    ],
)
def test_a_number_has_three_significant_digits_and_an_int_has_all(
    value: float | None, text: str
) -> None:
    assert number(value) == text


def test_a_missing_number_has_no_unit() -> None:
    assert quantity(None, "tokens/s") == percent(None) == duration(None) == "–"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0123, "12.3 ms"), (1.5, "1.50 s"), (300, "5.00 min"), (9000, "2.50 h")]
)
def test_a_duration_has_the_unit_that_reads_best(seconds: float, text: str) -> None:
    assert duration(seconds) == text.replace(" ", "\N{NO-BREAK SPACE}")


def test_an_interval_is_rounded_with_its_value() -> None:
    glued = interval(12_345.6, 12_225, 12_466, "tokens/s").replace("\N{NO-BREAK SPACE}", " ")
    assert glued == "12,346 tokens/s (12,225 to 12,466)"
    small = interval(0.41234, 0.40, 0.4247, "s").replace("\N{NO-BREAK SPACE}", " ")
    assert small == "0.412 s (0.400 to 0.425)"


def test_a_lopsided_interval_is_written_as_its_ends() -> None:
    text = interval(100.0, 99.0, 120.0, "s").replace("\N{NO-BREAK SPACE}", " ")
    assert text == "100 s (99 to 120)"


def test_a_value_without_interval_stands_alone() -> None:
    assert interval(100.0, None, None, "s") == quantity(100.0, "s")
    assert interval(100.0, 100.0, 100.0, "s") == quantity(100.0, "s")


def test_amounts_and_ratios_have_their_words() -> None:
    assert count(1, "run") == "1\N{NO-BREAK SPACE}run"
    assert count(2, "process", "processes") == "2\N{NO-BREAK SPACE}processes"
    assert times(1.344) == "1.34×"


def test_a_change_too_small_to_show_has_no_sign() -> None:
    shown = [change(value) for value in (0.1234, -0.0004, 0.0004, -0.021, None)]
    assert [text.replace(GLUE, " ") for text in shown] == [
        "+12.3 %",
        "0.0 %",
        "0.0 %",
        "−2.1 %",
        NONE,
    ]
