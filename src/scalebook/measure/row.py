"""The numbers of one run, side by side: a row of the list and of the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any

# Replaces the assumed spread of starts, which the intervals of every run hold: 0.01 or 1%.
SPREAD_VARIABLE = "SCALEBOOK_START_SPREAD"


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """What ``scalebook list --json`` prints of a run; a rate that does not exist is None."""

    run_id: str
    status: str
    reason: str | None
    cause: str | None  # the kind of that reason, for programs: gpu_memory, collective_timeout, ...
    source: str
    platform: str | None
    accelerator: str | None  # as the driver names it
    device_ids: str | None  # digests of serial numbers, of the first node
    world_size: int | None
    nodes: int | None
    engine: str | None
    model: str | None
    num_layers: int | None
    tensor_parallel_size: int | None
    pipeline_parallel_size: int | None
    context_parallel_size: int | None
    expert_parallel_size: int | None
    data_parallel_size: int | None
    micro_batch_size: int | None
    global_batch_size: int | None
    sequence_length: int | None
    packed_documents: int | None
    precision: str | None
    strategy: str | None
    measured_steps: int
    step_seconds_median: float | None
    tokens_per_second: float | None  # total tokens over total time
    tokens_per_second_low: float | None  # 95 % interval of the configuration: starts differ
    tokens_per_second_high: float | None
    run_tokens_per_second_low: float | None  # 95 % interval of this run, by its steps only
    run_tokens_per_second_high: float | None
    tokens_per_second_per_gpu: float | None
    throughput_reason: str | None
    interval_reason: str | None
    model_tflops_per_second_per_gpu: float | None
    flops_convention: str
    model_tflops_reason: str | None
    mfu: float | None  # a fraction of the dense peak
    mfu_low: float | None  # 95 % interval of the configuration
    mfu_high: float | None
    mfu_reason: str | None
    mfu_interval_reason: str | None
    peak_tflops_per_second: float | None  # dense, of one device
    peak_precision: str | None
    measured_matmul_tflops: float | None  # best product that a probe saw on this machine
    matmul_fraction: float | None  # achieved over that; on a CPU of a process
    matmul_fraction_reason: str | None
    peak_memory_gib: float | None  # most that torch had allocated on any rank
    peak_memory_reason: str | None
    energy_joules_per_token: float | None  # of all devices of the run, over the measured steps
    energy_method: str | None
    energy_reason: str | None
    mean_power_watts: float | None  # of one device
    max_power_watts: float | None  # highest single reading
    power_cap_watts: float | None
    power_reason: str | None
    mean_clock_mhz: float | None  # of the SMs or compute dies
    min_clock_mhz: float | None
    clock_reason: str | None
    max_temperature_celsius: float | None
    temperature_reason: str | None
    gpu_busy_fraction: float | None  # what monitoring tools call utilisation: not MFU
    busy_reason: str | None
    throttle_fractions: dict[str, float] | None  # share of samples by reason
    throttle_reason: str | None
    device_notes: tuple[str, ...]  # what held the devices back, in sentences
    loss_first: float | None
    loss_last: float | None
    stalled_steps: int  # of an ingested log, held up beyond doubt and in no rate
    tokens_per_second_with_stalls: float | None  # the same rate with those, None without any
    loss_fell: bool | None  # None with fewer than two losses
    # The steady state inside the measured window, found from the data.
    steady: bool | None = None
    steady_reason: str | None = None
    steady_steps: int | None = None
    steady_first_step: int | None = None
    steady_change: float | None = None  # a drift or shift over it that is tolerated, a fraction
    window_seconds: float | None = None  # wall-clock time of the steady state
    window_note: str | None = None  # what a short window, or a device that had not settled, means
    # Standard deviation of the mean from one start to the next, a fraction, and over how many
    # repeats on the platform it was measured; 0 where it is assumed.
    start_spread: float | None = None
    start_spread_runs: int = 0
    step_seconds_mean: float | None = None
    step_seconds_low: float | None = None  # 95 % interval of this run's mean
    step_seconds_high: float | None = None
    step_seconds_p10: float | None = None
    step_seconds_p90: float | None = None
    step_seconds_p99: float | None = None
    spike_periods: tuple[int, ...] = ()  # steps between periodic slow steps
    rank_seconds_fastest: float | None = None  # mean step time of one rank
    rank_seconds_slowest: float | None = None
    slowest_rank: int | None = None
    straggler_spread: float | None = None  # slowest over fastest, less 1
    straggler_reason: str | None = None
    expert_load: float | None = None  # tokens of the busiest ranks' experts over the mean
    expert_load_reason: str | None = None
    # Over all runs of the same configuration; None for a single one.
    repeats: int = 1
    pooled_tokens_per_second: float | None = None
    pooled_tokens_per_second_low: float | None = None  # 95 % interval
    pooled_tokens_per_second_high: float | None = None
    pooled_reason: str | None = None
    # Value and reason of each metric of ``measure.registered``, by column.
    registered: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def hfu(self) -> float | None:
        """MFU with the FLOPs of recomputation counted, a fraction."""
        return self.registered.get("hfu")

    @property
    def hfu_reason(self) -> str | None:
        return self.registered.get("hfu_reason")

    def as_dict(self) -> dict[str, Any]:
        """Return every number by its column, registered ones among them."""
        found = dict(zip(NAMES, _values(self), strict=True))
        return found | found.pop("registered")

    def values(self) -> tuple[Any, ...]:
        """Return the value of each field, in the order of ``NAMES``."""
        return _values(self)

    def changed(self, changes: Mapping[str, Any]) -> RunMetrics:
        """Return the same with other values: ``dataclasses.replace`` takes eight times as long."""
        values = list(_values(self))
        for name, value in changes.items():
            values[_PLACES[name]] = value
        return RunMetrics(*values)


NAMES = tuple(field.name for field in fields(RunMetrics))
# What the repeats of a run's configuration, and of others on its platform, change.
POOLED = (
    "tokens_per_second_low", "tokens_per_second_high", "mfu_low", "mfu_high", "start_spread",
    "start_spread_runs", "repeats", "pooled_tokens_per_second", "pooled_tokens_per_second_low",
    "pooled_tokens_per_second_high", "pooled_reason",
)  # fmt: skip
# What ``scalebook list`` prints of a run without being asked for more.
PRINTED = (
    "run_id", "status", "reason", "source", "platform", "model", "world_size",
    *(name for name in NAMES if name.endswith("_parallel_size")),
    "step_seconds_median", "tokens_per_second_per_gpu", "model_tflops_per_second_per_gpu",
    "throughput_reason", "mfu", "peak_memory_gib", "loss_first", "loss_last",
)  # fmt: skip
_PLACES = {name: place for place, name in enumerate(NAMES)}
_values = attrgetter(*NAMES)
