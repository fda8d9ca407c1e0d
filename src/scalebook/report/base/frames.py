"""Run directories -> the two data frames that every table, chart and sentence is made from."""

from __future__ import annotations

import json
import sys
import typing
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from functools import lru_cache
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

import polars as pl

from scalebook import identity
from scalebook.config import RunConfig
from scalebook.errors import CatalogError, ConfigError, RecordError, ReportError
from scalebook.facts import catalog
from scalebook.facts.feasibility import feasibility
from scalebook.facts.feasibility.known import Cell, Predicted, predictions
from scalebook.measure import registered
from scalebook.measure.diagnosis import Diagnosis, Measured, measured
from scalebook.measure.metrics.repeats import with_repeats
from scalebook.measure.metrics.step_anatomy import RunAnatomy
from scalebook.measure.row import RunMetrics
from scalebook.measure.telemetry import read as read_telemetry
from scalebook.record import RunRecord
from scalebook.report.base.against import Against
from scalebook.report.base.naming import TITLES, WORK, group_name, split_name, with_labels
from scalebook.settings import SETTINGS
from scalebook.step_columns import Steps
from scalebook.store import (
    Run,
    entries,
    read_object,
    read_record,
    read_runs,
    run_directories,
    together,
    without_record,
)

Type = type[pl.DataType] | pl.DataType
_TYPES: Mapping[str, Type] = {"str": pl.String, "int": pl.Int64, "float": pl.Float64,
                              "bool": pl.Boolean}  # fmt: skip
MOMENT = pl.Datetime("us", "UTC")


def _column_type(annotation: str) -> Type:
    """Return the column of a field of RunMetrics; a value of several parts is one text of JSON."""
    return _TYPES.get(annotation.partition(" ")[0], pl.String)


def for_charts(frame: pl.DataFrame) -> pl.DataFrame:
    """Return rows as charts show them: with makers' names."""
    named = [name for name in TITLES if frame.schema.get(name) == pl.String]
    return frame.with_columns(
        pl.col(name).replace({one: TITLES[name](one) for one in frame[name].drop_nulls().unique()})
        for name in named
    )


def _registered(metrics: Iterable[registered.Metric]) -> dict[str, Type]:
    """Return two columns for each metric: its value, and why there is none."""
    return {
        name: kind
        for one in metrics
        for name, kind in ((one.name, _TYPES[one.dtype]), (one.reason_name, pl.String))
    }


# Settings in addition to those of RunMetrics.
RUN_SETTINGS = tuple(name for name in SETTINGS if name not in RunMetrics.__dataclass_fields__)
# The versions that a run stood on, by their names in the environment of its record.
VERSIONS = (
    "scalebook", "git_commit", "python", "torch", "cuda", "rocm", "nccl", "rccl", "megatron_core",
    "transformer_engine", "driver",
)  # fmt: skip
_NAMES = (
    "name", "label", "configuration_name", "configuration", "split", "group", "setup", "rate_unit",
    "folder", "config_hash", "inferred_from", "container",
)  # fmt: skip
SOURCES = ".sources.json"  # of merged folders: by name of a run's directory, where it came from
# The columns of the run frame; those of a user's own metrics are added to it (``run_schema``).
SCHEMA: dict[str, Type] = {
    **{
        one.name: _column_type(str(one.type))
        for one in fields(RunMetrics)
        if one.name != "registered"
    },
    **_registered(registered.BUILT_IN),
    **{
        name: _TYPES.get(
            getattr(RunConfig.model_fields[name].annotation, "__name__", ""), pl.String
        )
        for name in RUN_SETTINGS
    },
    **dict.fromkeys(("started_at", "finished_at"), MOMENT),
    **dict.fromkeys((*_NAMES, *VERSIONS), pl.String),
    **dict.fromkeys(("recorded_steps", "exit_code"), pl.Int64),
    **dict.fromkeys(("rate", "rate_low", "rate_high"), pl.Float64),
}
# A model cut to its first layers (``llama3.1-8b@8``): fast because they are few.
PROXY = pl.col("model").str.contains("@", literal=True).fill_null(value=False)
STEP_SCHEMA: dict[str, Type] = {
    "run_id": pl.String,
    "step": pl.Int64,
    "phase": pl.String,
    "step_seconds": pl.Float64,
    "tokens": pl.Int64,
    "tokens_per_gpu": pl.Int64,
    "loss": pl.Float64,
    "grad_norm": pl.Float64,
    "learning_rate": pl.Float64,
    "allocated_gib": pl.Float64,
    "reserved_gib": pl.Float64,
    "expert_load": pl.Float64,
    "checkpoint_seconds": pl.Float64,
    "restart": pl.Int64,
    "skipped": pl.Boolean,
    "finished_at": MOMENT,
    "rank_step_seconds": pl.List(pl.Float64),
    "part_seconds": pl.List(pl.Struct({"part": pl.String, "seconds": pl.Float64})),
}
_READINGS = (
    "power_watts", "energy_joules", "temperature_celsius", "gpu_busy_fraction",
    "memory_busy_fraction", "tensor_active_fraction", "memory_used_gib", "clock_mhz",
    "memory_clock_mhz",
)  # fmt: skip
TELEMETRY_SCHEMA: dict[str, Type] = {
    "run_id": pl.String,
    "device": pl.String,
    "time": MOMENT,
    **dict.fromkeys(_READINGS, pl.Float64),
    "throttle_reasons": pl.String,
    "kept_of": pl.Int64,
}
_TOGETHER = 50  # runs in one table
MOST_READINGS = 2000  # of a run, all its devices together

