"""The summary of a job: its numbers, and the sizes of the model that they fit."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from scalebook.errors import ScalebookError
from scalebook.facts import catalog, flops
from scalebook.facts.catalog.types import ModelShape, MoEShape
from scalebook.logs.ingest.log_config import SHAPE_FIELDS, LogConfig
from scalebook.logs.ingest.rates import (
    AGREEMENT,
    finite,
    log_interval,
    medians,
    total_of,
    warnings_of,
)
from scalebook.logs.ingest.steps import status_of, steps_of
from scalebook.logs.ingest.steps import summary as telemetry_summary
from scalebook.logs.ingest.write import accelerator_of, observed_settings
from scalebook.logs.job import Job, in_words
from scalebook.measure.metrics import PRINTED, RunMetrics, measure
from scalebook.record import RunRecord, object_of
from scalebook.settings import PARALLEL_SIZES
from scalebook.store import Run

_NEEDED = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "vocab_size")
_FITS = 0.02
# Printed and recounted TFLOP/s that are closer than this agree.
AGREES = AGREEMENT / 2


def _told_shape(known: LogConfig) -> tuple[ModelShape | None, str | None]:
    """Return the shape that the argument dump describes, or why it does not describe one."""
    sizes = {name: known.size(name) for name in _NEEDED}
    missing = [in_words(name) for name, value in sizes.items() if value is None]
    if missing:
        return None, f"The log names no model and does not state {', '.join(missing)}."
    if known.values.get("multi_latent_attention") is True:
        return None, "The log mentions multi-latent attention: name the model with --model."
    if "swiglu" not in known.values:
        return None, "The log does not say whether the MLP is gated: name the model with --model."
    full = {name: value for name, value in sizes.items() if value is not None}
    heads = full["num_attention_heads"]
    grouped = known.values.get("group_query_attention") is True
    groups = known.size("num_query_groups") if grouped else heads
    return _build(full, heads, groups or heads, known), None


def _build(sizes: dict[str, int], heads: int, groups: int, known: LogConfig) -> ModelShape:
    experts = known.size("num_experts")
    moe = None
    if experts:
        moe = MoEShape(
            num_experts=experts,
            top_k=known.size("moe_router_topk") or 2,  # Megatron's default
            ffn_hidden_size=known.size("moe_ffn_hidden_size") or sizes["ffn_hidden_size"],
            shared_ffn_hidden_size=known.size("moe_shared_expert_intermediate_size") or 0,
        )
    return ModelShape(
        name="as the log states",
        num_layers=sizes["num_layers"],
        hidden_size=sizes["hidden_size"],
        ffn_hidden_size=sizes["ffn_hidden_size"],
        num_attention_heads=heads,
        num_query_groups=groups,
        head_dim=known.size("kv_channels") or sizes["hidden_size"] // heads,
        vocab_size=sizes["vocab_size"],
        gated_mlp=known.values["swiglu"] is True,
        tied_embeddings=known.values.get("untie_embeddings_and_output_weights") is not True,
        normalization="rms" if "rms" in str(known.values.get("normalization")).lower() else "layer",
        attention_bias="none",
        max_sequence_length=known.size("sequence_length") or 0,
        rope_theta=0.0,
        moe=moe,
        mtp_layers=known.size("mtp_layers") or 0,
        source="the argument dump of the log",
    )


def catalog_match(known: LogConfig) -> str | None:
    """Return the one catalog model that has every size that the log states, None without one."""
    printed = {name: known.size(name) for name in SHAPE_FIELDS}
    if any(printed[name] is None for name in SHAPE_FIELDS if name != "num_query_groups"):
        return None
    experts = known.size("num_experts")
    found = [
        shape.name
        for shape in catalog.models()
        if all(value in (None, getattr(shape, name)) for name, value in printed.items())
        and shape.num_experts == (experts or 0)
        and shape.mla is None
        and _vocabulary_fits(shape.vocab_size, known)
    ]
    return found[0] if len(found) == 1 else None


def _vocabulary_fits(rows: int, known: LogConfig) -> bool:
    """Whether the printed vocabulary, which a trainer pads, may be this one."""
    told = known.size("vocab_size")
    padding = 128 * (known.size("tensor_parallel_size") or 8)
    return told is None or rows <= told < rows + padding


def shape_of(known: LogConfig) -> tuple[ModelShape | None, str | None]:
    """Return the shape of the model that ran, or why it is not known."""
    name = known.values.get("model")
    if not isinstance(name, str):
        return _told_shape(known)
    layers = known.size("num_layers")
    shape = catalog.model(name)
    if layers is not None and layers != shape.num_layers:
        shape = catalog.model(f"{name.partition('@')[0]}@{layers}")
    return shape, None


def _tokens_per_gpu(job: Job, known: LogConfig) -> tuple[list[tuple[float, float]], str | None]:
    """Return pairs of (tokens/s of a GPU, TFLOP/s as printed or NaN), row by row."""
    batch, length = known.size("global_batch_size"), known.size("sequence_length")
    world = known.size("world_size")
    printed = job.table.column("tflops_per_gpu")
    if batch and length and world and job.table.has("seconds"):
        seconds = job.table.column("seconds")
        sizes = job.table.column("global_batch_size")
        each = length / world
        return [
            ((size if size > 0 else batch) * each / s, p)
            for s, p, size in zip(seconds, printed, sizes, strict=True)
            if s > 0
        ], None
    if job.table.has("tokens_per_second_per_gpu"):
        rates = job.table.column("tokens_per_second_per_gpu")
        return [(rate, p) for rate, p in zip(rates, printed, strict=True) if rate > 0], None
    needed = {"global batch size": batch, "sequence length": length, "world size": world}
    missing = [name for name, value in needed.items() if not value] or ["the step time"]
    return [], f"Tokens per second per GPU cannot be computed: {', '.join(missing)} not known."


def _printed(job: Job) -> list[float]:
    """Return the printed TFLOP/s of a GPU where nothing can be counted to compare them with."""
    if not job.table.has("tflops_per_gpu"):
        return []
    values = list(job.table.column("tflops_per_gpu"))
    return [value for value in (values[1:] if len(values) > 1 else values) if value > 0]


def recount(job: Job, known: LogConfig) -> dict[str, Any]:
    """Return TFLOP/s of a GPU by convention, what was printed, and the factor between them.

    Both are medians without the first record; the factor is taken row by row.
    """
    rows, reason = _tokens_per_gpu(job, known)
    shape, no_shape = shape_of(known)
    length, packed = known.size("sequence_length"), known.size("packed_documents") or 1
    rows = rows[1:] if len(rows) > 1 else rows
    printed = [tflops for _, tflops in rows if tflops > 0] or _printed(job)
    result: dict[str, Any] = {
        "logged": statistics.median(printed) if printed else None,
        "recounted": None,
        "logged_over_recounted": None,
        "convention_that_fits": None,
        "reason": reason or no_shape or (None if length else "The sequence length is not known."),
    }
    trained = known.values.get("trained", "all")
    if trained != "all":
        result["reason"] = f"Not all weights were trained, or it is unknown which ({trained})."
    if result["reason"] or shape is None or length is None or not rows:
        return result
    try:
        modules = known.size("mtp_layers") or 0
        counted = {
            name: flops.flops_per_token(shape, length / packed, name, mtp_layers=modules)
            for name in flops.CONVENTIONS
        }
    except (ScalebookError, OverflowError, ZeroDivisionError) as error:
        return result | {"reason": f"FLOPs cannot be counted: {error}"}
    rate = statistics.median(tokens for tokens, _ in rows)
    result["recounted"] = {name: rate * count / 1e12 for name, count in counted.items()}
    implied = [tflops * 1e12 / tokens for tokens, tflops in rows if tflops > 0]
    if implied:
        per_token = statistics.median(implied)
        result["logged_over_recounted"] = per_token / counted[flops.DEFAULT_CONVENTION]
        near = min(counted, key=lambda name: abs(per_token / counted[name] - 1))
        if abs(per_token / counted[near] - 1) <= _FITS:
            result["convention_that_fits"] = near
    return result


def disagreement(found: dict[str, Any]) -> list[str]:
    """Return a warning where the printed TFLOP/s are not ours."""
    factor, fits = found["logged_over_recounted"], found["convention_that_fits"]
    if factor is None or abs(factor - 1) <= AGREES:
        return []
    by = f"they are those of {fits}" if fits else "no known convention gives them"
    return [f"Printed TFLOP/s are {factor:.3f} times those of {flops.DEFAULT_CONVENTION}: {by}."]


def packing(known: LogConfig) -> list[str]:
    """Return what packed documents mean for rate and MFU; nothing where none are packed."""
    if known.values.get("packed_sequences") is not True:
        return []
    shape, reason = shape_of(known)
    length = known.size("sequence_length")
    much = f"how much is not known: {reason or 'the sequence length is missing'}"
    if shape is not None and length is not None:
        modules = known.size("mtp_layers") or 0
        most = flops.overstated_at_most(shape, length, mtp_layers=modules)
        much = f"at most {100 * most:.2g} %, for documents far shorter than {length:,} tokens"
    return [
        "Several documents are packed into a sample. FLOPs are counted as if each sample were one "
        "document. Where attention stays inside documents, TFLOP/s and MFU are overstated "
        f"({much}). Tokens per second include padding, if there is any."
    ]


_MEASURED = {  # of a run, by what a summary calls it
    "step_seconds_median_of_rate": "step_seconds_median",
    **{name: name for name in ("tokens_per_second", "tokens_per_second_per_gpu")},
    "rate_reason": "throughput_reason",
    **{name: name for name in ("mfu", "mfu_reason", "stalled_steps")},
    "tokens_per_second_with_stalls": "tokens_per_second_with_stalls",
}
_MOST_STEPS = 100_000  # more are counted when the run is listed
SIZES = (
    "world_size", *PARALLEL_SIZES, "data_parallel_size", "global_batch_size", "micro_batch_size",
    "sequence_length",
)  # fmt: skip


def numbers_of(job: Job, known: LogConfig) -> RunMetrics | None:
    """Return the numbers that the run of a job will have; None without steps or with too many."""
    if not 0 < len(job.table) <= _MOST_STEPS:
        return None
    device = accelerator_of(job, known)
    printed = {PRINTED: medians(job, known)[PRINTED]}
    record = RunRecord(
        run_id="ingested",
        config_hash=None,
        source="ingested",
        status=status_of(job)[0],
        observed=finite(observed_settings(known)),
        environment=finite({**({"accelerator": device} if device else {}), "ingest": printed}),
        window=known.window,
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
            "did not learn, so its speed means nothing."
        )
    if found.stalled_steps:
        rate = found.tokens_per_second_with_stalls
        said.append(
            f"Left out of the rate: {found.stalled_steps} of the records, which took three times "
            "the usual time, or longer behind a line about a profiler, a checkpoint, an evaluation "
            "or a compilation" + (f"; with them it is {rate:,.0f} tokens/s." if rate else ".")
        )
    return said


def _missing(job: Job, known: LogConfig, numbers: RunMetrics | None) -> list[str]:
    """Return the settings that nobody states and that the rate, or else MFU, needs."""
    averaged = numbers is not None and numbers.status in ("completed", "interrupted")
    if numbers is None or not averaged or numbers.mfu is not None:
        return []
    sizes = [] if numbers.tokens_per_second_per_gpu else ["world_size", "global_batch_size"]
    needed = (*sizes, "sequence_length", "model", "platform", "precision")
    said = {**observed_settings(known), "platform": accelerator_of(job, known)}
    return [name for name in needed if said.get(name) is None]


def _remarks(
    numbers: RunMetrics | None, missing: list[str], end: str | None, trace: dict[str, Any]
) -> list[str]:
    """Return why there is no MFU, how a completed job ended, and what a trace lacks."""
    no_mfu = numbers and numbers.tokens_per_second_per_gpu and not missing and numbers.mfu_reason
    said = (f"No MFU: {no_mfu}" if no_mfu else None, end, trace.get("reason"))
    return [one for one in said if one]


def summarise(job: Job, known: LogConfig, kind: str = "training") -> dict[str, Any]:
    """Return the summary of a job; None is what its log does not say."""
    if "model" not in known.values and (model := catalog_match(known)):
        known.put("model", model, "derived", "the one catalog model of these sizes")
    numbers = numbers_of(job, known)
    losses = job.table.values("loss") or [None]
    status, reason = status_of(job) if kind == "training" else (None, None)
    tflops = recount(job, known)
    notes = packing(known)
    trace = object_of(job.details.get("breakdown"))
    missing = _missing(job, known, numbers) if kind == "training" else []
    summary: dict[str, Any] = {
        "family": job.dialect,
        "status": status,
        "reason": reason,
        "n_records": len(job.table),
        "first_step": job.first_step,
        "last_step": job.reached or job.last_step,
        "log_interval": log_interval(job, known),
        **medians(job, known),
        **{name: numbers and getattr(numbers, of) for name, of in _MEASURED.items()},
        "void": numbers.reason if numbers and numbers.status == "void" else None,
        "missing": missing,
        "loss_first": losses[0],
        "loss_last": losses[-1],
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
            *_remarks(numbers, missing, reason if status == "completed" else None, trace),
            *notes,
        ],
        "notes": notes,
    }
    if len(job.samples):
        summary["telemetry"] = telemetry_summary(job.samples)
    if trace:
        summary["trace"] = trace
    return finite(summary)
