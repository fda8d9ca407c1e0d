"""Intervals and printed numbers, worked by hand and by what must hold of every number inside."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebook.errors import ClaimError
from scalebook.measure.intervals import (
    SCALES,
    Interval,
    mean_tail,
    point,
    read_numeral,
    student_quantile,
)

INFINITE = math.inf
ENDS = st.floats(-1e6, 1e6, allow_subnormal=False)  # a quotient by a subnormal is infinite
INSIDE = st.floats(0, 1)


def between(one: float, other: float) -> Interval:
    return Interval(min(one, other), max(one, other))


def inside(interval: Interval, share: float) -> float:
    value = interval.low + share * (interval.high - interval.low)
    return min(max(value, interval.low), interval.high)


@given(ENDS, ENDS, ENDS, ENDS, INSIDE, INSIDE)
def test_an_operation_holds_the_result_of_every_pair_inside(a, b, c, d, share, other):
    left, right = between(a, b), between(c, d)
    x, y = inside(left, share), inside(right, other)
    assert (left + right).low <= x + y <= (left + right).high
    assert (-left).low <= -x <= (-left).high
    assert (left * right).low <= x * y <= (left * right).high
    if y and math.isfinite(x / y):
        quotient = left / right
        assert quotient.low - 1e-9 * abs(x / y) <= x / y <= quotient.high + 1e-9 * abs(x / y)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (2, 4, (0.25, 0.5)), (-4, -2, (-0.5, -0.25)), (0, 2, (0.5, INFINITE)),
        (-2, 0, (-INFINITE, -0.5)), (-1, 1, (-INFINITE, INFINITE)), (0, 0, (-INFINITE, INFINITE)),
        (2, INFINITE, (0, 0.5)),
    ],
)  # fmt: skip
def test_the_reciprocal_is_open_where_the_interval_reaches_zero(low, high, expected):
    found = Interval(low, high).reciprocal()
    assert (found.low, found.high) == expected


@pytest.mark.parametrize(
    ("interval", "middle", "exact"),
    [
        (Interval(2, 4), 3, False), (Interval(5, 5), 5, True), (Interval(3, INFINITE), 3, False),
        (Interval(-INFINITE, 7), 7, False), (Interval(2, 4, estimate=3.5), 3.5, False),
    ],
)  # fmt: skip
def test_the_middle_is_the_finite_end_of_what_is_open(interval, middle, exact):
    assert (interval.middle, interval.exact) == (middle, exact)


@given(ENDS, ENDS)
def test_zero_and_one_are_the_neutral_numbers(a, b):
    one = between(a, b)
    assert one + point(0) == one
    assert one * point(1) == one == point(1) * one
    assert one * point(0) == point(0) == point(0) * one
    assert (one * point(-1), one / point(1)) == (-one, one)


def test_widening_moves_each_finite_end_outwards_by_a_fraction_of_itself():
    assert Interval(-10, 20).widened(0.1) == Interval(-11, 22)
    assert Interval(-INFINITE, INFINITE).widened(0.1) == Interval(-INFINITE, INFINITE)
    assert Interval(2, 4).scaled(3) == Interval(6, 12)
    assert Interval(0, 2) * Interval(3, INFINITE) == Interval(0, INFINITE)
    assert point(3) == Interval(3, 3)


@pytest.mark.parametrize(
    ("a", "b", "relative", "meet"),
    [
        ((1, 2), (2, 3), 0, True), ((1, 2), (2.01, 3), 0, False), ((2.01, 3), (1, 2), 0, False),
        ((1, 2), (2.02, 3), 0.01, True), ((1, 2), (2.04, 3), 0.01, False),
        ((1, 2), (2 + 1e-9, 3), 1e-9, True), ((0, INFINITE), (5, 6), 0, True),
        ((1, 2), (3, INFINITE), 0.1, False),
    ],
)  # fmt: skip
def test_intervals_meet_up_to_the_slack_of_their_largest_end(a, b, relative, meet):
    assert Interval(*a).meets(Interval(*b), relative) == meet
    assert Interval(*b).meets(Interval(*a), relative) == meet


def test_by_default_intervals_meet_up_to_rounding_alone():
    assert point(0.1 + 0.2).meets(point(0.3))
    assert not point(1.0).meets(point(1.0001))


@pytest.mark.parametrize("ends", [(2, 1), (math.nan, 1), (1, math.nan)])
def test_ends_out_of_order_are_refused(ends):
    with pytest.raises(ClaimError, match="write the low end first"):
        Interval(*ends)


@pytest.mark.parametrize(
    ("text", "value", "unit", "percent"),
    [
        ("87,933", 87933, 1, False), ("7.6B", 7.6e9, 1e8, False),
        ("$1,869.90", 1869.9, 0.01, False),
        ("38.3%", 0.383, 0.001, True), ("1.5e12", 1.5e12, 1e11, False), ("-2", -2, 1, False),
        ("−2.5", -2.5, 0.1, False), ("–3", -3, 1, False), ("+4", 4, 1, False),
        ("2e-3", 0.002, 0.001, False), ("12%", 0.12, 0.01, True), ("0.25", 0.25, 0.01, False),
        (" 3 million ", 3e6, 1e6, False),
    ],
)  # fmt: skip
def test_a_printed_number_has_its_value_and_the_unit_of_its_last_digit(text, value, unit, percent):
    found = read_numeral(text)
    assert (found.value, found.unit) == (pytest.approx(value), pytest.approx(unit))
    assert found.percent is percent


def test_each_word_of_scale_is_a_power_of_a_thousand():
    words = [("k", "thousand"), ("m", "million"), ("b", "billion"), ("t", "trillion")]
    expected = {"": 1} | {word: 1000**at for at, pair in enumerate(words, 1) for word in pair}
    assert expected == SCALES
    assert read_numeral("2K").value == 2000


@pytest.mark.parametrize("text", ["", "x", "1,00", "1.", "1e999", "5 parsecs", "--1", "1 2"])
def test_what_is_no_number_is_refused_with_an_example(text):
    with pytest.raises(ClaimError, match="Write one like 87,933"):
        read_numeral(text)


@pytest.mark.parametrize(
    ("freedom", "probability", "expected"),
    [  # a table of Student's t: Abramowitz & Stegun, table 26.10
        (1, 0.975, 12.706), (2, 0.975, 4.303), (5, 0.975, 2.571), (10, 0.975, 2.228),
        (30, 0.975, 2.042), (1, 0.75, 1.0), (4, 0.95, 2.132), (20, 0.995, 2.845),
        (1, 0.9995, 636.619), (1e7, 0.975, 1.960),
    ],
)  # fmt: skip
def test_the_quantiles_of_student_are_those_of_the_table(freedom, probability, expected):
    assert student_quantile(freedom, probability) == pytest.approx(expected, abs=5.1e-4)


@given(st.floats(0.3, 1e5), st.floats(0.51, 0.9999))
def test_the_quantile_of_student_is_scipys(freedom, probability):
    stats = pytest.importorskip("scipy.stats")
    expected = stats.t.ppf(probability, freedom)
    assert student_quantile(freedom, probability) == pytest.approx(expected, rel=1e-8)


def test_half_of_all_values_of_student_lie_above_zero():
    assert student_quantile(3, 0.5) == pytest.approx(0, abs=1e-15)


@given(st.floats(0, 3), st.floats(8, 1e6))
def test_the_quick_tail_of_student_is_within_one_percent_up_to_three(t, freedom):
    stats = pytest.importorskip("scipy.stats")
    assert mean_tail([(1.0, t)], freedom) == pytest.approx(2 * stats.t.sf(t, freedom), rel=0.01)


def test_the_quick_tail_becomes_that_of_the_normal_distribution():
    assert mean_tail([(1.0, 0)], 5) == 1
    assert mean_tail([(1.0, 1.959964)], 1e9) == pytest.approx(0.05, rel=1e-6)
    assert mean_tail([(1.0, 2.228)], 10) == pytest.approx(0.05, rel=2e-3)  # the table again


def test_a_mean_tail_weighs_the_tails_of_its_rows():
    rows = [(0.25, 1.5), (0.75, 6.0)]
    expected = 0.25 * mean_tail([(1.0, 1.5)], 9) + 0.75 * mean_tail([(1.0, 6)], 9)
    assert mean_tail(rows, 9) == pytest.approx(expected)
