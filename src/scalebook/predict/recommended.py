"""What is known of training a model on a number of GPUs: published, measured, predicted rates.

The three kinds are answers to different questions, so each has its own ranking: a published rate
is of its publisher's engine and machine, a measured one of a run at hand, and a predicted one of
Scalebook's trainer where nobody ran it. Each row says under which conditions it holds and in what
they differ from what was asked.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from scalebook import identity, store
from scalebook.config import RunConfig
from scalebook.facts import catalog
from scalebook.facts.catalog.results import PublishedResult
from scalebook.facts.feasibility.known import config_of
from scalebook.facts.flops import published_rate
from scalebook.measure.metrics_cache import ListedRun, listed
from scalebook.measure.row import RunMetrics
from scalebook.plan.defaults import given
from scalebook.predict import folders
from scalebook.predict.model import Basis, Predictor
from scalebook.predict.search import layouts
from scalebook.project import short
from scalebook.settings import SETTINGS, names, option

Evidence = Literal["published", "measured", "predicted"]
ORDER = "Rows with the fewest differences from the question come first, then the fastest."


@dataclass(frozen=True, slots=True)
class Recommended:
    """A known rate (tokens/s per GPU) and its conditions; None where its source says nothing."""

    kind: Evidence
    rank: int  # among rows of the same kind; 0 before they are ranked
    tokens_per_second_per_gpu: float
    low: float | None
    high: float | None
    interval: str | None  # how often the truth is expected between low and high
    precision: str | None
    sequence_length: int | None
    world_size: int | None
    global_batch_size: int | None
    layout: str
    software: str | None
    source: str
    url: str | None
    date: str | None
    differs: tuple[str, ...]  # from the question
    notes: tuple[str, ...] = ()
    command: str | None = None  # that shows a prediction in detail


@dataclass(frozen=True, slots=True)
class Recommendations:
    """The rows of one kind in their order, what was left out by reason, and what to know of both.

    Without rows ``said`` is the reason.
    """

    kind: Evidence
    rows: tuple[Recommended, ...]
    left_out: Mapping[str, int]
    said: str


def recommend(
    asked: RunConfig, made: Predictor, runs: Path, most: int
) -> tuple[Recommendations, ...]:
    """Return the best published, measured and predicted rates, at most ``most`` of each kind."""
    return published(asked, most), measured(asked, runs, most), predicted(asked, made, most)


def published(asked: RunConfig, most: int) -> Recommendations:
    """Return the fastest published results of the model on the platform's device."""
    device = catalog.platform(asked.platform).accelerator
    here = [
        row for row in catalog.published() if (row.model, row.accelerator) == (asked.model, device)
    ]
    left_out: Counter[str] = Counter()
    rows: list[Recommended] = []
    for row in here:
        rate, note = published_rate(row)
        if rate is None:
            left_out[note] += 1
        else:
            rows.append(_published_row(asked, row, rate, note))
    kept = _ranked(rows, left_out, most)
    said = f"{ORDER} Their sources state no intervals."
    said = said if kept else nobody_published(asked.model, device)
    return Recommendations("published", kept, left_out, said)


def _published_row(asked: RunConfig, row: PublishedResult, rate: float, note: str) -> Recommended:
    sizes = [
        f"{SETTINGS[name].short}{size}"
        for name in names("layout")
        if SETTINGS[name].short and (size := getattr(row, name, None)) is not None and size > 1
    ]
    sizes += [f"DP{row.data_parallel_size}"] if row.data_parallel_size else []
    sizes += [f"FSDP{row.fully_sharded_size}"] if row.fully_sharded_size else []
    parts = [" ".join(sizes)] if sizes else []
    parts += [f"micro batch {row.micro_batch_size}"] if row.micro_batch_size else []
    sure = [] if row.confidence == "high" else [f"{row.confidence} confidence"]
    notes = (note, *sure, row.caveat or "")
    return Recommended(
        "published", 0, rate, None, None, None, row.precision, row.sequence_length,
        row.world_size, row.global_batch_size, ", ".join(parts) or "not stated", row.framework,
        f"{row.source} (row {row.id})", row.url, row.date,
        _differences(asked, row.precision, row.sequence_length, row.world_size),
        tuple(filter(None, notes)),
    )  # fmt: skip


