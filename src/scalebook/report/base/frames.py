"""Run directories -> the two data frames that every table, chart and sentence is made from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import polars as pl

from scalebook import identity
from scalebook.errors import ReportError
from scalebook.facts.feasibility import feasibility
from scalebook.facts.feasibility.predicted import Predicted, predictions
from scalebook.measure.diagnosis import Diagnosis
from scalebook.measure.measured import Measured, measured
from scalebook.measure.metrics import RunMetrics
from scalebook.measure.metrics.repeats import with_repeats
from scalebook.measure.metrics.step_anatomy import RunAnatomy
from scalebook.report.base.columns import (
    FEASIBILITY_SCHEMA,
    PROXY,
    RUN_SETTINGS,
    SCHEMA,
    STEP_SCHEMA,
    cast,
)
from scalebook.report.base.fingerprint import entries, together
from scalebook.report.base.labels import with_labels
from scalebook.report.base.naming import WORK, group_name, split_name
from scalebook.step_columns import Steps
from scalebook.store import Run, read_runs, without_record


@dataclass(frozen=True, slots=True)
class ReportData:
    """Everything that a page is a function of."""

    folder: Path
    runs: pl.DataFrame  # a row a run, columns of SCHEMA
    steps: pl.DataFrame  # a row a step, columns of STEP_SCHEMA
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
            f"{folder} holds no run. 'make run' makes some; 'make demo' shows the example runs."
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
    """Return a row a run, and a sentence for each value that is not of its column's type."""
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
    keys = {"configuration": identity.repeat(record), "setup": identity.series(record)}
    return asdict(item) | settings | more | keys


def step_frame(runs: Iterable[Run]) -> pl.DataFrame:
    """Return a row a step of all runs; a number that is missing is null."""
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
