"""A job as a run directory of the same shape as our own."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from scalebook import ownership, store
from scalebook.errors import IngestError, RecordError
from scalebook.facts import catalog
from scalebook.logs.ingest.group import Group
from scalebook.logs.ingest.log_config import LogConfig
from scalebook.logs.ingest.rates import finite, log_interval
from scalebook.logs.ingest.steps import cause_of, lines, status_of, steps_of
from scalebook.logs.job import Job
from scalebook.logs.setting_lines import Value
from scalebook.measure.metrics import PRINTED
from scalebook.record import RunRecord
from scalebook.scrub import scrub, scrub_all, scrub_values

_LARGEST_TRACE = 512 << 20
_SETTINGS = (
    "model", "platform", "world_size", "nodes", "tensor_parallel_size", "pipeline_parallel_size",
    "virtual_pipeline_parallel_size", "context_parallel_size", "expert_parallel_size",
    "expert_tensor_parallel_size", "data_parallel_size", "sequence_parallel", "micro_batch_size",
    "global_batch_size", "sequence_length", "num_layers", "precision", "recompute", "mtp_layers",
    "trained", "packed_sequences", "packed_documents", "steps",
)  # fmt: skip


def run_name(group: Group, index: int, supplied: Mapping[str, Value] | None = None) -> str:
    """Return the name of a run: the same for the same content, whatever the files are called.

    What the user supplied beside the files, and only that, makes it another run.
    """
    digests = sorted(content.digest for content in group.files)
    joined = digests[0] if len(digests) == 1 else _joined(digests)
    if supplied:
        joined = _joined([joined, json.dumps(supplied, sort_keys=True)])
    part = f"-{index + 1}" if len(group.jobs) > 1 else ""
    return f"ingested-{group.jobs[index].dialect}-{joined[:12]}{part}"


def _joined(digests: list[str]) -> str:
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def precision_of(known: LogConfig) -> str | None:
    """Return the precision that the argument dump states."""
    fp8 = known.values.get("fp8")
    if fp8 not in (None, False, "none", "null"):
        return "fp8"
    return next((name for name in ("bf16", "fp16") if known.values.get(name) is True), None)


def observed_settings(known: LogConfig) -> dict[str, Any]:
    """Return RunConfig's names with the values that a log stated or implied."""
    values = {name: known.values[name] for name in _SETTINGS if name in known.values}
    precision = precision_of(known)
    if precision == "fp8" or (precision and "precision" not in values):
        values["precision"] = precision
    granularity = known.values.get("recompute_granularity")
    if granularity in ("none", "selective"):
        values.setdefault("recompute", granularity)
        modules = known.values.get("recompute_modules")
        if granularity == "selective" and modules:
            values.setdefault("recompute_modules", modules)
    return values


def accelerator_of(job: Job, known: LogConfig) -> str | None:
    """Return the device as its driver names it: of the log, else of the platform that is known."""
    device, platform = job.details.get("device"), known.values.get("platform")
    if isinstance(device, str):
        return device
    name = catalog.platform(platform).accelerator if isinstance(platform, str) else None
    return None if name is None else catalog.accelerator(name).device_names[0]


def _environment(
    group: Group, job: Job, known: LogConfig, summary: Mapping[str, Any]
) -> dict[str, Any]:
    environment: dict[str, Any] = {}
    device = accelerator_of(job, known)
    if device is not None:
        environment["accelerator"] = device
    environment["ingest"] = {
        "files": [
            {"name": content.path.name, "dialect": content.dialect.name, "sha256": content.digest}
            for content in (*group.files, *group.attached)
        ],
        **({"map": dict(mapping)} if (mapping := group.files[0].dialect.mapping) else {}),
        "log_interval": log_interval(job, known),
        "first_number": job.first_number,
        **{name: job.details[name] for name in ("withheld",) if name in job.details},
        **{
            name: summary[name]
            for name in (
                "family", "provenance", "derived_from", "not_used", "warnings", "tflops",
                "tflops_per_second_per_gpu_logged_median", "skipped_iterations", "nan_iterations",
                PRINTED,
            )
        },
    }  # fmt: skip
    return environment


