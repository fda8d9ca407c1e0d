"""Run directories -> the two data frames that every table, chart and sentence is made from."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import polars as pl

from scalebook import identity, settings
from scalebook.errors import RecordError, ReportError
from scalebook.facts.feasibility import feasibility
from scalebook.facts.feasibility.cells import Cell
from scalebook.facts.feasibility.predicted import Predicted, predictions
from scalebook.measure.diagnosis import Diagnosis
from scalebook.measure.measured import Measured, measured
from scalebook.measure.metrics.repeats import with_repeats
from scalebook.measure.metrics.step_anatomy import RunAnatomy
from scalebook.measure.row import RunMetrics
from scalebook.record import RunRecord
from scalebook.report.base.against import Against
from scalebook.report.base.naming import WORK, group_name, split_name, with_labels
from scalebook.settings import SETTINGS
from scalebook.step_columns import Steps
from scalebook.store import (
    Run,
    read_object,
    read_record,
    read_runs,
    run_directories,
    without_record,
)

Type = type[pl.DataType]
_TYPES: Mapping[str, Type] = {"str": pl.String, "int": pl.Int64, "float": pl.Float64,
                              "bool": pl.Boolean}  # fmt: skip


def _column_type(annotation: str) -> Type:
    """Return the column of a field of RunMetrics; a value of several parts is one text of JSON."""
    return _TYPES.get(annotation.partition(" ")[0], pl.String)


def _setting_type(name: str) -> Type:
    row = SETTINGS[name]
    return pl.Boolean if row.yes_no else pl.String if row.minimum is None else pl.Int64


# Settings of a record that tell runs apart in addition to those of RunMetrics.
RUN_SETTINGS = tuple(
    name
    for name in (*settings.names("layout"), "recompute")
    if name not in RunMetrics.__dataclass_fields__
)
# The columns of the run frame: fields of RunMetrics, settings of the record, names.
_NAMES = (
    "started_at", "name", "label", "configuration_name", "configuration", "split", "group", "setup",
    "rate_unit", "folder",
)  # fmt: skip
SOURCES = ".sources.json"  # of merged folders: by name of a run's directory, where it came from
SCHEMA: dict[str, Type] = {
    **{one.name: _column_type(str(one.type)) for one in fields(RunMetrics)},
    **{name: _setting_type(name) for name in RUN_SETTINGS},
    **dict.fromkeys(_NAMES, pl.String),
    "recorded_steps": pl.Int64,
    **dict.fromkeys(("rate", "rate_low", "rate_high"), pl.Float64),
}
# A model cut to its first layers (``llama3.1-8b@8``): fast because they are few.
PROXY = pl.col("model").str.contains("@", literal=True).fill_null(value=False)
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

# One row per cell of a feasibility map. ``run_ids`` are the runs that a measured cell shows, or the
# one that an inferred cell follows from.
FEASIBILITY_SCHEMA: dict[str, Type | pl.DataType] = {
    **{one.name: _column_type(str(one.type)) for one in fields(Cell)},
    "run_ids": pl.List(pl.String),
}


def cast(name: str, value: Any) -> tuple[Any, str | None]:
    """Return a value of the column's type; None and a sentence where it has another."""
    convert = _CASTS[SCHEMA[name]]
    if value is None:
        return None, None
    result = convert(value)
    return result, None if result is not None else f"{name}={value!r} is not usable"


