"""Records as rows of named columns: CSV, JSON lines and JSON documents of trackers and trainers.

The names of common trackers are known (``NAMES``); for any other file the user maps columns
(``mapped``), so that no format is a dead end.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, cast

from scalebook.errors import IngestError
from scalebook.logs.causes import Ending
from scalebook.logs.collect import LARGEST
from scalebook.logs.dialects.dialect import Dialect, JSONDialect
from scalebook.logs.job import COLUMNS, Job
from scalebook.logs.numbers import (
    MISSING,
    alternatives,
    clock_of,
    columns,
    has_fraction,
    integer,
    names,
    number,
)
from scalebook.logs.pairs import seconds_from, tokens_from_totals
from scalebook.logs.source import LONGEST_LINE, Source

# What the option --map calls a column -> ours and its scale.
TARGETS: dict[str, tuple[str, float]] = {
    **{name: (name, 1.0) for name in COLUMNS if name not in ("clock", "held", "not_finite")},
    "step_seconds": ("seconds", 1.0),
    "step_milliseconds": ("seconds", 1e-3),
    "tflops_per_second_per_gpu": ("tflops_per_gpu", 1.0),
    "time": ("clock", 1.0),
    "mfu_percent": ("mfu", 0.01),
}
# Names of trackers and trainers, in lower case, by target; the first that a file has counts.
NAMES = alternatives("rows")
_SETTINGS = names("settings")
_MOST_DEPTH = 4
_MOST_CELLS = 400


def flat(value: Mapping[str, Any], before: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the cells of a nested object, names joined by ``/``; ``metrics/`` is left out."""
    for key, item in value.items():
        name = (
            f"{before}/{key}"
            if before and before not in ("metrics", "data", "extras")
            else str(key)
        )
        if isinstance(item, dict) and depth < _MOST_DEPTH:
            yield from flat(cast("dict[str, Any]", item), name, depth + 1)
        else:
            yield name, item


def _value(item: object) -> float:
    if isinstance(item, bool) or item is None:
        return MISSING
    return number(item) if isinstance(item, str) else number(str(item))


class Rows(Dialect):
    """A CSV with a header, or JSON lines; a record has a step and a loss, a time or a rate."""

    name = "rows"
    markers = ("step", "Step", "iteration", "Iteration")
    signature = re.compile(r"^\s*(?:(?:DLLL )?\{\s*\"|[^\n{]{1,4000}[,;\t])")
    mapping: ClassVar[Mapping[str, str]] = {}  # target -> the user's name of a column

    def cells(self, source: Source) -> Iterator[dict[str, Any]]:
        """Yield the cells of each record by name."""
        return _cells(source)

    @classmethod
    def recognises(cls, text: str) -> bool:
        """Whether the first line holds a step and something measured under names known here."""
        first = text.lstrip().partition("\n")[0]
        if len(first) > 4 * LONGEST_LINE or not cls.signature.search(first):
            return False
        columns = _targets(_names_of(first, text), {})
        return "step" in columns and bool(columns.keys() & _MEASURED)

    def read(self, source: Source) -> list[Job]:
        """Return the job of a file.

        Raises:
            IngestError: a column that the user maps is not in the file.
        """
        self.out.every_job(loss_apart=True)
        found, fine = 0, False
        missing = set(self.mapping.values())
        for cells in self.cells(source):
            low = {_short(name): item for name, item in cells.items()}
            missing -= cells.keys()
            targets = _targets(cells, self.mapping)
            row: dict[str, float] = {}
            for target, name in targets.items():
                column, scale = TARGETS[target]
                item = cells[name] if name in cells else low.get(name)
                stamp = item if isinstance(item, str) and ":" in item else None
                value = clock_of(stamp) if column == "clock" and stamp else _value(item)
                fine = fine or (stamp is not None and has_fraction(stamp))
                if not math.isnan(value) or (column == "loss" and item not in (None, "")):
                    row.setdefault(column, value * scale)
            for name, item in cells.items():  # such as cfg/global_batch_size
                ours = _SETTINGS.get(name.rpartition("/")[2]) if "/" in name else None
                if ours and isinstance(item, int) and not isinstance(item, bool):
                    self.out.tell(ours, item, weak=True)
            if row.get("tokens_per_second", 0) > 0 and "tokens_in_step" in row:
                row.setdefault("seconds", row["tokens_in_step"] / row["tokens_per_second"])
            if len(row) > 1 or (row and self.mapping):
                found += 1
                self.out.step(row)
        if missing and self.mapping:
            raise IngestError(
                f"{source.path} has no column {', '.join(sorted(map(repr, missing)))}. "
                "Name its columns as its header does: --map step_seconds=COLUMN."
            )
        for job in self.out.jobs:
            seconds_from(job, "clock", 1e-3 if fine else 0.05, "times of the records")
            tokens_from_totals(job)
        return self.out.close()


