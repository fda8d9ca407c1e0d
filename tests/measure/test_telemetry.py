"""Telemetry joined to measured steps: energies by hand, reasons for what is missing, words."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import config, write_run
from training import small, without_torchrun

from scalebook.logs.ingest.ingestion import ingest
from scalebook.measure import telemetry
from scalebook.measure.metrics import measure
from scalebook.measure.telemetry.readings import Reading
from scalebook.measure.telemetry.summary import trend_of
from scalebook.record import RunRecord, StepRecord
from scalebook.report.base import frames, stated
from scalebook.report.pages import cost_page
from scalebook.running import runner
from scalebook.store import Run, read_run

BEGIN = 1_795_800_000.0  # of the first measured step
PERIOD = 0.5
Value = Callable[[float], Any]


def stamp(seconds: float) -> str:
    """Return a time as steps have it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def steps(count: int = 10, seconds: float = 1.0, tokens: int = 1000) -> list[StepRecord]:
    """Return two warm-up steps of 5 s and measured steps that begin at BEGIN."""
    warm = [
        StepRecord(
            step=number, phase="warmup", step_seconds=5, tokens=tokens,
            finished_at=stamp(BEGIN - 10 + 5 * number),
        )
        for number in (1, 2)
    ]  # fmt: skip
    measured = [
        StepRecord(
            step=3 + number, phase="measured", step_seconds=seconds, tokens=tokens,
            finished_at=stamp(BEGIN + seconds * (number + 1)),
        )
        for number in range(count)
    ]  # fmt: skip
    return warm + measured


def record(**changes: Any) -> RunRecord:
    """Return the record of a completed run of two GPUs."""
    values: dict[str, Any] = {
        "run_id": "r",
        "config_hash": None,
        "status": "completed",
        "requested": {"world_size": 2, "platform": "h100"},
    }
    return RunRecord(**values | changes)


def write(
    folder: Path,
    columns: dict[str, Value],
    *,
    gpus: int = 2,
    begin: float = -10.0,
    end: float = 20.0,
    skip: tuple[float, float] = (1.0, 0.0),
    more: Iterable[dict[str, Any]] = (),
) -> Path:
    """Write samples every half second; each column is a function of seconds after BEGIN."""
    devices = [{"gpu": gpu, "power_cap_watts": 700, "max_clock_mhz": 1980} for gpu in range(gpus)]
    lines: list[dict[str, Any]] = [
        {"kind": "sampler", "source": "test", "period_seconds": PERIOD, "devices": devices}
    ]
    for number in range(round((end - begin) / PERIOD) + 1):
        at = begin + number * PERIOD
        if skip[0] <= at <= skip[1]:
            continue
        for gpu in range(gpus):
            values = {name: value(at) for name, value in columns.items()}
            lines.append({"time": BEGIN + at, "gpu": gpu, **values})
    text = "".join(json.dumps(line) + "\n" for line in (*lines, *more))
    (folder / "telemetry.jsonl").write_text(text)
    return folder


def summary(
    folder: Path, run: RunRecord | None = None, taken: list[StepRecord] | None = None
) -> telemetry.TelemetrySummary:
    """Return the summary over the measured steps."""
    measured = [step for step in taken or steps() if step.phase == "measured"]
    return telemetry.summarize(telemetry.read(folder), run or record(), measured)


def working(power: float) -> Value:
    """Return a power that is drawn from BEGIN on, and 100 W before."""
    return lambda at: power if at >= 0 else 100.0


def test_energy_per_token_is_power_times_time_over_tokens_of_the_measured_steps_alone(tmp_path):
    found = summary(write(tmp_path, {"power_watts": working(500.0)}))
    # 2 GPUs x 500 W x 10 s over 10 x 1,000 tokens; what was drawn before does not count
    assert found.energy_joules == pytest.approx(10_000)
    assert found.energy_joules_per_token == pytest.approx(1.0)
    assert found.energy_method == "integrated power"
    assert found.mean_power_watts == pytest.approx(500)
    assert found.energy_reason is None
    assert found.samples == 2 * 21


