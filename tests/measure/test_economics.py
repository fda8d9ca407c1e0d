"""Claims about time, money and energy."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebook.errors import ClaimError
from scalebook.facts import catalog
from scalebook.facts.flops import flops_per_token
from scalebook.measure.economics import Answer, Inputs, answer, answers, read_range
from scalebook.measure.intervals import Interval, point

GOLDEN = Path(__file__).parents[1] / "golden"


def stated(**inputs: str) -> dict[str, Answer]:
    """The answers to inputs written as on the command line, by name."""
    values = {name: read_range(text) for name, text in inputs.items()}
    return {answer.name: answer for answer in answers(Inputs(**values))}


def test_100_billion_tokens_at_145267_a_second_take_191_hours():
    seconds = stated(tokens="100B", tokens_per_second="145267")["training_seconds"].value
    assert seconds is not None
    assert seconds.low == seconds.high == pytest.approx(100e9 / 145267)
    assert round(seconds.low / 3600, 1) == 191.2


@pytest.mark.parametrize(
    "row",
    list(csv.DictReader((GOLDEN / "training_days.csv").read_text(encoding="utf-8").splitlines())),
    ids=lambda row: f"{row['model']} on {row['gpus']}",
)
def test_the_published_training_times_come_out_of_their_own_rates(row):
    per_token = flops_per_token(
        catalog.model(row["model"]), int(row["sequence_length"]), row["convention"]
    )
    rate = int(row["gpus"]) * float(row["tflops"]) * 1e12 / per_token
    days = stated(tokens=row["tokens"], tokens_per_second=repr(rate))["training_days"].value
    assert days is not None
    # Printed in whole days; a rate of three digits moves the longest by one.
    assert days.low == days.high == pytest.approx(float(row["days"]), rel=0.015)


def test_cost_is_hours_times_gpus_times_price():
    result = stated(tokens="100B", tokens_per_second="145267", gpus="32", price_per_gpu_hour="2.5")
    assert result["cost"].value is not None
    assert result["cost"].value.low == pytest.approx(100e9 / 145267 / 3600 * 32 * 2.5)


def test_spot_cost_pays_for_the_preempted_time():
    common = {"tokens": "1T", "tokens_per_second": "1e6", "gpus": "64"}
    result = stated(**common, spot_price_per_gpu_hour="1", preemption_overhead="10%")
    assert result["cost_spot"].value is not None
    assert result["cost_spot"].value.low == pytest.approx(1e12 / 1e6 / 3600 * 64 * 1.1)


def test_nothing_is_assumed_that_was_not_stated():
    result = stated(tokens="1T", tokens_per_second="1e6", gpus="64", spot_price_per_gpu_hour="1")
    assert result["cost_spot"].value is None
    assert result["cost_spot"].reason == "needs preemption_overhead"
    assert result["energy"].reason == "needs watts_per_gpu, pue"
    assert result["cost"].reason == "needs price_per_gpu_hour"


def test_every_answer_of_no_inputs_has_a_reason():
    assert all(answer.value is None and answer.reason for answer in answers(Inputs()))


def test_ranges_are_carried_through():
    result = stated(tokens="1T", tokens_per_second="1e6..2e6", gpus="64", price_per_gpu_hour="2..3")
    cost = result["cost"].value
    assert cost is not None
    assert cost.low == pytest.approx(1e12 / 2e6 / 3600 * 64 * 2)
    assert cost.high == pytest.approx(1e12 / 1e6 / 3600 * 64 * 3)


def test_break_even_price_gives_both_platforms_the_same_tokens_per_dollar():
    first = {"tokens_per_second": "87933", "gpus": "8"}
    other = {"other_tokens_per_second": "78877", "other_gpus": "8"}
    result = stated(**first, **other, price_per_gpu_hour="2")
    price = result["break_even_price_per_gpu_hour"].value
    mine = result["tokens_per_dollar"].value
    assert price is not None
    assert mine is not None
    assert 78877 * 3600 / (8 * price.low) == pytest.approx(mine.low)


def test_energy_and_carbon_count_the_site():
    result = stated(
        tokens="1T", tokens_per_second="1e6", gpus="64", watts_per_gpu="1000", pue="1.2",
        grid_kg_per_kwh="0.4",
    )  # fmt: skip
    energy, carbon = result["energy"].value, result["carbon"].value
    assert energy is not None
    assert carbon is not None
    assert energy.low == pytest.approx(64 * 1.2 * 1e6 / 3600)  # kW x h
    assert carbon.low == pytest.approx(0.4 * energy.low)


def test_daily_tokens_and_samples():
    result = stated(tokens_per_second="87933", sequence_length="2048")
    assert result["tokens_per_day"].value == point(87933 * 86400)
    assert result["samples_per_day"].value is not None
    assert result["samples_per_day"].value.low == pytest.approx(87933 * 86400 / 2048)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tokens", "0"), ("gpus", "-8"), ("pue", "0.9"), ("preemption_overhead", "-1%"),
        ("price_per_gpu_hour", "0..2"), ("tokens", "1e60"), ("tokens_per_second", "1e-60"),
    ],
)  # fmt: skip
def test_an_input_out_of_range_is_refused(name, text):
    with pytest.raises(ClaimError, match=name):
        stated(**{name: text})


def test_no_preemptions_is_a_statement_too():
    assert Inputs(preemption_overhead=point(0)).stated()


@pytest.mark.parametrize("text", ["", "abc", "1..", "3..2", "nan", "1e999", "1,00", "5X"])
def test_a_range_that_is_none_is_refused(text):
    with pytest.raises(ClaimError):
        read_range(text)


@given(
    st.floats(1e3, 1e9), st.floats(1, 10), st.floats(0.1, 100), st.floats(1, 10),
    st.floats(0, 1), st.floats(0, 1),
)  # fmt: skip
def test_an_inner_choice_never_leaves_the_range(rate, rate_span, price, price_span, at, where):
    rates, prices = Interval(rate, rate * rate_span), Interval(price, price * price_span)

    def cost(speed: Interval, money: Interval) -> Interval:
        inputs = Inputs(
            tokens=point(1e12), tokens_per_second=speed, gpus=point(8), price_per_gpu_hour=money
        )
        value = next(answer.value for answer in answers(inputs) if answer.name == "cost")
        assert value is not None
        return value

    outer = cost(rates, prices)
    inner = cost(
        point(rates.low + at * (rates.high - rates.low)),
        point(prices.low + where * (prices.high - prices.low)),
    )
    assert outer.low * (1 - 1e-9) <= inner.low <= inner.high <= outer.high * (1 + 1e-9)


# 1e12 tokens at 1e6 a second take 1e6 s; 50 GPUs, prices 2 and 1, a tenth more time where GPUs are
# taken away, 800 W a GPU, a PUE of 1.5, 0.5 kg a kWh; the other platform: 2e6 a second on 40 GPUs.
# 200 TB are stored at 20 a month, 30 TB sent at 90; reserved GPUs cost 1.5.
WORKED = {
    "training_seconds": ("s", 1e6, "tokens / tokens_per_second"),
    "training_days": ("days", 1e6 / 86400, "tokens / tokens_per_second"),
    "training_days_with_preemptions": (
        "days",
        1.1e6 / 86400,
        "tokens x (1 + preemption_overhead) / tokens_per_second",
    ),
    "tokens_per_day": ("tokens", 86400e6, "tokens_per_second"),
    "samples_per_day": ("samples", 86400e6 / 4096, "tokens_per_second / sequence_length"),
    "gpu_hours": ("GPU h", 50e6 / 3600, "tokens x gpus / tokens_per_second"),
    "cost": ("currency", 100e6 / 3600, "tokens x gpus x price_per_gpu_hour / tokens_per_second"),
    "cost_spot": (
        "currency",
        55e6 / 3600,
        "tokens x gpus x spot_price_per_gpu_hour x (1 + preemption_overhead) / tokens_per_second",
    ),
    "cost_reserved": (
        "currency",
        75e6 / 3600,
        "tokens x gpus x reserved_price_per_gpu_hour / tokens_per_second",
    ),
    "cost_storage": (  # 1e6 s are 0.3803 months of 365.25 / 12 days
        "currency",
        1e6 / (365.25 / 12 * 86400) * 200 * 20,
        "tokens x storage_tb x price_per_tb_month / tokens_per_second",
    ),
    "cost_transfer": ("currency", 30 * 90, "transferred_tb x price_per_transferred_tb"),
    "tokens_per_dollar": (
        "tokens",
        1e12 / (100e6 / 3600),
        "tokens_per_second / (gpus x price_per_gpu_hour)",
    ),
    "tokens_per_dollar_spot": (
        "tokens",
        1e12 / (55e6 / 3600),
        "tokens_per_second / (gpus x spot_price_per_gpu_hour x (1 + preemption_overhead))",
    ),
    "break_even_price_per_gpu_hour": (
        "currency",
        2 * 50 / 40 * 2,
        "price_per_gpu_hour x other_tokens_per_second x gpus / (tokens_per_second x other_gpus)",
    ),
    "energy": (
        "kWh",
        50 * 0.8 * 1.5 * 1e6 / 3600,
        "tokens x gpus x watts_per_gpu x pue / tokens_per_second",
    ),
    "energy_per_token": (
        "J",
        50 * 800 * 1.5 / 1e6,
        "gpus x watts_per_gpu x pue / tokens_per_second",
    ),
    "carbon": (
        "kg CO2e",
        0.5 * 50 * 0.8 * 1.5 * 1e6 / 3600,
        "tokens x gpus x watts_per_gpu x pue x grid_kg_per_kwh / tokens_per_second",
    ),
}


GIVEN = {
    "tokens": "1T", "tokens_per_second": "1e6", "sequence_length": "4096", "gpus": "50",
    "price_per_gpu_hour": "2", "spot_price_per_gpu_hour": "1", "preemption_overhead": "10%",
    "watts_per_gpu": "800", "pue": "1.5", "grid_kg_per_kwh": "0.5",
    "other_tokens_per_second": "2e6", "other_gpus": "40", "reserved_price_per_gpu_hour": "1.5",
    "storage_tb": "200", "price_per_tb_month": "20", "transferred_tb": "30",
    "price_per_transferred_tb": "90",
}  # fmt: skip


def test_the_middle_of_an_answer_is_that_of_its_inputs_middles():
    rough = {"tokens_per_second": "0.5e6..1.5e6", "price_per_gpu_hour": "1.5..2.5"}
    rough |= {"watts_per_gpu": "600..1000", "other_tokens_per_second": "1e6..3e6"}
    for name, found in stated(**GIVEN | rough).items():
        assert found.value is not None
        assert found.value.middle == pytest.approx(WORKED[name][1]), name
        assert found.value.low <= found.value.middle <= found.value.high


def test_an_answer_is_found_by_its_name():
    inputs = Inputs(tokens=point(1e12), tokens_per_second=point(1e6))
    assert answer("training_seconds", inputs).value == point(1e6)
    assert answer("cost", inputs).name == "cost"


def test_every_answer_is_the_one_worked_by_hand():
    found = stated(**GIVEN)
    assert set(found) == set(WORKED)
    for name, (unit, value, formula) in WORKED.items():
        answer = found[name]
        assert (answer.unit, answer.formula, answer.reason) == (unit, formula, None), name
        assert answer.value is not None
        assert (answer.value.low, answer.value.high) == pytest.approx((value, value)), name


@pytest.mark.parametrize(("name", "text"), [("pue", "1"), ("tokens", "1e30"), ("gpus", "1e-30")])
def test_the_ends_of_an_allowed_range_are_inside_it(name, text):
    assert list(Inputs(**{name: read_range(text)}).stated()) == [name]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("pue", "0.9", "pue=0.9 must be a number, 1 or more."),
        ("preemption_overhead", "-1%", "preemption_overhead=-0.01 must be a number, 0 or more."),
        ("gpus", "0", "gpus=0 must be a number, above 0."),
    ],
)
def test_a_refusal_names_the_input_and_what_is_allowed(name, text, words):
    with pytest.raises(ClaimError) as error:
        Inputs(**{name: read_range(text)})
    assert str(error.value) == words