_MEASURED = {target for target in NAMES if target not in ("step", "learning_rate", "time")}


class JSONBlocks(Rows):
    """A record is a JSON object over several lines of a log, as InstructLab prints it."""

    name = "json-blocks"
    markers = ("{\n",)
    signature = re.compile(r'\{\n(?:\s*"[^"\n]{1,60}": [^\n{}]{1,200}\n){3,60}\s*\}')

    @classmethod
    def recognises(cls, text: str) -> bool:
        """Whether an object has a step and a loss or a time under names known here."""
        for found in cls.signature.finditer(text):
            columns = _targets(dict(_object(found[0])), {})
            if "step" in columns and columns.keys() & {"loss", "step_seconds"}:
                return True
        return False

    def cells(self, source: Source) -> Iterator[dict[str, Any]]:
        """Yield the cells of each object by name."""
        rest = ""
        for text in source.texts():
            rest, end = rest + text, 0
            for found in self.signature.finditer(rest):
                end = found.end()
                yield dict(_object(found[0]))
            rest = rest[max(end, len(rest) - LONGEST_LINE) :]


def mapped(mapping: Mapping[str, str]) -> type[Rows]:
    """Return the dialect of tables whose columns the user names.

    Raises:
        IngestError: a target is not known.
    """
    for target in mapping:
        if target not in TARGETS:
            raise IngestError(
                f"--map {target}=... is not a value of a step. Known: {', '.join(sorted(TARGETS))}."
            )
    return type("MappedRows", (Rows,), {"mapping": dict(mapping)})


def _json(line: str) -> str:
    """Return a line of JSON without the mark of NVIDIA's dllogger, empty where it is not one."""
    text = line.lstrip().removeprefix("DLLL ")
    return text if text.startswith("{") else ""


def _short(name: str) -> str:
    """Return a name as ``NAMES`` has it: W&B's export puts the run before it."""
    return name.rpartition(" - ")[2].strip().lower()


def _between(header: str) -> str:
    """Return what separates the cells: a tab, the semicolon of a spreadsheet, or a comma."""
    return max(",;\t", key=header.count)


def _split(line: str, between: str) -> list[str]:
    """Return the cells of a line of CSV; any other line is one cell."""
    try:
        return next(iter(csv.reader([line], delimiter=between)))
    except (csv.Error, StopIteration):
        return [line]


def _names_of(first: str, text: str) -> list[str]:
    if not _json(first):
        return _split(first, _between(first))
    names: dict[str, None] = {}
    for line in text.split("\n")[:50]:
        names.update(dict.fromkeys(dict(_object(_json(line)))))
    return list(names)


def _targets(names: Any, mapping: Mapping[str, str]) -> dict[str, str]:
    """Return, by target, the name of the column that it is read from."""
    low = {_short(name): name for name in reversed(list(names))}
    found = {
        target: next(low[one] for one in known if one in low)
        for target, known in NAMES.items()
        if any(one in low for one in known)
    }
    if "tps_per_gpu" in low and "tps" in low:  # NeMo AutoModel: of a GPU and of all
        found["tokens_per_second"] = low["tps"]
    columns = {TARGETS[target][0] for target in mapping}
    rest = {target: name for target, name in found.items() if TARGETS[target][0] not in columns}
    return {**rest, **mapping}


def _object(line: str) -> Iterator[tuple[str, Any]]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return
    if isinstance(value, dict):
        yield from flat(cast("dict[str, Any]", value))


def _cells(source: Source) -> Iterator[dict[str, Any]]:
    """Yield the cells of each row by name; a line that is not a row is left out."""
    header: list[str] | None = None
    between = ","
    for text in source.texts():
        for line in text.split("\n"):
            if not line.strip() or len(line) > 16 * LONGEST_LINE:
                continue
            if text := _json(line):
                yield dict(_object(text))
                continue
            between = _between(line) if header is None else between
            cells = _split(line, between)
            if between == ";":  # goes with decimal commas
                cells = [cell if "." in cell else cell.replace(",", ".") for cell in cells]
            if header is None:
                header = cells[:_MOST_CELLS]
            elif len(cells) == len(header):
                yield dict(zip(header, cells, strict=True))


