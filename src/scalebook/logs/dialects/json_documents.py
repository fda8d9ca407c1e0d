"""JSON documents of trainers and benchmarks: steps in lists or series, or the means of a run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, ClassVar, cast

from scalebook.logs.causes import Ending
from scalebook.logs.collect import LARGEST
from scalebook.logs.dialects.dialect import LARGEST_DOCUMENT, JSONDialect
from scalebook.logs.dialects.rows import Rows, cell_value, cells_of, flat, is_record, tell
from scalebook.logs.numbers import columns, integer, names
from scalebook.logs.pairs import tokens_from_totals
from scalebook.logs.source import CHUNK_BYTES, LONGEST_LINE, Source

_SIZES = names("documents")


class Documents(Rows):
    """Objects with a step: in a log, each over several lines (InstructLab), or of one document.

    A document has lists of them, objects by their step, or a list for each column. One without
    steps counts if it has the mean time of a training step.
    """

    name = "json-blocks"
    markers = ("{\n", "{ ", '{"', "[")
    signature = re.compile(r'\{[ \t]*\n(?:\s*"[^"\n]{1,60}": [^\n{}]{1,200}\n){3,60}\s*\}')

    @classmethod
    def recognises(cls, text: str) -> bool:
        """Whether an object has a step and a loss or a time under names known here."""
        if text.lstrip()[:1] in ("{", "["):
            document = _parsed(text)
            if document is not None:
                return any(_runs(document)) or bool(_means(document))
        objects = _OBJECT.finditer(text) if text.lstrip()[:2] in ("[{", "[\n") else ()
        found = chain(islice(objects, _FIRST), cls.signature.finditer(text))
        return any(is_record(dict(cells_of(one[0]))) for one in found)

    def series(self, source: Source) -> Iterator[Iterable[dict[str, Any]]]:
        """Yield, for each run, the cells of its records by name."""
        texts = source.texts()
        first = next(texts, "")
        if first.lstrip()[:1] in ("{", "["):
            first += "".join(islice(texts, LARGEST_DOCUMENT // CHUNK_BYTES))
            document = _parsed(first)
            if document is not None:
                yield from self._of_document(document)
                return
        yield self._blocks(chain([first], texts))

    def _of_document(self, document: Any) -> Iterator[list[dict[str, Any]]]:
        runs, means = list(_runs(document)), _means(document)
        if (runs or means) and isinstance(document, dict):
            cells = dict(flat(cast("dict[str, Any]", document)))
            tell(self.out, {_named(name): item for name, item in cells.items()}, weak=True)
        yield from runs or [[means]]
        self.out.job.finished = bool(means) and not runs

    def _blocks(self, texts: Iterable[str]) -> Iterator[dict[str, Any]]:
        rest = ""
        for text in texts:
            rest, end = rest + text, 0
            for found in self.signature.finditer(rest):
                end = found.end()
                yield dict(cells_of(found[0]))
            rest = rest[max(end, len(rest) - LONGEST_LINE) :]


_OBJECT = re.compile(r"\{[^{}]{10,2000}\}")
_FIRST = 200
_EVALUATES = re.compile(r"(?:eval|val|test|checkpoint)", re.IGNORECASE)
_STEPS = ("step", "steps", "iteration", "iterations", "iters")


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _named(name: str) -> str:
    """Return the name of a setting as trainers print it."""
    front, _, last = name.rpartition("/")
    return f"{front}/{_SIZES.get(last, last)}"


def _runs(value: Any, depth: int = 0) -> Iterator[list[dict[str, Any]]]:
    """Yield the records of each run that a document holds, but not of evaluations."""
    if isinstance(value, list):
        items = cast("list[Any]", value)
        rows = [dict(flat(cast("dict[str, Any]", one))) for one in items if isinstance(one, dict)]
        if any(map(is_record, rows[:_FIRST])):
            yield rows
            return
        for item in items if depth < _MOST_DEPTH else ():
            yield from _runs(item, depth + 1)
    elif isinstance(value, dict):
        known = cast("dict[str, Any]", value)
        rows = [
            {**dict(flat(cast("dict[str, Any]", one))), "step": integer(key)}
            for key, one in known.items()
            if key.isdigit() and isinstance(one, dict)
        ]
        rows = rows if len(rows) > 1 else _columns(known)
        if rows and is_record(rows[0]):
            yield rows
        for key, item in known.items() if depth < _MOST_DEPTH and not rows else ():
            if not _EVALUATES.match(key):
                yield from _runs(item, depth + 1)


_MOST_DEPTH = 8


def _columns(known: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the records whose columns an object has as lists of one length."""
    lists = {
        _singular(key): cast("list[Any]", item)
        for key, item in known.items()
        if isinstance(item, list) and item and isinstance(item[0], int | float)
    }
    steps = next((lists[name] for name in _STEPS if name in lists), None)
    if steps is None and "start_step" in known:
        steps = _numbered(known, len(next(iter(lists.values()), ())))
    if not steps:
        return []
    same = {key: item for key, item in lists.items() if len(item) == len(steps)}
    return [
        {**{key: item[at] for key, item in same.items()}, "step": step}
        for at, step in enumerate(steps)
    ]


