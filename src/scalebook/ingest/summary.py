"""One job as the object that ``scalebook ingest FILE --json`` prints."""

from __future__ import annotations

from scalebook.ingest.check import warnings_of
from scalebook.ingest.observe import Observation
from scalebook.ingest.outcome import status_of
from scalebook.ingest.rates import finite, log_interval, losses, medians, total_of
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


def summarise(job: Job, known: Observation) -> dict[str, object]:
    """Return the summary of a job; None is what its log does not tell."""
    first, last = losses(job)
    status, reason = status_of(job)
    sizes = {name: known.size(name) for name in SIZES}
    return finite(
        {
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
            **sizes,
            "skipped_iterations": total_of(job, "skipped"),
            "nan_iterations": total_of(job, "nan"),
            "provenance": {name: known.provenance[name] for name in sorted(known.provenance)},
            "derived_from": dict(sorted(known.origin.items())),
            "device": job.details.get("device"),
            "not_used": job.counts.told(),
            "warnings": warnings_of(job, known),
        }
    )