def test_the_energy_counter_goes_before_readings_of_the_power(tmp_path):
    columns: dict[str, Value] = {
        "energy_joules": lambda at: 1e6 + 450 * at,  # the counter is exact where readings lag
        "power_watts": working(500.0),
    }
    found = summary(write(tmp_path, columns))
    assert found.energy_joules == pytest.approx(2 * 450 * 10)
    assert found.energy_method == "energy counter"
    assert found.mean_power_watts == pytest.approx(450)
    assert found.max_power_watts == 500


def test_a_counter_that_contradicts_the_power_is_not_believed(tmp_path):
    columns = {"energy_joules": lambda at: 2000 * at, "power_watts": working(500.0)}
    found = summary(write(tmp_path, columns))
    assert found.energy_joules == pytest.approx(10_000)
    assert any("says 4 times" in note for note in telemetry.flags(found))


def test_a_counter_that_was_reset_leaves_the_power(tmp_path):
    columns = {"energy_joules": lambda at: 500 * (at % 5), "power_watts": working(500.0)}
    found = summary(write(tmp_path, columns))
    assert found.energy_method == "integrated power"


def test_a_rising_power_is_integrated_and_not_averaged_over_samples(tmp_path):
    found = summary(write(tmp_path, {"power_watts": lambda at: 100 * max(at, 0.0)}))
    assert found.energy_joules == pytest.approx(2 * 5000)  # 100 W/s over 10 s: 100 x 10^2 / 2


def test_steps_left_out_between_measured_ones_do_not_count(tmp_path):
    taken = [step for step in steps() if step.step not in (6, 7)]
    columns = {"power_watts": lambda at: 9000.0 if 3 < at < 5 else 500.0}
    found = summary(write(tmp_path, columns), taken=taken)
    assert found.energy_joules == pytest.approx(2 * 500 * 8)
    assert found.energy_joules_per_token == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"gpus": 1}, "1 of the run's 2 GPUs"),
        ({"end": 6.0}, "do not cover"),
        ({"begin": 4.0}, "do not cover"),
        ({"skip": (2.0, 6.0)}, "gap of"),
        ({"skip": (0.0, 9.4)}, "at least 3 are needed"),
    ],
)
def test_samples_that_do_not_cover_the_run_give_a_reason_and_no_energy(tmp_path, options, reason):
    found = summary(write(tmp_path, {"power_watts": working(500.0)}, **options))
    assert found.energy_joules is None
    assert found.energy_joules_per_token is None
    assert reason in (found.energy_reason or "")


def test_a_gap_does_not_hurt_a_counter(tmp_path):
    found = summary(write(tmp_path, {"energy_joules": lambda at: 500 * at}, skip=(2.0, 6.0)))
    assert found.energy_joules == pytest.approx(10_000)


def test_every_missing_quantity_has_a_reason(tmp_path):
    for folder in (tmp_path, write(tmp_path, {"fan": lambda _: 50})):
        found = summary(folder)
        for value, reason in (
            (found.energy_joules, found.energy_reason),
            (found.mean_power_watts, found.power_reason),
            (found.clocks, found.clock_reason),
            (found.max_temperature_celsius, found.temperature_reason),
            (found.gpu_busy_fraction, found.busy_reason),
            (found.throttle_fractions, found.throttle_reason),
        ):
            assert value is None
            assert reason


def test_where_nothing_could_be_sampled_the_reason_is_the_samplers(tmp_path):
    head = {"kind": "sampler", "source": None, "devices": [], "reason": "Only root may read it"}
    (tmp_path / "telemetry.jsonl").write_text(json.dumps(head))
    found = summary(tmp_path)
    assert found.energy_reason == found.power_reason == "Only root may read it"
    assert telemetry.flags(found) == ()  # nothing to flag: no telemetry is no finding


def test_steps_without_a_time_of_day_leave_means_over_all_samples_and_no_energy(tmp_path):
    write(tmp_path, {"power_watts": lambda _: 400.0, "clock_mhz": lambda _: 1500})
    plain = [step.model_copy(update={"finished_at": None}) for step in steps()]
    found = summary(tmp_path, taken=plain)
    assert found.mean_power_watts == 400
    assert found.clocks is not None
    assert found.energy_joules is None
    assert "no time of day" in (found.energy_reason or "")
    assert any("over all samples" in note for note in telemetry.flags(found))


