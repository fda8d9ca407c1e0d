"""Records as rows of named columns: CSV and JSON lines of trackers and trainers.

The names of common trackers are known (``NAMES``); for any other file the user maps columns
(``mapped``), so that no format is a dead end.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from itertools import chain, islice, pairwise
from typing import Any, cast

from scalebook.errors import CatalogError, IngestError
from scalebook.facts import catalog
from scalebook.logs import setting_lines
from scalebook.logs.collect import Collector
from scalebook.logs.dialects.dialect import RUNS_TABLE, Dialect
from scalebook.logs.job import Job
from scalebook.logs.numbers import MISSING, alternatives, clock_of, has_fraction, number
from scalebook.logs.pairs import TARGETS, cell, seconds_from, tokens_from_totals
from scalebook.logs.source import LONGEST_LINE, Source

_MOST_DEPTH = 4
_MOST_CELLS, _MOST_NAMED = 400, 30


def flat(value: Mapping[str, Any], before: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the cells of a nested object, names joined by ``/``; ``metrics/`` is left out."""
    for key, item in value.items():
        name = f"{before}/{key}" if before not in ("", "metrics", "data", "extras") else str(key)
        if isinstance(item, dict) and depth < _MOST_DEPTH:
            yield from flat(cast("dict[str, Any]", item), name, depth + 1)
        else:
            yield name, item


def cell_value(item: object) -> float:
    """Return the number in a cell, NaN without one."""
    return MISSING if isinstance(item, bool) or item is None else number(str(item))