def _numbered(series: Mapping[str, Any], many: int) -> Sequence[int]:
    """Return the steps of a series that states the first one and the distance between them."""
    first, each = series.get("start_step"), series.get("step_interval")
    start = first if isinstance(first, int) and 0 <= first <= LARGEST else 0
    interval = each if isinstance(each, int) and 0 < each <= LARGEST else 1
    return range(start, start + many * interval, interval)


def _singular(name: str) -> str:
    """Return the name of one value of a list, as in losses and step_times."""
    ends = (name, name.removesuffix("_values"), name.removesuffix("s"), name.removesuffix("es"))
    return next((one for one in ends if is_record(("step", one))), name)


def _means(document: Any) -> dict[str, Any]:
    """Return the cells of a benchmark's result that has the mean time of a step of training."""
    if not isinstance(document, dict):
        return {}
    cells = dict(flat(cast("dict[str, Any]", document)))
    row, last = Rows().row(cells), {_named(name).rpartition("/")[2] for name in cells}
    return cells if "seconds" in row and last & {*_SIZES.values()} else {}


class TrainerState(JSONDialect):
    """Hugging Face's ``trainer_state.json``, a list of what was logged, and ``*_results.json``."""

    name = "hf-trainer-state"
    markers = ('"log_history"', '"train_runtime"')
    signature = re.compile(
        r'"log_history"\s*:\s*\[|\A\s*\{\n(?:[^{}]{0,9999},)?\s*"train_runtime"\s*:[^{}]*\}\s*\Z'
    )

    def document(self, document: dict[str, Any]) -> None:
        """Take the history; the time of a step is the mean of the whole run."""
        items = cast("list[Any]", document.get("log_history") or [])
        history = [cast("dict[str, Any]", item) for item in items if isinstance(item, dict)]
        ends = [item for item in history if "train_runtime" in item]
        whole: dict[str, Any] = ends[-1] if ends else document if not history else {}
        runtime = cell_value(whole.get("train_runtime"))
        steps = cell_value(document.get("global_step"))
        evaluated = sum(_other_runtimes(history[: history.index(whole)] if ends else ()))
        factor = runtime / (runtime - evaluated) if runtime > evaluated else 1.0
        rate = cell_value(whole.get("train_steps_per_second")) * factor
        seconds = runtime / factor / steps if runtime > 0 and steps > 0 else 1 / rate
        total = document.get("max_steps")
        rows = Rows()
        for item in history:
            if "loss" in item:
                row = {**rows.row(item), "seconds": seconds}
                self.out.step(row, total=total if isinstance(total, int) and total > 0 else None)
        job = self.out.job
        if seconds > 0 and len(job.table):
            less = f" less the {evaluated:,.0f} s of its evaluations" if evaluated else ""
            job.note(f"The step time is the mean of the whole run{less}: no other was stored.")
        each = document.get("train_batch_size")
        if isinstance(each, int):
            self.out.tell("micro_batch_size", each)
        for name in ("tokens_per_second", "samples_per_second", "steps_per_second"):
            if cell_value(whole.get(f"train_{name}")) > 0:
                job.rates[name] = cell_value(whole[f"train_{name}"]) * factor
                self.out.digits(name, "0.001", factor)  # as the trainer rounds
        tokens_from_totals(job)
        if "train_runtime" in whole:
            self.out.end(Ending("completed", "the trainer kept its metrics of the whole run"))


