"""What ``make soak`` draws and counts: fair shares, the same again for a seed, a slope."""

from __future__ import annotations

from pathlib import Path

import pytest
from growth import Sample, grown, slope
from soak import VICTIMS, Trial, opened, table


def test_every_kind_of_process_is_killed_equally_often(tmp_path: Path):
    series = opened(tmp_path, 7, 200)
    drawn = [series.victim(number) for number in range(20 * len(VICTIMS))]
    assert {drawn.count(victim) for victim in VICTIMS} == {20}
    moments = [series.moment(number) for number in range(3000)]
    thirds = [sum(int(moment * 3) == third for moment in moments) for third in range(3)]
    assert all(900 < count < 1100 for count in thirds)


def test_a_series_that_was_stopped_goes_on_with_its_own_seed(tmp_path: Path):
    first = opened(tmp_path, 7, 200)
    first.note(Trial(0, "rank", 0.5, 1.0))
    first.note(Trial(1, "plan", 0.5, 1.0, "missed"))
    again = opened(tmp_path, 8, 200)
    assert again.seed == 7
    assert [trial.number for trial in again.trials()] == [0]
    assert [again.victim(n) for n in range(22)] == [first.victim(n) for n in range(22)]


def test_the_table_counts_what_became_of_each():
    trials = [Trial(0, "rank", 0.1, 1.0), Trial(1, "rank", 0.9, 1.0, "lost", "x")]
    assert "| rank | 2 | 1 | 0 | 1 | 1 | 0 | 0 |" in table(trials)


def test_growth_is_a_slope_with_an_interval():
    rate, half = slope([5.0] * 20 + [5.0 + 0.1 * number for number in range(180)])
    assert rate == pytest.approx(100.0) and half < 1e-6
    rate, half = slope([float(number % 2) for number in range(200)])
    assert abs(rate) <= half + 1e-6


def test_a_leak_is_growth_and_noise_is_not():
    leaking = [Sample(number, 80.0, 9 + number // 10, 0) for number in range(200)]
    assert [text.split()[0] for text in grown(leaking)[1]] == ["files"]
    steady = [Sample(number, 80.0 + number % 3, 9 + number % 2, 0) for number in range(200)]
    assert grown(steady)[1] == []
