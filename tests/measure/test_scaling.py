"""Claims about speed-up, efficiency and projection."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebook.errors import ClaimError
from scalebook.measure.scaling import ScalingPoint, law, project, scaling_kind, table
from scalebook.measure.scaling.law import CANDIDATES, fit_law

# A published weak-scaling series: 1 to 8 nodes, 22,528 tokens per GPU and step.
PUBLISHED = (
    ScalingPoint(1, 34086, 1, 11),
    ScalingPoint(4, 122599, 1, 44),
    ScalingPoint(8, 205908, 2, 88),
    ScalingPoint(16, 374571, 4, 176),
    ScalingPoint(32, 700972, 8, 352),
)


def synthetic(sizes: list[int], fixed: float, bandwidth: float, hop: float) -> list[ScalingPoint]:
    """Weak-scaling runs that follow the law exactly, two GPUs a node."""
    return [
        ScalingPoint(
            n, n / (fixed + bandwidth * (n - 1) / n + hop * math.log2(n)), max(1, n // 2), 4 * n
        )
        for n in sizes
    ]


def test_efficiency_is_against_the_smallest_run_and_the_base_is_named():
    result = table(PUBLISHED)
    assert result.base_text == "1 GPU on 1 node at 34,086 tokens/s"
    assert [round(row.scaling_efficiency, 4) for row in result.rows] == [
        1.0, 0.8992, 0.7551, 0.6868, 0.6427,
    ]  # fmt: skip
    assert round(result.rows[-1].speedup, 3) == 20.565
    assert [row.is_base for row in result.rows] == [True, False, False, False, False]


def test_one_node_can_be_the_base():
    result = table(PUBLISHED, base="node")
    assert result.base_world_size == 4
    assert result.rows[0].scaling_efficiency == pytest.approx(34086 / (122599 / 4))


def test_runs_of_the_same_size_on_several_nodes_are_not_in_the_base_of_one_node():
    apart = ScalingPoint(4, 60000, 2, 44)
    result = table([*PUBLISHED, apart], base="node")
    assert result.base_tokens_per_second == pytest.approx(122599)
    assert [row.point.nodes for row in result.rows if row.is_base] == [1]


def test_the_node_base_needs_a_run_on_one_node():
    with pytest.raises(ClaimError, match="No run on one node"):
        table(PUBLISHED[2:], base="node")


def test_repeats_of_the_base_are_pooled_as_tokens_over_time():
    points = [ScalingPoint(1, 100.0), ScalingPoint(1, 300.0), ScalingPoint(2, 300.0)]
    result = table(points)
    assert result.base_tokens_per_second == pytest.approx(150.0)  # not the mean of rates, 200
    assert "2 runs pooled" in result.base_text


@pytest.mark.parametrize(
    ("batches", "kind"),
    [((8, 16, 32), "weak"), ((32, 32, 32), "strong"), ((8, 16, 16), None), ((8, None, 32), None)],
)
def test_the_kind_is_told_from_the_batches(batches, kind):
    points = [ScalingPoint(n, 10.0 * n, 1, b) for n, b in zip((1, 2, 4), batches, strict=True)]
    found, reason = scaling_kind(points)
    assert found == kind
    assert reason


def test_one_size_has_no_kind():
    assert scaling_kind([ScalingPoint(8, 1.0, 1, 8)]) == (None, "one world size only")


def test_projection_past_the_limit_is_refused_with_the_limit():
    answer = project(PUBLISHED, 256)
    assert answer.tokens_per_second is None
    assert answer.reason is not None
    assert "limit is 4 times, 128 GPUs" in answer.reason
    assert project(PUBLISHED, 256, limit_factor=8).reason is None


def test_projection_is_never_plain_linear_where_efficiency_falls():
    answer = project(PUBLISHED, 64)
    assert answer.low is not None
    assert answer.high is not None
    assert answer.low < answer.tokens_per_second < answer.high
    assert answer.tokens_per_second < 64 / 32 * 700972
    assert not answer.interpolated


def test_the_interval_covers_the_point_left_out():
    answer = project(PUBLISHED[:-1], 32)
    assert answer.low is not None
    assert answer.low < 700972 < (answer.high or math.inf)


def test_runs_on_one_node_say_nothing_about_the_network():
    inside = [ScalingPoint(n, 100.0 * n**0.95, 1, 4 * n) for n in (1, 2, 4)]
    refused = project(inside, 8)
    assert refused.reason is not None
    assert "network" in refused.reason
    assert project(inside, 8, gpus_per_node=8).reason is None
    assert project(inside, 16, gpus_per_node=8).reason is not None


def test_two_sizes_make_no_law():
    answer = project(PUBLISHED[:2], 4)
    assert answer.reason == "A law needs runs at 3 world sizes or more; there are 2."


def test_an_unknown_kind_is_a_reason_and_can_be_stated():
    blank = [ScalingPoint(p.world_size, p.tokens_per_second, p.nodes) for p in PUBLISHED]
    assert "unknown whether" in (project(blank, 64).reason or "")
    assert project(blank, 64, kind="weak").reason is None


def test_a_known_law_is_recovered():
    points = synthetic([2, 4, 8, 16, 32, 64], fixed=1e-5, bandwidth=2e-6, hop=5e-7)
    law = fit_law([(p.world_size, p.tokens_per_second) for p in points], "weak")
    assert not isinstance(law, str)
    value, low, high = law.predict(128)
    expected = synthetic([128], 1e-5, 2e-6, 5e-7)[0].tokens_per_second
    assert value == pytest.approx(expected, rel=0.02)
    assert low < expected < (high or math.inf)


def test_strong_scaling_falls_off_faster_than_weak():
    points = [
        ScalingPoint(n, n / (1e-5 + 1e-7 * (n - 1)), n, 512) for n in (2, 4, 8, 16, 32)
    ]  # fmt: skip
    answer = project(points, 64)
    assert answer.law is not None
    assert answer.law.kind == "strong"
    assert answer.tokens_per_second == pytest.approx(64 / (1e-5 + 63e-7), rel=1e-3)


def test_exactly_linear_runs_still_have_an_interval():
    points = [ScalingPoint(n, 1000.0 * n, n, n) for n in (1, 2, 4, 8)]
    answer = project(points, 32)
    assert answer.low is not None
    assert answer.low < 0.99 * 32000
    # a term that is absent is as good as none, so every law fits, each once
    assert answer.law is not None
    assert answer.law.alternatives == len(CANDIDATES)
    assert sorted(fit.terms for fit in answer.law.fits) == sorted(CANDIDATES)
    assert answer.law.fits[0].terms == (0,)


@pytest.mark.parametrize(
    "arguments",
    [(0, 1.0), (4, 0.0), (4, math.nan), (4, math.inf), (4, 1e300), (4, 1.0, 5), (4, 1.0, 1, 0)],
)
def test_a_point_that_is_no_run_is_refused(arguments):
    with pytest.raises(ClaimError):
        ScalingPoint(*arguments)


@given(
    st.lists(st.sampled_from([2, 4, 8, 16, 32]), min_size=3, max_size=8),
    st.lists(st.floats(0.5, 1.5), min_size=8, max_size=8),
    st.sampled_from([2, 16, 64, 128]),
)
def test_a_projection_is_a_number_in_its_interval_or_a_reason(sizes, noise, target):
    points = [
        ScalingPoint(n, 100.0 * n * factor, n, n) for n, factor in zip(sizes, noise, strict=False)
    ]
    answer = project(points, target)
    assert (answer.reason is None) != (answer.tokens_per_second is None)
    if answer.tokens_per_second is not None:
        assert answer.low is not None
        assert 0 < answer.low <= answer.tokens_per_second <= (answer.high or math.inf)


def test_no_points_is_an_error_in_words():
    with pytest.raises(ClaimError, match="at least one measured run"):
        table([])


# Properties of perfect runs, and figures worked by hand


@pytest.mark.parametrize("base", ["smallest", "node"])
def test_a_perfect_series_has_an_efficiency_of_exactly_one(base):
    perfect = [ScalingPoint(n, 1000.0 * n, max(1, n // 4), 8 * n) for n in (2, 4, 8, 16)]
    result = table(perfect, base)
    assert [row.scaling_efficiency for row in result.rows] == [1.0] * 4
    assert [row.speedup for row in result.rows] == [row.ideal_speedup for row in result.rows]
    found = project(perfect, 64)
    assert found.tokens_per_second == pytest.approx(64000)
    assert found.scaling_efficiency == pytest.approx(1)


def test_speedup_and_ideal_are_against_the_base_that_was_chosen():
    last = table(PUBLISHED, base="node").rows[-1]
    assert (last.speedup, last.ideal_speedup) == (pytest.approx(700972 / 122599), 32 / 4)


def test_the_efficiency_of_a_projection_is_per_gpu_against_the_base():
    points = synthetic([2, 4, 8, 16], 1e-3, 2e-4, 1e-4)
    found = project(points, 64)
    expected = 64 / (1e-3 + 2e-4 * 63 / 64 + 6e-4)
    base = 1 / (1e-3 + 2e-4 / 2 + 1e-4)
    assert found.tokens_per_second == pytest.approx(expected)
    assert found.scaling_efficiency == pytest.approx(expected / 64 / base)
    assert dict(found.law.coefficients) == pytest.approx(
        {"fixed": 1e-3, "bandwidth": 2e-4, "hop": 1e-4}
    )


@pytest.mark.parametrize(
    ("size", "inside", "refused"), [(1, True, False), (32, True, False), (33, False, False),
                                    (128, False, False), (129, False, True)],
)  # fmt: skip
def test_the_limit_is_the_factor_times_the_largest_run_and_itself_allowed(size, inside, refused):
    found = project(PUBLISHED, size)
    assert (found.interpolated, found.reason is not None) == (inside, refused)
    assert found.limit_world_size == 128
    if refused:
        assert found.reason == (
            "129 GPUs are 4.03 times the largest measured run (32); the limit is 4 times, 128 "
            "GPUs. Measure a larger run."
        )


@pytest.mark.parametrize(
    ("factor", "node", "limit"), [(4, None, 4), (4, 8, 8), (4, 32, 16), (1, 8, 4), (4, 2, 4)]
)
def test_runs_inside_one_node_project_to_its_end_at_most(factor, node, limit):
    points = [ScalingPoint(n, 900.0 * n, 1, n) for n in (1, 2, 4)]
    found = project(points, 2, limit_factor=factor, gpus_per_node=node)
    assert (found.limit_world_size, found.reason) == (limit, None)


def test_more_than_one_node_is_refused_as_such_up_to_the_factor_and_then_as_too_large():
    points = [ScalingPoint(n, 900.0 * n, 1, n) for n in (1, 2, 4)]
    assert "says nothing about the network" in project(points, 16).reason
    assert "17 GPUs are 4.25 times" in project(points, 17).reason


def test_a_size_below_the_smallest_run_is_refused_in_words():
    assert project(PUBLISHED[1:], 3).reason == (
        "3 GPUs are fewer than the smallest measured run (4)."
    )


@pytest.mark.parametrize("factor", [0.99, math.inf, math.nan])
def test_a_factor_that_is_none_is_refused(factor):
    with pytest.raises(ClaimError, match="limit_factor"):
        project(PUBLISHED, 64, limit_factor=factor)
    with pytest.raises(ClaimError, match="world_size=0"):
        project(PUBLISHED, 0)


@pytest.mark.parametrize(
    ("arguments", "legal"),
    [
        ((1, 1.0, 1, 1), True), ((4, 1.0, 4, 1), True), ((4, 1.0, 5, 1), False),
        ((4, 1.0, 0, 1), False), ((0, 1.0, 0, 1), False), ((4, 1e20, 1, 1), True),
        ((4, 1.1e20, 1, 1), False), ((4, 1e-20, 1, 1), True), ((4, 0.9e-20, 1, 1), False),
        ((4, 1.0, 1, 0), False), ((4, 1.0, 1, None), True),
    ],
)  # fmt: skip
def test_the_ends_of_what_a_point_may_be(arguments, legal):
    if legal:
        assert ScalingPoint(*arguments).tokens_per_second_per_gpu == arguments[1] / arguments[0]
    else:
        with pytest.raises(ClaimError):
            ScalingPoint(*arguments)


def test_the_kind_and_the_base_are_given_in_words():
    assert scaling_kind(PUBLISHED) == ("weak", "every run has 11 samples per GPU and step")
    strong = [ScalingPoint(n, 100.0 * n, 1, 64) for n in (1, 2, 4)]
    assert scaling_kind(strong) == ("strong", "every run has a global batch of 64")
    twice = [ScalingPoint(8, 100.0, 2, 8), ScalingPoint(8, 300.0, 2, 8)]
    # As many tokens at 100 as at 300 tokens/s: 2 / (1 / 100 + 1 / 300).
    assert table(twice).base_text == "8 GPUs on 2 nodes at 150 tokens/s (2 runs pooled)"


@pytest.mark.parametrize(
    ("kind", "size", "terms"),
    [("weak", 8, (1, 7 / 8, 3)), ("strong", 8, (1, 7, 24)), ("weak", 1, (1, 0, 0))],
)
def test_the_terms_of_the_law_are_those_of_a_ring_and_a_tree(kind, size, terms):
    assert law._basis(kind, size) == terms


def test_a_constant_law_has_students_interval_of_one_new_run():
    """Times a token of 1e-3 s off by +-2 %; Student's t of 3 degrees is 3.182446."""
    errors = {1: 0.02, 2: -0.02, 4: 0.02, 8: -0.02}
    points = [(n, n / (1e-3 * (1 + error))) for n, error in errors.items()]
    fit = law._least_squares(points, "weak", (0,))
    weights = [1 / (1 + error) for error in errors.values()]
    constant = sum(weights) / sum(weight**2 for weight in weights)
    residual = sum((1 - constant * weight) ** 2 for weight in weights)
    assert fit.coefficients == (pytest.approx(1e-3 * constant),)
    assert (fit.scatter, fit.freedom) == (pytest.approx(math.sqrt(residual / 3)), 3)
    half = 3.182446 * fit.scatter * 1e-3 * math.sqrt(constant**2 + 1 / sum(w**2 for w in weights))
    assert law._half_width(fit, (1.0, 0.5, 1.0), 1e-3 * constant) == pytest.approx(half, rel=1e-6)


def test_no_run_repeats_to_better_than_half_a_percent():
    fit = law._least_squares([(n, 1e3 * n) for n in (1, 2, 4)], "weak", (0,))
    assert fit.scatter == 0.005


def test_a_law_by_which_more_gpus_make_a_token_cheaper_is_none():
    """By hand: a millionth of a GPU second per token on one GPU, 2 % less on twice as many."""
    found = fit_law([(n, 1e6 * n / 0.98**at) for at, n in enumerate((1, 2, 4, 8))], "weak")
    assert not isinstance(found, str)
    assert [fit.terms for fit in found.fits] == [(0,)]


def test_sizes_that_do_not_tell_two_terms_apart_have_no_law_of_both():
    """One size has one value of each term, so any mixture of the two fits it."""
    points = [(4, 3.9e6), (4, 4.0e6), (4, 4.1e6)]
    assert law._least_squares(points, "weak", (0,)) is not None
    assert law._least_squares(points, "weak", (0, 1)) is None
    assert law._least_squares([(1, rate) for _, rate in points], "weak", (0, 1)) is None