def nobody_published(model: str, device: str | None) -> str:
    """Return that the catalog has no rate of a model on a device, and on which it has others."""
    whole = model.partition("@")[0]
    others = Counter(
        row.accelerator or row.hardware or "unknown"
        for row in catalog.published()
        if row.model == whole and published_rate(row)[0] is not None
    )
    counts = ", ".join(f"{name} ({n})" for name, n in others.most_common())
    more = f" It has some of {whole} on {counts}: see 'scalebook published --model {whole}'."
    none = f"The catalog has no published rate of pretraining {model} on {device or 'a CPU'}."
    return none + (more if others else "")


def measured(asked: RunConfig, runs: Path, most: int) -> Recommendations:
    """Return the fastest runs of the model on the platform's device, one per configuration."""
    left_out: Counter[str] = Counter()
    rows: list[Recommended] = []
    found = 0
    for folder in folders(runs):
        for one in listed(folder, None):
            found += 1
            why = "cannot be measured" if isinstance(one, str) else _unlike(asked, one.metrics)
            if why is not None or isinstance(one, str):
                left_out[why or ""] += 1
                continue
            rows.append(_measured_row(asked, one, folder / one.metrics.run_id))
    kept = _ranked(rows, left_out, most)
    said = ORDER
    if not kept:
        where = " and ".join(str(short(folder)) for folder in folders(runs)) or str(runs)
        said = f"None of {found:,} runs in {where} has a rate of {asked.model} on this device."
    return Recommendations("measured", tuple(map(_of_record, kept)), left_out, said)


def _unlike(asked: RunConfig, item: RunMetrics) -> str | None:
    """Return why a run says nothing about the question, None where it does."""
    if item.source not in ("measured", "ingested"):
        return f"{item.source}, not measured"
    if item.model != asked.model:
        depth = (item.model or "").partition("@")[0] == asked.model.partition("@")[0]
        return f"{item.model}: another number of layers" if depth else "another model"
    device = catalog.accelerator_for_device(item.accelerator or "")
    name = device.name if device else None
    wanted = catalog.platform(asked.platform)
    if name != wanted.accelerator or (name is None and item.platform != wanted.name):
        return f"another device: {name or item.accelerator or item.platform or 'unknown'}"
    return "without a rate" if item.tokens_per_second_per_gpu is None else None


def _measured_row(asked: RunConfig, one: ListedRun, directory: Path) -> Recommended:
    item = one.metrics
    rate, world = item.tokens_per_second_per_gpu or 0.0, item.world_size
    low, high = (
        end / world if end is not None and world else None
        for end in (item.tokens_per_second_low, item.tokens_per_second_high)
    )
    differs = _differences(asked, item.precision, item.sequence_length, world)
    if item.source == "ingested":
        differs = (*differs, "trainer: an imported log")
    repeats = f"{item.repeats} repeats" if item.repeats > 1 else ""
    notes = (repeats, item.interval_reason or "" if low is None else "")
    return Recommended(
        "measured", 0, rate, low, high, None if low is None else "95 %", item.precision,
        item.sequence_length, world, item.global_batch_size, "", None, str(short(directory)),
        None, None, differs, tuple(filter(None, notes)),
    )  # fmt: skip


def _of_record(row: Recommended) -> Recommended:
    """Return a measured row with what only the record of its run says."""
    record = store.read_run(Path(row.source)).record
    config = config_of(record)
    stood_on = identity.software(record) | {"engine": record.setting("engine")}
    stated = [
        f"{name.replace('_', '-')} {value}"
        for name, value in stood_on.items()
        if value is not None and name != "layer_spec"
    ]
    return replace(
        row,
        layout=config.words() if config else "not stated in full",
        software=", ".join(stated) or None,
        date=(record.started_at or "")[:10] or None,
    )


