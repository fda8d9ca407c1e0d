"""Run directories -> the two data frames that every table, chart and sentence is made from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import polars as pl

from scalebook.errors import ReportError, ScalebookError
from scalebook.metrics import measure
from scalebook.naming import group_name, run_label, split_name
from scalebook.store import Run, read_runs

# The columns of the run frame: fields of RunMetrics, settings of the record, names.
_TEXT = (
    "run_id", "status", "reason", "source", "platform", "accelerator", "engine", "model",
    "precision", "strategy", "throughput_reason", "flops_convention", "model_tflops_reason",
    "mfu_reason", "mfu_interval_reason", "peak_precision", "data_parallel_sharding", "recompute",
    "started_at", "label", "split", "group",
)  # fmt: skip
_INTEGERS = (
    "world_size", "nodes", "num_layers", "tensor_parallel_size", "pipeline_parallel_size",
    "virtual_pipeline_parallel_size", "context_parallel_size", "expert_parallel_size",
    "data_parallel_size", "micro_batch_size", "global_batch_size", "sequence_length",
    "measured_steps",
)  # fmt: skip
_FLOATS = (
    "step_seconds_median", "tokens_per_second", "tokens_per_second_low", "tokens_per_second_high",
    "tokens_per_second_per_gpu", "model_tflops_per_second_per_gpu", "mfu", "mfu_low", "mfu_high",
    "peak_tflops_per_second", "peak_memory_gib", "loss_first", "loss_last",
)  # fmt: skip
SCHEMA: dict[str, type[pl.DataType]] = (
    dict[str, type[pl.DataType]](dict.fromkeys(_TEXT, pl.String))
    | dict.fromkeys(_INTEGERS, pl.Int64)
    | dict.fromkeys(_FLOATS, pl.Float64)
    | {"sequence_parallel": pl.Boolean}
)
_SETTINGS = (
    "virtual_pipeline_parallel_size",
    "sequence_parallel",
    "data_parallel_sharding",
    "recompute",
)
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


@dataclass(frozen=True, slots=True)
class ReportData:
    """Everything that a page is a function of."""

    folder: Path
    runs: pl.DataFrame  # a row a run, columns of SCHEMA
    steps: pl.DataFrame  # a row a step, columns of STEP_SCHEMA
    log_tails: Mapping[str, tuple[str, ...]]
    problems: tuple[str, ...]  # directories and lines that could not be read, in words

    @property
    def completed(self) -> pl.DataFrame:
        """The completed runs that have a throughput."""
        return self.runs.filter(
            (pl.col("status") == "completed") & pl.col("tokens_per_second").is_not_null()
        )

    @property
    def measured_steps(self) -> pl.DataFrame:
        """The steps that count: start-up, warm-up and profiled ones are left out."""
        return self.steps.filter(pl.col("phase") == "measured")

    @property
    def unfinished(self) -> pl.DataFrame:
        """The runs of any other status."""
        return self.runs.filter(pl.col("status") != "completed")


def load(folder: str | Path) -> ReportData:
    """Return the data of every run under a folder, read again only when a file has changed.

    Raises:
        ReportError: the folder is missing or holds no run at all.
    """
    path = Path(folder)
    if not path.is_dir():
        raise ReportError(f"{path} is not a folder. Give the folder of runs with --runs.")
    return _load(path, tuple(_fingerprint(path)))


@lru_cache(maxsize=1)
def _load(folder: Path, fingerprint: tuple[tuple[str, int], ...]) -> ReportData:
    runs, problems = read_runs(folder)
    problems = (*problems, *_without_record(folder))
    if not runs and not problems:
        raise ReportError(
            f"{folder} holds no run. 'make run' makes some; 'make demo' shows the example runs."
        )
    return collect(folder, runs, problems)


def _fingerprint(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield each file that the frames are made from and its time of change."""
    for directory in sorted(path for path in folder.iterdir() if path.is_dir()):
        for name in ("record.json", "steps.jsonl"):
            path = directory / name
            if path.exists():
                yield str(path), path.stat().st_mtime_ns