class Rows(Dialect):
    """A CSV with a header, or JSON lines; a record has a step and a loss, a time or a rate."""

    name = "rows"
    markers = ("step", "Step", "iteration", "Iteration")
    signature = re.compile(r"^\s*(?:(?:DLLL )?\{\s*\"|[^\n{]{1,4000}[,;\t])")
    fine = False  # whether a time stamp had parts of a second

    def __init__(self) -> None:
        super().__init__()
        self.losses = Counter[str]()  # names of the loss, and how often each came

    def series(self, source: Source) -> Iterator[Iterable[dict[str, Any]]]:
        """Yield, for each run, the cells of its records by name; W&B's exports put it in front."""
        rows = self._cells(source)
        ahead = list(islice(rows, 2))  # a header gives nothing
        names, rows = next(filter(None, ahead), dict[str, Any]()), chain(ahead, rows)
        key = next((name for name in names if plain(name) in _RUN), None)
        if key or len({*filter(None, map(_run_of, names))}) > 1:
            rows = list(rows)
        several = (row.get(key) for row in rows) if key else map(_run_of, names)
        runs = [run for run in dict.fromkeys(several) if run]
        if not 1 < len(runs) <= 50:
            yield rows
            return
        for run in runs:
            yield (
                {name: cell for name, cell in cells.items() if _run_of(name) in ("", run) or key}
                for cells in rows
                if not key or cells.get(key) == run
            )

    @classmethod
    def recognises(cls, text: str) -> bool:
        """Whether the first line holds a step and something measured under names known here."""
        first = text.lstrip().partition("\n")[0]
        other = RUNS_TABLE in first or '"global_step/max_steps"' in first  # of ms-swift
        if other or len(first) > 4 * LONGEST_LINE or not cls.signature.search(first):
            return False
        return is_record(_names_of(first, text))

    def read(self, source: Source) -> list[Job]:
        """Return the job of a file.

        Raises:
            IngestError: a column that the user maps is not in the file.
        """
        missing, told, names = set(self.mapping.values()), set[str](), dict[str, None]()
        for place, series in enumerate(self.series(source)):
            self.out.quoted, self.losses = place > 0, Counter[str]()
            last: dict[str, float] = {}
            for cells in series:
                if not cells:
                    self._take(last)
                    self.out.mark()
                    last = {}
                names |= dict.fromkeys(cells) if missing else {}
                missing -= cells.keys()
                new = {n: cells[n] for n in cells.keys() - told if "/" in n or n in _SIZES}
                told |= new.keys()
                tell(self.out, new, weak=True)  # such as cfg/global_batch_size
                row = {} if _evaluates(cells) else self.row(cells)
                if row.get("step", MISSING) == last.get("step") and _agree(row, last):
                    last = {**row, **last}
                else:
                    self._take(last)
                    last = row
            self._take(last)
        if missing and self.mapping:
            raise IngestError(
                f"{source.path} has no column {', '.join(sorted(map(repr, missing)))}. "
                f"It has {', '.join([*names][:_MOST_NAMED])}: --map step_seconds=COLUMN names one."
            )
        for job in self.out.jobs:
            seconds_from(job, "clock", 1e-3 if self.fine else 0.05, "times of the records")
            totals = job.table.column("consumed_tokens")
            still = sum(after <= before for before, after in pairwise(totals))
            if still * 4 > len(totals):  # tokens of a step under the name of a total
                job.table.set_column("consumed_tokens", [MISSING] * len(totals))
            tokens_from_totals(job)
        return self.out.close()

    def row(self, cells: Mapping[str, Any]) -> dict[str, float]:
        """Return the columns of a record."""
        cells = {name: item for name, item in cells.items() if item not in (None, "")}
        row: dict[str, float] = {}
        mapped = {TARGETS[target][0] for target in self.mapping}
        for target, name in (*self.mapping.items(), *_targets(tuple(cells)).items()):
            column, scale = TARGETS[target]
            item = cells.get(name)
            if column in mapped and target not in self.mapping:
                continue
            if column == "loss":  # under another name, as of an epoch, it is another loss
                self.losses[name] += 1
                if self.losses[name] < max(self.losses.values()):
                    continue
            stamp = item if isinstance(item, str) and ":" in item else None
            value = clock_of(stamp) if column == "clock" and stamp else cell_value(item)
            self.fine = self.fine or (stamp is not None and has_fraction(stamp))
            if not math.isnan(value) or (column == "loss" and item is not None):
                row.setdefault(*cell(column, value * scale, "gib" if "_gib" in column else ""))
            elif target == "step" and item is not None:  # such as "mean", under the steps
                return {}
        if row.get("tokens_per_second", 0) > 0 and "tokens_in_step" in row:
            each = row["tokens_in_step"] / row["tokens_per_second"]
            row["seconds"] = each if "ups" in cells else row.get("seconds", each)  # 0.2 of fairseq
        return row

    def _cells(self, source: Source) -> Iterator[dict[str, Any]]:
        """Yield the cells of each row by name; a line that is not a row is counted as broken."""
        header: list[str] | None = None
        between = ","
        for line in (line for text in source.texts() for line in text.split("\n")):
            if not line.strip():
                continue
            if len(line) > 16 * LONGEST_LINE:
                self.out.job.counts.broken_records += 1
                continue
            if text := _json(line):
                yield dict(cells_of(text))
                continue
            between = _between(line) if header is None else between
            cells = _split(line, between)
            if between == ";":  # goes with decimal commas
                cells = [cell if "." in cell else cell.replace(",", ".") for cell in cells]
            if header is None or cells == header:  # said again where a run was added
                header = cells[:_MOST_CELLS]
                yield {}
            elif len(cells) == len(header):
                yield dict(zip(header, cells, strict=True))
            else:
                self.out.job.counts.broken_records += 1

    def _take(self, row: Mapping[str, float]) -> None:
        if row.keys() - _BESIDE or (row and self.mapping):
            self.out.step(row)


_RUN = ("run", "run_id", "run_name", "experiment")  # columns that name the run of a row


def _run_of(name: str) -> str:
    return name.rpartition(" - ")[0]


_SIZES = setting_lines.SIZES.keys()
# They say nothing of what a step took or gave.
_BESIDE = {"step", "clock", "learning_rate", "phase_code"}
_KIND = ("event", "split", "phase", "mode", "stage")


def _evaluates(cells: Mapping[str, Any]) -> bool:
    """Whether a record says that it is of an evaluation."""
    said = (cells.get(name) for name in _KIND)
    return any(str(one).lower().startswith(("eval", "val", "test")) for one in said if one)


def _agree(row: Mapping[str, float], last: Mapping[str, float]) -> bool:
    """Whether two records of one step are parts of one: what both have is the same."""
    both = row.keys() & last.keys() - {"clock"}
    return all(row[name] == last[name] for name in both) and row.keys() != last.keys()


_DEVICES = ("accelerator", "gpu_type", "gpu", "device_name", "gpu_name")
_WORDS: Mapping[str, tuple[str, ...]] = {
    "precision": ("bf16", "fp16", "fp8", "fp32"),
    "recompute": ("none", "selective", "full"),
}
# Hugging Face's batch of one device; its "train_batch_size" is no global batch.
_PER_DEVICE = "per_device_train_batch_size"