def _other_runtimes(history: Iterable[Mapping[str, Any]]) -> Iterator[float]:
    """Yield the seconds of evaluations that a history states."""
    for item in history:
        for name, value in item.items():
            if name.endswith("_runtime") and cell_value(value) > 0:
                yield cell_value(value)


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
                    rows.setdefault(step, {}).setdefault(column, cell_value(value) * scale)
        mean = cell_value(document.get("iteration_timing_avg"))
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
        listed = cast("list[Any]", values)
        yield from zip(_numbered(series, len(listed)), listed, strict=True)


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
        rates = [cell_value(document.get(name)) for name in ("throughput", "FLOPS_per_gpu")]
        if rates[1] > _MOST_FLOPS:  # DeepSpeed divides by ms as if they were microseconds
            rates = [rate / 1e3 for rate in rates]
            self.out.job.note("Its rates are a thousand times those of its step time: divided.")
        row = {
            "seconds": cell_value(document.get("latency")) / 1e3,
            "samples_per_second": rates[0],
            "tflops_per_gpu": rates[1] / 1e12,
        }
        if row["seconds"] > 0:
            self.out.step(row)
            self.out.job.finished = True


_MOST_FLOPS = 3e15  # of one device in BF16, and some
_GB_IN_GIB = 1e9 / 2**30


class TPrimat(JSONDialect):
    """TPrimat's result, in both schemas: its rates are of means that leave out the first step."""

    name = "tprimat"
    markers = ("performance_metrics",)
    signature = re.compile(r"\"(?:training_config|raw_step_times|step_times|gpu_info)\"\s*:")

    def document(self, document: dict[str, Any]) -> None:
        """Take one result."""
        cells, job = dict(flat(document)), self.out.job
        told = ("training_config/", "parallelism_config/", "gpu_info/device_name")
        tell(self.out, {_named(n): item for n, item in cells.items() if n.startswith(told)})
        times = _numbers(cells.get("step_times") or cells.get("raw_step_times"))
        beside = {"loss": "loss_values", "learning_rate": "learning_rates"}
        lists = {column: _numbers(cells.get(name)) for column, name in beside.items()}
        for index, seconds in enumerate(times):
            row = {column: of[index] for column, of in lists.items() if len(of) == len(times)}
            if seconds > 0:
                row |= {"step": float(index + 1), "seconds": seconds}
                self.out.step(row, total=len(times))
            else:
                job.counts.broken_records += 1
        for column, of in lists.items():
            if of and len(of) != len(times):
                job.note(f"{beside[column]} has {len(of)} entries for {len(times)} steps.")
        for name in ("tokens_per_second", "tokens_per_second_per_gpu"):
            if (value := cell_value(cells.get(f"performance_metrics/{name}"))) > 0:
                job.rates[name] = value
        for kind in ("allocated", "reserved"):
            if (value := cell_value(cells.get(f"memory_metrics/peak_memory_{kind}_gb"))) > 0:
                job.details[f"peak_{kind}_gib"] = value * _GB_IN_GIB
        job.finished = bool(len(job.table))


def _numbers(value: object) -> list[float]:
    return list(map(cell_value, cast("list[Any]", value))) if isinstance(value, list) else []