def record_of(group: Group, index: int, known: LogConfig, summary: Mapping[str, Any]) -> RunRecord:
    """Return the record of a job."""
    job = group.jobs[index]
    supplied = {
        name: known.values[name] for name, how in known.provenance.items() if how == "supplied"
    }
    if known.window is not None:
        supplied["window"] = "{}:{}".format(*known.window)
    if group.files[0].dialect.mapping:
        supplied["map"] = json.dumps(group.files[0].dialect.mapping, sort_keys=True)
    status, reason = status_of(job)
    tail = group.files[-1].tail if reason else ()
    return RunRecord(
        run_id=run_name(group, index, supplied),
        config_hash=None,
        source="ingested",
        status=status,
        reason=reason and scrub(reason, {}),
        cause=cause_of(job, status) if reason else None,
        log_tail=scrub_all(tail, {}),
        observed=finite(observed_settings(known)),
        environment=scrub_values(finite(_environment(group, job, known, summary))),
        notes=tuple(summary["notes"]),
        window=known.window,
    )


def _write_lines(path: Path, objects: Iterator[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as stream:
        for value in objects:
            stream.write(json.dumps(finite(value), allow_nan=False) + "\n")


def write_run(
    runs: Path, group: Group, index: int, known: LogConfig, summary: Mapping[str, Any]
) -> tuple[Path, bool]:
    """Write the run directory of a job and return it; False if it was there already.

    Raises:
        IngestError: the folder cannot be written to.
    """
    record = record_of(group, index, known, summary)
    earlier = runs / run_name(group, index)
    final = earlier if _is_record_of(earlier, record) else runs / record.run_id
    if final.exists():
        return final, False
    try:
        return _write(runs, record, group, index, known)
    except OSError as error:
        message = f"{runs} cannot be written to: {error.strerror}. Choose another folder (--runs)."
        raise IngestError(message) from error


def _is_record_of(directory: Path, record: RunRecord) -> bool:
    """Return whether a directory holds this record, whatever the name of its run."""
    try:
        known = store.read_record(directory)
    except RecordError:
        return False
    renamed = record.model_copy(update={"run_id": known.run_id})
    return known.model_dump_json() == renamed.model_dump_json()


def _write(
    runs: Path, record: RunRecord, group: Group, index: int, known: LogConfig
) -> tuple[Path, bool]:
    final = runs / record.run_id
    runs.mkdir(parents=True, exist_ok=True)
    partial = store.partial_path(runs, record.run_id)
    with ownership.owned(partial, create=True):
        if final.exists():  # another process was faster
            shutil.rmtree(partial, ignore_errors=True)  # one that waits may be about to take it
            return final, False
        _clear(partial)
        with (partial / "steps.jsonl").open("w", encoding="utf-8") as stream:
            for step in steps_of(group.jobs[index], known):
                stream.write(step.model_dump_json() + "\n")
        _write_attached(partial, group)
        store.write_record(partial, record)
        store.publish(partial)
    return final, True


def _clear(partial: Path) -> None:
    """Remove what an ingest that was killed left behind in a directory that is held."""
    for path in partial.iterdir():
        if path.name != ownership.FILE:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _write_attached(directory: Path, group: Group) -> None:
    """Write the telemetry and the anatomy of a step that belong to the run."""
    samples = [
        job.samples for content in group.attached for job in content.jobs if len(job.samples)
    ]
    if samples:
        _write_lines(
            directory / "telemetry.jsonl", (line for table in samples for line in lines(table))
        )
    found = [
        cast("dict[str, Any]", job.details["breakdown"])
        for content in group.attached
        for job in content.jobs
        if "breakdown" in job.details
    ]
    if found:  # that of the lowest rank
        (directory / "profile").mkdir()
        _copy_traces(directory / "profile", group)
        lowest = min(found, key=lambda one: one["rank"] if one["rank"] is not None else 1 << 30)
        store.write_json(directory / "profile" / "breakdown.json", finite(lowest))


def _copy_traces(folder: Path, group: Group) -> None:
    """Copy the traces next to their anatomy, compressed; one that is very large is left out."""
    traces = [content for content in group.attached if content.dialect.kind == "trace"]
    for number, content in enumerate(traces, start=1):
        if content.path.stat().st_size > _LARGEST_TRACE:
            continue
        target = folder / f"trace-{number}.json.gz"
        with content.path.open("rb") as stream:
            packed = stream.read(2) == b"\x1f\x8b"
        if packed:
            shutil.copyfile(content.path, target)
            continue
        with content.path.open("rb") as stream, gzip.open(target, "wb", compresslevel=5) as copy:
            shutil.copyfileobj(stream, copy)
