"""The steady state: where it starts, what bounds its mean, and which series have none."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from statistics import fmean, median
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats
from series import BRIEF, HARD, STABLE, UNSTABLE, correlated, drift, noise, shift, spikes

from scalebook.cli import main
from scalebook.errors import RecordError
from scalebook.measure import intervals
from scalebook.measure.intervals import mean_tail, student_quantile
from scalebook.measure.metrics import stability
from scalebook.measure.metrics import steady as steady_state
from scalebook.measure.metrics import steady as taken_apart
from scalebook.measure.metrics.autoregression import (
    _GRID,
    _SPACING,
    _solve,
    blocks,
    effect,
    mean_posterior,
)
from scalebook.measure.metrics.stability import (
    Settled,
    WarmUp,
    _course,
    best_shift,
    best_warm_up,
    line,
    line_gain,
    relative,
    without,
)
from scalebook.measure.metrics.steady import (
    Periodic,
    Spikes,
    find_steady,
    local_median,
    middle,
    take_apart,
)
from scalebook.measure.verdicts.series import read_series


def jittered(count, seed=1, deviation=0.01, correlation=0.0):
    return [1 + value for value in noise(random.Random(seed), count, correlation, deviation)]


# What is accepted, and how sure it is


def test_intervals_of_a_thousand_series_hold_the_truth_92_to_98_times_in_a_hundred():
    generator = random.Random(20261128)
    accepted = held = tried = 0
    makers = list(STABLE.values())
    while accepted < 1000:
        known = makers[tried % len(makers)](generator, generator.choice((40, 60, 100, 200)))
        tried += 1
        found = find_steady(known.seconds)
        accepted += found.accepted
        held += found.accepted and found.low <= known.mean <= found.high
    assert 920 <= held <= 980
    assert accepted / tried > 0.93  # few stable series are refused


@pytest.mark.parametrize("name", ["correlation 0.9", "periodic spikes", "decay", "bimodal"])
def test_the_interval_is_honest_for_each_kind_of_series(name):
    generator = random.Random(7)
    known = [STABLE[name](generator, 150) for _ in range(150)]
    found = [(one, find_steady(one.seconds)) for one in known]
    kept = [(one, steady) for one, steady in found if steady.accepted]
    held = sum(steady.low <= one.mean <= steady.high for one, steady in kept)
    assert len(kept) >= 0.9 * len(known)
    assert held >= 0.9 * len(kept)


@pytest.mark.parametrize("name", ["slow first steps", "ramp", "decay", "first step"])
def test_the_start_is_within_a_few_steps_of_the_truth(name):
    generator = random.Random(3)
    known = [STABLE[name](generator, 120) for _ in range(60)]
    off = [found.start - one.start for one in known if (found := find_steady(one.seconds)).accepted]
    assert len(off) >= 54
    assert abs(median(off)) <= 2
    assert sum(abs(value) <= 10 for value in off) >= 0.9 * len(off)


@pytest.mark.parametrize("name", UNSTABLE)
def test_no_series_is_averaged_that_should_have_been_refused(name):
    generator = random.Random(11)
    averaged = [
        seed
        for seed in range(60)
        if find_steady(UNSTABLE[name](generator, generator.choice((60, 120, 300))).seconds).accepted
    ]
    assert len(averaged) <= 1


def test_memory_that_is_not_of_first_order_is_seen_in_a_long_series():
    generator = random.Random(5)
    known = [HARD["slow and fresh noise"](generator, 400) for _ in range(60)]
    found = [(one, find_steady(one.seconds)) for one in known]
    kept = [(one, steady) for one, steady in found if steady.accepted]
    assert sum(steady.low <= one.mean <= steady.high for one, steady in kept) >= 0.85 * len(kept)


def test_correlated_steps_have_a_wider_interval():
    def width(correlation):
        found = [find_steady(jittered(200, seed, 0.01, correlation)) for seed in range(20)]
        return median(one.seen[1] - one.seen[0] for one in found if one.accepted)

    assert width(0.9) > 3 * width(0.0)
    student = 2 * student_quantile(199) * 0.01 / math.sqrt(200)
    assert width(0.0) == pytest.approx(student, rel=0.15)


# What is refused, and how it says so


def test_a_short_series_is_refused_with_the_number_needed():
    found = find_steady([1.0] * 9)
    assert (found.problem, found.mean, found.start) == ("too short", None, None)
    assert "at least 10" in found.reason
    assert find_steady([1.0] * 14, minimum=5).problem == "too short"
    assert find_steady([]).problem == "too short"


def test_a_shift_is_refused_with_its_place_and_size():
    before, after = jittered(60, deviation=1e-4), jittered(60, 2, deviation=1e-4)
    found = find_steady([*before, *(1.08 * value for value in after)])
    assert found.problem == "shift"
    assert "shifts after 60 of 120 measured steps: they take 8" in found.reason
    assert "more from there on" in found.reason


def test_a_drift_is_refused_with_its_size():
    found = find_steady([value + at / 1000 for at, value in enumerate(jittered(100))])
    assert found.problem == "drift"
    assert "more at the end" in found.reason


def test_a_series_that_still_warms_up_is_refused():
    slow = [value + math.exp(-at / 30) for at, value in enumerate(jittered(80, deviation=0.002))]
    assert not find_steady(slow).accepted


def test_a_drift_below_the_tolerance_is_averaged_and_the_interval_holds_it():
    line = [1 + 0.008 * at / 200 for at in range(200)]
    found = find_steady([a + b - 1 for a, b in zip(line, jittered(200, 4, 0.001), strict=True)])
    assert found.accepted
    assert found.change == pytest.approx(0.008, rel=0.2)
    assert found.low < line[10]
    assert found.high > line[-10]


# Spikes, patterns and constants


def test_periodic_spikes_count_in_their_true_share():
    """One step in ten takes 3 s, the rest 1 s: 1.2 s on average, whatever the window ends with."""
    for count in (95, 100, 104, 109):
        found = find_steady([3.0 if at % 10 == 4 else 1.0 for at in range(count)])
        assert found.mean == pytest.approx(1.2)
        assert found.periods == (10,)
        assert found.count % 10 == 0
        assert found.start == 0


def test_two_kinds_of_spikes_are_told_apart():
    series = [1 + 2 * (at % 50 == 49) + 0.5 * (at % 7 == 3) for at in range(350)]
    assert find_steady(series).periods == (7, 50)


def test_a_single_spike_widens_the_interval_upwards():
    series = jittered(60)
    series[30] += 2
    found = find_steady(series)
    assert found.irregular == 1
    assert found.high - found.mean > 2 * (found.mean - found.low)


def test_a_pattern_of_a_few_steps_is_part_of_the_steady_state():
    series = [value + (0.0, 0.5, 0.1)[at % 3] for at, value in enumerate(jittered(90))]
    apart = take_apart(series)
    assert apart.pattern == 3
    found = find_steady(series)
    assert found.mean == pytest.approx(1.2, abs=0.005)
    assert found.high - found.low < 0.02


@pytest.mark.parametrize(
    ("positions", "periods"),
    [
        ([40, 80], [(40, (40, 80))]),
        ([30, 60, 90], [(30, (30, 60, 90))]),
        ([20, 40, 60, 80], [(20, (20, 40, 60, 80))]),
        ([40, 80, 85], []),  # any two of three have some distance
        ([40], []),
    ],
)
def test_two_spikes_have_a_period_where_there_are_no_others_and_else_three(positions, periods):
    left = [] if periods else positions
    assert steady_state._periods(positions, 95) == (periods, left)


def test_a_period_is_not_looked_for_among_more_than_400_pairs_of_a_period_and_a_phase():
    """A spike every 20 steps, and one at any place between two of them."""
    generator = random.Random(1)
    places = [at + step for at in range(0, 8000, 20) for step in (0, generator.randint(1, 19))]
    found = {}
    for count in range(4, len(places), 2):
        some = places[:count]
        later = ((a, b) for at, a in enumerate(some) for b in some[at + 1 : at + 4])
        pairs = len({(b - a, a % (b - a)) for a, b in later if b - a > 1})
        candidates = steady_state._candidates(some, set(some), frozenset(some), some[-1])
        found[pairs] = any(period == 20 for _, period, _ in candidates)
    assert any(400 < pairs < 500 for pairs in found)
    assert {pairs for pairs in found if found[pairs]} == {
        pairs for pairs in found if 10 <= pairs <= 400
    }


def test_a_notebook_shows_the_mean_with_its_interval_or_why_there_is_none():
    shown = replace(find_steady([2.0] * 20), low=1.75, high=2.5)._repr_html_()
    assert "<th>mean step</th><td>2 s (1.75 to 2.5, 95 %)</td>" in shown
    assert "<th>steps</th><td>20 of 20</td>" in shown and "reason" not in shown
    refused = find_steady([2.0] * 9)
    assert f"<th>reason</th><td>{refused.reason}</td>" in refused._repr_html_()
    assert "<td>none of 9</td>" in refused._repr_html_()
    assert "mean step" not in refused._repr_html_()


def test_a_constant_series_is_known_exactly():
    found = find_steady([0.25] * 40)
    assert (found.mean, found.seen, found.count) == (0.25, (0.25, 0.25), 40)


def test_the_minimum_is_never_averaged():
    series = [0.5] * 5 + jittered(60)
    assert find_steady(series, minimum=8).start >= 8


# Properties


SERIES = st.tuples(st.integers(0, 10**6), st.sampled_from([*STABLE, *UNSTABLE]),
                   st.integers(12, 80))  # fmt: skip


@given(SERIES, st.sampled_from([2**-10, 0.125, 4.0, 2**20]))
def test_seconds_in_another_unit_give_the_same_answer_in_that_unit(made, factor):
    seed, name, count = made
    maker = (STABLE | UNSTABLE)[name]
    count = max(count, 15)
    series = maker(random.Random(seed), count).seconds
    found, scaled = find_steady(series), find_steady([value * factor for value in series])
    assert (found.accepted, found.start, found.count) == (
        scaled.accepted, scaled.start, scaled.count,
    )  # fmt: skip
    if found.accepted:
        for name in ("mean", "median"):
            assert getattr(scaled, name) == pytest.approx(factor * getattr(found, name), rel=1e-6)
        assert scaled.seen == pytest.approx(tuple(factor * end for end in found.seen), rel=1e-6)
        if scaled.brief == found.brief:
            ends = (factor * found.low, factor * found.high)
            assert (scaled.low, scaled.high) == pytest.approx(ends, rel=1e-6)


@given(SERIES)
def test_the_numbers_are_those_of_the_window(made):
    seed, name, count = made
    series = (STABLE | UNSTABLE)[name](random.Random(seed), max(count, 15)).seconds
    found = find_steady(series)
    assert found.accepted == (found.reason is None)
    if not found.accepted:
        assert (found.start, found.count, found.mean, found.low, found.high) == (None,) * 5
        return
    window = series[found.start : found.start + found.count]
    assert len(window) == found.count >= 9
    assert found.mean == pytest.approx(fmean(window))
    assert found.median == median(window)
    assert found.low <= found.mean <= found.high


@given(st.integers(0, 10**6))
def test_what_precedes_the_minimum_changes_nothing(seed):
    generator = random.Random(seed)
    series = jittered(40, seed)
    before = [generator.uniform(0.1, 9) for _ in range(7)]
    found, moved = find_steady(series), find_steady(before + series, minimum=7)
    assert (moved.mean, moved.low, moved.high) == (found.mean, found.low, found.high)
    assert moved.start == (found.start + 7 if found.accepted else None)


@given(st.lists(st.floats(1e-3, 1e3), min_size=0, max_size=60))
def test_any_times_give_an_answer(series):
    found = find_steady(series)
    if found.accepted:
        assert all(math.isfinite(value) for value in (found.mean, found.low, found.high))


# The parts, against other ways to get the same


@pytest.mark.parametrize("freedom", [1, 2, 3.5, 8, 30, 250])
def test_students_quantiles_are_those_of_scipy(freedom):
    for probability in (0.6, 0.975, 0.9995):
        expected = stats.t.ppf(probability, freedom)
        assert student_quantile(freedom, probability) == pytest.approx(expected, rel=1e-9)


def test_the_fast_tail_is_within_two_percent_of_scipys():
    for freedom in (8, 20, 100):
        for t in (0.5, 1.96, 3.0, 4.5):
            expected = 2 * stats.t.sf(t, freedom)
            assert mean_tail([(1.0, t)], freedom) == pytest.approx(expected, rel=0.03)


def brute_force(series, shape):
    """Return (effect, its probability) from covariance matrices, rho by rho."""
    count = len(series)
    design = np.column_stack([np.ones(count), shape])
    lags = np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
    logs, found = [], []
    for rho, spacing in zip(_GRID, _SPACING, strict=True):
        covariance = rho**lags / (1 - rho**2)
        inverse = np.linalg.inv(covariance)
        normal = design.T @ inverse @ design
        solution = np.linalg.solve(normal, design.T @ inverse @ series)
        rest = series - design @ solution
        square = rest @ inverse @ rest
        log = -0.5 * np.linalg.slogdet(covariance)[1] - 0.5 * np.linalg.slogdet(normal)[1]
        log -= (count - 2) / 2 * math.log(square) + 0.5 * math.log(1 - rho**2)
        logs.append(log + math.log(spacing))
        error = math.sqrt(square / (count - 2) * np.linalg.inv(normal)[1, 1])
        found.append((solution[1], 2 * stats.t.sf(abs(solution[1]) / error, count - 2)))
    weights = np.exp(np.array(logs) - max(logs))
    return weights @ np.array(found) / weights.sum()


@pytest.mark.parametrize("correlation", [-0.3, 0.0, 0.8])
def test_an_effect_is_what_generalised_least_squares_says(correlation):
    count = 40
    shape = [at / count for at in range(count)]
    series = noise(random.Random(2), count, correlation, 1.0)
    series = np.array([value + 0.7 * part for value, part in zip(series, shape, strict=True)])
    expected = brute_force(series, np.array(shape))
    found = effect(list(series), shape)
    assert found.size == pytest.approx(expected[0], rel=1e-3)
    assert found.probability == pytest.approx(expected[1], rel=0.02)


def test_the_tail_of_the_mean_is_solved_for():
    series = noise(random.Random(9), 60, 0.5, 1.0)
    posterior = mean_posterior(series)
    half = posterior.half_width(0.95)
    tails = [2 * stats.t.sf(half / error, posterior.freedom) for error in posterior.errors]
    assert np.dot(posterior.weights, tails) == pytest.approx(0.05, abs=1e-3)
    assert posterior.half_width(0.99) > half


@pytest.mark.parametrize("scale", [1e-9, 0.3, 1.0, 40.0])
def test_a_tail_is_solved_for_whatever_its_shape_and_the_first_guess(scale):
    """By hand: exp(-h) is 0.05 at ln 20, and a tail that jumps is solved at its jump."""
    assert _solve(lambda h: math.exp(-h), 0.05, scale) == pytest.approx(math.log(20), rel=1e-4)
    jumping = _solve(lambda h: 1.0 if h < 7.5 else 0.0, 0.05, scale)
    assert jumping == pytest.approx(7.5, rel=2e-5)


def test_blocks_are_means_of_neighbours_from_the_end():
    assert blocks([1.0, 2.0, 3.0, 4.0, 6.0], 2) == ([2.5, 5.0], 2)
    assert blocks([1.0, 2.0], 5) == ([1.0, 2.0], 1)


def test_shapes_are_found_where_they_are():
    step = [1.0 if at < 7 else 0.0 for at in range(60)]
    found = best_warm_up([value - fmean(step) for value in step])
    assert (found.kind, found.length) == ("step", 7)
    ramp = [max(0.0, 1 - at / 11) for at in range(60)]
    found = best_warm_up([value - fmean(ramp) for value in ramp])
    assert (found.kind, found.length) == ("ramp", 11)
    late = [0.0] * 40 + [1.0] * 20
    assert best_shift([value - fmean(late) for value in late])[0] == 40


# The command


FIELDS = ["file", "accepted", "reason", "start", "count", "median", "mean", "low", "high"]


@pytest.fixture
def steady(capsys):
    def call(*files, code=0):
        assert main(["steady", *map(str, files), "--json"]) == code
        captured = capsys.readouterr()
        return json.loads(captured.out), captured.err

    return call


def write(path, seconds):
    path.write_text("".join(f"{value!r}\n" for value in seconds))
    return path


def test_each_file_is_an_object_with_the_fields_relied_upon(tmp_path, steady):
    generator = random.Random(1)
    good = write(tmp_path / "good.txt", spikes(generator, 200).seconds)
    bad = write(tmp_path / "bad.txt", shift(0.2)(generator, 200).seconds)
    rows, err = steady(good, bad)
    assert [list(row) for row in rows] == [FIELDS, FIELDS]
    assert err == ""
    accepted, refused = rows
    assert accepted["accepted"] is True
    assert accepted["low"] < accepted["mean"] < accepted["high"]
    assert accepted["file"] == str(good)
    assert refused["accepted"] is False
    assert "shifts" in refused["reason"]
    assert [refused[name] for name in FIELDS[3:]] == [None] * 6


def test_the_record_of_a_run_says_which_steps_never_count(tmp_path, steady):
    lines = [
        {
            "step": at + 1,
            "phase": "startup" if at == 0 else "warmup" if at < 6 else "measured",
            "step_seconds": value,
            "tokens": 10,
        }
        for at, value in enumerate(jittered(60))
    ]
    lines.append(lines[-1] | {"phase": "profiled", "step_seconds": 50.0})
    path = tmp_path / "steps.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (row,), _ = steady(path)
    assert row["start"] == 6
    assert row["count"] == 54
    path.write_text("".join(json.dumps({"step_seconds": 0.5}) + "\n" for _ in range(20)))
    (row,), _ = steady(path)
    assert (row["start"], row["count"], row["mean"]) == (0, 20, 0.5)


@pytest.mark.parametrize(
    "text", ["", "one\n", "1.0\n-2\n", "1.0\nnan\n", "inf\n", '{"step": 1}\n', '{"a\n', "{}\n[]\n"]
)
def test_a_file_that_cannot_be_read_loses_no_other(tmp_path, steady, text):
    bad = tmp_path / "bad"
    bad.write_text(text)
    good = write(tmp_path / "good", jittered(40))
    rows, err = steady(bad, good, tmp_path / "missing", code=2)
    assert [row["accepted"] for row in rows] == [False, True, False]
    assert str(bad) in rows[0]["reason"]
    assert len(err.splitlines()) == 2


def test_the_text_form_says_the_same_in_words(tmp_path, capsys):
    good = write(tmp_path / "good", [3.0 if at % 10 == 4 else 1.0 for at in range(100)])
    bad = write(tmp_path / "bad", drift(0.3)(random.Random(1), 100).seconds)
    assert main(["steady", str(good), str(bad)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert "mean 1.2 s" in first and "every 10 steps" in first
    assert "not averaged. Still drifting" in second


def test_a_run_is_named_by_its_directory_or_the_end_of_its_id(root, tmp_path, steady):
    run = next((root / "runs" / "examples").glob("*-bd160e6e21c5"))
    (by_file, by_directory), _ = steady(run / "steps.jsonl", run)
    assert by_directory == by_file | {"file": str(run)}
    assert main(["steady", "bd160e6e21c5", "--runs", str(root / "runs")]) == 0
    with pytest.raises(RecordError, match=r"contains no steps\.jsonl"):
        read_series(tmp_path)


def test_one_step_is_one_step():
    assert "Too short to say: 1 step after a warm-up of 0;" in find_steady([1.0]).reason
    assert "Too short to say: 2 steps after" in find_steady([1.0, 1.0]).reason


def test_a_stable_series_is_the_same_in_any_run_of_the_program():
    series = correlated(0.5)(random.Random(8), 80).seconds
    assert find_steady(series) == find_steady(list(series))


# The parts, each by its definition


@given(st.lists(st.floats(0.1, 9), min_size=1, max_size=40), st.floats(0, 1))
def test_quantiles_are_interpolated_as_numpys(values, fraction):
    ordered = sorted(values)
    assert steady_state.quantile(ordered, fraction) == pytest.approx(np.quantile(ordered, fraction))


def test_the_quantiles_of_a_window_are_its_10_90_and_99_percent():
    series = [1 + at % 7 / 1000 for at in range(70)]
    assert find_steady(series).quantiles == pytest.approx(np.quantile(series, [0.1, 0.9, 0.99]))


@pytest.mark.parametrize("count", [1, 2, 5, 20, 100])
def test_the_interval_of_a_count_is_near_the_exact_one_of_poisson(count):
    low, high = steady_state._poisson_interval(count)
    assert low == pytest.approx(stats.chi2.ppf(0.025, 2 * count) / 2, abs=0.02)
    assert high == pytest.approx(stats.chi2.ppf(0.975, 2 * count + 2) / 2, rel=0.002)


def test_a_spike_without_a_period_is_one_of_a_poisson_count():
    """Sixty steps, one 2 s longer: between 0.01 and 5.57 such spikes were to be expected."""
    series = [1.0] * 60
    series[30] += 2
    found = find_steady(series)
    fewer, more = steady_state._poisson_interval(1)
    assert found.mean == pytest.approx(1 + 2 / 60)
    assert found.low == pytest.approx(found.mean - 2 / 60 * (1 - fewer))
    assert found.high == pytest.approx(found.mean + 2 / 60 * (more - 1))
    assert steady_state.find_steady([1.0] * 60).irregular == 0


def test_without_an_interval_the_steady_state_is_the_same():
    generator = random.Random(11)
    problems: set[str | None] = set()
    for case in range(160):
        count, noise = generator.choice((25, 40, 90)), generator.uniform(0.001, 0.02)
        drift, shift, tail = (case % 5 == kind and generator.uniform(0, 0.04) for kind in (1, 2, 3))
        if case % 5 == 4:  # a shift whose straight line is level
            noise, shift = 0.002, generator.uniform(0.02, 0.06)
            drift = -1.5 * shift
        series = [
            generator.gauss(1, noise) + drift * at / count + shift * (2 * at > count)
            + tail * 9 * math.exp(-at / 9)
            for at in range(count)
        ]  # fmt: skip
        whole, brief = find_steady(series), find_steady(series, interval=False)
        for name in ("problem", "reason", "start", "count", "mean", "at"):
            assert getattr(brief, name) == getattr(whole, name)
        assert brief.seen is None
        problems.add(whole.problem)
    assert problems == {None, "drift", "shift", "warm-up", "too short"}


def test_a_tolerated_drift_widens_the_interval_by_half_of_it():
    series = [a + 0.008 * at / 200 for at, a in enumerate(jittered(200, 4, 0.001))]
    found = find_steady(series)
    part = take_apart(series), found.start, found.start + found.count
    below, above = (abs(end - found.mean) for end in steady_state._seen(*part, found.mean, 0.0))
    tolerated = found.change / 2 * found.mean
    assert tolerated > 0
    assert found.seen == pytest.approx(
        (found.mean - below - tolerated, found.mean + above + tolerated)
    )
    assert found.low == pytest.approx(found.seen[0])
    # one step of twice the length in as many steps again
    unseen = found.median / found.count
    assert found.high == pytest.approx(found.mean + math.hypot(above + tolerated, unseen))


@pytest.mark.parametrize("name", [*BRIEF])
def test_a_short_window_holds_the_truth_or_is_refused(name):
    """At least 85 % of the intervals of 15 to 39 steps, where tails and rare spikes hide."""
    generator = random.Random(len(name))
    held: list[bool] = []
    while len(held) < 120:
        known = BRIEF[name](generator, generator.choice((15, 20, 30, 39)))
        found = find_steady(known.seconds)
        if found.accepted:
            held.append(found.low <= known.mean <= found.high)
    assert sum(held) / len(held) >= 0.85


def test_a_window_is_brief_below_a_minute_or_40_steps_unless_devices_had_settled():
    assert find_steady(jittered(59)).brief
    assert find_steady([3 * value for value in jittered(39)]).brief
    assert not find_steady(jittered(62)).brief
    ends = ((39, 3.0), (40, 3.0), (59, 1.0), (60, 1.0))
    assert [find_steady([each] * count).brief for count, each in ends] == [True, False] * 2
    settled = find_steady(jittered(39), settled_devices=True)
    assert not settled.brief
    assert settled.low == settled.seen[0] > find_steady(jittered(39)).low


def test_the_imbalance_of_a_window_is_what_a_part_of_a_period_moves_its_mean():
    """Spikes of 2 s every 10 steps: 2 in 25 steps instead of 2.5 lower the mean by 0.04 s."""
    kind = Periodic(10, (4, 14, 24), 2.0)
    assert steady_state._imbalance([kind], 0, 20) == 0
    assert steady_state._imbalance([kind], 0, 24) == pytest.approx((0.1 - 2 / 24) * 2)
    assert steady_state._imbalance([kind], 4, 25) == pytest.approx((3 / 21 - 0.1) * 2)


SENTENCES = [
    (
        Settled(3, "shift", 0.08, at=20), 5, 60,
        "The level shifts after 20 of 55 measured steps: they take 8 % more from there on. Find "
        "what changed, or measure only one level.",
    ),
    (
        Settled(3, "drift", -0.021), 5, 60,
        "Still drifting: steps take 2.1 % less at the end of the 52 steps after the warm-up than "
        "at their start. Warm up longer, or measure for longer.",
    ),
    (
        Settled(31, "warm-up"), 5, 60,
        "Still warming up after 36 of 60 steps, more than half of those that may count. Measure "
        "for longer.",
    ),
    (
        Settled(3, "too short", 0.02, independent=2.5), 5, 48,
        "Too short to say: steps resemble their neighbours so much that 40 of them are worth 2.5, "
        "and a drift of 2 % may be chance or not. Measure about 160 steps.",
    ),
    (
        Settled(0, "too short"), 5, 6,
        "Too short to say: 1 step after a warm-up of 5; at least 10 are needed. Measure more "
        "steps.",
    ),
    (
        Settled(0, "too short"), 5, 3,
        "Too short to say: 0 steps after a warm-up of 5; at least 10 are needed. Measure more "
        "steps.",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("settled", "minimum", "count", "sentence"), SENTENCES)
def test_a_refusal_counts_steps_from_the_start_of_the_series(settled, minimum, count, sentence):
    found = steady_state._refused([1.0] * count, minimum, settled)
    assert (found.steps, found.problem, found.reason) == (count, settled.problem, sentence)


@pytest.mark.parametrize(
    ("count", "independent", "steps"), [(50, 2.0, 250), (14, 3.5, 40), (14, 3.4, 50), (10, 0, 1000)]
)
def test_enough_steps_are_worth_ten_independent_ones_in_tens(count, independent, steps):
    assert steady_state._enough(count, independent) == steps


@pytest.mark.parametrize(
    ("kind", "length", "course"),
    [
        ("step", 3, [1, 1, 1, 0, 0, 0]),
        ("ramp", 4, [1, 0.75, 0.5, 0.25, 0, 0]),
        ("cut", 3, [1, math.exp(-1), math.exp(-2), 0, 0, 0]),
        ("decay", 2, [math.exp(-at / 2) for at in range(6)]),
    ],
)
def test_a_warm_up_falls_from_one_to_nothing(kind, length, course):
    found = WarmUp(kind, length, 1.0)
    assert found.course(6) == pytest.approx(course)
    if kind != "decay":
        assert found.settled(1.0, 1.0, 6) == length


def test_a_decay_has_settled_when_what_is_left_is_a_fifth_of_the_error():
    found = WarmUp("decay", 5.0, 1.0)
    at = found.settled(-0.5, 0.01, 100)

    def left(step):
        return 0.5 * 5 * math.exp(-step / 5) / (100 - step)

    assert left(at) <= 0.2 * 0.01 < left(at - 1)
    assert found.settled(1e9, 1e-9, 20) == 19


def test_a_line_rises_by_one_and_its_gain_is_that_of_least_squares():
    assert line(5) == pytest.approx([-0.5, -0.25, 0, 0.25, 0.5])
    series = [value - 1 for value in jittered(30)]
    series = [value - fmean(series) for value in series]
    slope = stats.linregress(line(30), series)
    rest = sum((v - slope.slope * x) ** 2 for v, x in zip(series, line(30), strict=True))
    assert line_gain(series) == pytest.approx(sum(v * v for v in series) - rest)
    left = without(series, line(30))
    assert sum(v * v for v in left) == pytest.approx(rest)


@given(st.lists(st.floats(0.1, 9), min_size=1, max_size=40))
def test_the_level_of_a_step_is_the_median_of_five_neighbours_on_each_side(series):
    expected = [median(series[max(0, at - 5) : at + 6]) for at in range(len(series))]
    assert local_median(series) == pytest.approx(expected)


def test_differences_are_fractions_of_the_mean_and_none_for_a_constant():
    assert relative([1.0, 3.0]) == pytest.approx([-0.5, 0.5])
    assert relative([2.0, 2.0]) is None


def test_spikes_are_taken_apart_with_their_heights_and_places():
    series = [1 + 2 * (at % 10 == 4) for at in range(60)]
    series[33] += 0.7
    apart = take_apart(series)
    (kind,) = apart.periodic
    assert (kind.period, kind.positions, kind.height) == (10, (4, 14, 24, 34, 44, 54), 2)
    assert apart.irregular == ((33, pytest.approx(0.7)),)
    assert apart.smooth == pytest.approx([1.0] * 60)


def test_a_refused_series_has_no_spikes_and_no_change():
    found = find_steady([1.0] * 5)
    assert (found.periods, found.irregular, found.change, found.seen) == ((), 0, 0.0, None)


def test_a_series_of_a_million_steps_is_judged_as_its_parts_are():
    generator = random.Random(5)
    series = [2.0] * 400 + [1 + 0.01 * generator.gauss(0, 1) for _ in range(200_000)]
    found = find_steady(series)
    assert found.accepted
    assert found.start is not None
    assert 400 <= found.start <= 400 + 2 * 11  # in blocks of eleven steps
    assert found.low is not None
    assert found.high is not None
    assert found.low <= 1 <= found.high
    assert found.high - found.low == pytest.approx(2 * 1.96 * 0.01 / 200_000**0.5, rel=0.25)
    assert found.quantiles is not None
    assert found.quantiles[1] == pytest.approx(1 + 1.2816 * 0.01, rel=1e-3)
    drifting = [value * (1 + at / 2e6) for at, value in enumerate(series[400:])]
    assert find_steady(drifting).problem == "drift"


@pytest.mark.parametrize("scale", [1e-6, 1.0, 30.0])
@pytest.mark.parametrize("target", [0.3, 0.05, 0.001])
def test_a_tail_is_solved_to_a_ten_thousandth_and_a_straight_one_at_once(scale, target):
    """exp(-x/s) is straight in its logarithm: the root is -s ln(target), found at once.

    Student's tail bends; scipy has its root.
    """
    tried = []

    def straight(x):
        tried.append(x)
        return math.exp(-x / scale)

    root = -scale * math.log(target)
    assert _solve(straight, target, scale) == pytest.approx(root, rel=1e-4)
    doublings = math.ceil(math.log2(root / scale)) - 1  # the first bracket is two scales wide
    assert len(tried) == 2 + max(doublings, 0)
    found = _solve(lambda x: float(2 * stats.t.sf(x / scale, 5)), target, scale)
    assert found == pytest.approx(scale * stats.t.isf(target / 2, 5), rel=1e-4)


@pytest.mark.parametrize("count", [1, 2, 999, 40_000, 40_001])
def test_the_middle_of_a_long_series_is_its_median(count):
    chance = random.Random(count)
    noisy = [chance.gauss(1, 0.1) for _ in range(count)]
    rhythm = [float(at % 40 == 0) for at in range(count)]  # each value of a sample is a peak
    for series in (noisy, sorted(noisy), rhythm, [2.0] * count):
        assert middle(series) == median(series)


@pytest.mark.parametrize("period", [2, 3, 8])
@pytest.mark.parametrize("count", [64, 256])
def test_a_pattern_counts_from_six_normal_deviations_of_its_f_test_on(period, count):
    generator = random.Random(period * count)
    chance = [generator.gauss(0, 0.01) for _ in range(count)]

    def series(height: float) -> list[float]:
        return [1 + value + height * (at % period == 0) for at, value in enumerate(chance)]

    def groups(height: float) -> list[list[float]]:
        rest, _ = taken_apart._detrended(series(height), period)
        return [rest[start::period] for start in range(period)]

    def deviations(height: float) -> float:
        divided = groups(height)
        size = sum(map(len, divided))
        ratio = stats.f_oneway(*divided).statistic
        return stats.norm.isf(stats.f.sf(ratio, period - 1, size - period))

    low, high = 0.0, 0.05
    for _ in range(30):
        middle = (low + high) / 2
        seen = taken_apart._pattern_rest(series(middle), period) is not None
        low, high = (low, middle) if seen else (middle, high)
    # the approximation is close for many means, and asks for a little more of few
    assert deviations(high) == pytest.approx(6, abs=0.2 if period == 8 else 0.8)
    divided = groups(0.04)
    inside = sum(float(np.var(one)) * len(one) for one in divided)
    within = inside / (sum(map(len, divided)) - period)
    assert taken_apart._pattern_rest(series(0.04), period) == pytest.approx(within)


def test_a_pattern_needs_six_of_its_periods():
    generator = random.Random(1)
    series = [value + generator.gauss(0, 1e-3) for value in [1.0, 1.5, 1.0] * 6]
    assert taken_apart._pattern_rest(series, 3) is not None
    assert taken_apart._pattern_rest(series[:-1], 3) is None
    assert taken_apart._pattern_rest([1.0] * 40, 2) is None


@pytest.mark.parametrize("count", [30, 200])
@pytest.mark.parametrize("scale", [1e-9, 1.0])
def test_the_gain_of_a_warm_up_is_what_its_course_takes_off_the_squares(count, scale):
    """By least squares: the squares of the series less those of what its course leaves."""
    generator = random.Random(count)
    series = [scale * (generator.gauss(0, 1) + 5 * math.exp(-at / 4)) for at in range(count)]
    mean = sum(series) / count
    series = [value - mean for value in series]
    found = best_warm_up(series)
    left = without(series, found.course(count))
    gain = sum(value**2 for value in series) - sum(value**2 for value in left)
    assert found.gain == pytest.approx(gain, rel=1e-6)


def test_a_shift_is_a_fraction_of_the_level_before_it():
    """By hand: 0.95 and 1.05 times the mean differ by 0.10 / 0.95."""
    generator = random.Random(3)
    differences = [side * 0.05 + generator.gauss(0, 1e-6) for side in (-1, 1) for _ in range(40)]
    found = _course(differences, *best_shift(differences))
    assert found is not None
    assert found.shift_at == 40
    assert found.shift == pytest.approx(0.1 / 0.95, rel=1e-4)
    assert found.drift > 0


def test_a_brief_window_reaches_as_far_as_its_drift_and_the_error_of_it_may_lead():
    """By hand: a half of 0.3 and an error of 0.4 are 0.5 together; the drift of 0.1 moves both."""
    reach = steady_state._REACH
    rising = Settled(0, None, 0.0, drift=0.1 / reach, drift_error=0.4 / reach)
    falling = Settled(0, None, 0.0, drift=-0.1 / reach, drift_error=0.4 / reach)
    assert steady_state._unsettled(rising, 1.0, (0.7, 1.3)) == pytest.approx((0.4, 0.6))
    assert steady_state._unsettled(falling, 1.0, (0.7, 1.3)) == pytest.approx((0.6, 0.4))
    assert steady_state._unsettled(rising, 2.0, (1.4, 2.6)) == pytest.approx((0.8, 1.2))
    steep = Settled(0, None, 0.0, drift=0.5 / reach, drift_error=0.0)
    assert steady_state._unsettled(steep, 1.0, (0.7, 1.3)) == pytest.approx((0.3, 0.8))


CALM = {
    "drift": 0.0, "drift_probability": 1.0, "drift_error": 0.001, "shift": 0.0,
    "shift_probability": 1.0, "shift_at": 30, "independent": 20.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("course", "problem", "change"),
    [
        ({}, None, 0.0),
        ({"drift": -0.02, "drift_probability": 0.009}, "drift", -0.02),
        ({"drift": 0.02, "drift_probability": 0.01}, None, 0.0),
        ({"drift": 0.01, "drift_probability": 0.009}, None, 0.01),  # within the tolerance
        ({"shift": -0.02, "shift_probability": 2e-4}, "shift", -0.02),
        ({"shift": 0.02, "shift_probability": 3e-4}, None, 0.0),
        ({"shift": 0.01, "shift_probability": 2e-4}, None, 0.01),
        # of both the likelier counts
        ({"shift": 0.02, "shift_probability": 2e-4, "drift": 0.03, "drift_probability": 1e-4},
         "drift", 0.03),
        ({"shift": 0.02, "shift_probability": 1e-4, "drift": 0.03, "drift_probability": 2e-4},
         "shift", 0.02),
        ({"shift": 0.005, "shift_probability": 1e-4, "drift": -0.008, "drift_probability": 2e-4},
         None, 0.008),
        ({"independent": 3.9, "drift": 0.02, "drift_probability": 0.24}, "too short", 0.02),
        ({"independent": 4.0, "drift": 0.02, "drift_probability": 0.24}, None, 0.0),
        ({"independent": 3.9, "drift": 0.02, "drift_probability": 0.25}, None, 0.0),
        ({"independent": 0.9, "drift": 0.02}, "too short", 0.02),
        ({"independent": 1.0, "drift": 0.02}, None, 0.0),
        ({"independent": 0.9, "drift": 0.01}, None, 0.0),
    ],
)  # fmt: skip
def test_a_course_is_a_problem_where_it_is_certain_and_above_the_tolerance(course, problem, change):
    found = stability._Course(**CALM | course)
    judged = stability._judge(5, found)
    assert (judged.start, judged.problem, judged.change) == (5, problem, change)
    assert judged.at == (35 if problem == "shift" else None)
    assert judged.independent == (found.independent if problem == "too short" else None)
    if problem is None:
        assert (judged.drift, judged.drift_error) == (found.drift, 0.001)


@pytest.mark.parametrize(
    ("probability", "gain", "length"), [(2e-3, 1.0, 7), (2.1e-3, 1.0, 0), (1e-9, 0.0499, 0)]
)
def test_a_warm_up_counts_where_it_is_more_than_chance(monkeypatch, probability, gain, length):
    """By hand: 100 steps whose squares add up to 1, and a gain worth a t of more than 5 ** 0.5."""
    series = [0.1, -0.1] * 50
    judged = SimpleNamespace(size=1.0, probability=probability, mean_variance=1.0)
    monkeypatch.setattr(stability, "effect", lambda *_: judged)
    assert stability._length(WarmUp("step", 7, gain), series) == length
    monkeypatch.setattr(stability, "effect", None)  # not asked where the gain is too small
    assert stability._length(WarmUp("step", 7, 0.0499), series) == 0


def test_windows_of_warm_ups_one_after_the_other_are_taken_off_up_to_the_half(monkeypatch):
    lengths: list[int] = []
    monkeypatch.setattr(stability, "_warm_up", lambda *_: lengths.pop(0) if lengths else 0)

    def start_of(count: int, *taken: int) -> tuple[int, str | None]:
        lengths[:] = taken
        found = stability.settle(jittered(count))
        return found.start, found.problem

    assert start_of(100, 3, 4) == (7, None)
    assert start_of(100, 50) == (50, None)
    assert start_of(100, 51) == (51, "warm-up")
    assert start_of(100, *[1] * 7) == (7, None)
    assert start_of(100, *[1] * 8) == (8, "warm-up")
    assert start_of(9) == (0, "too short")
    assert start_of(10)[1] is None
    assert start_of(14, 5) == (5, "too short")


@pytest.mark.parametrize("start", [0, 3, 8, 11])
def test_a_window_ends_where_two_kinds_of_spikes_are_nearest_to_their_share(start):
    count = 75
    kinds = tuple(
        Periodic(period, tuple(range(phase, count, period)), height)
        for period, phase, height in ((10, 4, 2.0), (7, 2, 0.3))
    )
    end = steady_state._end(Spikes(kinds, (), None, (1.0,) * count), start, count)
    off = {at: steady_state._imbalance(kinds, start, at) for at in range(count - 9, count + 1)}
    assert off[end] == min(off.values())
    noisy = Spikes(kinds, (), None, tuple(jittered(count, deviation=10.0)))
    assert steady_state._end(noisy, start, count) == count  # the noise is larger by far


@pytest.mark.parametrize(
    ("count", "places", "rare"),
    [
        (100, (7, 19, 40, 77), True), (100, (7, 19, 40, 77, 90), True),
        (100, (7, 19, 40, 61, 77, 90), False), (30, (7, 8), True), (30, (7, 8, 19), False),
    ],
)  # fmt: skip
def test_spikes_without_a_period_are_rare_up_to_two_or_a_twentieth(count, places, rare):
    series = [1 + 0.5 * (at in places) for at in range(count)]
    apart = take_apart(series)
    assert apart.periodic == ()
    assert tuple(at for at, _ in apart.irregular) == (places if rare else ())


def test_a_shift_is_judged_in_the_block_in_which_it_lies(monkeypatch):
    """By hand: of 125 steps the first is left out; 60 more make 30 blocks of two before step 61."""
    shapes: list[list[float]] = []

    def judged(_series, shape):
        shapes.append(list(shape))
        return SimpleNamespace(size=0.0, probability=1.0, error=0.0)

    monkeypatch.setattr(stability, "effect", judged)
    generator = random.Random(2)
    series = [generator.gauss(0, 1e-4) - 0.05 + 0.1 * (at >= 61) for at in range(125)]
    found = _course(series, *best_shift(series))
    assert found is not None
    assert found.shift_at == 61
    assert shapes[1] == [0.0] * 30 + [1.0] * 32


def test_the_incomplete_beta_function_is_scipys_and_whole_at_its_end():
    assert intervals._incomplete_beta(2.0, 0.5, 1.0) == 1.0
    for x in (1e-24, 0.2, 0.8, 0.99):
        expected = float(special.betainc(2.0, 0.5, x))
        assert intervals._incomplete_beta(2.0, 0.5, x) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("most", "more"), [(12, []), (13, []), (14, [14]), (18, [14, 16, 18]), (21, [14, 16, 18, 21])]
)
def test_lengths_are_all_up_to_twelve_then_an_eighth_apart(most, more):
    """12 / 8 is 2 in whole steps, so is 14 / 8 and 16 / 8; 18 / 8 is 3."""
    assert stability._lengths(most) == (*range(2, 13), *more)
    assert stability._lengths(2) == (2,)