def tell(out: Collector, parameters: Mapping[str, object], *, weak: bool = False) -> None:
    """Record what the parameters of a run say of its configuration and of the device."""
    last = {name: name.replace("/", ".").rpartition(".")[2].lower() for name in parameters}
    for name, value in parameters.items():
        short = last[name]
        if short == "train_batch_size" and _PER_DEVICE in last.values():
            continue
        if not isinstance(value, str | int) and weak:
            continue
        text = str(value)[:200].strip()
        line = f"{short}: {text}"
        found = _own(name, text) or _size(short, text) or setting_lines.assigned(line)
        if found:
            out.tell(*found, weak=weak)
        elif weak and isinstance(value, str):
            for one in setting_lines.stated(line):
                out.tell(*one, weak=True)
        if short in _DEVICES and (device := setting_lines.device_in(text)):
            out.device(device)


def _size(name: str, text: str) -> tuple[str, setting_lines.Value] | None:
    """Return a size under the name that it has here."""
    sizes = setting_lines.SIZES.values()
    return (name, int(text)) if name in sizes and text.isdecimal() and len(text) < 16 else None


def _own(name: str, text: str) -> tuple[str, setting_lines.Value] | None:
    """Return a setting of ours that is a word: a model or a platform of the catalog, a format."""
    if text in _WORDS.get(name, ()):
        return name, text
    with suppress(CatalogError):
        if name == "model" and catalog.model(text):
            return name, text
        if name == "platform" and catalog.platform(text).name == text:
            return name, text
    return None


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


_IN_FRONT = re.compile(
    r"^(?:train(?:ing|er)?|perf(?:ormance)?|metrics?|timing|speed|stats|mean|avg|average|median)_(?=.)"
)
_BEHIND = re.compile(r"(?<=.)_(?:window|step|inst|current|pct|mean|avg|average|median)$")


@lru_cache(maxsize=4096)
def plain(name: str) -> str:
    """Return a name in lower case with words joined by ``_``; W&B's export puts the run first."""
    return re.sub(r"[^a-z0-9%]+", "_", name.rpartition(" - ")[2].lower()).strip("_")


_TARGET_OF = {"seconds": "step_seconds", "tflops_per_gpu": "tflops_per_second_per_gpu"}
# Names of trackers and trainers by target, plain; the first that a file has counts.
_OF_LINES = {
    _TARGET_OF.get(ours, ours): theirs for ours, theirs in alternatives("key-value").items()
}
NAMES = {
    ours: tuple(map(plain, (*theirs, *_OF_LINES.pop(ours, ()))))
    for ours, theirs in alternatives("rows").items()
} | {ours: tuple(map(plain, theirs)) for ours, theirs in _OF_LINES.items() if ours != "by_unit"}
_MEASURED = NAMES.keys() - _BESIDE - {"time"}
_EXACT = ("global_batch_size", "time", "tokens_in_step")  # not behind words such as train


@lru_cache(maxsize=4096)
def is_known(name: str) -> bool:
    """Whether a name is that of a column."""
    return bool(_targets((name,)))


def is_record(names: Iterable[str]) -> bool:
    """Whether names are those of a step and of something measured."""
    columns = _targets(tuple(names)).keys()
    return "step" in columns and bool(columns & _MEASURED)


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
        names.update(dict.fromkeys(dict(cells_of(_json(line)))))
    return list(names)


@lru_cache(maxsize=256)
def _targets(names: tuple[str, ...]) -> dict[str, str]:
    """Return, by target, the name of the column that it is read from."""
    low = {plain(name): name for name in reversed(names)}
    bare = {_BEHIND.sub("", _IN_FRONT.sub("", name)): low[name] for name in reversed(low)}
    found: dict[str, str] = {}
    for target, known in NAMES.items():
        there = {**bare, **low} if target not in _EXACT else low
        if one := next((one for one in known if one in there), None):
            found[target] = there[one]
    if found.get("time") == found.get("step_seconds"):  # since the start, by its whole name
        found.pop("step_seconds", None)
    if "tps_per_gpu" in low and "tps" in low:  # NeMo AutoModel: of a GPU and of all
        found["tokens_per_second"] = low["tps"]
    return found


def cells_of(line: str) -> Iterator[tuple[str, Any]]:
    """Yield the cells of a JSON object by name; nothing if it is broken."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return
    if isinstance(value, dict):
        yield from flat(cast("dict[str, Any]", value))