def predicted(asked: RunConfig, made: Predictor, most: int) -> Recommendations:
    """Return the first layouts of Scalebook's trainer in the order of a search."""
    ranking = layouts(asked, made)
    rows = tuple(
        Recommended(
            "predicted", rank, found.tokens_per_second_per_gpu, found.low, found.high, "90 %",
            one.config.precision, one.config.sequence_length, one.config.world_size,
            one.config.global_batch_size, one.config.words(), "Scalebook's trainer",
            _basis(found.basis), None, None, (), found.warnings, _command(one.config),
        )
        for rank, one in enumerate(ranking.candidates[:most], start=1)
        for found in (one.prediction,)
    )  # fmt: skip
    left_out = {reason.replace("_", " "): n for reason, n in ranking.left_out.items()}
    if not rows:
        said = f"{asked.model} on {asked.world_size} x {asked.platform}: {ranking.nothing_fits}."
        return Recommendations("predicted", rows, left_out, said)
    beyond = len(ranking.candidates) - len(rows)
    why = "slower by prediction, may not fit, or rest on an assumption"
    left_out |= {why: beyond} if beyond else {}
    said = f"{len(ranking.contenders)} of {len(ranking.candidates)} layouts may be the fastest."
    said += f" For ranking only: {ranking.refused}" if ranking.refused else ""
    return Recommendations("predicted", rows, left_out, said)


def _command(config: RunConfig) -> str:
    """Return the command line that predicts this very configuration."""
    values = given(config) | {"global_batch_size": config.global_batch_size}
    words = (word for name, value in values.items() for word in option(name, value))
    return shlex.join(("scalebook", "predict", *words))


def _basis(basis: Basis) -> str:
    """Return what predictions rest on."""
    if basis.runs:
        return f"fit to {basis.runs} runs in {' and '.join(basis.folders)}"
    return f"probe {basis.probe}" if basis.probe else "the catalog only: no run, no probe"


def _differences(
    asked: RunConfig, precision: str | None, length: int | None, world: int | None
) -> tuple[str, ...]:
    """Return in which conditions a rate is of something else than what was asked."""
    found: list[str] = []
    if precision is None or not _same_precision(asked.precision, precision):
        found.append(f"precision {precision or 'not stated'}")
    for name, value, wanted in (
        ("sequence", length, asked.sequence_length), ("GPUs", world, asked.world_size)
    ):  # fmt: skip
        if value != wanted:
            found.append(f"{name} {'not stated' if value is None else f'{value:,}'}")
    return tuple(found)


def _same_precision(asked: str, stated: str) -> bool:
    """Return whether a source's words name the precision: MXFP8 is fp8, BF16/INT8 is not bf16."""
    text = stated.lower()
    widths = [width for width in ("int8", "fp8", "fp4") if width in text]
    return asked in text and widths in ([], [asked])


def _ranked(
    rows: Sequence[Recommended], left_out: Counter[str], most: int
) -> tuple[Recommended, ...]:
    """Return the fastest row of each set of conditions in order, and count those left out."""
    ordered = sorted(rows, key=lambda row: (len(row.differs), -row.tokens_per_second_per_gpu))
    best: dict[tuple[object, ...], Recommended] = {}
    for row in ordered:
        conditions = (row.precision, row.sequence_length, row.world_size)
        best.setdefault(conditions, row)
    kept = tuple(best.values())[:most]
    for reason, number in (
        ("slower under the same conditions", len(rows) - len(best)),
        ("differs more from the question, or slower", len(best) - len(kept)),
    ):
        if number:
            left_out[reason] += number
    return tuple(replace(row, rank=rank) for rank, row in enumerate(kept, start=1))