def _without_record(folder: Path) -> Iterator[str]:
    """Yield a sentence for each directory that a run has written to but never recorded."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or not path.is_dir() or (path / "record.json").exists():
            continue
        if (path / "steps.jsonl").exists() or (path / "train.log").exists():
            yield f"{path} has no record.json: the run in it is not shown"


def collect(folder: Path, runs: Sequence[Run], problems: Iterable[str]) -> ReportData:
    """Return the data of these runs; a run that can't be measured becomes a problem."""
    found: list[str] = list(problems)
    kept: dict[str, Run] = {}
    rows: list[dict[str, Any]] = []
    for run in runs:
        run_id = run.record.run_id
        found += [f"{run.path}: {problem}" for problem in run.problems]
        if run_id in kept:
            found.append(f"{run.path} repeats run {run_id} of {kept[run_id].path}: not shown")
            continue
        try:
            rows.append(_row(run))
        except (ScalebookError, ArithmeticError, TypeError, ValueError, LookupError) as error:
            # Records come from anywhere; one with a value of the wrong type must not stop a page.
            found.append(f"{run.path} cannot be measured: {error}")
            continue
        kept[run_id] = run
    frame, bad_values = run_frame(rows)
    frame = unique_labels(in_order(frame))
    tails = {run_id: run.record.log_tail for run_id, run in kept.items()}
    # a report may travel: it names run directories, not where they lay
    shown = (problem.replace(f"{folder}/", "") for problem in (*found, *bad_values))
    return ReportData(folder, frame, step_frame(kept.values()), tails, tuple(shown))


def run_frame(rows: Iterable[Mapping[str, Any]]) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return a row a run, and a sentence for each value that is not of its column's type."""
    clean: list[dict[str, Any]] = []
    problems: list[str] = []
    for row in rows:
        values: dict[str, Any] = {}
        for name in SCHEMA:
            values[name], problem = _cast(name, row.get(name))
            problems += [f"Run {row['run_id']}: {problem}"] if problem else []
        names = {"label": run_label, "split": split_name, "group": group_name}
        clean.append(values | {name: write(values) for name, write in names.items()})
    return pl.DataFrame(clean, schema=SCHEMA), tuple(problems)


def in_order(runs: pl.DataFrame) -> pl.DataFrame:
    """Return the runs in the order of every table.

    Own measurements come first and accelerators before CPUs; in a group the fastest per GPU is
    first and a run without a number last.
    """
    return runs.sort(
        pl.col("source") != "measured",
        pl.col("platform") == "cpu",
        "group",
        -pl.col("tokens_per_second_per_gpu"),
        "run_id",
        nulls_last=True,
    )


def unique_labels(runs: pl.DataFrame) -> pl.DataFrame:
    """Return the runs with a number behind each label that an earlier row has already."""
    repeat = pl.int_range(pl.len()).over("label")
    numbered = pl.format("{} ({})", "label", repeat + 1)
    return runs.with_columns(label=pl.when(repeat == 0).then("label").otherwise(numbered))


def _row(run: Run) -> dict[str, Any]:
    """Return the metrics of a run and the settings of its record that tell runs apart."""
    record = run.record
    settings = {name: record.setting(name) for name in _SETTINGS}
    return asdict(measure(run)) | settings | {"started_at": record.started_at}


def _cast(name: str, value: Any) -> tuple[Any, str | None]:
    """Return a value of the column's type; None and a sentence where it has another."""
    convert = _CASTS[SCHEMA[name]]
    if value is None:
        return None, None
    result = convert(value)
    return result, None if result is not None else f"{name}={value!r} is not usable"


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and abs(value) < 2**63 else None


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _boolean(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


_CASTS: Mapping[type[pl.DataType], Callable[[Any], Any]] = {
    pl.Boolean: _boolean,
    pl.String: _text,
    pl.Int64: _integer,
    pl.Float64: _float,
}


def step_frame(runs: Iterable[Run]) -> pl.DataFrame:
    """Return a row a step of all runs; a number that is not finite is null."""
    columns: dict[str, list[Any]] = {name: [] for name in STEP_SCHEMA}
    for run in runs:
        for step in run.steps:
            columns["run_id"].append(run.record.run_id)
            for name in list(STEP_SCHEMA)[1:]:
                value = getattr(step, name)
                finite = not isinstance(value, float) or math.isfinite(value)
                columns[name].append(value if finite else None)
    return pl.DataFrame(columns, schema=STEP_SCHEMA)
