"""One job as the object that ``scalebook ingest FILE --json`` prints."""

from __future__ import annotations

from typing import Any

from scalebook.ingest.check import warnings_of
from scalebook.ingest.observe import Observation
from scalebook.ingest.outcome import status_of
from scalebook.ingest.rates import finite, log_interval, losses, medians, total_of
from scalebook.ingest.shape import catalog_match, disagreement, recount
from scalebook.ingest.telemetry import summary as telemetry_summary
from scalebook.logs.job import Job

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


def summarise(job: Job, known: Observation, kind: str = "training") -> dict[str, Any]:
    """Return the summary of a job; None is what its log does not tell."""
    if "model" not in known.values:
        model = catalog_match(known)
        if model:
            known.put("model", model, "derived", "the one catalog model of these sizes")
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
        "warnings": [*warnings_of(job, known), *disagreement(tflops)],
    }
    if len(job.samples):
        summary["telemetry"] = telemetry_summary(job.samples)
    if "trace" in job.details:
        summary["trace"] = job.details["trace"]
    return finite(summary)