# One row per cell of a feasibility map. ``run_ids`` are the runs that a measured cell shows, or the
# one that an inferred cell follows from.
FEASIBILITY_SCHEMA: dict[str, Type | pl.DataType] = {
    **{one.name: _column_type(str(one.type)) for one in fields(Cell)},
    "run_ids": pl.List(pl.String),
}


def run_schema() -> dict[str, Type]:
    """Return the columns of the run frame, with those of a user's own metrics.

    Raises:
        ConfigError: a metric of the user's is malformed or has the name of another column.
    """
    added = _registered(registered.own())
    for name in added.keys() & SCHEMA.keys():
        raise ConfigError(f"The data files have a column {name!r}. Rename the metric.")
    return SCHEMA | added


def cast(name: str, value: Any, kind: Type) -> tuple[Any, str | None]:
    """Return a value of the column's type; None and a sentence where it has another."""
    convert = _CASTS[kind]
    if value is None:
        return None, None
    result = convert(value)
    return result, None if result is not None else f"{name}={value!r} is not usable"


def _as_text(value: Any) -> str | None:
    if isinstance(value, dict | tuple):
        return json.dumps(value)
    return value if isinstance(value, str) else None


def _float(value: Any) -> float | None:
    fits = isinstance(value, int | float) and abs(value) <= sys.float_info.max  # false for NaN
    return float(value) if fits else None


def _moment(value: Any) -> datetime | None:
    """Return a time that names its zone; None for anything else."""
    try:
        found = datetime.fromisoformat(value)
        return found.astimezone(UTC) if found.tzinfo else None
    except (TypeError, ValueError, OverflowError):
        return None


_CASTS: Mapping[Type, Callable[[Any], Any]] = {
    MOMENT: _moment,
    pl.Boolean: lambda value: value if isinstance(value, bool) else None,
    pl.String: _as_text,
    pl.Int64: lambda value: value if isinstance(value, int) and abs(value) < 2**63 else None,
    pl.Float64: _float,
}


def records(data: ReportData) -> Mapping[str, RunRecord]:
    """Return the record of each run of the run frame by run id, in the order of the frame."""
    if data.known_records:
        return data.known_records
    wanted: list[str] = data.runs["run_id"].to_list()
    found: dict[str, RunRecord] = {}
    for directory in run_directories(data.folder):
        try:
            record = read_record(directory)
        except RecordError:
            continue  # said among the problems of the report
        found.setdefault(record.run_id, record)
    data.known_records.update((run_id, found[run_id]) for run_id in wanted if run_id in found)
    return data.known_records