def _as_text(value: Any) -> str | None:
    if isinstance(value, dict | tuple):
        return json.dumps(value)
    return value if isinstance(value, str) else None


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and abs(value) < 2**63 else None


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _boolean(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


_CASTS: Mapping[type[pl.DataType], Callable[[Any], Any]] = {
    pl.Boolean: _boolean,
    pl.String: _as_text,
    pl.Int64: _integer,
    pl.Float64: _float,
}


def entries(folder: Path) -> dict[str, str]:
    """Return a fingerprint of each file and directory in a folder, by its name.

    That of a directory covers every file below it. Names that begin with a dot are left out: runs
    that are being written, and what editors and file systems leave.
    """
    with os.scandir(folder) as found:
        shown = [entry for entry in found if not entry.name.startswith(".")]
    return {entry.name: _digest(entry) for entry in sorted(shown, key=lambda one: one.name)}


def together(parts: dict[str, str]) -> str:
    """Return one fingerprint of all that ``entries`` found."""
    return hashlib.sha256(repr(sorted(parts.items())).encode()).hexdigest()


def _digest(entry: os.DirEntry[str]) -> str:
    found = sorted(_files(entry, "", frozenset()), key=repr)
    return hashlib.sha256(repr(found).encode()).hexdigest()


def _files(
    entry: os.DirEntry[str], name: str, above: frozenset[tuple[int, int]]
) -> Iterator[tuple[object, ...]]:
    """Yield name, size, times of change and number of each file at or below an entry.

    Links are followed, but not back to a folder above. The time of the last change of status is
    set by the system alone: a file that was replaced by one of the same size and date shows there.
    """
    try:
        about = entry.stat()
        if not entry.is_dir():
            yield name, about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino
            return
        with os.scandir(entry.path) as found:
            inside = list(found)
    except OSError:
        yield name, "cannot be read"
        return
    yield name, "folder"
    here = (about.st_dev, about.st_ino)
    if here not in above:
        for one in inside:
            yield from _files(one, f"{name}/{one.name}", above | {here})


def records(data: ReportData) -> dict[str, RunRecord]:
    """Return the record of each run of the run frame by run id, in the order of the frame."""
    wanted: list[str] = data.runs["run_id"].to_list()
    found: dict[str, RunRecord] = {}
    for directory in run_directories(data.folder):
        try:
            record = read_record(directory)
        except RecordError:
            continue  # said among the problems of the report
        found.setdefault(record.run_id, record)
    return {run_id: found[run_id] for run_id in wanted if run_id in found}


@dataclass(frozen=True, slots=True)
class ReportData:
    """Everything that a page is a function of."""

    folder: Path
    runs: pl.DataFrame  # one row per run, columns of SCHEMA
    steps: pl.DataFrame  # one row per step, columns of STEP_SCHEMA
    log_tails: Mapping[str, tuple[str, ...]]  # by run id
    notes: Mapping[str, tuple[str, ...]]  # by run id: what a record says beside its numbers
    problems: tuple[str, ...]  # directories and lines that could not be read, in words
    # by run id: what ingest found in the log of an ingested run, as its record holds it
    ingests: Mapping[str, Any] = field(default_factory=dict[str, Any])
    # by run id: sentences about what ran otherwise than asked for
    differences: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    # a row a cell of the feasibility maps, columns of FEASIBILITY_SCHEMA
    feasibility: pl.DataFrame = field(default_factory=lambda: feasibility_frame(()))
    # by run id: where the steps of a run spend their time, as far as it tells
    anatomies: Mapping[str, RunAnatomy] = field(default_factory=dict[str, RunAnatomy])
    # by run id: what memory prediction says of a run
    predictions: Mapping[str, Predicted] = field(default_factory=dict[str, Predicted])
    # by run id: the numbers of each run alone, its repeats not counted
    metrics: Mapping[str, RunMetrics] = field(default_factory=dict[str, RunMetrics])
    # by run id: what explains the speed of a run that has a throughput
    diagnoses: Mapping[str, Diagnosis] = field(default_factory=dict[str, Diagnosis])
    # what changed since an older folder of runs, where the report was asked for it
    against: Against | None = None

    @property
    def completed(self) -> pl.DataFrame:
        """The runs that have a throughput: completed, or ingested from a log that just stops."""
        return self.runs.filter(pl.col("tokens_per_second").is_not_null())

    def with_work(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield rows about runs with the columns of the run frame that say what each run is."""
        names = ("run_id", "label", "name", "status", "source", "world_size", *WORK)
        runs = {row["run_id"]: row for row in self.runs.select(names).iter_rows(named=True)}
        for row in rows:
            yield {**runs.get(row["run_id"], {}), **row}

    @property
    def ranked(self) -> pl.DataFrame:
        """The completed runs of which enough is known to set them against others."""
        return self.completed.filter(pl.all_horizontal(pl.col(*WORK).is_not_null()))

    @property
    def measured_steps(self) -> pl.DataFrame:
        """The steps that count: start-up, warm-up and profiled ones are left out."""
        return self.steps.filter(pl.col("phase") == "measured")

    @property
    def unfinished(self) -> pl.DataFrame:
        """The runs that did not complete; a void one did, with numbers that cannot be true."""
        return self.runs.filter(~pl.col("status").is_in(("completed", "void")))


# The data of the build that is going on: all its pages are of one moment.
HELD: ContextVar[ReportData | None] = ContextVar("HELD", default=None)


Measure = Callable[[Sequence[Run]], Sequence[Measured | str]]


def each(runs: Sequence[Run]) -> Sequence[Measured | str]:
    """Return the numbers of each run, or why it has none."""
    return [measured(run) for run in runs]


def load(folder: str | Path) -> ReportData:
    """Return the data of every run under a folder, read again only when a file has changed.

    Raises:
        ReportError: the folder is missing or holds no run at all.
    """
    path = Path(folder)
    if (held := HELD.get()) and path.resolve() == held.folder:
        return held
    if not path.is_dir():
        raise ReportError(f"{path} is not a folder. Give the folder of runs with --runs.")
    return _load(path.resolve(), together(entries(path)))


@lru_cache(maxsize=1)
def _load(folder: Path, fingerprint: str) -> ReportData:
    return read(folder)


def read(folder: Path, measure: Measure = each) -> ReportData:
    """Return the data of every run under a folder; ``measure`` may know the numbers of some.

    Raises:
        ReportError: the folder holds no run at all.
    """
    runs, problems = read_runs(folder)
    problems = (*problems, *without_record(folder))
    if not runs and not problems:
        raise ReportError(
            f"{folder} contains no run. 'make run' trains some; 'make demo' shows the example runs."
        )
    return collect(folder, runs, problems, measure)


def collect(
    folder: Path, runs: Sequence[Run], problems: Iterable[str], measure: Measure = each
) -> ReportData:
    """Return the data of these runs; a run that can't be measured becomes a problem."""
    found: list[str] = list(problems)
    unique: dict[str, Run] = {}
    for run in runs:
        run_id = run.record.run_id
        found += [f"{run.path}: {problem}" for problem in run.problems]
        if run_id in unique:
            found.append(f"{run.path} repeats run {run_id} of {unique[run_id].path}: not shown")
        else:
            unique[run_id] = run
    results = dict(zip(unique, measure(list(unique.values())), strict=True))
    told = {run_id: one for run_id, one in results.items() if not isinstance(one, str)}
    kept = {run_id: unique[run_id] for run_id in told}
    found += [
        f"{unique[run_id].path} cannot be measured: {one}"
        for run_id, one in results.items()
        if isinstance(one, str)
    ]
    pairs = ((kept[run_id].record, one.metrics) for run_id, one in told.items())
    rows = map(_row, kept.values(), with_repeats(pairs))
    frame, bad_values = run_frame(rows)
    records = {run_id: run.record for run_id, run in kept.items()}
    # a report may travel: it names run directories, not where they lay
    shown = (problem.replace(f"{folder}/", "") for problem in (*found, *bad_values))
    return ReportData(
        folder,
        with_labels(in_order(frame), records),
        step_frame(kept.values()),
        {run_id: record.log_tail for run_id, record in records.items()},
        {run_id: record.notes for run_id, record in records.items() if record.notes},
        tuple(shown),
        {
            run_id: record.environment.get("ingest")
            for run_id, record in records.items()
            if record.source == "ingested"
        },
        differences={run_id: one.differences for run_id, one in told.items() if one.differences},
        feasibility=feasibility_frame(kept.values()),
        anatomies={run_id: one.anatomy for run_id, one in told.items()},
        predictions=predictions(kept.values()),
        metrics={run_id: one.metrics for run_id, one in told.items()},
        diagnoses={run_id: one.diagnosis for run_id, one in told.items() if one.diagnosis},
    )


def run_frame(rows: Iterable[Mapping[str, Any]]) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return one row per run, and a sentence for each value that is not of its column's type."""
    clean: list[dict[str, Any]] = []
    problems: list[str] = []
    for row in rows:
        values: dict[str, Any] = {}
        for name in SCHEMA:
            values[name], problem = cast(name, row.get(name))
            problems += [f"Run {row['run_id']}: {problem}"] if problem else []
        names = {"split": split_name, "group": group_name}
        clean.append(values | {name: write(values) for name, write in names.items()})
    return with_rates(pl.DataFrame(clean, schema=SCHEMA)), tuple(problems)


def with_rates(runs: pl.DataFrame) -> pl.DataFrame:
    """Return the runs with the rate that they are ranked by, its interval and its unit.

    That is tokens per second per GPU; on a CPU the total, because processes share its cores.
    """
    on_cpu = pl.col("platform") == "cpu"
    ranks = pl.when(on_cpu).then(1).otherwise(pl.col("world_size"))
    rate = pl.when(on_cpu).then("tokens_per_second").otherwise("tokens_per_second_per_gpu")
    unit = pl.when(on_cpu).then(pl.lit("tokens/s")).otherwise(pl.lit("tokens/s per GPU"))
    return runs.with_columns(
        rate=rate,
        rate_low=pl.col("tokens_per_second_low") / ranks,
        rate_high=pl.col("tokens_per_second_high") / ranks,
        rate_unit=unit,
    )


def in_order(runs: pl.DataFrame) -> pl.DataFrame:
    """Return the runs in the order of every table.

    Own measurements come first, accelerators before CPUs and whole models before the first layers
    of one; in a group the fastest per GPU is first and a run without a number last.
    """
    return runs.sort(
        pl.col("source") != "measured",
        pl.col("platform") == "cpu",
        PROXY,
        "group",
        -pl.col("rate"),
        "run_id",
        nulls_last=True,
    )


def _row(run: Run, item: RunMetrics) -> dict[str, Any]:
    """Return the metrics of a run and the settings of its record that tell runs apart."""
    record = run.record
    settings = {name: record.setting(name) for name in RUN_SETTINGS}
    more = {"started_at": record.started_at, "recorded_steps": len(run.steps)}
    more |= {"folder": _source(run.path)}
    keys = {"configuration": identity.repeat(record), "setup": identity.series(record)}
    return asdict(item) | settings | more | keys


def _source(path: Path) -> str:
    """Return the folder that a run came from, by name: a report may travel."""
    label = read_object(path.parent / SOURCES).get(path.name)
    return label if isinstance(label, str) else path.parent.name


def step_frame(runs: Iterable[Run]) -> pl.DataFrame:
    """Return one row per step of all runs; a number that is missing is null."""
    frames: list[pl.DataFrame] = [pl.DataFrame(schema=STEP_SCHEMA)]
    for run in runs:
        steps = Steps.of(run.steps)
        columns: dict[str, Any] = {"run_id": [run.record.run_id] * len(steps)}
        for name, kind in list(STEP_SCHEMA.items())[1:]:
            if name == "phase":
                columns[name] = list(steps.phases())
            else:
                numbers = pl.Series(name, steps.numbers(name), pl.Float64).fill_nan(None)
                columns[name] = numbers.cast(kind)
        frames.append(pl.DataFrame(columns, schema=STEP_SCHEMA))
    return pl.concat(frames)


def feasibility_frame(runs: Iterable[Run]) -> pl.DataFrame:
    """Return a row a cell of the feasibility maps of these runs, map after map."""
    cells = (asdict(cell) for cell in feasibility(runs))
    return pl.DataFrame(list(cells), schema=FEASIBILITY_SCHEMA)
