"""One job as the object that ``scalebook ingest FILE --json`` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scalebook.logs.ingest.check import warnings_of
from scalebook.logs.ingest.observe import Observation
from scalebook.logs.ingest.outcome import status_of
from scalebook.logs.ingest.rates import finite, log_interval, losses, medians, total_of
from scalebook.logs.ingest.shape import catalog_match, disagreement, recount
from scalebook.logs.ingest.steps import steps_of
from scalebook.logs.ingest.telemetry import summary as telemetry_summary
from scalebook.logs.ingest.write import accelerator_of, observed_settings
from scalebook.logs.job import Job
from scalebook.measure.metrics import RunMetrics, measure
from scalebook.record import RunRecord
from scalebook.store import Run

_MOST_STEPS = 100_000  # more are counted when the run is listed
SIZES = (
    "world_size",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "context_parallel_size",
    "expert_parallel_size",
    "data_parallel_size",
    "global_batch_size",
    "micro_batch_size",
    "sequence_length",
)


def numbers_of(job: Job, known: Observation) -> RunMetrics | None:
    """Return the numbers that the run of a job will have; None without steps or with too many."""
    if not 0 < len(job.table) <= _MOST_STEPS:
        return None
    device = accelerator_of(job, known)
    record = RunRecord(
        run_id="ingested",
        config_hash=None,
        source="ingested",
        status=status_of(job)[0],
        observed=finite(observed_settings(known)),
        environment=finite({"accelerator": device}) if device else {},
    )
    return measure(Run(Path(), record, tuple(steps_of(job, known))))


def _of_numbers(found: RunMetrics | None) -> list[str]:
    """Return what the reader must know of a run's numbers before using them."""
    if found is None:
        return []
    said = [found.reason] if found.status == "void" and found.reason else []
    if found.loss_fell is False:
        said.append(
            f"The loss did not fall ({found.loss_first:.5g} to {found.loss_last:.5g}): the run "
            "did not learn, so how fast it computed means nothing."
        )
    if found.stalled_steps:
        rate = found.tokens_per_second_with_stalls
        said.append(
            f"{found.stalled_steps} record(s) took more than three times the usual time, or more "
            "time behind a line about it (a profiler, a checkpoint, an evaluation or a "
            "compilation), and are left out of the rate"
            + (f"; with them it is {rate:,.0f} tokens/s." if rate else ".")
        )
    return said


def summarise(job: Job, known: Observation, kind: str = "training") -> dict[str, Any]:
    """Return the summary of a job; None is what its log does not tell."""
    if "model" not in known.values:
        model = catalog_match(known)
        if model:
            known.put("model", model, "derived", "the one catalog model of these sizes")
    numbers = numbers_of(job, known)
    first, last = losses(job)
    status, reason = status_of(job) if kind == "training" else (None, None)
    tflops = recount(job, known)
    summary: dict[str, Any] = {
        "family": job.dialect,
        "status": status,
        "reason": reason,
        "n_records": len(job.table),
        "first_step": job.first_step,
        "last_step": job.last_step,
        "log_interval": log_interval(job, known),
        **medians(job, known),
        "tokens_per_second": numbers and numbers.tokens_per_second,
        "tokens_per_second_per_gpu": numbers and numbers.tokens_per_second_per_gpu,
        "rate_reason": numbers and numbers.throughput_reason,
        "void": numbers.reason if numbers and numbers.status == "void" else None,
        "mfu": numbers and numbers.mfu,
        "mfu_reason": numbers and numbers.mfu_reason,
        "stalled_steps": numbers and numbers.stalled_steps,
        "tokens_per_second_with_stalls": numbers and numbers.tokens_per_second_with_stalls,
        "loss_first": first,
        "loss_last": last,
        "model": known.values.get("model"),
        **{name: known.size(name) for name in SIZES},
        "skipped_iterations": total_of(job, "skipped"),
        "nan_iterations": total_of(job, "nan"),
        "device": job.details.get("device"),
        "tflops": tflops,
        "whole_run_rates": dict(job.rates),
        "provenance": dict(sorted(known.provenance.items())),
        "derived_from": dict(sorted(known.origin.items())),
        "not_used": job.counts.told(),
        "warnings": [
            *_of_numbers(numbers),
            *warnings_of(job, known, numbers),
            *disagreement(tflops),
        ],
    }
    if len(job.samples):
        summary["telemetry"] = telemetry_summary(job.samples)
    if "trace" in job.details:
        summary["trace"] = job.details["trace"]
    return finite(summary)
