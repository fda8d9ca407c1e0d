"""The columns of the report's data frames, and how a value of any type becomes one of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import polars as pl

# The columns of the run frame: fields of RunMetrics, settings of the record, names.
_TEXT = (
    "run_id", "status", "reason", "source", "platform", "accelerator", "engine", "model",
    "precision", "strategy", "throughput_reason", "flops_convention", "model_tflops_reason",
    "mfu_reason", "mfu_interval_reason", "peak_precision", "data_parallel_sharding", "recompute",
    "matmul_fraction_reason", "energy_method", "energy_reason", "power_reason", "clock_reason",
    "started_at", "label", "name", "split", "group", "setup", "rate_unit",
    "interval_reason", "steady_reason", "straggler_reason", "pooled_reason",
)  # fmt: skip
_INTEGERS = (
    "world_size", "nodes", "num_layers", "tensor_parallel_size", "pipeline_parallel_size",
    "virtual_pipeline_parallel_size", "context_parallel_size", "expert_parallel_size",
    "data_parallel_size", "micro_batch_size", "global_batch_size", "sequence_length",
    "measured_steps", "recorded_steps",
    "steady_steps", "steady_first_step", "slowest_rank", "repeats",
)  # fmt: skip
_FLOATS = (
    "step_seconds_median", "tokens_per_second", "tokens_per_second_low", "tokens_per_second_high",
    "tokens_per_second_per_gpu", "model_tflops_per_second_per_gpu", "mfu", "mfu_low", "mfu_high",
    "peak_tflops_per_second", "peak_memory_gib", "loss_first", "loss_last",
    "measured_matmul_tflops", "matmul_fraction",
    "energy_joules_per_token", "mean_power_watts", "max_power_watts", "power_cap_watts",
    "mean_clock_mhz", "min_clock_mhz", "max_temperature_celsius", "gpu_busy_fraction",
    "rate", "rate_low", "rate_high",
    "steady_change", "step_seconds_mean", "step_seconds_low", "step_seconds_high",
    "step_seconds_p10", "step_seconds_p90", "step_seconds_p99",
    "rank_seconds_fastest", "rank_seconds_slowest", "straggler_spread",
    "pooled_tokens_per_second", "pooled_tokens_per_second_low", "pooled_tokens_per_second_high",
)  # fmt: skip
SCHEMA: dict[str, type[pl.DataType]] = (
    dict[str, type[pl.DataType]](dict.fromkeys(_TEXT, pl.String))
    | dict.fromkeys(_INTEGERS, pl.Int64)
    | dict.fromkeys(_FLOATS, pl.Float64)
    | dict.fromkeys(("sequence_parallel", "steady", "loss_fell"), pl.Boolean)
)
STEP_SCHEMA: dict[str, type[pl.DataType]] = {
    "run_id": pl.String,
    "step": pl.Int64,
    "phase": pl.String,
    "step_seconds": pl.Float64,
    "tokens": pl.Int64,
    "loss": pl.Float64,
    "grad_norm": pl.Float64,
    "learning_rate": pl.Float64,
    "allocated_gib": pl.Float64,
}

# A row a cell of a feasibility map: the fields of scalebook.feasibility.Cell. ``run_ids`` are the
# runs that a measured cell shows, or the one that an inferred cell follows from.
FEASIBILITY_SCHEMA: dict[str, type[pl.DataType] | pl.DataType] = {
    **dict.fromkeys(
        ("model", "platform", "accelerator", "engine", "precision", "data_parallel_sharding",
         "recompute", "verdict", "evidence", "reason"),
        pl.String,
    ),
    **dict.fromkeys(
        ("world_size", "sequence_length", "global_batch_size", "tensor_parallel_size",
         "pipeline_parallel_size", "virtual_pipeline_parallel_size", "context_parallel_size",
         "expert_parallel_size", "micro_batch_size"),
        pl.Int64,
    ),
    **dict.fromkeys(("peak_memory_gib", "predicted_gib", "capacity_gib"), pl.Float64),
    "sequence_parallel": pl.Boolean,
    "run_ids": pl.List(pl.String),
}  # fmt: skip


def cast(name: str, value: Any) -> tuple[Any, str | None]:
    """Return a value of the column's type; None and a sentence where it has another."""
    convert = _CASTS[SCHEMA[name]]
    if value is None:
        return None, None
    result = convert(value)
    return result, None if result is not None else f"{name}={value!r} is not usable"


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and abs(value) < 2**63 else None


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _boolean(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


_CASTS: Mapping[type[pl.DataType], Callable[[Any], Any]] = {
    pl.Boolean: _boolean,
    pl.String: _text,
    pl.Int64: _integer,
    pl.Float64: _float,
}