def test_a_power_cap_is_flagged_with_its_share_and_the_clock_it_leaves(tmp_path):
    columns: dict[str, Value] = {
        "power_watts": lambda _: 690.0,
        "clock_mhz": lambda _: 1410,
        "temperature_celsius": lambda at: 60 + max(at, 0),
        "throttle_reasons": lambda at: ["sw_power_cap"] if at % 1 == 0 else [],
    }
    found = summary(write(tmp_path, columns))
    assert found.throttle_fractions == {"sw_power_cap": pytest.approx(11 / 21)}
    assert found.max_temperature_celsius == 70
    (flag,) = telemetry.flags(found)
    assert flag == (
        "The power cap held clocks down in 52 % of the samples (mean 690 W of 700 W): the clock "
        "was 1,410 of 1,980 MHz on average."
    )


def test_a_device_that_tells_no_reasons_is_judged_by_its_power(tmp_path):
    (flag,) = telemetry.flags(summary(write(tmp_path, {"power_watts": lambda _: 695.0})))
    assert "as much as their power cap allows" in flag
    assert telemetry.flags(summary(write(tmp_path, {"power_watts": lambda _: 500.0}))) == ()


def test_heat_and_other_limits_are_flagged(tmp_path):
    columns: dict[str, Value] = {
        "throttle_reasons": lambda _: ["hw_thermal_slowdown", "sync_boost"],
        "temperature_celsius": lambda _: 91,
    }
    heat, other = telemetry.flags(summary(write(tmp_path, columns)))
    assert heat == "Heat held clocks down in 100 % of the samples, up to 91 °C."
    assert "sync_boost in 100 %" in other


def test_falling_clocks_are_flagged_and_steady_ones_are_not(tmp_path):
    falling = summary(write(tmp_path, {"clock_mhz": lambda at: 1800 - 9 * at}))
    flags = telemetry.flags(falling)
    assert "fell by 5.0 % while steps were measured (1,800 to 1,710 MHz)" in flags[0]
    noise = random.Random(7)
    steady = summary(write(tmp_path, {"clock_mhz": lambda _: 1700 + noise.gauss(0, 30)}))
    assert telemetry.flags(steady) == ()


def walk(generator: random.Random, count: int, correlation: float, spread: float) -> list[float]:
    """Return autoregressive noise of order 1 around 1,700 MHz."""
    value, found = 0.0, []
    for _ in range(count):
        value = correlation * value + generator.gauss(0, spread * (1 - correlation**2) ** 0.5)
        found.append(1700 + value)
    return found


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.8])
def test_noise_of_any_memory_is_rarely_called_a_trend_and_a_planted_one_is_found(correlation):
    generator = random.Random(20240101)
    wrong = missed = 0
    for _ in range(400):
        noise = walk(generator, 60, correlation, 25.0)
        flat = trend_of([Reading(float(at), value) for at, value in enumerate(noise)])
        wrong += flat is not None and flat.certain
        slope = 0.12 * 1700 / 59  # 12 % over the window
        fall = [value - slope * at for at, value in enumerate(noise)]
        falling = trend_of([Reading(float(at), value) for at, value in enumerate(fall)])
        missed += falling is None or not falling.certain
    assert wrong <= 400 * 0.03
    assert missed <= 400 * 0.03


def test_telemetry_that_broke_off_is_flagged(tmp_path):
    end = {"kind": "end", "samples": 3, "reason": "NVML answers no question", "cpu_seconds": 0.1}
    found = summary(write(tmp_path, {"power_watts": lambda _: 400.0}, more=[end]))
    assert telemetry.flags(found) == ("The telemetry ended early: NVML answers no question.",)
    assert found.energy_joules is not None


def test_nodes_are_told_apart_and_add_up(tmp_path):
    write(tmp_path, {"power_watts": lambda _: 500.0}, gpus=1)
    text = (tmp_path / "telemetry.jsonl").read_text()
    lines = [json.loads(line) | {"node": 1} for line in text.splitlines()]
    second = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "telemetry.node1.jsonl").write_text(second)
    devices = telemetry.read(tmp_path).devices
    assert [device.name for device in devices] == ["node 0 GPU 0", "node 1 GPU 0"]
    assert summary(tmp_path).energy_joules == pytest.approx(10_000)