class TrainerState(JSONDialect):
    """Hugging Face's ``trainer_state.json``: a list of what was logged, without times."""

    name = "hf-trainer-state"
    markers = ('"log_history"',)
    signature = re.compile(r'"log_history"\s*:\s*\[')

    def document(self, document: dict[str, Any]) -> None:
        """Take the history; the time of a step is the mean of the whole run."""
        items = cast("list[Any]", document.get("log_history") or [])
        history = [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]
        ends = [item for item in history if "train_runtime" in item]
        whole: dict[str, Any] = ends[-1] if ends else {}
        runtime, steps = _value(whole.get("train_runtime")), _value(document.get("global_step"))
        rate = _value(whole.get("train_steps_per_second"))
        seconds = (
            runtime / steps if runtime > 0 and steps > 0 else 1 / rate if rate > 0 else MISSING
        )
        total = document.get("max_steps")
        for item in history:
            if "loss" not in item:
                continue
            row = {"step": _value(item.get("step")), "loss": _value(item["loss"])}
            for name, column in (
                ("grad_norm", "grad_norm"),
                ("learning_rate", "learning_rate"),
                ("num_input_tokens_seen", "consumed_tokens"),
            ):
                if name in item:
                    row[column] = _value(item[name])
            if seconds > 0:
                row["seconds"] = seconds
            self.out.step(row, total=total if isinstance(total, int) and total > 0 else None)
        job = self.out.job
        if seconds > 0 and len(job.table):
            job.note("The step time is the mean of the whole run: no other was stored.")
        each = document.get("train_batch_size")
        if isinstance(each, int):
            self.out.tell("micro_batch_size", each)
        for name in ("tokens_per_second", "samples_per_second", "steps_per_second"):
            if _value(whole.get(f"train_{name}")) > 0:
                job.rates[name] = _value(whole[f"train_{name}"])
                self.out.digits(name, "0.001")  # as the trainer rounds
        tokens_from_totals(job)
        if whole:
            self.out.end(Ending("completed", "the trainer kept its metrics of the whole run"))


class GoldenValues(JSONDialect):
    """Megatron's ``golden_values*.json``: a series per metric, by step."""

    name = "megatron-golden-values"
    markers = ('"iteration-time"', '"iteration_timing_avg"', '"lm loss"')
    signature = re.compile(r'"(?:iteration-time|lm loss)"\s*:\s*\{\s*"start_step"')
    _COLUMNS: ClassVar = columns("megatron-golden-values")

    def document(self, document: dict[str, Any]) -> None:
        """Take the series as rows of steps."""
        rows: dict[int, dict[str, float]] = {}
        for name, (column, scale) in self._COLUMNS.items():
            series = document.get(name)
            for step, value in _series(series) if isinstance(series, dict) else ():
                missing = isinstance(value, str) and column != "loss"  # "nan": not recorded
                if not missing:
                    rows.setdefault(step, {}).setdefault(column, _value(value) * scale)
        mean = _value(document.get("iteration_timing_avg"))
        for step in sorted(rows):
            if mean > 0:
                rows[step].setdefault("seconds", mean)
            self.out.step({"step": float(step), **rows[step]})
        self.out.job.finished = bool(rows)


def _series(series: Any) -> Iterator[tuple[int, Any]]:
    """Yield steps and values of a series, whose values are a list or stand by their step."""
    values = series.get("values")
    if isinstance(values, dict):
        for key, value in cast("dict[str, Any]", values).items():
            if str(key).isdigit():
                yield integer(str(key)), value
    elif isinstance(values, list):
        first, each = series.get("start_step"), series.get("step_interval")
        start = first if isinstance(first, int) and 0 <= first <= LARGEST else 0
        interval = each if isinstance(each, int) and 0 < each <= LARGEST else 1
        for index, value in enumerate(cast("list[Any]", values)):
            yield start + index * interval, value


class Autotuning(JSONDialect):
    """``metrics.json`` of an experiment of DeepSpeed's autotuner: one mean step, in ms."""

    name = "deepspeed-autotuning"
    markers = ('"latency"',)
    signature = re.compile(
        r'^\s*\{(?=[\s\S]{0,4000}"latency"\s*:)'
        r'(?=[\s\S]{0,4000}"(?:throughput|FLOPS_per_gpu)"\s*:)'
    )
    _SIZES: ClassVar = names("deepspeed-autotuning")

    def document(self, document: dict[str, Any]) -> None:
        """Take the sizes and the step of an experiment."""
        for name, item in flat(document):
            ours = self._SIZES.get(name.rpartition("/")[2])
            if ours and isinstance(item, int):
                self.out.tell(ours, item)
        row = {
            "seconds": _value(document.get("latency")) / 1e3,
            "samples_per_second": _value(document.get("throughput")),
            "tflops_per_gpu": _value(document.get("FLOPS_per_gpu")) / 1e12,
        }
        if row["seconds"] > 0:
            self.out.step(row)
            self.out.job.finished = True