@dataclass(frozen=True, slots=True)
class ReportData:
    """Everything that a page is a function of."""

    folder: Path
    runs: pl.DataFrame  # one row per run, columns of ``run_schema``
    steps: pl.DataFrame  # one row per step, columns of STEP_SCHEMA
    log_tails: Mapping[str, tuple[str, ...]]  # by run id
    notes: Mapping[str, tuple[str, ...]]  # by run id: what a record says beside its numbers
    problems: tuple[str, ...]  # directories and lines that could not be read, in words
    # by run id: what ingest found in the log of an ingested run, as its record holds it
    ingests: Mapping[str, Any] = field(default_factory=dict[str, Any])
    # by run id: sentences about what ran otherwise than asked for
    differences: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    # one row per cell of the feasibility maps, columns of FEASIBILITY_SCHEMA
    feasibility: pl.DataFrame = field(default_factory=lambda: feasibility_frame(()))
    # by run id: where the steps of a run spend their time, as far as it tells
    anatomies: Mapping[str, RunAnatomy] = field(default_factory=dict[str, RunAnatomy])
    # by run id: what memory prediction says of a run
    predictions: Mapping[str, Predicted] = field(default_factory=dict[str, Predicted])
    # by run id: what explains the speed of a run that has a throughput
    diagnoses: Mapping[str, Diagnosis] = field(default_factory=dict[str, Diagnosis])
    # by run id: where the files of a run are, for what is too long to be held here
    directories: Mapping[str, Path] = field(default_factory=dict[str, Path])
    # what changed since an older folder of runs, where the report was asked for it
    against: Against | None = None
    # what ``records`` has read: several pages of a build ask for it
    known_records: dict[str, RunRecord] = field(
        default_factory=dict[str, RunRecord], init=False, repr=False, compare=False
    )

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
        """The steps that count, start-up, warm-up and profiled ones left out, without lists."""
        return self.steps.select(pl.exclude(pl.List)).filter(pl.col("phase") == "measured")

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
    return _load(path.resolve(), together(entries(path)), registered.signature())


@lru_cache(maxsize=1)
def _load(folder: Path, fingerprint: str, metrics: registered.Signature) -> ReportData:
    del fingerprint, metrics  # only part of the cache's key
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
            f"{folder} contains no run. 'make run' trains some, 'scalebook ingest' reads logs of "
            "other trainers, and 'make demo' shows the example runs."
        )
    return collect(folder, runs, problems, measure)


def collect(
    folder: Path, runs: Sequence[Run], problems: Iterable[str], measure: Measure = each
) -> ReportData:
    """Return the data of these runs; a run that can't be measured becomes a problem."""
    run_schema()  # what is wrong with a metric of the user's is said once, not for each run
    unique, found = _unique(runs)
    found = [*problems, *found]
    results = dict(zip(unique, measure(list(unique.values())), strict=True))
    told = {run_id: one for run_id, one in results.items() if not isinstance(one, str)}
    kept = {run_id: unique[run_id] for run_id in told}
    found += [
        f"{unique[run_id].path} cannot be measured: {one}"
        for run_id, one in results.items()
        if isinstance(one, str)
    ]
    pairs = ((kept[run_id].record, one.metrics) for run_id, one in told.items())
    sources = read_object(folder / SOURCES)
    rows = (
        # a report may travel: a run's folder is known by its name
        run_row(run, item) | {"folder": sources.get(run.path.name, run.path.parent.name)}
        for run, item in zip(kept.values(), with_repeats(pairs), strict=True)
    )
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
        directories={run_id: run.path for run_id, run in kept.items()},
        diagnoses={run_id: one.diagnosis for run_id, one in told.items() if one.diagnosis},
    )


def _unique(runs: Sequence[Run]) -> tuple[dict[str, Run], list[str]]:
    """Return the runs by id, the first of each, and what is wrong with them."""
    unique: dict[str, Run] = {}
    found: list[str] = []
    for run in runs:
        run_id = run.record.run_id
        found += [f"{run.path}: {problem}" for problem in run.problems]
        if run_id in unique:
            found.append(f"{run.path} repeats run {run_id} of {unique[run_id].path}: not shown")
        else:
            unique[run_id] = run
    return unique, found


def capacity(accelerator: str | None) -> float | None:
    """Return the memory of a device, in GB as sold: GiB within 1 %; or None."""
    try:
        device = catalog.accelerator_for_device(accelerator or "")
    except CatalogError:
        return None
    return device.memory_gb if device else None