def test_the_packages_of_a_cpu_are_no_gpus(tmp_path):
    lines = [
        {"time": BEGIN + at / 2, "node": 0, "cpu": 0, "energy_joules": 50.0 * at}
        for at in range(-4, 30)
    ]
    head = {"kind": "sampler", "source": "rapl", "period_seconds": 0.5, "devices": [{"cpu": 0}]}
    text = "".join(json.dumps(line) + "\n" for line in (head, *lines))
    (tmp_path / "telemetry.jsonl").write_text(text)
    run = record(requested={"world_size": 8, "platform": "cpu"})  # 8 ranks share one package
    found = summary(tmp_path, run)
    assert found.energy_joules == pytest.approx(1000)
    assert found.mean_power_watts == pytest.approx(100)
    assert found.max_power_watts is None


def test_the_numbers_of_a_run_hold_its_telemetry(tmp_path):
    write(tmp_path, {"power_watts": working(500.0), "clock_mhz": lambda at: 1755})
    found = measure(Run(tmp_path, record(), tuple(steps())))
    assert found.energy_joules_per_token == pytest.approx(1.0)
    assert found.mean_clock_mhz == found.min_clock_mhz == 1755
    json.dumps(found.as_dict(), allow_nan=False)


def test_telemetry_beside_an_ingested_log_goes_through_the_same_reduction(tmp_path):
    logs = Path(__file__).parents[1] / "logs"
    for name in ("megatron_2024.log", "nvidia_smi.csv"):
        shutil.copy(logs / name, tmp_path)
    (run,), _ = ingest([tmp_path], tmp_path / "runs", {})
    found = measure(read_run(run.path))
    powers = [
        row["power_watts"]
        for row in map(json.loads, (run.path / "telemetry.jsonl").read_text().splitlines())
        if "power_watts" in row
    ]
    assert found.mean_power_watts == pytest.approx(sum(powers) / len(powers))
    assert found.energy_joules_per_token is None
    assert "no time of day" in (found.energy_reason or "")


def test_a_run_on_a_cpu_leaves_its_energy_or_the_reason_for_none(tmp_path, monkeypatch):
    monkeypatch.setattr("scalebook.running.launch.direct", without_torchrun)
    record = runner.train(small(), runner.RunOptions(runs=str(tmp_path), trainer="fake_trainer"))
    run = read_run(tmp_path / record.run_id)
    assert record.status == "completed"
    head = json.loads((run.path / "telemetry.jsonl").read_text().splitlines()[0])
    assert head["period_seconds"] == 0.5
    assert (head["source"] == "rapl") != bool(head["reason"])
    found = measure(run)
    assert (found.energy_joules_per_token is None) == (found.energy_reason is not None)


def test_the_report_shows_power_and_says_why_an_energy_is_missing(tmp_path):
    path = write_run(tmp_path, "gpu", config(world_size=2))
    lines = [json.loads(line) for line in (path / "steps.jsonl").read_text().splitlines()]
    for line in lines:
        line |= {"step_seconds": 1.0, "finished_at": stamp(BEGIN + line["step"] - 6)}
    (path / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    write(path, {"power_watts": lambda _: 700.0, "clock_mhz": lambda _: 1755}, end=30.0)
    write_run(tmp_path, "bare", config(world_size=1))
    read = frames.load(tmp_path)
    said = cost_page.overview(read, stated.Stated())._repr_markdown_()
    said += cost_page.device_findings(read)._repr_markdown_()
    # 2 x 700 W over 8 x 128 tokens a second
    assert "1,367\u00a0mJ per token" in said
    assert "as much as their power cap allows" in said
    assert "nothing sampled the devices" in said
    assert 'data-value="700.0"' in cost_page.device_table(read)._repr_markdown_()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
names = st.sampled_from(
    ["kind", "time", "gpu", "cpu", "node", "power_watts", "energy_joules", "clock_mhz", "devices",
     "throttle_reasons", "period_seconds", "reason", "source", "cpu_seconds"]
)  # fmt: skip
objects = st.dictionaries(names, json_values | st.just("sampler"), max_size=8)


@settings(max_examples=60)
@given(st.lists(objects | json_values, max_size=12))
def test_no_content_of_the_file_stops_a_report(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("odd")
    text = "\n".join(json.dumps(value) for value in content) + '\n{"time": 1, "pow'
    (folder / "telemetry.jsonl").write_text(text)
    found = measure(Run(folder, record(), tuple(steps())))
    json.dumps(found.as_dict(), allow_nan=False)
