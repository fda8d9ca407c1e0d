"""What of a run is written to a tracker, and the client that writes it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from scalebook.errors import TrackerError, not_installed
from scalebook.measure import registered
from scalebook.measure.metrics import RunMetrics, measure
from scalebook.measure.metrics.window import measured_steps
from scalebook.record import PHASES
from scalebook.scrub import scrub
from scalebook.step_columns import Steps
from scalebook.store import Run

TAG = "scalebook/"  # before the name of a tag that stands next to parameters
# Columns of steps.jsonl that become metrics under the same name.
_BY_STEP = (
    *("loss", "step_seconds", "grad_norm", "learning_rate"),
    *("allocated_gib", "reserved_gib"),
)
# Fields of RunMetrics that make the summary, by their name there: the name carries the unit.
_SUMMARY = {
    "steady_tokens_per_second_per_gpu": "tokens_per_second_per_gpu",
    "model_tflops_per_second_per_gpu": "model_tflops_per_second_per_gpu",
    "mfu_fraction": "mfu",
    "mfu_fraction_low": "mfu_low",
    "mfu_fraction_high": "mfu_high",
    "steady_step_seconds": "step_seconds_mean",
    "steady_steps": "steady_steps",
    "peak_memory_gib": "peak_memory_gib",
    "energy_joules_per_token": "energy_joules_per_token",
}
_INTERVAL = {"low": "tokens_per_second_low", "high": "tokens_per_second_high"}
_VERSIONS = (
    *("scalebook", "git_commit", "accelerator", "driver", "torch", "cuda", "rocm", "nccl", "rccl"),
    *("megatron_core", "transformer_engine", "python"),
)
_REASONS = ("throughput_reason", "mfu_reason")


@dataclass(frozen=True, slots=True)
class ExportedStep:
    """The numbers of one step, by names that carry the unit."""

    step: int
    finished_at_seconds: float  # since 1970
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RunExport:
    """A run in the terms that all trackers share."""

    run_id: str
    parameters: dict[str, int | float | str | bool]  # the configuration as it ran
    tags: dict[str, str]  # status, source, versions, reasons for missing numbers
    summary: dict[str, float]  # the steady rate with its interval, MFU, memory, registered metrics
    steps: tuple[ExportedStep, ...]

    @property
    def seconds(self) -> tuple[float, float]:
        """When the run's first and last step ended (seconds since 1970); 0 without any."""
        ends = [step.finished_at_seconds for step in self.steps] or [0.0]
        return ends[0], ends[-1]

    @property
    def named_tags(self) -> dict[str, str]:
        """The tags for a tracker that keeps them next to parameters."""
        return {f"{TAG}{name}": value for name, value in self.tags.items()}


def export_of(run: Run) -> RunExport:
    """Return what is written of a run."""
    own = registered.own()
    found = measure(run, own=own)
    tags, summary = _tags(run, found), _summary(found)
    for one in (*registered.BUILT_IN, *own):
        value, reason = (found.registered[name] for name in (one.name, one.reason_name))
        if isinstance(value, int | float) and not isinstance(value, bool):
            summary[_named(one)] = float(value)
        else:  # a text, a yes or no, or why there is no value
            name = one.name if reason is None else one.reason_name
            tags[name] = scrub(str(value if reason is None else reason), {})
    return RunExport(run.record.run_id, _parameters(run), tags, summary, _steps(run))


def _named(one: registered.Metric) -> str:
    """Return a registered metric's name with its unit, which a summary has no other place for."""
    unit = re.sub(r"[^a-z0-9]+", "_", one.unit.replace("/", " per ").lower()).strip("_")
    unit = "seconds" if unit == "s" else unit
    return one.name if not unit or unit in one.name else f"{one.name}_{unit}"


def _parameters(run: Run) -> dict[str, int | float | str | bool]:
    """Return the settings that are known, by name: what ran, else what was requested."""
    record = run.record
    names = dict.fromkeys((*record.asked, *record.observed))
    values = ((name, record.setting(name)) for name in names)
    return {
        name: scrub(value, {}) if isinstance(value, str) else value
        for name, value in values
        if isinstance(value, int | float | str) and value != ""
    }


def _tags(run: Run, found: RunMetrics) -> dict[str, str]:
    """Return status, source, versions, and why a number is missing, all as text."""
    record = run.record
    tags = {"run_id": record.run_id, "status": found.status, "source": record.source}
    versions = ((name, record.environment.get(name)) for name in _VERSIONS)
    tags |= {name: str(value) for name, value in versions if value is not None}
    reasons = ((name, getattr(found, name)) for name in ("reason", "cause", *_REASONS))
    return tags | {name: scrub(str(value), {}) for name, value in reasons if value}


def _summary(found: RunMetrics) -> dict[str, float]:
    values = {name: getattr(found, field) for name, field in _SUMMARY.items()}
    for end, field in _INTERVAL.items():
        total = getattr(found, field)
        if total is not None and found.world_size:
            values[f"steady_tokens_per_second_per_gpu_{end}"] = total / found.world_size
    return {name: float(value) for name, value in values.items() if value is not None}


def _steps(run: Run) -> tuple[ExportedStep, ...]:
    """Return every step; one whose end is not known ends when the time of the steps before says."""
    steps = Steps.of(run.steps)
    world = run.record.setting("world_size")
    columns = {name: steps.numbers(name) for name in _BY_STEP}
    tokens, ends, clock = steps.numbers("tokens"), steps.ends(), 0.0
    each = steps.numbers("tokens_per_gpu")
    found: list[ExportedStep] = []
    counted = {*measured_steps(steps).numbers("step")}
    for at, (number, phase) in enumerate(zip(steps.numbers("step"), steps.phases(), strict=True)):
        values = {name: column[at] for name, column in columns.items()}
        seconds = values["step_seconds"]
        clock = ends[at] if not math.isnan(ends[at]) else clock + (seconds if seconds > 0 else 0.0)
        shared = tokens[at] / world if isinstance(world, int) and world > 0 else each[at]
        values["tokens_per_second_per_gpu"] = shared / seconds if seconds > 0 else math.nan
        known = {name: value for name, value in values.items() if not math.isnan(value)}
        waited = phase == "measured" and number not in counted  # for a checkpoint
        known["phase_code"] = float(PHASES.index("stalled" if waited else phase))
        found.append(ExportedStep(int(number), clock, known))
    return tuple(found)


def client(module: str) -> Any:
    """Return a module of a tracker's client, imported when it is needed.

    Raises:
        TrackerError: it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise TrackerError(not_installed(error.name or module, "trackers")) from error