def flat(value: Any) -> str:
    """Return a mapping of a record as text, in the order of its names; nothing for none."""
    if not isinstance(value, dict):
        return str(value or "")
    items = sorted(typing.cast("dict[str, Any]", value).items())
    return ", ".join(f"{name}={one}" for name, one in items if one is not None)


def versions(environment: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return the versions that a record knows, as text."""
    return ", ".join(f"{name} {value}" for name in names if (value := environment.get(name)))


def run_frame(rows: Iterable[Mapping[str, Any]]) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return one row per run, and a sentence for each value that is not of its column's type."""
    clean: list[dict[str, Any]] = []
    problems: list[str] = []
    schema = run_schema()
    for row in rows:
        values: dict[str, Any] = {}
        for name, kind in schema.items():
            values[name], problem = cast(name, row.get(name), kind)
            problems += [f"Run {row['run_id']}: {problem}"] if problem else []
        names = {"split": split_name, "group": group_name}
        clean.append(values | {name: write(values) for name, write in names.items()})
    return with_rates(pl.DataFrame(clean, schema=schema)), tuple(problems)


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

    Own measurements come first, accelerators before CPUs, whole models before the first layers of
    one, and the model with most runs before others; in a group the fastest per GPU is first and a
    run without a number last.
    """
    return runs.sort(
        pl.col("source") != "measured",
        pl.col("platform") == "cpu",
        PROXY,
        pl.col("model").is_null(),
        -pl.len().over("model").cast(pl.Int64),
        "model",
        "group",
        -pl.col("rate"),
        "run_id",
        nulls_last=True,
    )


def run_row(run: Run, item: RunMetrics) -> dict[str, Any]:
    """Return the metrics of a run, and what its record says of it: settings, versions, times."""
    record = run.record
    environment = record.environment
    more = {name: _setting(record, name) for name in RUN_SETTINGS}
    # some logs have a version as a number
    known = {name: environment.get(name) for name in VERSIONS}
    software = {n: str(one) if type(one) in (int, float) else one for n, one in known.items()}
    more |= {
        "started_at": record.started_at,
        "finished_at": record.finished_at,
        "exit_code": record.exit_code,
        "config_hash": record.config_hash,
        "inferred_from": record.inferred_from,
        "container": environment.get("container"),
        "recorded_steps": len(run.steps),
        "configuration": identity.repeat(record),
        "setup": identity.series(record),
    }
    reason = item.reason and item.reason.replace(" did not fit of ", " did not fit in the ")
    return item.as_dict() | software | more | {"reason": reason}  # old records have other words


def _setting(record: RunRecord, name: str) -> Any:
    """Return a setting as it ran; a switch that was recorded as true or false is on or off."""
    value = record.setting(name)
    if SETTINGS[name].switch and isinstance(value, bool):
        return "on" if value else "off"
    return value


def step_frame(runs: Iterable[Run]) -> pl.DataFrame:
    """Return one row per step of all runs; a number that is missing is null."""
    frames: list[pl.DataFrame] = [pl.DataFrame(schema=STEP_SCHEMA)]
    taken = ((run.record.run_id, Steps.of(run.steps)) for run in runs if len(run.steps))
    for parts, alike in groupby(taken, key=lambda pair: pair[1].part_names()):
        while members := list(islice(alike, _TOGETHER)):
            frames.append(_steps_of(members, parts))
    return pl.concat(frames)


def _steps_of(runs: Sequence[tuple[str, Steps]], parts: Sequence[str]) -> pl.DataFrame:
    """Return a row per step of runs whose steps have time marks of the same names.

    A table for each run would take ten times as long as one for many.
    """
    every = [steps for _, steps in runs]
    columns: dict[str, Any] = {
        "run_id": [run_id for run_id, steps in runs for _ in range(len(steps))],
        "phase": [phase for steps in every for phase in steps.phases()],
        "skipped": [skipped for steps in every for skipped in steps.skipped()],
        "finished_at": _moments(_joined(map(Steps.ends, every))),
        "rank_step_seconds": list(chain.from_iterable(map(Steps.rank_times, every))),
    }
    marks = {name: _joined(steps.part(name) for steps in every) for name in parts}
    columns["part_seconds"] = _parts(marks, len(columns["run_id"]))
    for name, kind in STEP_SCHEMA.items():
        if name not in columns:
            numbers = _joined(steps.numbers(name) for steps in every)
            columns[name] = pl.Series(name, numbers, pl.Float64).fill_nan(None).cast(kind)
    return pl.DataFrame(columns, schema=STEP_SCHEMA)


def _joined(columns: Iterable[Sequence[float]]) -> Sequence[float]:
    return array("d", chain.from_iterable(columns))


def _moments(seconds: Sequence[float]) -> pl.Series:
    """Return times of seconds since 1970; null where one is missing or of no year to 9999."""
    found = pl.Series(seconds, dtype=pl.Float64)
    usable = found.is_between(0, 253_402_300_799)
    kept = pl.select(pl.when(usable).then(found * 1e6)).to_series()
    return kept.round().cast(pl.Int64).cast(MOMENT)


def _parts(marks: Mapping[str, Sequence[float]], count: int) -> pl.Series:
    """Return the time marks of each step, pairs of name and seconds; null where it has none."""
    kind = STEP_SCHEMA["part_seconds"]
    if not marks:
        return pl.repeat(None, count, dtype=kind, eager=True)
    table = pl.DataFrame({name: pl.Series(mark, dtype=pl.Float64) for name, mark in marks.items()})
    pairs = [
        pl.when(pl.col(name).is_not_nan()).then(
            pl.struct(pl.lit(name).alias("part"), pl.col(name).alias("seconds"))
        )
        for name in marks
    ]
    known = pl.concat_list(pairs).list.drop_nulls()
    found = table.select(pl.when(known.list.len() > 0).then(known)).to_series()
    return found.cast(kind)


def telemetry_frame(directories: Mapping[str, Path]) -> pl.DataFrame:
    """Return a row per reading of a device of these runs, MOST_READINGS per run at most.

    Of more, every second, third, ... reading of each device is kept; ``kept_of`` says which.
    """
    frames = [pl.DataFrame(schema=TELEMETRY_SCHEMA)]
    places = iter(directories.items())
    while part := list(islice(places, _TOGETHER)):
        if rows := list(chain.from_iterable(map(_readings, part))):
            frames.append(_readings_of(rows))
    return pl.concat(frames)


def _readings(place: tuple[str, Path]) -> Iterator[tuple[str, str, int, Mapping[str, Any]]]:
    """Yield the readings of a run that are kept, with its device and of how many each is one."""
    run_id, directory = place
    devices = read_telemetry(directory).devices[:MOST_READINGS]
    total, room = sum(len(one.rows) for one in devices), MOST_READINGS - len(devices)
    every = max(-(-total // room) if room else max(len(one.rows) for one in devices), 1)
    for one in devices:
        for row in one.rows[::every]:
            yield run_id, one.name, every, row


def _readings_of(kept: Sequence[tuple[str, str, int, Mapping[str, Any]]]) -> pl.DataFrame:
    run_ids, devices, every, rows = zip(*kept, strict=True)
    found: dict[str, Any] = {"run_id": run_ids, "device": devices, "kept_of": every}
    found |= {name: _floats([row.get(name) for row in rows]) for name in _READINGS}
    found["throttle_reasons"] = [_reasons(row.get("throttle_reasons")) for row in rows]
    found["time"] = _moments([float(row["time"]) for row in rows])
    return pl.DataFrame({name: found[name] for name in TELEMETRY_SCHEMA}, schema=TELEMETRY_SCHEMA)


def _floats(values: list[Any]) -> pl.Series:
    """Return ``_float`` of each value, in a fifth of the time where all of them are floats."""
    if not set(map(type, values)) <= {float, type(None)}:
        return pl.Series([_float(value) for value in values], dtype=pl.Float64)
    found = pl.Series(values, dtype=pl.Float64)
    return pl.select(pl.when(found.is_finite()).then(found)).to_series()


def _reasons(value: Any) -> str | None:
    """Return the reasons of a reading as one text; empty where there was none."""
    if not isinstance(value, list):
        return None
    return ", ".join(str(one) for one in typing.cast("list[Any]", value))


def feasibility_frame(runs: Iterable[Run]) -> pl.DataFrame:
    """Return one row per cell of the feasibility maps of these runs, map after map."""
    cells = (asdict(cell) for cell in feasibility(runs))
    return pl.DataFrame(list(cells), schema=FEASIBILITY_SCHEMA)
