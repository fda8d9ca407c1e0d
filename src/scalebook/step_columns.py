"""The steps of a run as columns of doubles: a run of millions of steps is read and held whole.

A step is 8 bytes a column instead of an object of 1.5 KB. NaN stands for a number that is missing,
so that whole numbers up to 2**53 and times are exact. ``Steps`` is also a sequence of StepRecord:
each is built when it is asked for.
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache, partial
from itertools import chain
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Annotated, Any, cast, overload

from pydantic import TypeAdapter, ValidationError

from scalebook import host, untrusted
from scalebook.record import LARGEST, PHASES, Phase, StepRecord, finite

Numbers = Sequence[float]  # an array of doubles or a view of one

_WHOLE = ("step", "tokens", "tokens_per_gpu", "restart")
_FIGURES = ("step_seconds", "allocated_gib", "reserved_gib", "expert_load", "checkpoint_seconds")
_LEARNT = ("loss", "grad_norm", "learning_rate")
_PLAIN = (*_WHOLE, *_FIGURES, *_LEARNT)
_NEVER_NONE = ("step", "restart")
_END, _AT, _WIDTH, _PART = "finished_at", "ranks at", "ranks", "part "
_CODES = {phase: code for code, phase in enumerate(PHASES)}
_MOST_NAMED = 20  # lines that are none: a file of others may have millions
_MOST_PARTS = 64  # names of time marks; the trainer has a dozen
_MOST_LEARNT = 1e300
_SHORT = 1000  # values of which a copy is made sooner than a view, and read in a third of the time
_PART_BYTES = 32 * untrusted.MIB  # of a longer file, parts are read at once
_BRIEF = (
    *("phase", "skipped", *_WHOLE, "step_seconds", "allocated_gib", "reserved_gib"),
    *("checkpoint_seconds", "loss"),
)
_EARLIEST, _LATEST = (datetime(year, 1, 2, tzinfo=UTC) for year in (1970, 9998))
_NAN = math.nan


class Steps(Sequence[StepRecord]):
    """Steps in their order; a part of them shares the memory of the whole where it is in a row."""

    def __init__(
        self, columns: Mapping[str, Numbers], phases: bytes, skipped: bytes, ranks: Numbers
    ) -> None:
        """Take whole columns of one length; ``ranks`` holds the rank times of all steps."""
        self._columns, self._phases, self._skipped = columns, phases, skipped
        self._ranks = ranks
        self._known: dict[str, Numbers] = {}  # what was asked for: a look for NaN takes time

    @classmethod
    def of(cls, steps: Iterable[StepRecord]) -> Steps:
        """Return steps as columns, themselves where they are."""
        if isinstance(steps, Steps):
            return steps
        writer = _Writer()
        writer.add_records(list(steps))
        return writer.steps()

    def __len__(self) -> int:
        """Return how many steps there are."""
        return len(self._phases)

    def __eq__(self, other: object) -> bool:
        """Return whether another sequence has equal steps in the same order."""
        if not isinstance(other, Sequence):
            return NotImplemented
        rows = cast("Sequence[object]", other)
        return len(self) == len(rows) and all(a == b for a, b in zip(self, rows, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def numbers(self, name: str) -> Numbers:
        """Return a number of each step by its name, NaN where a step has none."""
        found = self._columns.get(name)
        return array("d", [_missing(name)]) * len(self) if found is None else found

    def known(self, name: str) -> Numbers:
        """Return a number of those steps that have it."""
        if name not in self._known:
            found = self._columns.get(name, ())
            if math.isnan(sum(found)):
                found = array("d", [value for value in found if not math.isnan(value)])
            self._known[name] = found
        return self._known[name]

    def ends(self) -> Numbers:
        """Return when each step ended, in seconds since 1970; NaN where it is not known."""
        return self.numbers(_END)

    def phases(self) -> Iterator[Phase]:
        """Yield the phase of each step."""
        return map(PHASES.__getitem__, self._phases)

    def skipped(self) -> list[bool]:
        """Return whether the optimizer refused each step."""
        return list(map(bool, self._skipped))

    def rank_times(self) -> Iterator[list[float] | None]:
        """Yield the seconds of each rank in each step, by rank; None where it has none."""
        for index in range(len(self)):
            yield list(self._rank_times(index)) or None

    def part_names(self) -> tuple[str, ...]:
        """Return the names of the time marks that any step has."""
        return tuple(name[len(_PART) :] for name in self._columns if name.startswith(_PART))

    def part(self, name: str) -> Numbers:
        """Return the seconds of a time mark in each step."""
        return self.numbers(_PART + name)

    def rank_means(self) -> list[float] | None:
        """Return the mean time of each rank (seconds); None where not every step has each."""
        widths = self._columns.get(_WIDTH, ())
        width = int(max(widths, default=0))
        if not width or min(widths) != width:
            return None
        starts = self._columns[_AT]
        first, last = int(starts[0]), int(starts[-1])
        if last - first == (len(self) - 1) * width:
            flat = self._ranks[first : last + width]
        else:
            flat = array("d", chain.from_iterable(map(self._rank_times, range(len(self)))))
        return [math.fsum(flat[rank::width]) / len(self) for rank in range(width)]

    def select(self, keep: Sequence[int]) -> Steps:
        """Return the steps at these positions, which are in order."""
        if not keep:
            return self._slice(slice(0, 0))
        if keep[-1] - keep[0] == len(keep) - 1:
            return self._slice(slice(keep[0], keep[-1] + 1))
        pick = itemgetter(*keep)  # of two or more: it returns a tuple
        columns = {name: array("d", pick(column)) for name, column in self._columns.items()}
        return Steps(columns, bytes(pick(self._phases)), bytes(pick(self._skipped)), self._ranks)

    def in_phase(self, phase: Phase) -> Steps:
        """Return the steps of a phase."""
        code, phases = _CODES[phase], self._phases
        first, last = phases.find(code), phases.rfind(code)
        if first < 0 or phases.count(code) == last + 1 - first:
            return self._slice(slice(max(first, 0), last + 1))
        return self.select([at for at, one in enumerate(phases) if one == code])

    @overload
    def __getitem__(self, at: int) -> StepRecord: ...
    @overload
    def __getitem__(self, at: slice) -> Steps: ...
    def __getitem__(self, at: int | slice) -> StepRecord | Steps:
        """Return a step, or a part of the steps."""
        if isinstance(at, slice):
            return self._slice(at)
        index = range(len(self))[at]
        values: dict[str, Any] = dict.fromkeys(_PLAIN)
        for name in (*_PLAIN, _END):
            value = self._columns[name][index] if name in self._columns else _NAN
            if not math.isnan(value):
                values[name] = int(value) if name in _WHOLE else value
        values["restart"] = values["restart"] or 0
        if (end := values.pop(_END, None)) is not None:
            values[_END] = _stamp(end)
        parts = {name: self.part(name)[index] for name in self.part_names()}
        return StepRecord.model_construct(
            **values,
            phase=PHASES[self._phases[index]],
            skipped=bool(self._skipped[index]),
            rank_step_seconds=tuple(self._rank_times(index)),
            part_seconds={name: value for name, value in parts.items() if not math.isnan(value)},
        )

    def _slice(self, part: slice) -> Steps:
        if range(len(self))[part] == range(len(self)):
            return self
        whole: dict[str, Any] = dict(self._columns)
        if len(self) > _SHORT:
            whole = {name: memoryview(column) for name, column in whole.items()}
        columns = {name: column[part] for name, column in whole.items()}
        return Steps(columns, self._phases[part], self._skipped[part], self._ranks)

    def _rank_times(self, index: int) -> Numbers:
        if _WIDTH not in self._columns:
            return ()
        start, width = int(self._columns[_AT][index]), int(self._columns[_WIDTH][index])
        return self._ranks[start : start + width]


class _Writer:
    """Columns that grow by batches of rows."""

    def __init__(self) -> None:
        self._count = 0
        self._columns: dict[str, array[float]] = {}
        self._phases, self._skipped = bytearray(), bytearray()
        self._ranks = array("d")

    def steps(self) -> Steps:
        """Return all that was added."""
        self._pad()
        return Steps(self._columns, bytes(self._phases), bytes(self._skipped), self._ranks)

    def add(self, values: Mapping[str, Sequence[Any]], count: int) -> None:
        """Add rows by field; every value is one of its field."""
        found: dict[str, Iterable[float]] = {}
        for name in _PLAIN:
            # a column that nothing was in yet takes no memory for None in all rows
            if not (given := values.get(name)):
                continue
            if given[0] is not None or name in self._columns or given.count(None) < len(given):
                found[name] = _column(name, given)
        phases = bytes(map(_CODES.__getitem__, values["phase"]))
        ends = _ends(values.get(_END, ()))
        if ends and (_END in self._columns or not all(map(math.isnan, ends))):
            found[_END] = ends
        times = values.get("rank_step_seconds", ())
        flat = list(chain.from_iterable(times))
        if flat:
            widths = list(map(len, times))
            start = len(self._ranks)
            found[_WIDTH] = widths
            found[_AT] = (start := start + w for w in (0, *widths[:-1]))
        found |= _parts(values.get("part_seconds", ()), self._columns)
        self._pad()
        self._ranks.extend(flat)
        for name, column in found.items():
            whole = column if isinstance(column, array) else array("d", column)
            if name in self._columns:
                self._columns[name] += whole
            else:
                self._columns[name] = array("d", [_missing(name)]) * self._count + whole
        self._phases += phases
        self._skipped += bytes(values["skipped"])
        self._count += count

    def add_records(self, records: Sequence[StepRecord]) -> None:
        """Add steps that were checked one by one, or built without a check."""
        if records:
            names = StepRecord.model_fields
            values = {name: [getattr(one, name) for one in records] for name in names}
            self.add(values | {name: _held(name, values[name]) for name in _PLAIN}, len(records))

    def joined(self, other: _Writer) -> _Writer:
        """Return the rows of both, in one of the two: the other counts no more."""
        if not self._count:
            return other
        self._pad()
        other._pad()
        if starts := other._columns.get(_AT):
            other._columns[_AT] = array("d", map(len(self._ranks).__add__, map(int, starts)))
        for name, column in other._columns.items():
            if name not in self._columns:
                if name.startswith(_PART) and _parts_in(self._columns) >= _MOST_PARTS:
                    continue
                self._columns[name] = array("d", [_missing(name)]) * self._count
            self._columns[name].extend(column)
        self._ranks.extend(other._ranks)
        self._phases += other._phases
        self._skipped += other._skipped
        self._count += other._count
        return self

    def _pad(self) -> None:
        """Fill up the columns that the last batches had nothing for."""
        for name, column in self._columns.items():
            column.extend(array("d", [_missing(name)]) * (self._count - len(column)))


def _missing(name: str) -> float:
    return 0.0 if name in (_AT, _WIDTH, "restart") else _NAN


def _column(name: str, values: Sequence[Any]) -> array[float]:
    """Return the numbers of a field, NaN for None and for what no sum can hold."""
    try:
        found = array("d", values)
    except TypeError:
        found = array("d", [_NAN if value is None else value for value in values])
    if name in _LEARNT and not (min(found) > -_MOST_LEARNT and max(found) < _MOST_LEARNT):
        found = array("d", [_NAN if (one := finite(value)) is None else one for value in found])
    return found


def _held(name: str, values: Sequence[Any]) -> list[float]:
    """Return the numbers of a field; one that no run has is missing, but not of time and tokens.

    There it is infinite: a step without a time is left out, one with a wrong time is not.
    """
    wrong = math.inf if name in ("step_seconds", "tokens") else _NAN
    most = _MOST_LEARNT if name in _LEARNT else LARGEST
    return [
        _NAN if value is None else value if -most <= value <= most else wrong for value in values
    ]


def _ends(stamps: Sequence[str | None]) -> list[float]:
    """Return seconds since 1970 of ISO 8601 times, NaN for what is none or without its zone."""
    if stamps.count(None) == len(stamps):
        return []
    with suppress(TypeError, ValueError):  # None, no time, or one without its zone
        moments = list(map(datetime.fromisoformat, cast("Sequence[str]", stamps)))
        if min(moments) > _EARLIEST and max(moments) < _LATEST:
            return [moment.timestamp() for moment in moments]
    return [_NAN if stamp is None else _seconds(stamp) for stamp in stamps]


def _seconds(stamp: str) -> float:
    try:
        moment = datetime.fromisoformat(stamp)
    except ValueError:
        return _NAN
    known = moment.tzinfo is not None and moment.year in range(1970, 9999)
    return moment.timestamp() if known else _NAN


def _stamp(seconds: float) -> str:
    moment = datetime.fromtimestamp(seconds, UTC)
    unit = "microseconds" if moment.microsecond % 1000 else "milliseconds"
    return moment.isoformat(timespec=unit)


def _parts(
    rows: Sequence[Mapping[str, float]], before: Mapping[str, object]
) -> dict[str, Sequence[float]]:
    """Return a column of each time mark; those beyond the most names are left out."""
    if not any(rows):
        return {}
    names = dict.fromkeys(chain.from_iterable(rows))
    left = max(_MOST_PARTS - _parts_in(before), 0)
    fresh = [name for name in names if _PART + name not in before][:left]
    kept = [name for name in names if name in fresh or _PART + name in before]
    if len(kept) > 1 and set(map(len, rows)) == {len(names)}:  # each row has all of them
        columns = zip(*map(itemgetter(*kept), rows), strict=True)
    else:
        columns = ([row.get(name, _NAN) for row in rows] for name in kept)
    return {_PART + name: column for name, column in zip(kept, columns, strict=True)}


def _parts_in(columns: Mapping[str, object]) -> int:
    """Return of how many time marks there are columns."""
    return sum(name.startswith(_PART) for name in columns)


def read(path: Path, *, brief: bool = False) -> tuple[Steps, tuple[str, ...]]:
    """Return the readable lines of a steps.jsonl, and a sentence for each of the first others.

    ``brief`` steps have neither ends, times of ranks and parts, nor what only charts show.
    """
    writer, problems, number, left_out = _Writer(), list[str](), 0, 0
    try:
        long = os.lstat(path).st_size > _PART_BYTES
        bounds = untrusted.parts(path, _PART_BYTES) if long else [(0, None)]
        each = partial(_read_part, path, _BRIEF if brief else tuple(StepRecord.model_fields))
        for read_part in host.by_processes(each, bounds, chunk=1) if long else map(each, bounds):
            steps, lines, odd = read_part
            writer = writer.joined(steps)
            named = odd[: max(0, _MOST_NAMED - len(problems))]
            problems += [f"{path.name} line {number + at} is not a step record" for at in named]
            left_out += len(odd) - len(named)
            number += lines
    except FileNotFoundError:
        pass
    except OSError as error:
        problems.append(f"{path.name} cannot be read: {error.strerror}")
    if left_out:
        problems.append(f"{path.name} has {left_out:,} more lines that are not step records")
    return writer.steps(), tuple(problems)


def _read_part(
    path: Path, names: Sequence[str], bounds: tuple[int, int | None]
) -> tuple[_Writer, int, list[int]]:
    """Return the steps of a part of a file, how many lines it has, and which are not steps."""
    writer, odd, number = _Writer(), list[int](), 0
    for block in untrusted.blocks(path, begin=bounds[0], end=bounds[1]):
        lines = block.count(b"\n") + 1
        if not _take(writer, block, lines, names):
            odd += [number + at for at in _take_each(writer, block.split(b"\n"))]
        number += lines
    return writer, number, odd


@cache
def _read_rows() -> Callable[[bytes], Sequence[Any]]:
    """Return what reads a list of steps and takes only what is plainly one.

    Where msgspec is not installed, as in containers that train, pydantic takes longer.
    """
    try:
        import msgspec
    except ModuleNotFoundError:
        return TypeAdapter(list[StepRecord]).validate_json
    whole: Any = Annotated[int, msgspec.Meta(ge=0, le=LARGEST)]
    figure: Any = Annotated[float, msgspec.Meta(ge=-LARGEST, le=LARGEST)]
    kinds: dict[str, Any] = {
        **{name: whole if name in _NEVER_NONE else whole | None for name in _WHOLE},
        **dict.fromkeys(_FIGURES, figure | None),
        **dict.fromkeys(_LEARNT, float | None),
        **{"phase": Phase, "skipped": bool, _END: str | None},
        **{"rank_step_seconds": list[figure], "part_seconds": dict[str, figure]},
    }
    fields: list[Any] = [
        (name, kinds[name], *(() if field.is_required() else (field.default,)))
        for name, field in StepRecord.model_fields.items()
    ]
    rows: Any = list[msgspec.defstruct("Row", fields, gc=False)]  # type: ignore[misc]
    return msgspec.json.Decoder(rows).decode


def _take(writer: _Writer, block: bytes, lines: int, names: Sequence[str]) -> bool:
    """Add these fields of a block of lines at once, if each line is plainly a step."""
    try:
        rows = _read_rows()(b"[" + block.replace(b"\n", b",") + b"]")
    except (ValueError, RecursionError):
        return False
    if len(rows) != lines:
        return False
    values = zip(*map(attrgetter(*names), rows), strict=True)
    writer.add(dict(zip(names, values, strict=True)), lines)
    return True


def _take_each(writer: _Writer, lines: Sequence[bytes]) -> list[int]:
    """Add the steps of lines, each looked at; return the numbers of those that are not steps."""
    steps: list[StepRecord] = []
    odd: list[int] = []
    for number, line in enumerate(lines, start=1):
        try:
            steps.append(StepRecord.model_validate_json(line))
        except ValidationError:
            odd.append(number)
    writer.add_records(steps)
    return odd


def gone_on_from(steps: Steps) -> Steps:
    """Return the steps without those that a later restart went back behind."""
    restarts, numbers = steps.numbers("restart"), steps.numbers("step")
    if not any(restarts):
        return steps
    kept: list[int] = []
    for at, (restart, number) in enumerate(zip(restarts, numbers, strict=True)):
        while kept and restarts[kept[-1]] < restart and numbers[kept[-1]] >= number:
            kept.pop()
        kept.append(at)
    return steps.select(kept)
