"""Training results that others published, one row each with its source."""

from __future__ import annotations

import csv
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib.resources import files

from scalebook.facts.catalog.rows import TomlRow

FILE = "published.csv"
TASKS = ("pretrain", "SFT", "LoRA")
_WIDTHS = {"FP4": "4 bit", "FP8": "8 bit", "INT8": "8 bit", "P32": "32 bit", "F32": "32 bit"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedResult:
    """What a source states of one run; None where it says nothing.

    ``hardware``, ``model_label`` and ``precision`` are the source's words; ``accelerator`` and
    ``model`` are catalog names, the SXM or OAM part where the source says no more.
    """

    id: str
    source: str
    url: str | None
    date: str | None
    evidence: str | None
    hardware: str | None
    accelerator: str | None
    world_size: int | None
    nodes: int | None
    framework: str | None
    model_label: str | None
    model: str | None
    task: str = "pretrain"
    sequence_length: int | None
    global_batch_size: int | None
    micro_batch_size: int | None
    tensor_parallel_size: int | None
    pipeline_parallel_size: int | None
    context_parallel_size: int | None
    data_parallel_size: int | None
    expert_parallel_size: int | None
    virtual_pipeline_parallel_size: int | None
    fully_sharded_size: int | None  # ranks of FSDP; 0 where it is stated to be off
    precision: str | None
    tokens_per_second_per_gpu: float | None
    tokens_per_second: float | None
    claimed_tflops_per_second_per_gpu: float | None
    claimed_mfu: float | None  # a fraction, by the source's own convention and peak
    flops_convention: str | None  # a name of flops.CONVENTIONS; None: unknown or another
    step_seconds: float | None
    minutes_to_train: float | None
    mtp_layers: int = 0  # multi-token prediction modules that the claim counts
    confidence: str = "high"
    caveat: str | None


def number_width(precision: str | None) -> str:
    """Return the width of the narrowest numbers that a precision names: 16 bit, 8 bit, 4 bit."""
    words = (precision or "").upper()
    usual = "16 bit" if words else "?"
    return next((width for mark, width in _WIDTHS.items() if mark in words), usual)


# How a CSV cell is read; the getters of TomlRow check it.
_KINDS = {"int": int, "float": float}
_READ = {one.name: _KINDS.get(str(one.type).split()[0], str) for one in fields(PublishedResult)}


def published(row: TomlRow) -> PublishedResult:
    value = row.built(PublishedResult)
    if value.task not in TASKS:
        raise row.error(f"task={value.task!r} must be one of {', '.join(TASKS)}.", "task")
    return value


@lru_cache(maxsize=1)
def package_rows() -> tuple[TomlRow, ...]:
    """Return the rows of the package's file; an empty cell is an absent key."""
    text = files("scalebook.facts.catalog").joinpath(FILE).read_text(encoding="utf-8")
    rows: list[TomlRow] = []
    for line, cells in enumerate(csv.DictReader(text.splitlines()), start=2):
        values = {name: _READ.get(name, str)(cell) for name, cell in cells.items() if cell != ""}
        rows.append(TomlRow("published", values, f"catalog/{FILE}", line))
    return tuple(rows)
